//! From the queue to the ledger, in batches, each order exactly once however often it is handed out.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::activities::Activities;
use super::ledger::{BatchBooked, Booked, Dropped, Ledger, LedgerError, SetAside};
use super::metrics::Metrics;
use super::order::NewOrder;
use super::queue::{Delivery, MAX_BATCH, Malformed, OrderQueue};
use crate::domain::backoff::Backoff;

/// How long a read waits for the first entry; also how soon a new sale is noticed.
const WAIT: Duration = Duration::from_millis(250);
/// Pauses while the ledger or the queue is down.
const DOWN: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(2) };
/// Pauses between the tries of an order that the ledger rejects.
const REJECTED: Backoff = Backoff { first: Duration::from_millis(20), cap: Duration::from_millis(500) };

/// How a consumer works.
#[derive(Debug, Clone, Copy)]
pub struct ConsumerSettings {
    /// Orders per transaction at most, 1–1,000.
    pub batch: usize,
    /// Orders per second at most.
    pub orders_per_second: f64,
    /// Entries that another process took and has not shown to be working on for so long are taken over.
    pub claim_after: Duration,
    /// An order that the ledger rejects so often by itself is set aside.
    pub set_aside_after: u32,
}

/// One consumer of a process.
pub struct Consumer {
    /// Where orders wait.
    pub queue: Arc<dyn OrderQueue>,
    /// Where they are booked.
    pub ledger: Arc<dyn Ledger>,
    /// The sales.
    pub activities: Activities,
    /// How it works.
    pub settings: ConsumerSettings,
    /// What it counts.
    pub metrics: Metrics,
}

/// The process is to end; what is not done stays in the queue.
struct Stopped;

impl Consumer {
    /// Works until `shutdown`; finishes the batch under way unless the ledger is down.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut claim = tokio::time::interval((self.settings.claim_after / 2).max(Duration::from_millis(100)));
        let mut tries = 0;
        while !shutdown.is_cancelled() {
            // An unreachable ledger is met again, and waited for, when there is something to book.
            let _ = self.activities.refresh(&*self.ledger).await;
            let activities = self.activities.all();
            if activities.is_empty() {
                pause(WAIT, &shutdown).await;
                continue;
            }
            let due = claim.tick().now_or_never().is_some();
            match self.next(&activities, due).await {
                Ok(deliveries) => {
                    tries = 0;
                    if self.work_off(deliveries, &shutdown).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    self.metrics.waits.with_label_values(&["queue"]).inc();
                    warn!(%error, "the queue cannot be read");
                    pause(DOWN.pause(tries), &shutdown).await;
                    tries += 1;
                }
            }
        }
        info!("consumer ended");
    }

    async fn next(
        &self,
        activities: &[crate::domain::ActivityId],
        claim: bool,
    ) -> Result<Vec<Delivery>, super::queue::QueueError> {
        let batch = self.batch();
        if claim {
            let claimed = self.queue.claim_stale(activities, batch, self.settings.claim_after).await?;
            if claimed.lost > 0 {
                self.metrics.lost.inc_by(claimed.lost as u64);
                warn!(entries = claimed.lost, "queue entries are gone; the gate will deliver their orders again");
            }
            if !claimed.deliveries.is_empty() {
                self.metrics.claimed.inc_by(claimed.deliveries.len() as u64);
                info!(entries = claimed.deliveries.len(), "entries taken over that nobody was working on");
                return Ok(claimed.deliveries);
            }
        }
        self.queue.take(activities, batch, WAIT).await
    }

    fn batch(&self) -> usize {
        self.settings.batch.clamp(1, MAX_BATCH)
    }

    async fn work_off(&self, deliveries: Vec<Delivery>, shutdown: &CancellationToken) -> Result<(), Stopped> {
        let settled = AtomicUsize::new(0);
        // However long that takes: what this process works on, or will when its turn comes, is not stale. One clock for the
        // whole hand-out: one per batch would never strike if the batches are short.
        tokio::select! {
            done = self.work_off_in_batches(&deliveries, &settled, shutdown) => done,
            never = self.keep(&deliveries, &settled) => match never {},
        }
    }

    async fn work_off_in_batches(
        &self,
        deliveries: &[Delivery],
        settled: &AtomicUsize,
        shutdown: &CancellationToken,
    ) -> Result<(), Stopped> {
        let mut rest = deliveries;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(self.batch().min(rest.len()));
            // The rate cap: a batch lasts at least as long as its orders may.
            let least = Duration::from_secs_f64(batch.len() as f64 / self.settings.orders_per_second.max(0.001));
            let (outcome, ()) = tokio::join!(self.settle(batch, shutdown), pause(least, shutdown));
            outcome?;
            settled.fetch_add(batch.len(), Ordering::Relaxed);
            rest = later;
        }
        Ok(())
    }

    /// Keeps entries from being claimed by others while their turn comes; the first `settled` of them are done.
    async fn keep(&self, deliveries: &[Delivery], settled: &AtomicUsize) -> Infallible {
        loop {
            tokio::time::sleep(self.settings.claim_after / 3).await;
            // If it fails for long they are claimed, and booked by whoever comes first.
            let rest = deliveries.get(settled.load(Ordering::Relaxed)..).unwrap_or_default();
            if let Err(error) = self.queue.keep(rest).await {
                warn!(%error, "entries under work may be claimed by others");
            }
        }
    }

    /// Books a batch, and only then tells the queue.
    async fn settle(&self, batch: &[Delivery], shutdown: &CancellationToken) -> Result<(), Stopped> {
        let timer = self.metrics.batch_seconds.start_timer();
        self.metrics.batch_orders.observe(batch.len() as f64);
        for delivery in batch {
            if let Err(malformed) = &delivery.order {
                self.set_aside_malformed(delivery, malformed, shutdown).await?;
            }
        }
        let orders: Vec<NewOrder> = batch.iter().filter_map(|delivery| delivery.order.clone().ok()).collect();
        self.book(&orders, shutdown).await?;
        let mut tries = 0;
        // If this keeps failing the entries are handed out again, and found to be booked.
        while let Err(error) = self.queue.done(batch).await {
            self.metrics.waits.with_label_values(&["queue"]).inc();
            warn!(%error, "booked entries cannot be acknowledged");
            if tries == 5 || shutdown.is_cancelled() {
                break;
            }
            pause(DOWN.pause(tries), shutdown).await;
            tries += 1;
        }
        timer.observe_duration();
        Ok(())
    }

    /// Books in one transaction what goes, and halves what does not until the orders at fault stand alone.
    async fn book(&self, orders: &[NewOrder], shutdown: &CancellationToken) -> Result<(), Stopped> {
        let (mut parts, mut rejected) = (vec![orders], vec![]);
        while let Some(part) = parts.pop() {
            match part {
                [] => {}
                [order] => {
                    if let Some(error) = self.book_alone(order, shutdown).await? {
                        rejected.push((order, error));
                    }
                }
                _ if self.book_together(part, shutdown).await? => {}
                _ => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
        }
        self.insist(rejected, shutdown).await
    }

    /// Whether all of them went through; otherwise none did.
    async fn book_together(&self, orders: &[NewOrder], shutdown: &CancellationToken) -> Result<bool, Stopped> {
        let mut tries = 0;
        loop {
            match self.ledger.book_batch(orders).await {
                Ok(BatchBooked::Done(verdicts)) => {
                    for (order, verdict) in orders.iter().zip(verdicts) {
                        self.note(order, verdict);
                    }
                    return Ok(true);
                }
                Ok(BatchBooked::GoRowByRow) | Err(LedgerError::Rejected(_)) => return Ok(false),
                Err(LedgerError::Unavailable(error)) => self.wait_for_ledger(&mut tries, &error, shutdown).await?,
            }
        }
    }

    /// Books or refuses one order; the ledger's error if it takes offence at it.
    async fn book_alone(&self, order: &NewOrder, shutdown: &CancellationToken) -> Result<Option<String>, Stopped> {
        let mut tries = 0;
        loop {
            match self.ledger.book_one(order).await {
                Ok(verdict) => {
                    self.note(order, verdict);
                    return Ok(None);
                }
                Err(LedgerError::Rejected(error)) => return Ok(Some(error)),
                Err(LedgerError::Unavailable(error)) => self.wait_for_ledger(&mut tries, &error, shutdown).await?,
            }
        }
    }

    /// Tries rejected orders again, all of them between two pauses, and sets aside those that are rejected every time.
    async fn insist(
        &self,
        mut rejected: Vec<(&NewOrder, String)>,
        shutdown: &CancellationToken,
    ) -> Result<(), Stopped> {
        for rejections in 1..self.settings.set_aside_after {
            if rejected.is_empty() {
                return Ok(());
            }
            pause(REJECTED.pause(rejections), shutdown).await;
            if shutdown.is_cancelled() {
                return Err(Stopped);
            }
            let mut still = vec![];
            for (order, _) in rejected {
                if let Some(error) = self.book_alone(order, shutdown).await? {
                    still.push((order, error));
                }
            }
            rejected = still;
        }
        for (order, error) in rejected {
            let entry = SetAside {
                activity: order.activity.clone(),
                // Its own name: intake finds it by that, and the gate's repetitions do not fill the table.
                entry: order.request_id.to_string(),
                content: describe(order),
                error,
            };
            self.set_aside(entry, shutdown).await?;
        }
        Ok(())
    }

    async fn set_aside_malformed(
        &self,
        delivery: &Delivery,
        malformed: &Malformed,
        shutdown: &CancellationToken,
    ) -> Result<(), Stopped> {
        let entry = SetAside {
            activity: delivery.activity.clone(),
            entry: delivery.entry.clone(),
            content: malformed.content.clone(),
            error: malformed.error.clone(),
        };
        self.set_aside(entry, shutdown).await
    }

    async fn set_aside(&self, entry: SetAside, shutdown: &CancellationToken) -> Result<(), Stopped> {
        let (mut tries, mut entry) = (0, entry);
        loop {
            match self.ledger.set_aside(&entry).await {
                Ok(()) => {
                    self.metrics.set_aside.inc();
                    warn!(activity = %entry.activity, entry = entry.entry, error = entry.error, "entry set aside");
                    return Ok(());
                }
                Err(LedgerError::Unavailable(error)) => self.wait_for_ledger(&mut tries, &error, shutdown).await?,
                // Content that the table does not take must not block the queue either.
                Err(LedgerError::Rejected(_)) if !entry.content.is_empty() => entry.content.clear(),
                Err(LedgerError::Rejected(error)) => {
                    warn!(activity = %entry.activity, entry = entry.entry, error, "entry could not be set aside");
                    return Ok(());
                }
            }
        }
    }

    async fn wait_for_ledger(&self, tries: &mut u32, error: &str, shutdown: &CancellationToken) -> Result<(), Stopped> {
        self.metrics.waits.with_label_values(&["ledger"]).inc();
        warn!(error, "the ledger is waited for");
        pause(DOWN.pause(*tries), shutdown).await;
        *tries = tries.saturating_add(1);
        if shutdown.is_cancelled() { Err(Stopped) } else { Ok(()) }
    }

    fn note(&self, order: &NewOrder, verdict: Booked) {
        let name = match verdict {
            Booked::Booked => "booked",
            Booked::Duplicate => "duplicate",
            Booked::Refused(refusal) => {
                info!(request_id = %order.request_id, reason = refusal.as_str(), "order refused");
                "refused"
            }
            Booked::Dropped(Dropped::OldEpoch) => "old_epoch",
            Booked::Dropped(Dropped::UnknownActivity) => {
                warn!(request_id = %order.request_id, activity = %order.activity, "order of an unregistered sale dropped");
                "unknown_activity"
            }
        };
        self.metrics.booked.with_label_values(&[name]).inc();
    }
}

async fn pause(duration: Duration, shutdown: &CancellationToken) {
    // Either way the caller goes on; it looks at the token itself.
    let _ = tokio::time::timeout(duration, shutdown.cancelled()).await;
}

fn describe(order: &NewOrder) -> Vec<u8> {
    let mut content =
        format!("sku={}\nqty={}\nuser={}\nepoch={}\npayload=", order.sku, order.qty, order.user, order.epoch)
            .into_bytes();
    content.extend_from_slice(&order.payload);
    content
}
