//! The pipeline's way to an activity's store: what it asks, apart from who answers.
//!
//! [`Activity`] is the one implementation in production; tests put a scripted one in its place. Generic, so nothing is
//! boxed on the way.

use std::sync::Arc;
use std::time::Instant;

use crate::domain::admission::{Attempt, FoundWin};
use crate::domain::{IdempotencyKey, RequestId, UserId};
use crate::gate::activity::{Activity, Admitted, View};
use crate::gate::store::Guarded;

/// What the public edge asks of one activity.
pub trait AttemptPort: Send + Sync + 'static {
    /// What the last poll showed.
    fn view(&self) -> Arc<View>;
    /// Whether this key may belong to a winner; then no lease may refuse it.
    fn may_be_winner(&self, key: &IdempotencyKey) -> bool;
    /// Sends an attempt to the store; `at` is when its request came.
    fn admit(&self, attempt: Attempt, at: Instant) -> impl Future<Output = Admitted> + Send;
    /// Looks one win up.
    fn find(&self, id: RequestId) -> impl Future<Output = Guarded<Option<FoundWin>>> + Send;
    /// All wins of one user.
    fn wins_of(&self, user: &UserId) -> impl Future<Output = Guarded<Vec<FoundWin>>> + Send;
    /// Resolves when this win was settled or released. Subscribe, then `find`, then await.
    fn change_of(&self, id: RequestId) -> impl Future<Output = ()> + Send + 'static;
}

impl AttemptPort for Activity {
    fn view(&self) -> Arc<View> {
        Activity::view(self)
    }

    fn may_be_winner(&self, key: &IdempotencyKey) -> bool {
        Activity::may_be_winner(self, key)
    }

    fn admit(&self, attempt: Attempt, at: Instant) -> impl Future<Output = Admitted> + Send {
        Activity::admit(self, attempt, at)
    }

    fn find(&self, id: RequestId) -> impl Future<Output = Guarded<Option<FoundWin>>> + Send {
        Activity::find(self, id)
    }

    fn wins_of(&self, user: &UserId) -> impl Future<Output = Guarded<Vec<FoundWin>>> + Send {
        Activity::wins_of(self, user)
    }

    fn change_of(&self, id: RequestId) -> impl Future<Output = ()> + Send + 'static {
        Activity::change_of(self, id)
    }
}
