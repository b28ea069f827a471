//! What an order is: a win as it waits in the queue, and as it stands in the ledger.

use std::fmt;

use bytes::Bytes;

use crate::domain::{ActivityId, InvalidId, RequestId, SkuId, UserId};

/// A win that asks to be booked, as the ticket vouched for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOrder {
    /// Names the win everywhere.
    pub request_id: RequestId,
    /// The sale.
    pub activity: ActivityId,
    /// What was won.
    pub sku: SkuId,
    /// Units, at least 1.
    pub qty: u32,
    /// Who won.
    pub user: UserId,
    /// The epoch of the store in which it was won.
    pub epoch: u64,
    /// The client's JSON, byte for byte.
    pub payload: Bytes,
}

/// The name of an order: `o` and the 32 hex digits of its request id, so that it is known before it is booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderId(pub RequestId);

impl OrderId {
    /// Reads an order id, or the request id it was made from.
    pub fn parse_either(text: &str) -> Result<OrderId, InvalidId> {
        text.strip_prefix('o').unwrap_or(text).parse().map(OrderId)
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "o{}", self.0)
    }
}

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderState {
    /// Booked, not paid.
    Pending,
    /// Booked and paid.
    Paid,
    /// Was booked; was not paid in time.
    Expired,
    /// Was booked; was cancelled.
    Cancelled,
    /// The ledger could not take it.
    Refused,
    /// There is no order under this id and never will be.
    Void,
}

/// What the gate is told of a known order, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// It stands.
    Booked,
    /// It was never taken: `Seckill-Order: refused`.
    Refused,
    /// It stood once: `Seckill-Order: ended`.
    Ended,
}

impl OrderState {
    /// Every state.
    pub const ALL: [OrderState; 6] = [
        OrderState::Pending,
        OrderState::Paid,
        OrderState::Expired,
        OrderState::Cancelled,
        OrderState::Refused,
        OrderState::Void,
    ];

    /// The name in the ledger, in JSON and in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            OrderState::Pending => "pending",
            OrderState::Paid => "paid",
            OrderState::Expired => "expired",
            OrderState::Cancelled => "cancelled",
            OrderState::Refused => "refused",
            OrderState::Void => "void",
        }
    }

    /// Reads [`OrderState::as_str`] back.
    pub fn parse(name: &str) -> Option<OrderState> {
        OrderState::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// What the gate is told.
    pub fn word(self) -> Word {
        match self {
            OrderState::Pending | OrderState::Paid => Word::Booked,
            // A void id gave no order: its units return just like those of a refused one.
            OrderState::Refused | OrderState::Void => Word::Refused,
            OrderState::Expired | OrderState::Cancelled => Word::Ended,
        }
    }
}

/// Why the ledger could not take an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The activity does not sell this SKU.
    NoSuchSku,
    /// The user holds as much as one user may.
    Limit,
    /// Not enough units left.
    NoStock,
}

impl Refusal {
    /// The name in the ledger and in `Seckill-Reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::NoSuchSku => "no_such_sku",
            Refusal::Limit => "limit",
            Refusal::NoStock => "no_stock",
        }
    }
}

/// An order (or a void id) as the ledger holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Names it.
    pub request_id: RequestId,
    /// The sale; empty for a void id whose sale was not told.
    pub activity: String,
    /// What was ordered; empty for a void id.
    pub sku: String,
    /// Units; 0 for a void id.
    pub qty: u32,
    /// Whose it is; empty for a void id.
    pub user: String,
    /// Where it stands.
    pub state: OrderState,
    /// Why it was refused or ended; empty otherwise.
    pub reason: String,
    /// The store's epoch.
    pub epoch: u64,
    /// The client's JSON, byte for byte.
    pub payload: Bytes,
    /// When the row was written, in milliseconds of the ledger's clock.
    pub created_at_ms: u64,
}

impl Order {
    /// Its order id.
    pub fn order_id(&self) -> OrderId {
        OrderId(self.request_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_found_by_either_of_its_names() {
        let rid: RequestId = "eef43c5759fe9038687e0cf204b6a00f".parse().unwrap();
        assert_eq!(OrderId(rid).to_string(), "oeef43c5759fe9038687e0cf204b6a00f");
        assert_eq!(OrderId::parse_either(&OrderId(rid).to_string()), Ok(OrderId(rid)));
        assert_eq!(OrderId::parse_either(&rid.to_string()), Ok(OrderId(rid)));
        for bad in ["", "o", "oo", "ooeef43c5759fe9038687e0cf204b6a00f", "oEEF43C5759FE9038687E0CF204B6A00F"] {
            assert!(OrderId::parse_either(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn every_state_reads_back_and_has_its_word() {
        let words = OrderState::ALL.map(|state| {
            assert_eq!(OrderState::parse(state.as_str()), Some(state));
            state.word()
        });
        use Word::*;
        assert_eq!(words, [Booked, Booked, Ended, Ended, Refused, Refused]);
    }
}
