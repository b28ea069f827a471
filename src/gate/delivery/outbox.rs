//! The part of an activity that delivery needs. A trait, so that couriers are tested without a store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::admission::{Barred, Claimed, Recorded, Settlement};
use crate::domain::backoff::Backoff;
use crate::domain::win::Release;
use crate::domain::{ActivityId, RequestId};
use crate::gate::activity::{Activity, View};
use crate::gate::store::StoreError;

/// What a guarded call to the store gives: no answer, barred, or the answer.
pub type Guarded<T> = Result<Result<T, Barred>, StoreError>;

/// Wins that wait for the order service, and the way to record its word.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// The activity's name.
    fn id(&self) -> &ActivityId;
    /// What the last poll showed.
    fn view(&self) -> Arc<View>;
    /// Records the order service's word.
    async fn settle(&self, id: RequestId, settlement: Settlement) -> Guarded<Recorded>;
    /// Gives units back on the order service's word.
    async fn release(&self, id: RequestId, release: Release, ledger_short: bool) -> Guarded<Recorded>;
    /// Leases due wins, at most `limit` (which may be 0), and puts returned units on sale.
    async fn claim_due(&self, limit: usize, lease: Duration) -> Guarded<Claimed>;
}

/// After a 202: soon again, so that a winner hears within a second of the booking.
pub const AFTER_QUEUED: Backoff = Backoff { first: Duration::from_millis(300), cap: Duration::from_secs(5) };

/// After no definite word.
pub const AFTER_UNKNOWN: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(10) };

/// When to deliver again after this settlement.
pub fn backoff_after(settlement: &Settlement) -> Backoff {
    match settlement {
        Settlement::Queued { .. } => AFTER_QUEUED,
        // A booked win leaves the outbox; the value is never used.
        Settlement::Unknown | Settlement::Booked { .. } => AFTER_UNKNOWN,
    }
}

#[async_trait]
impl Outbox for Activity {
    fn id(&self) -> &ActivityId {
        &self.id
    }
    fn view(&self) -> Arc<View> {
        Arc::clone(&Activity::view(self))
    }
    async fn settle(&self, id: RequestId, settlement: Settlement) -> Guarded<Recorded> {
        Activity::settle(self, id, settlement).await
    }
    async fn release(&self, id: RequestId, release: Release, ledger_short: bool) -> Guarded<Recorded> {
        Activity::release(self, id, release, ledger_short).await
    }
    async fn claim_due(&self, limit: usize, lease: Duration) -> Guarded<Claimed> {
        Activity::claim_due(self, limit, lease).await
    }
}
