//! The admission store: the only place where stock is judged and taken, in one atomic step.

pub mod redis;
pub mod sqlite;

use async_trait::async_trait;

use crate::domain::admission::{
    Barred, Batch, ClaimDue, Claimed, FoundWin, Operate, Operated, Poll, Polled, Preheat, Preheated, Recorded,
    ReleaseWin, Reply, Settle, Snapshot, Verdict,
};
use crate::domain::dead_letters::{DeadPage, Retried, Retry};
use crate::domain::{ActivityId, RequestId, UserId};

/// Why a call to the store gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The call had no effect: it was never sent, or the server refused it before executing anything.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The call may have had its effect: a timeout, a lost connection, an answer that makes no sense.
    #[error("store outcome unknown: {0}")]
    Unknown(String),
}

/// What a store gives: its answer, or why it was barred, or why there was no answer.
pub type Guarded<T> = Result<Result<T, Barred>, StoreError>;

/// What a store can do. One implementation for Redis, one for embedded SQLite; the pure model in
/// [`crate::domain::model`] is what both must agree with.
#[async_trait]
pub trait AdmissionStore: Send + Sync + 'static {
    /// Creates an activity's store if there is none; barred if that would not be safe.
    async fn preheat(&self, activity: &ActivityId, preheat: &Preheat) -> Result<Reply<Preheated>, StoreError>;

    /// Judges a batch of attempts and takes the stock of those that win, atomically.
    async fn admit(&self, activity: &ActivityId, batch: &Batch) -> Result<Reply<Vec<Verdict>>, StoreError>;

    /// Records what the order service said of a win.
    async fn settle(&self, activity: &ActivityId, settle: &Settle) -> Result<Reply<Recorded>, StoreError>;

    /// Gives a win's units back, once per request id.
    async fn release(&self, activity: &ActivityId, release: &ReleaseWin) -> Result<Reply<Recorded>, StoreError>;

    /// Leases overdue deliveries, puts returned units on sale, marks wins dead that waited too long to be delivered.
    async fn claim_due(&self, activity: &ActivityId, claim: &ClaimDue) -> Result<Reply<Claimed>, StoreError>;

    /// Makes wins that wait for the order service due now; one answer per id, in order.
    async fn retry(&self, activity: &ActivityId, retry: &Retry) -> Result<Reply<Vec<Retried>>, StoreError>;

    /// Makes an operator's change.
    async fn operate(&self, activity: &ActivityId, operate: &Operate) -> Result<Reply<Operated>, StoreError>;

    /// Tells how the activity stands and what changed since the cursor, and notes that the gate lives.
    async fn poll(&self, activity: &ActivityId, poll: &Poll) -> Result<Polled, StoreError>;

    /// Looks wins up; one entry per id, in order. Barred, as the two below are, by a store that is not there or has lost a
    /// part: what it does not know it may have known.
    async fn find(&self, activity: &ActivityId, ids: &[RequestId]) -> Guarded<Vec<Option<FoundWin>>>;

    /// All wins of one user, in the order in which they were won.
    async fn wins_of(&self, activity: &ActivityId, user: &UserId) -> Guarded<Vec<FoundWin>>;

    /// One page of the dead letters, in the order of their marks; payloads and kept replies are left out.
    async fn dead_letters(&self, activity: &ActivityId, page: &DeadPage) -> Guarded<Vec<FoundWin>>;

    /// The names of all activities that the store holds, wholly or in part. Looks at every key: not for the hot path.
    async fn activities(&self) -> Result<Vec<ActivityId>, StoreError>;

    /// One atomic picture for audits; `None` if the activity is not stored.
    async fn snapshot(&self, activity: &ActivityId) -> Result<Option<Snapshot>, StoreError>;
}
