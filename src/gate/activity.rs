//! One activity on this gate: what its last poll showed, and the way to its store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::domain::admission::{
    Attempt, Barred, Change, Epoch, FoundWin, Guard, KnownWin, Operated, Recorded, Settlement, Verdict,
};
use crate::domain::stock::Stock;
use crate::domain::win::Release;
use crate::domain::{ActivityId, IdempotencyKey, RequestId, SkuId, StoreMs, UserId};
use crate::gate::store::StoreError;

/// How an activity stands for its visitors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before the window.
    Before,
    /// Units may be won.
    Open,
    /// In the window, nothing left (as the lease or the last poll says).
    SoldOut,
    /// After the window.
    Ended,
    /// Paused by an operator, suspect, fenced, not preheated after the start, or not known yet.
    Paused,
}

/// What the last poll showed. Immutable; replaced as a whole.
#[derive(Debug, Clone)]
pub struct View {
    /// `None` until the activity is found preheated.
    pub epoch: Option<Epoch>,
    /// First moment of the sale: from the store once preheated, else from the file.
    pub starts_at: StoreMs,
    /// First moment after the sale.
    pub ends_at: StoreMs,
    /// Units per user.
    pub per_user_limit: u32,
    /// Stock per SKU, in the order of the terms.
    pub stock: Vec<(SkuId, Stock)>,
    /// Why nothing may be won now, if so.
    pub barred: Option<Barred>,
    /// An operator's pause.
    pub paused: bool,
    /// Wins that wait for the order service.
    pub unsettled: u64,
    /// When the oldest of them was won.
    pub oldest_unsettled: Option<StoreMs>,
    /// Until when "nothing left" may be told without asking the store; `None` if it may not.
    pub sold_out_lease_until: Option<Instant>,
}

/// How an attempt fared at the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// The store judged it, at this moment of its clock.
    Judged(Verdict, StoreMs),
    /// Its batch changed nothing; why. (Late and suspect included.)
    Barred(Barred),
    /// Shed before its batch was written.
    Busy,
    /// The store refused the call before executing anything, or the breaker is open.
    Unavailable,
    /// The call may have had its effect.
    Unknown,
}

/// One activity on this gate.
pub struct Activity {
    /// Its name.
    pub id: ActivityId,
    view: ArcSwap<View>,
}

impl Activity {
    /// What the last poll showed.
    pub fn view(&self) -> arc_swap::Guard<Arc<View>> {
        self.view.load()
    }

    /// Whether this key may belong to a winner (a hash of it is among the winners' keys); then no lease may refuse it.
    pub fn may_be_winner(&self, _key: &IdempotencyKey) -> bool {
        unimplemented!("filled by the store room")
    }

    /// Sends an attempt through the combiner.
    pub async fn admit(&self, _attempt: Attempt) -> Admitted {
        unimplemented!("filled by the store room")
    }

    /// Looks one win up.
    pub async fn find(&self, _id: RequestId) -> Result<Option<FoundWin>, StoreError> {
        unimplemented!("filled by the store room")
    }

    /// All wins of one user.
    pub async fn wins_of(&self, _user: &UserId) -> Result<Vec<FoundWin>, StoreError> {
        unimplemented!("filled by the store room")
    }

    /// Resolves when this win was settled or released (here or, as the journal tells, by another gate), or at `until`.
    /// Subscribe first, then `find`, then await: no change is missed.
    #[allow(clippy::manual_async_fn)]
    pub fn change_of(&self, _id: RequestId) -> impl Future<Output = ()> + Send + 'static {
        async { unimplemented!("filled by the store room") }
    }

    /// Records the order service's word; `Err` of a guarded kind if the store was barred.
    pub async fn settle(
        &self,
        _id: RequestId,
        _settlement: Settlement,
    ) -> Result<Result<Recorded, Barred>, StoreError> {
        unimplemented!("filled by the store room")
    }

    /// Gives units back.
    pub async fn release(
        &self,
        _id: RequestId,
        _release: Release,
        _ledger_short: bool,
    ) -> Result<Result<Recorded, Barred>, StoreError> {
        unimplemented!("filled by the store room")
    }

    /// Claims due deliveries (and puts returned units on sale).
    pub async fn claim_due(
        &self,
        _limit: usize,
        _lease: Duration,
    ) -> Result<Result<crate::domain::admission::Claimed, Barred>, StoreError> {
        unimplemented!("filled by the store room")
    }

    /// Makes an operator's change.
    pub async fn operate(&self, _change: Change) -> Result<Result<Operated, Barred>, StoreError> {
        unimplemented!("filled by the store room")
    }
}

impl View {
    /// The phase at `now`.
    pub fn phase(&self, now: StoreMs, _at: Instant) -> Phase {
        let _ = now;
        unimplemented!("filled by the store room")
    }

    /// Whether the lease says that nothing of any SKU is left.
    pub fn lease_says_sold_out(&self, _at: Instant) -> bool {
        unimplemented!("filled by the store room")
    }

    /// Whether the lease says that nothing of this SKU is left.
    pub fn lease_says_sku_sold_out(&self, _sku: &SkuId, _at: Instant) -> bool {
        unimplemented!("filled by the store room")
    }

    /// The stock of one SKU as last polled.
    pub fn stock_of(&self, sku: &SkuId) -> Option<&Stock> {
        self.stock.iter().find(|(name, _)| name == sku).map(|(_, stock)| stock)
    }
}

#[allow(unused)]
fn _uses(_: Guard, _: KnownWin) {}
