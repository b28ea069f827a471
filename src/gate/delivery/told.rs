//! What a first delivery has to tell the winner's own connection.

use std::sync::Arc;

use super::reply::StoredReply;
use crate::domain::admission::DueWin;
use crate::domain::win::Reason;

/// What a winner hears when the first delivery came back, or when the wait for it was over. It is always what the store
/// recorded; if recording is unknown it is [`Told::Queued`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Booked: the order service's reply, kept by the store.
    Won(StoredReply),
    /// Won, and no final word yet.
    Queued,
    /// The order service refused the order; the units went back.
    OrderRefused {
        /// Its reason.
        reason: Reason,
    },
    /// The order ended again (cancelled, expired); the units went back.
    Released {
        /// The order service's reason.
        reason: Reason,
    },
}

/// The first delivery of a win, on behalf of the connection that won it. `A` is the way to the activity's store.
pub trait FirstDelivery<A = crate::gate::activity::Activity>: Send + Sync + 'static {
    /// Delivers and waits for the word at most as long as a winner's connection may wait. Dropping the future does not
    /// end the delivery.
    fn deliver_first(
        &self,
        activity: &Arc<A>,
        win: DueWin,
        traceparent: Option<String>,
    ) -> impl Future<Output = Told> + Send;
}
