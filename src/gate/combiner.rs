//! Gathers the attempts of one activity into batches, without timers.
//!
//! While a call is under way, arrivals queue; when it returns, the next batch goes. So an idle gate adds no wait, and a
//! busy one amortises the store's cost over up to [`MAX_BATCH`] attempts. The queue is bounded: beyond it, attempts are
//! shed. An attempt whose caller has gone, or that has waited longer than a call may take, is withdrawn before its batch
//! is written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::Histogram;
use tokio::sync::{mpsc, oneshot};

use crate::domain::ActivityId;
use crate::domain::StoreMs;
use crate::domain::admission::{Attempt, Barred, Batch, Guard, MAX_BATCH, Verdict};
use crate::gate::store::{AdmissionStore, StoreError};
use crate::gate::win_log::{LogFirst, LoggedWin};
use crate::platform::clock::StoreClock;

/// How an attempt fared at the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// The store judged it, at this moment of its clock.
    Judged(Verdict, StoreMs),
    /// Its batch changed nothing; why.
    Barred(Barred),
    /// Shed before its batch was written.
    Busy,
    /// The store could not be reached, or refused the call before executing anything.
    Unavailable,
    /// The call may have had its effect.
    Unknown,
}

/// The way in. Dropping it ends the combiner once its queue is empty.
pub struct Combiner {
    queue: mpsc::Sender<Waiting>,
}

struct Waiting {
    attempt: Attempt,
    since: Instant,
    answer: oneshot::Sender<Admitted>,
}

/// What a combiner works with.
pub struct Parts {
    /// Whose attempts.
    pub activity: ActivityId,
    /// Where they are judged.
    pub store: Arc<dyn AdmissionStore>,
    /// For `not_after`.
    pub clock: Arc<StoreClock>,
    /// What the gate believes of the store, or what to answer while it knows of none.
    pub guard: Box<dyn Fn(StoreMs) -> Result<Guard, Admitted> + Send + Sync>,
    /// Where wins are kept before anybody hears of them.
    pub wins: Arc<LogFirst>,
    /// How long a call may take, and an attempt wait.
    pub deadline: Duration,
    /// How long the first delivery of a win may take before the relay may claim it.
    pub first_delivery_lease: Duration,
    /// Attempts that may wait.
    pub queue: usize,
    /// Attempts per call.
    pub batch_size: Histogram,
    /// Seconds per call.
    pub store_seconds: Histogram,
}

impl Combiner {
    /// Starts the loop on the current runtime.
    pub fn start(parts: Parts) -> Combiner {
        let (queue, waiting) = mpsc::channel(parts.queue);
        tokio::spawn(run(parts, waiting));
        Combiner { queue }
    }

    /// Sends an attempt with the next batch; `at` is when its request came.
    pub async fn admit(&self, attempt: Attempt, at: Instant) -> Admitted {
        let (answer, answered) = oneshot::channel();
        if self.queue.try_send(Waiting { attempt, since: at, answer }).is_err() {
            return Admitted::Busy;
        }
        // The loop answers everything it takes; only if it died is there no answer.
        answered.await.unwrap_or(Admitted::Unknown)
    }
}

async fn run(parts: Parts, mut queue: mpsc::Receiver<Waiting>) {
    let mut answers = Vec::with_capacity(MAX_BATCH);
    while let Some(first) = queue.recv().await {
        let now = parts.clock.now();
        let mut attempts = Vec::new();
        let mut next = Some(first);
        while let Some(waiting) = next {
            if now.instant.duration_since(waiting.since) > parts.deadline {
                _ = waiting.answer.send(Admitted::Busy);
            } else if !waiting.answer.is_closed() {
                attempts.push(waiting.attempt);
                answers.push(waiting.answer);
            }
            next = if attempts.len() < MAX_BATCH { queue.try_recv().ok() } else { None };
        }
        if attempts.is_empty() {
            continue;
        }
        let outcome = match (parts.guard)(now.store.after(parts.deadline)) {
            Ok(guard) => {
                parts.batch_size.observe(attempts.len() as f64);
                if parts.wins.has_failed() {
                    // A gate that cannot keep wins makes none; it still tells those that it can look up and keep.
                    attempts.iter_mut().for_each(|attempt| attempt.may_win = false);
                }
                let batch = Batch { guard, first_delivery_lease: parts.first_delivery_lease, attempts };
                let outcome = call(&parts, &batch).await;
                parts.store_seconds.observe(parts.clock.now().instant.duration_since(now.instant).as_secs_f64());
                outcome
            }
            Err(answer) => Err(answer),
        };
        match outcome {
            Ok(judged) => {
                for (answer, admitted) in answers.drain(..).zip(judged) {
                    _ = answer.send(admitted);
                }
            }
            Err(same_for_all) => {
                let store_failed = !matches!(same_for_all, Admitted::Barred(_));
                for answer in answers.drain(..) {
                    _ = answer.send(same_for_all.clone());
                }
                if store_failed {
                    // Whoever queued behind a failed call has waited long enough, and nothing of theirs was written.
                    for _ in 0..queue.len() {
                        let Ok(waiting) = queue.try_recv() else { break };
                        _ = waiting.answer.send(Admitted::Unavailable);
                    }
                }
            }
        }
    }
}

/// One answer per attempt, or the same for all.
async fn call(parts: &Parts, batch: &Batch) -> Result<impl Iterator<Item = Admitted> + use<>, Admitted> {
    let reply = match parts.store.admit(&parts.activity, batch).await {
        Ok(reply) => reply,
        Err(StoreError::Unavailable(why)) => {
            tracing::debug!(activity = %parts.activity, why, "the store is unavailable");
            return Err(Admitted::Unavailable);
        }
        Err(StoreError::Unknown(why)) => {
            tracing::warn!(activity = %parts.activity, why, attempts = batch.attempts.len(), "outcome of a batch unknown");
            return Err(Admitted::Unknown);
        }
    };
    let (verdicts, at) = (reply.outcome.map_err(Admitted::Barred)?, reply.now);
    let mut wins = batch.attempts.iter().zip(&verdicts).filter_map(|(attempt, verdict)| won(attempt, verdict, at));
    let kept = parts.wins.keep(&parts.activity, batch.guard.epoch, &mut wins).await.is_ok();
    Ok(verdicts.into_iter().map(move |verdict| match verdict {
        // It stands in the store, but nobody may hear of it from here.
        Verdict::Won | Verdict::Known(_) if !kept => Admitted::Unknown,
        verdict => Admitted::Judged(verdict, at),
    }))
}

/// The win that an attempt is to be told of, if any.
fn won<'a>(attempt: &'a Attempt, verdict: &Verdict, now: StoreMs) -> Option<LoggedWin<'a>> {
    let won_at = match verdict {
        Verdict::Won => now,
        Verdict::Known(known) => known.won_at,
        _ => return None,
    };
    // The payload of a known win is the attempt's own: another one would be a conflict.
    let (payload, key) = (Some(&attempt.payload), Some(&attempt.key));
    Some(LoggedWin {
        request_id: attempt.request_id,
        user: &attempt.user,
        key,
        sku: &attempt.sku,
        qty: attempt.qty,
        won_at,
        payload,
    })
}
