//! What the admin listener acts on. All of it comes in as arguments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use axum::extract::FromRef;
use tokio_util::task::TaskTracker;

use super::problem::Problem;
use crate::domain::admission::{
    ActivityState, Barred, Change, FoundWin, JournalCursor, Operated, Poll, Polled, PolledActivity, Terms,
};
use crate::domain::dead_letters::{DeadPage, Retried};
use crate::domain::{ActivityId, GateId, RequestId, StoreMs};
use crate::gate::activity::{Activity, Phase};
use crate::gate::delivery::conflicts::Conflicts;
use crate::gate::delivery::outbox::{Guarded, Outbox};
use crate::gate::ledger::LedgerAccess;
use crate::gate::reload::Reloader;
use crate::gate::store::{AdmissionStore, StoreError};
use crate::platform::clock::StoreClock;
use crate::platform::shutdown::{Shutdown, Stage};

/// The part of an activity that an operator needs.
#[async_trait]
pub trait Operable: Outbox {
    /// How it stands for its visitors.
    fn phase(&self, now: StoreMs) -> Phase;
    /// Asks the store how it stands, now rather than at the next poll.
    async fn poll_now(&self);
    /// Makes an operator's change.
    async fn operate(&self, change: Change) -> Guarded<Operated>;
    /// Makes wins due for delivery now.
    async fn retry(&self, ids: &[RequestId]) -> Guarded<Vec<Retried>>;
}

#[async_trait]
impl Operable for Activity {
    fn phase(&self, now: StoreMs) -> Phase {
        Activity::view(self).phase(now)
    }
    async fn poll_now(&self) {
        Activity::poll_now(self).await;
    }
    async fn operate(&self, change: Change) -> Guarded<Operated> {
        Activity::operate(self, change).await
    }
    async fn retry(&self, ids: &[RequestId]) -> Guarded<Vec<Retried>> {
        Activity::retry(self, ids).await
    }
}

/// One configured activity.
pub struct Managed {
    /// The activity on this gate.
    pub activity: Arc<dyn Operable>,
    /// What the file says; its epoch is the first, 1.
    pub terms: Terms,
    /// How long an order may stay unpaid.
    pub payment_deadline: Duration,
}

impl Managed {
    /// Why the store refuses, as it is told here: one that this gate has followed, and that is not there, was lost. Whether
    /// it was only kept no longer is for the gate's watch to tell.
    pub fn problem(&self, barred: Barred) -> Problem {
        let known_to_be_none = self.activity.view().barred == Some(Barred::NotPreheated);
        match barred {
            Barred::NotPreheated if known_to_be_none => Problem::not_preheated(self.activity.id()),
            Barred::NotPreheated => Barred::Fenced.into(),
            other => other.into(),
        }
    }
}

/// Everything the admin listener acts on.
pub struct AdminWorld {
    /// The configured activities.
    pub activities: BTreeMap<ActivityId, Managed>,
    /// The admission store.
    pub store: Arc<dyn AdmissionStore>,
    /// The ledger, or the file that stands for it.
    pub ledger: Arc<dyn LedgerAccess>,
    /// The store's clock.
    pub clock: Arc<StoreClock>,
    /// The gates of the deployment, by name.
    pub gates: Vec<GateId>,
    /// How long units that come back stay `returning`.
    pub returning_delay: Duration,
    /// Where a word of the order service that contradicts a win is counted.
    pub conflicts: Conflicts,
    /// Whether the public listener is up; one for all worlds, since a reload may come in at any moment.
    pub started: Arc<AtomicBool>,
    /// Changes under way: each is a task of its own, which outlives its request.
    pub under_way: TaskTracker,
    /// The end of the process.
    pub shutdown: Shutdown,
}

/// What the listener acts on now. A reload replaces the whole world at once; each request keeps the one it began with.
#[derive(Clone)]
pub struct AdminState {
    world: Arc<ArcSwap<AdminWorld>>,
    reloader: Option<Arc<Reloader>>,
}

impl AdminState {
    /// A listener's state; without a reloader its gate cannot reload.
    pub fn new(world: Arc<ArcSwap<AdminWorld>>, reloader: Option<Arc<Reloader>>) -> AdminState {
        AdminState { world, reloader }
    }
}

impl From<Arc<AdminWorld>> for AdminState {
    fn from(world: Arc<AdminWorld>) -> AdminState {
        AdminState::new(Arc::new(ArcSwap::new(world)), None)
    }
}

impl FromRef<AdminState> for Arc<AdminWorld> {
    fn from_ref(state: &AdminState) -> Arc<AdminWorld> {
        state.world.load_full()
    }
}

impl FromRef<AdminState> for Option<Arc<Reloader>> {
    fn from_ref(state: &AdminState) -> Option<Arc<Reloader>> {
        state.reloader.clone()
    }
}

impl AdminWorld {
    /// The same world with other activities and gates.
    pub fn with(&self, activities: BTreeMap<ActivityId, Managed>, gates: Vec<GateId>) -> AdminWorld {
        AdminWorld {
            activities,
            store: Arc::clone(&self.store),
            ledger: Arc::clone(&self.ledger),
            clock: Arc::clone(&self.clock),
            gates,
            returning_delay: self.returning_delay,
            conflicts: self.conflicts.clone(),
            started: Arc::clone(&self.started),
            under_way: self.under_way.clone(),
            shutdown: self.shutdown.clone(),
        }
    }

    /// A configured activity by name.
    pub fn managed(&self, name: &str) -> Result<(&ActivityId, &Managed), Problem> {
        self.activities.get_key_value(name).ok_or_else(|| Problem::no_such_activity(name))
    }

    /// The stored activity as it stands, without its wins; `None` if it is not (or not wholly) there. Unlike a snapshot
    /// this costs the store next to nothing, however many wins there are.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn stored(&self, id: &ActivityId) -> Result<Option<ActivityState>, StoreError> {
        Ok(match self.poll(id).await?.activity {
            PolledActivity::Stored(state) => Some(*state),
            PolledActivity::NotPreheated | PolledActivity::Incomplete => None,
        })
    }

    /// The store's clock and run, and the activity as it stands.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn poll(&self, id: &ActivityId) -> Result<Polled, StoreError> {
        let ask = Poll { gate: None, vouched: None, after: JournalCursor::start(), max_entries: 1 };
        self.store.poll(id, &ask).await
    }

    /// One win.
    ///
    /// # Errors
    /// If there is none, if the store does not answer, or if it has lost something: it may have lost just this win.
    pub async fn find(&self, id: &ActivityId, managed: &Managed, win: RequestId) -> Result<FoundWin, Problem> {
        let found = self.store.find(id, &[win]).await?.map_err(|barred| managed.problem(barred))?;
        found.into_iter().next().flatten().ok_or_else(Problem::unknown_win)
    }

    /// A page of the dead letters.
    ///
    /// # Errors
    /// If the store does not answer or has lost something.
    pub async fn dead_letters(
        &self,
        id: &ActivityId,
        managed: &Managed,
        page: &DeadPage,
    ) -> Result<Vec<FoundWin>, Problem> {
        self.store.dead_letters(id, page).await?.map_err(|barred| managed.problem(barred))
    }

    /// To be called when the public listener is up.
    pub fn mark_started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Started and not draining.
    pub fn is_ready(&self) -> bool {
        self.started.load(Ordering::Acquire) && self.shutdown.stage() == Stage::Running
    }
}
