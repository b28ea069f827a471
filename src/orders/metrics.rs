//! What the order service counts. Labels are closed sets: activities of the ledger, states, verdicts.

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, exponential_buckets};

use crate::platform::metrics as platform;

/// Answers of `POST /orders`: what is known, and then every problem by its code.
const ANSWERS: &[&str] = &[
    "queued",
    "queued_unchecked",
    "booked",
    "refused",
    "ended",
    "SET_ASIDE",
    "BAD_REQUEST",
    "TICKET_INVALID",
    "TICKET_EXPIRED",
    "TICKET_MISMATCH",
    "NO_SUCH_ACTIVITY",
    "TOO_LARGE",
    "LEDGER_UNAVAILABLE",
    "QUEUE_UNAVAILABLE",
    "QUEUE_FULL",
];
/// Verdicts on orders taken from the queue.
const VERDICTS: &[&str] = &["booked", "duplicate", "refused", "old_epoch", "unknown_activity"];

/// The service's metrics, registered once per registry.
#[derive(Clone)]
pub struct Metrics {
    /// Answers of `POST /orders`, by kind.
    pub intake: IntCounterVec,
    /// Orders taken from the queue, by what became of them.
    pub booked: IntCounterVec,
    /// Entries set aside.
    pub set_aside: IntCounter,
    /// Entries that are set aside now, by activity.
    pub set_aside_now: IntGaugeVec,
    /// Entries taken over from a process that did not finish them.
    pub claimed: IntCounter,
    /// Entries handed out once and then gone from the queue.
    pub lost: IntCounter,
    /// Times that the ledger or the queue was waited for.
    pub waits: IntCounterVec,
    /// Orders per batch.
    pub batch_orders: Histogram,
    /// Time per batch.
    pub batch_seconds: Histogram,
    /// Order rows by activity and state.
    pub orders: IntGaugeVec,
    /// Entries not done, by activity.
    pub lag: IntGaugeVec,
    /// Ledger connections by use.
    pub pool: IntGaugeVec,
}

impl Metrics {
    /// Makes and registers them, with every series that can be known beforehand: a rate over one that appears with its
    /// first event misses it.
    pub fn register(metrics: &platform::Metrics) -> prometheus::Result<Metrics> {
        let counters = |name: &str, help: &str, label: &str, values: &[&str]| {
            let made = metrics.counters(name, help, &[label])?;
            for value in values {
                made.with_label_values(&[value]);
            }
            Ok::<_, prometheus::Error>(made)
        };
        let single = |made: HistogramVec| made.with_label_values::<&str>(&[]);
        Ok(Metrics {
            intake: counters("seckill_orders_intake_total", "Answers of POST /orders.", "answer", ANSWERS)?,
            booked: counters(
                "seckill_orders_consumed_total",
                "Orders taken from the queue, by verdict.",
                "verdict",
                VERDICTS,
            )?,
            set_aside: metrics.counter("seckill_orders_set_aside_total", "Queue entries set aside.")?,
            set_aside_now: metrics.int_gauges(
                "seckill_orders_set_aside_entries",
                "Queue entries that are set aside and wait for an operator.",
                &["activity"],
            )?,
            claimed: metrics.counter(
                "seckill_orders_queue_claimed_total",
                "Queue entries taken over from a process that did not finish them.",
            )?,
            lost: metrics.counter(
                "seckill_orders_queue_lost_total",
                "Queue entries that were handed out and then gone; the gate delivers them again.",
            )?,
            waits: counters(
                "seckill_orders_waits_total",
                "Times that the ledger or the queue was waited for.",
                "for",
                &["ledger", "queue"],
            )?,
            batch_orders: single(metrics.histograms(
                "seckill_orders_consumer_batch_orders",
                "Orders per batch.",
                &[],
                platform::BATCH_SIZES,
            )?),
            batch_seconds: single(metrics.histograms(
                "seckill_orders_consumer_batch_seconds",
                "Time from a batch's first statement to its acknowledgement.",
                &[],
                &exponential_buckets(0.001, 2.0, 14)?,
            )?),
            orders: metrics.int_gauges(
                "seckill_orders_by_status",
                "Order rows in the ledger.",
                &["activity", "status"],
            )?,
            lag: metrics.int_gauges("seckill_orders_queue_lag", "Queue entries not booked yet.", &["activity"])?,
            pool: metrics.int_gauges("seckill_orders_pool_connections", "Ledger connections.", &["use"])?,
        })
    }
}
