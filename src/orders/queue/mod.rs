//! Where accepted orders wait for the consumer. Losing it loses nothing: the gate delivers until the order is booked.

mod entry;
pub mod redis;
pub mod sqlite;

use std::time::Duration;

use async_trait::async_trait;

pub use self::entry::Malformed;
use super::order::NewOrder;
use crate::domain::{ActivityId, RequestId};

/// Orders that may wait per activity. Beyond that intake answers "later", and the gate keeps the order.
pub const MAX_WAITING: u64 = 500_000;
/// Entries handed over at once at most; a Lua call takes no more arguments than a few thousand.
pub const MAX_BATCH: usize = 1_000;

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// Waiting now.
    Queued,
    /// Was waiting already.
    Waiting,
}

/// Why the queue did not do something. A push that fails may still have taken place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Down, slow, or its answer makes no sense.
    #[error("queue unavailable: {0}")]
    Unavailable(String),
    /// [`MAX_WAITING`] is reached.
    #[error("queue full")]
    Full,
}

/// An entry handed to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The sale whose queue it came from.
    pub activity: ActivityId,
    /// The queue's own name of the entry.
    pub entry: String,
    /// The order, or what was found instead.
    pub order: Result<NewOrder, Malformed>,
}

impl Delivery {
    /// The request id, if it could be read.
    pub fn request_id(&self) -> Option<RequestId> {
        self.order.as_ref().ok().map(|order| order.request_id)
    }
}

/// Entries taken over from a process that did not finish them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimed {
    /// What there was.
    pub deliveries: Vec<Delivery>,
    /// Entries that were handed out once but are gone from the queue; the gate will deliver them again.
    pub lost: usize,
}

/// The queue's operations. Several processes may share one queue; an entry may be handed out more than once.
#[async_trait]
pub trait OrderQueue: Send + Sync + 'static {
    /// Lets an order wait, unless it waits already.
    async fn push(&self, order: &NewOrder) -> Result<Pushed, QueueError>;

    /// Hands out up to `max` entries of each of these sales, waiting up to `wait` for the first.
    async fn take(&self, activities: &[ActivityId], max: usize, wait: Duration) -> Result<Vec<Delivery>, QueueError>;

    /// Takes over up to `max` entries per sale that were handed out at least `idle` ago and never finished.
    async fn claim_stale(&self, activities: &[ActivityId], max: usize, idle: Duration) -> Result<Claimed, QueueError>;

    /// Says that these entries are still being worked on, so that nobody claims them as stale.
    async fn keep(&self, deliveries: &[Delivery]) -> Result<(), QueueError>;

    /// Forgets entries for good. Call it after the ledger has committed.
    async fn done(&self, deliveries: &[Delivery]) -> Result<(), QueueError>;

    /// How many entries of a sale are not done.
    async fn lag(&self, activity: &ActivityId) -> Result<u64, QueueError>;

    /// Whether the queue answers.
    async fn ping(&self) -> Result<(), QueueError>;
}
