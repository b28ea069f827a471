//! What the last poll of an activity showed, and what may be told from it without asking the store.

use std::time::{Duration, Instant};

use crate::domain::admission::{Barred, Epoch, RunId, Terms};
use crate::domain::stock::Stock;
use crate::domain::{SkuId, StoreMs};

/// How often a gate polls each activity.
pub const POLL_EVERY: Duration = Duration::from_millis(250);

/// How long a poll may take: a connection that nobody answers on any more is left behind in time to recognise a restart
/// within a second.
pub const POLL_DEADLINE: Duration = Duration::from_millis(500);

/// How long "nothing left" may be told, from the sending of the poll that saw it.
pub const SOLD_OUT_LEASE: Duration = Duration::from_millis(500);

/// How long units that come back wait before they are on sale again.
pub const RETURNING_DELAY: Duration = Duration::from_secs(1);

// A lease given before units came back must have run out before they are sold, or a gate would call their winner sold out.
const _: () = assert!(RETURNING_DELAY.as_millis() > SOLD_OUT_LEASE.as_millis());
const _: () = assert!(SOLD_OUT_LEASE.as_millis() > POLL_EVERY.as_millis());
const _: () = assert!(POLL_EVERY.as_millis() + POLL_DEADLINE.as_millis() < 1_000);

/// How an activity stands for its visitors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before the window.
    Before,
    /// Units may be won.
    Open,
    /// In the window, nothing left when last polled.
    SoldOut,
    /// After the window.
    Ended,
    /// Paused by an operator, suspect, fenced, not preheated after the start, or not known yet.
    Paused,
}

impl Phase {
    /// The name in `state` replies.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Before => "before",
            Phase::Open => "open",
            Phase::SoldOut => "sold_out",
            Phase::Ended => "ended",
            Phase::Paused => "paused",
        }
    }
}

/// What the last poll showed. Immutable; replaced as a whole.
#[derive(Debug, Clone)]
pub struct View {
    /// Whether the store has answered a poll at all.
    pub reached: bool,
    /// The epoch and the run that this gate vouches for; `None` until the activity is found preheated.
    pub vouched: Option<(Epoch, RunId)>,
    /// First moment of the sale: from the store once preheated, else from the file.
    pub starts_at: StoreMs,
    /// First moment after the sale.
    pub ends_at: StoreMs,
    /// Units per user.
    pub per_user_limit: u32,
    /// How long after the end the store's keys live.
    pub retention: Duration,
    /// Stock per SKU, in the order of the terms.
    pub stock: Vec<(SkuId, Stock)>,
    /// Why nothing may be won now, if so.
    pub barred: Option<Barred>,
    /// An operator's pause.
    pub paused: bool,
    /// Wins that wait for the order service.
    pub unsettled: u64,
    /// How many of them carry a dead mark.
    pub dead: u64,
    /// When the oldest of them was won.
    pub oldest_unsettled: Option<StoreMs>,
    /// The store's clock at the last poll that read the journal to its end: whoever won before is known to be a winner.
    pub winners_known_at: Option<StoreMs>,
    /// Until when "nothing left" may be told without asking the store; `None` if it may not.
    pub sold_out_lease_until: Option<Instant>,
}

impl View {
    /// Before the first poll: the file's word on the window, nothing on the stock.
    pub fn unpolled(terms: &Terms) -> View {
        View {
            reached: false,
            vouched: None,
            starts_at: terms.starts_at,
            ends_at: terms.ends_at,
            per_user_limit: terms.per_user_limit,
            retention: terms.retention,
            stock: terms.skus.iter().map(|(sku, total)| (sku.clone(), Stock::new(*total))).collect(),
            barred: Some(Barred::NotPreheated),
            paused: false,
            unsettled: 0,
            dead: 0,
            oldest_unsettled: None,
            winners_known_at: None,
            sold_out_lease_until: None,
        }
    }

    /// The epoch, once preheated.
    pub fn epoch(&self) -> Option<Epoch> {
        self.vouched.as_ref().map(|(epoch, _)| *epoch)
    }

    /// The phase at `now`, by the store's clock.
    pub fn phase(&self, now: StoreMs) -> Phase {
        if now >= self.ends_at {
            Phase::Ended
        } else if now < self.starts_at {
            Phase::Before
        } else if self.paused || self.barred.is_some() {
            Phase::Paused
        } else if self.stock.iter().all(|(_, stock)| stock.is_exhausted()) {
            Phase::SoldOut
        } else {
            Phase::Open
        }
    }

    /// Whether the sale is over and everybody who won in it is known to this gate: a key that is no winner's never will be.
    pub fn all_winners_are_known(&self, now: StoreMs) -> bool {
        now >= self.ends_at && self.winners_known_at.is_some_and(|at| at >= self.ends_at)
    }

    /// Whether the lease says that nothing of any SKU is left.
    pub fn lease_says_sold_out(&self, at: Instant) -> bool {
        self.lease_holds(at) && self.stock.iter().all(|(_, stock)| stock.is_exhausted())
    }

    /// Whether the lease says that nothing of this SKU is left.
    pub fn lease_says_sku_sold_out(&self, sku: &SkuId, at: Instant) -> bool {
        self.lease_holds(at) && self.stock_of(sku).is_some_and(Stock::is_exhausted)
    }

    fn lease_holds(&self, at: Instant) -> bool {
        self.sold_out_lease_until.is_some_and(|until| at < until)
    }

    /// The stock of one SKU as last polled.
    pub fn stock_of(&self, sku: &SkuId) -> Option<&Stock> {
        self.stock.iter().find(|(name, _)| name == sku).map(|(_, stock)| stock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(left: i64, returning: i64) -> View {
        let terms = Terms {
            epoch: Epoch(1),
            starts_at: StoreMs(100),
            ends_at: StoreMs(200),
            per_user_limit: 1,
            rebuy_after_release: true,
            retention: Duration::ZERO,
            skus: vec![("a".parse().unwrap(), 9)],
        };
        let mut view = View { barred: None, ..View::unpolled(&terms) };
        view.stock[0].1 = Stock { left, returning, ..view.stock[0].1 };
        view
    }

    #[test]
    fn the_phase_follows_the_window_then_the_bars_then_the_stock() {
        let rows = [
            (99, false, 5, Phase::Before),
            (100, false, 5, Phase::Open),
            (199, false, 0, Phase::SoldOut),
            (199, true, 5, Phase::Paused),
            (200, true, 5, Phase::Ended),
        ];
        for (now, paused, left, phase) in rows {
            assert_eq!(View { paused, ..view(left, 0) }.phase(StoreMs(now)), phase, "at {now}");
        }
        assert_eq!(view(0, 1).phase(StoreMs(150)), Phase::Open, "units are on their way back");
    }

    #[test]
    fn sold_out_is_told_under_a_lease_only() {
        let at = crate::platform::clock::monotonic();
        let sku = "a".parse().unwrap();
        let leased =
            |left, returning| View { sold_out_lease_until: Some(at + SOLD_OUT_LEASE), ..view(left, returning) };
        assert!(leased(0, 0).lease_says_sold_out(at) && leased(0, 0).lease_says_sku_sold_out(&sku, at));
        assert!(!leased(0, 0).lease_says_sold_out(at + SOLD_OUT_LEASE), "the lease has run out");
        assert!(!leased(0, 1).lease_says_sold_out(at), "units are on their way back");
        assert!(!leased(1, 0).lease_says_sku_sold_out(&sku, at));
        assert!(!view(0, 0).lease_says_sold_out(at), "there is no lease");
    }
}
