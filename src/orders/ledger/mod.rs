//! The ledger: the truth about orders. Its guards and keys are final: even a wrong store cannot oversell it.

pub mod mysql;
mod rows;
mod sql;
pub mod sqlite;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::order::{NewOrder, Order, OrderState, Refusal};
use crate::domain::{ActivityId, RequestId, SkuId};

/// Why the ledger did not do something. Either way nothing of the call was committed, or a repetition is harmless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The database is down, slow, full or busy: never the fault of an order. Try again later.
    #[error("ledger unavailable: {0}")]
    Unavailable(String),
    /// The database takes offence at these very rows.
    #[error("ledger rejected the rows: {0}")]
    Rejected(String),
}

/// What became of one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Booked {
    /// Its row was written and its units counted.
    Booked,
    /// The id is known already, in whatever state; nothing changed.
    Duplicate,
    /// A `refused` row was written.
    Refused(Refusal),
    /// Nothing was written, and it may be delivered again.
    Dropped(Dropped),
}

/// Why an order was dropped unbooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// Won in an epoch before the base from which the store was rebuilt.
    OldEpoch,
    /// The ledger does not know the activity.
    UnknownActivity,
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchBooked {
    /// One entry per order, in order. All in one transaction.
    Done(Vec<Booked>),
    /// A guard or a key failed, so nothing was written: go row by row.
    GoRowByRow,
}

/// What an operator registers for a sale before it is preheated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Units that one user may hold, at least 1.
    pub per_user_limit: u32,
    /// Whether a user whose order ended may buy again.
    pub rebuy_after_release: bool,
    /// How long an order may stay unpaid.
    pub payment_deadline_ms: u64,
    /// Units offered per SKU.
    pub skus: BTreeMap<SkuId, u32>,
}

/// A registration's outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// Written now.
    Created,
    /// The very same was written before, and nothing was ordered yet.
    Already,
    /// The ledger remembers the activity otherwise: at this epoch, with this many rows of orders.
    Conflict {
        /// The epoch it stands at; 0 if it is not known.
        epoch: u64,
        /// Order rows of any state.
        orders: u64,
    },
}

/// The outcome of setting a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TotalSet {
    /// Written now.
    Done,
    /// It stood at the new value.
    Already,
    /// The total is another one.
    OtherTotal(u64),
    /// More than the new total are sold.
    Sold(u64),
    /// No such SKU (or activity).
    Unknown,
}

/// The outcome of a void.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Voided {
    /// The id is void now, or was before.
    Void,
    /// There is an order.
    Exists(Box<Order>),
}

/// How a sale stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActivityReport {
    /// The sale.
    pub activity: ActivityId,
    /// Its store's epoch.
    pub epoch: u64,
    /// Orders of an older epoch are dropped unbooked.
    pub base_epoch: u64,
    /// Units that one user may hold.
    pub per_user_limit: u32,
    /// Whether a user whose order ended may buy again.
    pub rebuy_after_release: bool,
    /// How long an order may stay unpaid.
    pub payment_deadline_ms: u64,
    /// Per SKU.
    pub skus: BTreeMap<SkuId, SkuStock>,
    /// Order rows by state; states without rows are left out.
    pub orders: BTreeMap<String, u64>,
    /// Entries set aside whose ids have not become anything else since.
    pub set_aside: u64,
}

/// The ledger's count of one SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SkuStock {
    /// Units offered.
    pub total: u64,
    /// Units in orders that stand.
    pub sold: u64,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JournalRow {
    /// Position, ascending.
    pub id: u64,
    /// The order; `null` for a change of totals.
    pub request_id: Option<RequestId>,
    /// The SKU.
    pub sku: SkuId,
    /// `book` (changes sold) or `total` (changes total).
    pub kind: String,
    /// By how many units.
    pub delta: i64,
    /// When, in milliseconds of the ledger's clock.
    pub at_ms: u64,
}

/// One order in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderRow {
    /// Names it.
    pub request_id: RequestId,
    /// What was ordered; empty for a void id.
    pub sku: String,
    /// Units; 0 for a void id.
    pub qty: u32,
    /// Whose it is; empty for a void id.
    pub user: String,
    /// `pending`, `paid`, `expired`, `cancelled`, `refused` or `void`.
    pub state: &'static str,
    /// Why it was refused or ended.
    pub reason: String,
    /// When it was written, in milliseconds of the ledger's clock.
    pub created_at_ms: u64,
}

/// What an audit of one sale found; every list is empty when all is well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LedgerAudit {
    /// INV-1: `sku` sold more than its total.
    pub oversold: Vec<Oversold>,
    /// `sold` is not the sum of the orders that stand.
    pub miscounted: Vec<Miscounted>,
    /// INV-3: users whose standing orders exceed the limit.
    pub above_limit: Vec<AboveLimit>,
    /// `purchases` is not the sum of a user's standing orders (only where ended orders give the right back).
    pub purchases_off: Vec<AboveLimit>,
}

impl LedgerAudit {
    /// How many violations there are.
    pub fn violations(&self) -> usize {
        self.oversold.len() + self.miscounted.len() + self.above_limit.len() + self.purchases_off.len()
    }
}

/// A SKU above its total.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Oversold {
    /// The SKU.
    pub sku: String,
    /// Units offered.
    pub total: u64,
    /// Units sold.
    pub sold: u64,
}

/// A SKU whose count differs from its orders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Miscounted {
    /// The SKU.
    pub sku: String,
    /// Units sold as counted.
    pub sold: u64,
    /// Units in standing orders.
    pub in_orders: u64,
    /// Sum of the journal's changes of `sold`.
    pub in_journal: i64,
}

/// A user's units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AboveLimit {
    /// The user.
    pub user: String,
    /// Units in standing orders.
    pub units: u64,
    /// What they are compared with.
    pub allowed: u64,
}

/// An entry that could not be booked and no longer blocks the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// The sale whose stream it came from.
    pub activity: ActivityId,
    /// The queue's name of the entry.
    pub entry: String,
    /// What it said, as far as it could be kept.
    pub content: Vec<u8>,
    /// What was wrong.
    pub error: String,
}

/// An entry set aside, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetAsideRow {
    /// The request id of an order, or the queue's name of an entry that was none.
    pub entry: String,
    /// Whether it is an order: only orders can be put back.
    pub order: bool,
    /// What it said, as text.
    pub content: String,
    /// What was wrong.
    pub error: String,
    /// When it was set aside, in milliseconds of the ledger's clock.
    pub at_ms: u64,
}

/// What intake must know of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// An order, or a void id.
    Order(Box<Order>),
    /// It is set aside: whether it will be an order is not decided.
    SetAside,
    /// Nothing is known of it.
    No,
}

/// Connections of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// In use.
    pub busy: u32,
    /// Open and idle.
    pub idle: u32,
}

/// The ledger's operations. One implementation for MySQL and MariaDB, one for SQLite.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Books a batch in one transaction, or writes nothing.
    async fn book_batch(&self, batch: &[NewOrder]) -> Result<BatchBooked, LedgerError>;

    /// Books or refuses one order in its own transaction.
    async fn book_one(&self, order: &NewOrder) -> Result<Booked, LedgerError>;

    /// Looks an order up.
    async fn find(&self, id: RequestId) -> Result<Option<Order>, LedgerError>;

    /// Makes an id void for ever, unless there is an order.
    async fn void(&self, id: RequestId, activity: Option<&ActivityId>) -> Result<Voided, LedgerError>;

    /// What is known of an id that intake was given; gives up after `within`.
    async fn look_up(&self, activity: &ActivityId, id: RequestId, within: Duration) -> Result<Known, LedgerError>;

    /// Keeps an entry that cannot be booked.
    async fn set_aside(&self, entry: &SetAside) -> Result<(), LedgerError>;

    /// Entries set aside by ascending name, after one, at most `limit`; not those whose ids are orders or void by now.
    async fn list_set_aside(
        &self,
        activity: &ActivityId,
        after: &str,
        limit: u32,
    ) -> Result<Vec<SetAsideRow>, LedgerError>;

    /// Forgets that an id was set aside, so that its next delivery queues it; whether it was.
    async fn put_back(&self, activity: &ActivityId, id: RequestId) -> Result<bool, LedgerError>;

    /// Entries set aside by sale, as [`ActivityReport::set_aside`] counts them; sales without any are left out.
    async fn set_aside_counts(&self) -> Result<Vec<(ActivityId, u64)>, LedgerError>;

    /// Registers a sale: moves its epoch from `from` (0: not known) to `to` and writes its totals, all or nothing.
    async fn register(
        &self,
        activity: &ActivityId,
        terms: &Registration,
        from: u64,
        to: u64,
    ) -> Result<Registered, LedgerError>;

    /// Moves a total from one value to another, not below what is sold.
    async fn set_total(&self, activity: &ActivityId, sku: &SkuId, from: u32, to: u32) -> Result<TotalSet, LedgerError>;

    /// How a sale stands; `None` if it is not known.
    async fn report(&self, activity: &ActivityId) -> Result<Option<ActivityReport>, LedgerError>;

    /// The names of all sales.
    async fn activities(&self) -> Result<Vec<ActivityId>, LedgerError>;

    /// Journal lines after a position, ascending, at most `limit`.
    async fn journal(&self, activity: &ActivityId, after: u64, limit: u32) -> Result<Vec<JournalRow>, LedgerError>;

    /// Orders of a sale by ascending request id, after one, at most `limit`.
    async fn orders(
        &self,
        activity: &ActivityId,
        after: Option<RequestId>,
        limit: u32,
    ) -> Result<Vec<OrderRow>, LedgerError>;

    /// Checks INV-1, INV-3 and that the counts are the sums they claim to be, from one consistent picture.
    async fn audit(&self, activity: &ActivityId) -> Result<LedgerAudit, LedgerError>;

    /// Order rows by sale and state.
    async fn counts(&self) -> Result<Vec<(ActivityId, OrderState, u64)>, LedgerError>;

    /// Whether the database answers.
    async fn ping(&self) -> Result<(), LedgerError>;

    /// Connections in use.
    fn pool_use(&self) -> PoolUse;
}
