//! What the order service counts. Labels are closed sets: activities of the ledger, states, verdicts.

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, exponential_buckets,
};

/// The service's metrics, registered once per registry.
#[derive(Clone)]
pub struct Metrics {
    /// Answers of `POST /orders`, by kind.
    pub intake: IntCounterVec,
    /// Orders taken from the queue, by what became of them.
    pub booked: IntCounterVec,
    /// Entries set aside.
    pub set_aside: IntCounter,
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
    /// Makes and registers them.
    pub fn new(registry: &Registry) -> prometheus::Result<Metrics> {
        let counters = |name: &str, help: &str, label: &str| -> prometheus::Result<IntCounterVec> {
            let made = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let made = IntCounter::new(name, help)?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntGaugeVec> {
            let made = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| -> prometheus::Result<Histogram> {
            let made = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
            registry.register(Box::new(made.clone()))?;
            Ok(made)
        };
        Ok(Metrics {
            intake: counters("seckill_orders_intake_total", "Answers of POST /orders.", "answer")?,
            booked: counters("seckill_orders_consumed_total", "Orders taken from the queue, by verdict.", "verdict")?,
            set_aside: counter("seckill_orders_set_aside_total", "Queue entries set aside.")?,
            lost: counter(
                "seckill_orders_queue_lost_total",
                "Queue entries that were handed out and then gone; the gate delivers them again.",
            )?,
            waits: counters("seckill_orders_waits_total", "Times that the ledger or the queue was waited for.", "for")?,
            batch_orders: histogram(
                "seckill_orders_consumer_batch_orders",
                "Orders per batch.",
                vec![1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0],
            )?,
            batch_seconds: histogram(
                "seckill_orders_consumer_batch_seconds",
                "Time from a batch's first statement to its acknowledgement.",
                exponential_buckets(0.001, 2.0, 14)?,
            )?,
            orders: gauges("seckill_orders_by_status", "Order rows in the ledger.", &["activity", "status"])?,
            lag: gauges("seckill_orders_queue_lag", "Queue entries not booked yet.", &["activity"])?,
            pool: gauges("seckill_orders_pool_connections", "Ledger connections.", &["use"])?,
        })
    }
}
