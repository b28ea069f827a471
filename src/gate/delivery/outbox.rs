//! The part of an activity that delivery needs. A trait, so that couriers are tested without a store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::admission::{Claimed, Recorded, Settlement};
use crate::domain::win::Release;
use crate::domain::{ActivityId, RequestId};
use crate::gate::activity::{Activity, View};

pub use crate::gate::activity::Guarded;

/// Wins that wait for the order service, and the way to record its word.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// The activity's name.
    fn id(&self) -> &ActivityId;
    /// What the last poll showed.
    fn view(&self) -> Arc<View>;
    /// The keys in which the file differs from what was preheated, which counts.
    fn file_differs(&self) -> Arc<Vec<String>> {
        Arc::default()
    }
    /// Records the order service's word.
    async fn settle(&self, id: RequestId, settlement: Settlement) -> Guarded<Recorded>;
    /// Gives units back on the order service's word.
    async fn release(&self, id: RequestId, release: Release) -> Guarded<Recorded>;
    /// Leases due wins, at most `limit` (which may be 0), puts returned units on sale, and, if the order service is
    /// `unanswered`, marks wins dead that it has kept waiting for too long.
    async fn claim_due(&self, limit: usize, lease: Duration, unanswered: bool) -> Guarded<Claimed>;
}

#[async_trait]
impl Outbox for Activity {
    fn id(&self) -> &ActivityId {
        &self.id
    }
    fn view(&self) -> Arc<View> {
        Activity::view(self)
    }
    fn file_differs(&self) -> Arc<Vec<String>> {
        self.file.differs()
    }
    async fn settle(&self, id: RequestId, settlement: Settlement) -> Guarded<Recorded> {
        Activity::settle(self, id, settlement).await
    }
    async fn release(&self, id: RequestId, release: Release) -> Guarded<Recorded> {
        Activity::release(self, id, release).await
    }
    async fn claim_due(&self, limit: usize, lease: Duration, unanswered: bool) -> Guarded<Claimed> {
        Activity::claim_due(self, limit, lease, unanswered).await
    }
}
