//! What a winner is told of a recorded win, by whichever road.

use std::sync::Arc;

use super::reply::StoredReply;
use crate::domain::admission::{DueWin, KnownWin};
use crate::domain::win::{Release, WinState};

/// What a winner hears: always what the store recorded, and the same to the first request and to every copy of it. If
/// recording is unknown it is [`Told::Queued`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The order stands: the order service's reply, if the store kept one.
    Won(Option<StoredReply>),
    /// Won, and no final word yet.
    Queued,
    /// Won once, and the units went back.
    Ended(Release),
}

impl Told {
    /// What the owner of a recorded win is told.
    pub fn of(known: &KnownWin) -> Told {
        match &known.state {
            WinState::Held => Told::Queued,
            WinState::Accepted => Told::Won(known.reply.as_ref().and_then(StoredReply::decode)),
            WinState::Released(release) => Told::Ended(release.clone()),
        }
    }
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
