//! What a winner may be told: only what the store recorded.

use crate::domain::win::Reason;
use crate::gate::delivery::reply::StoredReply;

/// The answer to a winner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The order stands; this is the order service's reply.
    Won(StoredReply),
    /// Won, but the order service's word is not known or not recorded yet.
    Queued,
    /// The order service refused the order.
    OrderRefused {
        /// In its words.
        reason: Reason,
    },
    /// The order ended, or will never exist.
    Released {
        /// In the order service's words.
        reason: Reason,
    },
}
