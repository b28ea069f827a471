//! What is counted about deliveries.

use prometheus::{HistogramVec, IntCounterVec, IntGauge};

use crate::gate::delivery::conflicts::Conflicts;
use crate::gate::delivery::word::Word;
use crate::platform::metrics::{CALL_SECONDS, Metrics};

/// Counters and clocks of deliveries.
#[derive(Debug, Clone)]
pub struct DeliveryMetrics {
    /// Deliveries by `result`, one of [`Word::LABELS`].
    pub deliveries: IntCounterVec,
    /// Time of a delivery by `result`.
    pub seconds: HistogramVec,
    /// Deliveries under way.
    pub in_flight: IntGauge,
    /// Words that could not be recorded, by `why`: `barred`, `unavailable`, `unknown`.
    pub unrecorded: IntCounterVec,
    /// Words that contradict the record. Each one is an alarm.
    pub conflicts: Conflicts,
    /// Winners that were not delivered at once: `max_in_flight` was reached, or the breaker is open.
    pub deferred: prometheus::IntCounter,
}

impl DeliveryMetrics {
    /// Registers them; fails if the names are taken.
    pub fn register(metrics: &Metrics) -> prometheus::Result<DeliveryMetrics> {
        let registered = DeliveryMetrics {
            deliveries: metrics.counters(
                "seckill_deliveries_total",
                "Deliveries to the order service, by what it said.",
                &["result"],
            )?,
            seconds: metrics.histograms(
                "seckill_delivery_duration_seconds",
                "Time from connecting to the last byte of the reply.",
                &["result"],
                CALL_SECONDS,
            )?,
            in_flight: metrics.int_gauge("seckill_deliveries_in_flight", "Deliveries under way.")?,
            unrecorded: metrics.counters(
                "seckill_words_unrecorded_total",
                "Words of the order service that the store did not (or may not) have recorded; they are asked for again.",
                &["why"],
            )?,
            conflicts: Conflicts::register(metrics)?,
            deferred: metrics.counter(
                "seckill_deliveries_deferred_total",
                "Winners whose first delivery had to wait: max_in_flight was reached, or the order service does not answer.",
            )?,
        };
        // Series that exist from the start: a rate over a series that appears with its first event misses that event.
        for label in Word::LABELS {
            registered.deliveries.with_label_values(&[label]);
        }
        for why in ["barred", "unavailable", "unknown"] {
            registered.unrecorded.with_label_values(&[why]);
        }
        Ok(registered)
    }
}
