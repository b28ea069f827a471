//! Delivers a win, records the order service's word, and says what may be told. First try and relay both come here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::domain::admission::{DueWin, Recorded, Settlement};
use crate::domain::win::WinState;
use crate::domain::{ActivityId, RequestId};
use crate::gate::delivery::backlog::{self, Backlog, Deferred};
use crate::gate::delivery::client::OrderClient;
use crate::gate::delivery::conflicts::Conflicts;
use crate::gate::delivery::lanes::{Errand, Lanes, NoPermit, Permit};
use crate::gate::delivery::metrics::DeliveryMetrics;
use crate::gate::delivery::outbox::{Guarded, Outbox};
use crate::gate::delivery::ticket::TicketSigner;
use crate::gate::delivery::told::{FirstDelivery, Told};
use crate::gate::delivery::word::Word;
use crate::gate::store::StoreError;
use crate::platform::breaker::BreakerMetrics;
use crate::platform::clock::{monotonic, wall_ms};

/// How long after a delivery's deadline its word may take to be recorded before another gate delivers again.
const RECORDING: Duration = Duration::from_secs(2);

/// How many deliveries may be under way, and how long a winner's connection waits.
#[derive(Debug, Clone, Copy)]
pub struct CourierOptions {
    /// Deliveries under way at once, first tries and relay together.
    pub max_in_flight: usize,
    /// After this time a winner is told QUEUED, while the delivery goes on.
    pub answer_within: Duration,
}

/// One per gate, shared by its activities. Clones share everything.
#[derive(Clone)]
pub struct Courier {
    inner: Arc<Inner>,
}

struct Inner {
    client: OrderClient,
    signer: Arc<TicketSigner>,
    lanes: Arc<Lanes>,
    options: CourierOptions,
    under_way: TaskTracker,
    metrics: DeliveryMetrics,
    backlog: mpsc::Sender<Deferred>,
}

impl Courier {
    /// A courier, and the backlog that is to be run beside it.
    pub fn new(
        client: OrderClient,
        signer: Arc<TicketSigner>,
        options: CourierOptions,
        metrics: DeliveryMetrics,
        breakers: &BreakerMetrics,
    ) -> (Courier, Backlog) {
        let lanes = Lanes::new(options.max_in_flight, breakers.clone());
        let under_way = TaskTracker::new();
        let (backlog, waiting) = mpsc::channel(backlog::CAPACITY);
        let inner = Inner { client, signer, lanes, options, under_way, metrics, backlog };
        (Courier { inner: Arc::new(inner) }, Backlog { waiting })
    }

    /// The public keys of the tickets, as a JWK set.
    pub fn jwks(&self) -> Bytes {
        self.inner.signer.jwks()
    }

    /// Opens the activity's lane and shows its conflicts from the start.
    pub fn announce(&self, activity: &ActivityId) {
        self.inner.lanes.announce(activity);
        self.inner.metrics.conflicts.announce(activity);
    }

    /// Where conflicts are counted, for those who bring words of the order service by another way.
    pub fn conflicts(&self) -> Conflicts {
        self.inner.metrics.conflicts.clone()
    }

    /// Closes the lane of an activity that has stopped, and forgets its series.
    pub fn retire(&self, activity: &ActivityId) {
        self.inner.lanes.retire(activity);
        self.inner.metrics.conflicts.retire(activity);
    }

    /// The deadline of one delivery.
    pub fn deadline(&self) -> Duration {
        self.inner.client.deadline()
    }

    /// A permit, if there is one for this activity.
    pub fn try_permit(&self, activity: &ActivityId, errand: Errand) -> Result<Permit, NoPermit> {
        self.inner.lanes.try_permit(activity, errand)
    }

    /// Whether the order service does not answer for this activity: its breaker is open.
    pub fn is_unanswered(&self, activity: &ActivityId) -> bool {
        self.inner.lanes.is_unanswered(activity)
    }

    /// Resolves when a permit has been given back since the last time.
    pub async fn freed(&self) {
        self.inner.lanes.freed().await;
    }

    /// How long a delivery and the recording of its word may take: nobody else may claim the win before.
    pub fn lease(&self) -> Duration {
        self.deadline() + RECORDING
    }

    /// Starts a delivery in a task of its own.
    pub fn start(
        &self,
        outbox: Arc<dyn Outbox>,
        win: DueWin,
        traceparent: Option<String>,
        mut permit: Permit,
    ) -> tokio::task::JoinHandle<Told> {
        let inner = self.inner.clone();
        self.inner.under_way.spawn(async move {
            let told = inner.deliver(outbox.as_ref(), &win, traceparent.as_deref(), &mut permit).await;
            drop(permit);
            told
        })
    }

    /// Resolves when no delivery is under way. For the end of the process, after everything that starts one has stopped.
    pub async fn idle(&self) {
        self.inner.under_way.close();
        self.inner.under_way.wait().await;
    }
}

impl<A: Outbox> FirstDelivery<A> for Courier {
    /// The first try of a win just won. The delivery is a task of its own: the client's going away ends nothing.
    /// Without a free permit the winner hears QUEUED; the backlog delivers as permits come back, or, if it is full or the
    /// order service does not answer, the relay once the first lease is over.
    async fn deliver_first(&self, activity: &Arc<A>, win: DueWin, traceparent: Option<String>) -> Told {
        let permit = self.try_permit(activity.id(), Errand::First);
        let Ok(permit) = permit else {
            self.inner.metrics.deferred.inc();
            if permit.is_err_and(|why| why == NoPermit::BreakerOpen) {
                return Told::Queued;
            }
            // Half of the time for recording is left when the last one starts.
            let until = monotonic() + RECORDING / 2;
            _ = self.inner.backlog.try_send(Deferred { outbox: activity.clone(), win, traceparent, until });
            return Told::Queued;
        };
        let delivery = self.start(activity.clone(), win, traceparent, permit);
        match tokio::time::timeout(self.inner.options.answer_within, delivery).await {
            Ok(Ok(told)) => told,
            // Too slow, or the task panicked (which the panic hook logged): the win is kept in any case.
            Err(_) | Ok(Err(_)) => Told::Queued,
        }
    }
}

impl Inner {
    async fn deliver(&self, outbox: &dyn Outbox, win: &DueWin, traceparent: Option<&str>, permit: &mut Permit) -> Told {
        let activity = outbox.id();
        let Some(epoch) = outbox.view().epoch() else {
            // The store is gone from view; whoever delivers must know the epoch that the order is booked under.
            tracing::warn!(%activity, request_id = %win.request_id, "not delivered: the epoch is not known");
            return Told::Queued;
        };
        let ticket = match self.signer.sign(activity, win, epoch, wall_ms(), self.client.deadline()) {
            Ok(ticket) => ticket,
            Err(error) => {
                tracing::error!(%activity, request_id = %win.request_id, %error, "not delivered");
                return Told::Queued;
            }
        };
        let started = monotonic();
        let under_way = UnderWay::count(&self.metrics.in_flight);
        let word = self.client.deliver(activity, win, &ticket, traceparent).await;
        drop(under_way);
        permit.heard(&word);
        self.metrics.deliveries.with_label_values(&[word.label()]).inc();
        self.metrics.seconds.with_label_values(&[word.label()]).observe(started.elapsed().as_secs_f64());
        tracing::debug!(%activity, request_id = %win.request_id, tries = win.tries, word = ?word.label(), "delivered");
        self.record(outbox, win.request_id, word).await
    }

    async fn record(&self, outbox: &dyn Outbox, id: RequestId, word: Word) -> Told {
        let label = word.label();
        let recorded = match word {
            Word::Booked(reply) => outbox.settle(id, Settlement::Booked { reply: reply.encode() }).await,
            Word::Queued(reply) => outbox.settle(id, Settlement::Queued { reply: reply.encode() }).await,
            Word::Unknown(_) => outbox.settle(id, Settlement::Unknown).await,
            Word::Ended(release) => outbox.release(id, release).await,
        };
        let told = told(&recorded);
        self.note(outbox.id(), id, label, &recorded);
        told
    }

    fn note(&self, activity: &ActivityId, id: RequestId, word: &str, recorded: &Guarded<Recorded>) {
        let unrecorded = |why: &str| self.metrics.unrecorded.with_label_values(&[why]).inc();
        match recorded {
            Ok(Ok(Recorded::Applied(known))) => match &known.state {
                WinState::Released(release) if release.ledger_was_short() => {
                    tracing::error!(%activity, request_id = %id, "LEDGER SHORT: the order service says that there is no \
                        stock for a win. Its SKU is stopped and its units are withheld: compare store and ledger, then \
                        `seckill-gate start-sku`");
                }
                WinState::Released(release) => {
                    tracing::info!(%activity, request_id = %id, cause = release.cause.as_str(), reason = %release.reason,
                        "win released");
                }
                state => tracing::debug!(%activity, request_id = %id, word, ?state, "recorded"),
            },
            Ok(Ok(Recorded::MarkedDead { tries, age, .. })) => {
                tracing::error!(%activity, request_id = %id, tries, age_seconds = age.as_secs(), last_word = word,
                    "DEAD LETTER: no final word of the order service for too long; delivered on slowly");
            }
            Ok(Ok(Recorded::Already(_))) => {}
            Ok(Ok(Recorded::Conflict(known))) => self.metrics.conflicts.contradicted(activity, id, word, known),
            Ok(Ok(Recorded::UnknownWin)) => self.metrics.conflicts.unknown(activity, id, word),
            Ok(Err(barred)) => {
                unrecorded("barred");
                tracing::warn!(%activity, request_id = %id, word, ?barred, "not recorded");
            }
            Err(error) => {
                unrecorded(match error {
                    StoreError::Unavailable(_) => "unavailable",
                    StoreError::Unknown(_) => "unknown",
                });
                tracing::warn!(%activity, request_id = %id, word, %error, "not recorded, as far as is known");
            }
        }
    }
}

/// Counts a delivery while it is under way, even if it panics.
struct UnderWay<'a>(&'a prometheus::IntGauge);

impl UnderWay<'_> {
    fn count(gauge: &prometheus::IntGauge) -> UnderWay<'_> {
        gauge.inc();
        UnderWay(gauge)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What may be told: only what the store recorded.
fn told(recorded: &Guarded<Recorded>) -> Told {
    match recorded {
        Ok(Ok(
            Recorded::Applied(known)
            | Recorded::MarkedDead { known, .. }
            | Recorded::Already(known)
            | Recorded::Conflict(known),
        )) => Told::of(known),
        Ok(Ok(Recorded::UnknownWin) | Err(_)) | Err(_) => Told::Queued,
    }
}
