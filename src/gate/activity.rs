//! One activity on this gate: what its last poll showed, and the guarded way to its store.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use dashmap::DashSet;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use tokio_util::sync::CancellationToken;

use crate::domain::admission::{
    Attempt, Barred, Change, ClaimDue, Claimed, Epoch, FoundWin, Guard, JournalCursor, Operate, Operated, Poll,
    Preheat, Preheated, Recorded, ReleaseWin, Reply, Settle, Settlement, Snapshot, Terms,
};
use crate::domain::backoff::Backoff;
use crate::domain::dead_letters::{DeadLetterPolicy, Retried, Retry};
use crate::domain::win::Release;
use crate::domain::{ActivityId, GateId, IdempotencyKey, RequestId, StoreMs, UserId};
pub use crate::gate::combiner::Admitted;
use crate::gate::combiner::{Combiner, Parts};
use crate::gate::file_terms::FileTerms;
pub use crate::gate::store::Guarded;
use crate::gate::store::{AdmissionStore, StoreError};
use crate::gate::view::RETURNING_DELAY;
pub use crate::gate::view::{Phase, View};
use crate::gate::waiters::Waiters;
use crate::gate::watch::Watch;
use crate::gate::win_log::{LogFirst, LoggedWin, NotLogged};
use crate::platform::clock::StoreClock;
use crate::platform::metrics::{BATCH_SIZES, CALL_SECONDS, Metrics};

/// After a 202 the order service is asked again soon, so that a winner hears within a second of the booking.
const AFTER_QUEUED: Backoff = Backoff { first: Duration::from_millis(300), cap: Duration::from_secs(5) };

/// After no definite word the order service is given time to recover.
const AFTER_UNKNOWN: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(10) };

/// What an activity needs of its gate.
#[derive(Clone)]
pub struct World {
    /// This gate.
    pub gate: GateId,
    /// Where stock is judged and taken.
    pub store: Arc<dyn AdmissionStore>,
    /// The store's clock.
    pub clock: Arc<StoreClock>,
    /// Where wins are kept before they leave the gate.
    pub wins: Arc<LogFirst>,
    /// Deadline of one call to the store.
    pub store_deadline: Duration,
    /// Attempts that may wait per activity.
    pub queue: usize,
    /// How long the first delivery of a win may take before the relay may claim it.
    pub first_delivery_lease: Duration,
    /// When a win is called dead, and how it is delivered then.
    pub dead_letters: DeadLetterPolicy,
    /// Metrics of all activities.
    pub metrics: Arc<StoreMetrics>,
}

/// Metrics of all activities, by activity.
pub struct StoreMetrics {
    batch_size: HistogramVec,
    store_seconds: HistogramVec,
    polls: IntCounterVec,
    barred: IntGaugeVec,
}

/// The labels of `seckill_store_polls_total`.
const POLL_RESULTS: [&str; 2] = ["ok", "failed"];

/// Why an activity wins nobody anything on this gate: the labels of `seckill_activity_barred`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BarredBecause {
    NotPreheated,
    Suspect,
    Fenced,
    /// The last poll was not answered.
    Unreachable,
    /// This gate's own log of wins has failed.
    WinLog,
}

impl BarredBecause {
    const LABELS: [&str; 5] = ["not_preheated", "suspect", "fenced", "unreachable", "win_log"];
}

impl StoreMetrics {
    /// Registers them; fails if their names are taken.
    pub fn register(metrics: &Metrics) -> prometheus::Result<StoreMetrics> {
        Ok(StoreMetrics {
            batch_size: metrics.histograms(
                "seckill_store_batch_size",
                "Attempts per call to the admission store.",
                &["activity"],
                BATCH_SIZES,
            )?,
            store_seconds: metrics.histograms(
                "seckill_store_admit_duration_seconds",
                "Time of one admission call to the store.",
                &["activity"],
                CALL_SECONDS,
            )?,
            polls: metrics.counters(
                "seckill_store_polls_total",
                "Polls of an activity's store, by result.",
                &["activity", "result"],
            )?,
            barred: metrics.int_gauges(
                "seckill_activity_barred",
                "1 while nobody can win on this gate, by reason; an operator's pause is none of them.",
                &["activity", "reason"],
            )?,
        })
    }

    /// Forgets the series of an activity that has stopped: its gauges would stand as they were for ever.
    pub fn retire(&self, activity: &ActivityId) {
        let id = activity.as_str();
        // An error says only that there was none.
        _ = (self.batch_size.remove_label_values(&[id]), self.store_seconds.remove_label_values(&[id]));
        for result in POLL_RESULTS {
            _ = self.polls.remove_label_values(&[id, result]);
        }
        for reason in BarredBecause::LABELS {
            _ = self.barred.remove_label_values(&[id, reason]);
        }
    }
}

/// The metrics of one activity, looked up once.
pub(super) struct ActivityMetrics {
    pub(super) polls_ok: IntCounter,
    pub(super) polls_failed: IntCounter,
    barred: [IntGauge; BarredBecause::LABELS.len()],
}

impl ActivityMetrics {
    pub(super) fn show(&self, because: BarredBecause, holds: bool) {
        self.barred[because as usize].set(i64::from(holds));
    }
}

/// One activity on this gate.
pub struct Activity {
    /// Its name.
    pub id: ActivityId,
    /// What the file says of it. Once preheated, the store's word counts.
    pub file: FileTerms,
    pub(super) gate: GateId,
    pub(super) store: Arc<dyn AdmissionStore>,
    pub(super) clock: Arc<StoreClock>,
    pub(super) waiters: Waiters,
    pub(super) metrics: ActivityMetrics,
    pub(super) wins: Arc<LogFirst>,
    /// Held while a poll is under way: of two replies that overtake each other, the older one would count.
    pub(super) polling: tokio::sync::Mutex<()>,
    store_deadline: Duration,
    dead_letters: DeadLetterPolicy,
    view: ArcSwap<View>,
    combiner: Combiner,
    /// Hashes of winners' keys: a superset is harmless, a missing one is not.
    winners: DashSet<u64>,
    hasher: RandomState,
}

impl Activity {
    /// Starts the activity's combiner and its polls on the current runtime; they end with `cancelled`.
    pub fn start(id: ActivityId, file_terms: Terms, world: &World, cancelled: CancellationToken) -> Arc<Activity> {
        let label = [id.as_str()];
        let batch_size: Histogram = world.metrics.batch_size.with_label_values(&label);
        let store_seconds: Histogram = world.metrics.store_seconds.with_label_values(&label);
        let [polls_ok, polls_failed] =
            POLL_RESULTS.map(|result| world.metrics.polls.with_label_values(&[id.as_str(), result]));
        let barred = BarredBecause::LABELS.map(|why| world.metrics.barred.with_label_values(&[id.as_str(), why]));
        let metrics = ActivityMetrics { polls_ok, polls_failed, barred };
        let activity = Arc::new_cyclic(|this: &Weak<Activity>| {
            let this = this.clone();
            let combiner = Combiner::start(Parts {
                activity: id.clone(),
                store: Arc::clone(&world.store),
                clock: Arc::clone(&world.clock),
                guard: Box::new(move |not_after| {
                    this.upgrade().map_or(Err(Admitted::Busy), |this| this.admission_guard(not_after))
                }),
                wins: Arc::clone(&world.wins),
                deadline: world.store_deadline,
                first_delivery_lease: world.first_delivery_lease,
                queue: world.queue,
                batch_size,
                store_seconds,
            });
            Activity {
                view: ArcSwap::from_pointee(View::unpolled(&file_terms)),
                id,
                file: FileTerms::new(file_terms),
                gate: world.gate.clone(),
                store: Arc::clone(&world.store),
                clock: Arc::clone(&world.clock),
                waiters: Waiters::default(),
                metrics,
                wins: Arc::clone(&world.wins),
                polling: tokio::sync::Mutex::new(()),
                store_deadline: world.store_deadline,
                dead_letters: world.dead_letters,
                combiner,
                winners: DashSet::new(),
                hasher: RandomState::new(),
            }
        });
        tokio::spawn(Watch::new().run(Arc::clone(&activity), cancelled));
        activity
    }

    /// What the last poll showed.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Whether this key may belong to a winner; then no lease may refuse it.
    pub fn may_be_winner(&self, key: &IdempotencyKey) -> bool {
        self.winners.contains(&self.hasher.hash_one(key))
    }

    /// Sends an attempt through the combiner; `at` is when its request came.
    pub async fn admit(&self, attempt: Attempt, at: Instant) -> Admitted {
        self.combiner.admit(attempt, at).await
    }

    /// Looks one win up.
    pub async fn find(&self, id: RequestId) -> Guarded<Option<FoundWin>> {
        let found = self.store.find(&self.id, &[id]).await?.map(|found| found.into_iter().next().flatten());
        self.keep(&mut found.iter().flatten().map(LoggedWin::from)).await.map_err(untold)?;
        Ok(found)
    }

    /// All wins of one user, oldest first.
    pub async fn wins_of(&self, user: &UserId) -> Guarded<Vec<FoundWin>> {
        let found = self.store.wins_of(&self.id, user).await?;
        self.keep(&mut found.iter().flatten().map(LoggedWin::from)).await.map_err(untold)?;
        Ok(found)
    }

    /// Resolves when this win was settled or released, here or (as the journal tells) by another gate. Subscribe first,
    /// then [`Activity::find`], then await: so no change is missed.
    pub fn change_of(&self, id: RequestId) -> impl Future<Output = ()> + Send + use<> {
        self.waiters.subscribe(id)
    }

    /// Records a word of the order service that gives no units back.
    pub async fn settle(&self, id: RequestId, settlement: Settlement) -> Guarded<Recorded> {
        let Some(guard) = self.guard_now() else { return Ok(Err(Barred::NotPreheated)) };
        let backoff = match settlement {
            Settlement::Unknown => AFTER_UNKNOWN,
            Settlement::Queued { .. } | Settlement::Booked { .. } => AFTER_QUEUED,
        };
        let settle = Settle { guard, request_id: id, settlement, backoff, dead_letters: self.dead_letters };
        let reply = self.store.settle(&self.id, &settle).await?;
        Ok(self.tell_if_changed(id, reply))
    }

    /// Gives units back on the order service's word.
    pub async fn release(&self, id: RequestId, release: Release) -> Guarded<Recorded> {
        let Some(guard) = self.guard_now() else { return Ok(Err(Barred::NotPreheated)) };
        let ledger_short = release.ledger_was_short();
        let release = ReleaseWin { guard, request_id: id, release, ledger_short, returning_delay: RETURNING_DELAY };
        let reply = self.store.release(&self.id, &release).await?;
        Ok(self.tell_if_changed(id, reply))
    }

    /// Leases up to `limit` overdue deliveries for `lease`, puts returned units on sale, and, if the order service is
    /// `unanswered`, marks wins dead that it has kept waiting for too long.
    pub async fn claim_due(&self, limit: usize, lease: Duration, unanswered: bool) -> Guarded<Claimed> {
        let Some(guard) = self.guard_now() else { return Ok(Err(Barred::NotPreheated)) };
        let mark_dead = unanswered.then_some(self.dead_letters);
        let claim = ClaimDue { guard, limit, lease, mark_dead };
        let outcome = self.store.claim_due(&self.id, &claim).await?.outcome;
        if let Ok(claimed) = &outcome {
            // What may not be delivered from here falls due again when its lease is over.
            self.keep(&mut claimed.wins.iter().map(LoggedWin::from)).await.map_err(untold)?;
        }
        Ok(outcome)
    }

    /// Makes wins due for delivery now.
    pub async fn retry(&self, ids: &[RequestId]) -> Guarded<Vec<Retried>> {
        let Some(guard) = self.guard_now() else { return Ok(Err(Barred::NotPreheated)) };
        Ok(self.store.retry(&self.id, &Retry { guard, ids: ids.to_vec() }).await?.outcome)
    }

    /// Makes an operator's change.
    pub async fn operate(&self, change: Change) -> Guarded<Operated> {
        let Some(guard) = self.guard_now() else { return Ok(Err(Barred::NotPreheated)) };
        Ok(self.store.operate(&self.id, &Operate { guard, change }).await?.outcome)
    }

    /// Creates the activity's store, if there is none. Without a ledger, which the admin listener asks first: for tests.
    pub async fn preheat(&self, terms: &Terms) -> Guarded<Preheated> {
        let ask = Poll { gate: None, vouched: None, after: JournalCursor::start(), max_entries: 1 };
        let polled = self.store.poll(&self.id, &ask).await?;
        let not_after = polled.now.after(self.store_deadline);
        let preheat = Preheat { run_id: polled.server_run, not_after, terms: terms.clone() };
        let outcome = self.store.preheat(&self.id, &preheat).await?.outcome;
        if outcome == Ok(Preheated::Created) {
            self.poll_now().await;
        }
        Ok(outcome)
    }

    /// Asks the store how it stands, for whoever has just preheated it: they expect this gate to know.
    pub async fn poll_now(&self) {
        Watch::new().poll(self).await;
    }

    /// One atomic picture for audits.
    pub async fn snapshot(&self) -> Result<Option<Snapshot>, StoreError> {
        self.store.snapshot(&self.id).await
    }

    /// Resolves when these wins may leave the gate.
    fn keep(
        &self,
        wins: &mut (dyn Iterator<Item = LoggedWin<'_>> + Send),
    ) -> impl Future<Output = Result<(), NotLogged>> + Send + use<'_> {
        // Where a win was found, an epoch is known; 0 stands for none.
        let epoch = self.view.load().epoch().unwrap_or(Epoch(0));
        self.wins.keep(&self.id, epoch, wins)
    }

    pub(super) fn publish(&self, view: View) {
        self.view.store(Arc::new(view));
    }

    pub(super) fn remember_winner(&self, key: &IdempotencyKey) {
        self.winners.insert(self.hasher.hash_one(key));
    }

    /// What every changing call is told.
    fn guard(&self, not_after: StoreMs) -> Option<Guard> {
        let view = self.view.load();
        let (epoch, run_id) = view.vouched.clone()?;
        Some(Guard { epoch, run_id, not_after })
    }

    /// The same for attempts: while the store was never heard, it is unavailable; nothing else is known.
    fn admission_guard(&self, not_after: StoreMs) -> Result<Guard, Admitted> {
        let unknown = || match self.view.load().reached {
            true => Admitted::Barred(Barred::NotPreheated),
            false => Admitted::Unavailable,
        };
        self.guard(not_after).ok_or_else(unknown)
    }

    fn guard_now(&self) -> Option<Guard> {
        self.guard(self.clock.now().store.after(self.store_deadline))
    }

    fn tell_if_changed(&self, id: RequestId, reply: Reply<Recorded>) -> Result<Recorded, Barred> {
        if let Ok(Recorded::Applied(_)) = reply.outcome {
            self.waiters.tell(&id);
        }
        reply.outcome
    }
}

fn untold(error: NotLogged) -> StoreError {
    StoreError::Unknown(error.to_string())
}
