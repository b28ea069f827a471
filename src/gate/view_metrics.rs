//! What is measured of each activity's view, read when it is asked for: stock, unsettled wins, the oldest one's age, dead
//! letters, broken sums, when the sale is, and whether the file differs from what was preheated.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use crate::gate::delivery::outbox::Outbox;
use crate::platform::clock::StoreClock;

/// Reads the views of a gate's activities.
pub struct ViewMetrics {
    activities: Box<dyn Fn() -> Vec<Arc<dyn Outbox>> + Send + Sync>,
    clock: Arc<StoreClock>,
    stock: IntGaugeVec,
    unsettled: IntGaugeVec,
    oldest: IntGaugeVec,
    dead: IntGaugeVec,
    violations: IntGaugeVec,
    file_differs: IntGaugeVec,
    starts_at: IntGaugeVec,
    ends_at: IntGaugeVec,
    /// Held while the gauges are filled and read: activities come and go with reloads, so each reading starts afresh.
    reading: Mutex<()>,
}

impl ViewMetrics {
    /// A collector for the activities that `activities` tells at each reading.
    pub fn new(
        activities: impl Fn() -> Vec<Arc<dyn Outbox>> + Send + Sync + 'static,
        clock: Arc<StoreClock>,
    ) -> prometheus::Result<ViewMetrics> {
        let gauges = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
        Ok(ViewMetrics {
            activities: Box::new(activities),
            clock,
            stock: gauges(
                "seckill_stock_units",
                "Units of a SKU as last polled; kind is total, left, returning or withheld.",
                &["activity", "sku", "kind"],
            )?,
            unsettled: gauges("seckill_wins_unsettled", "Wins that wait for the order service.", &["activity"])?,
            oldest: gauges(
                "seckill_wins_unsettled_oldest_age_seconds",
                "How long the oldest unsettled win has waited; 0 if there is none.",
                &["activity"],
            )?,
            dead: gauges(
                "seckill_dead_letters",
                "Wins without the order service's final word for longer than orders.dead_after.",
                &["activity"],
            )?,
            violations: gauges(
                "seckill_invariant_violations",
                "SKUs that broke the invariant when last polled.",
                &["activity", "invariant"],
            )?,
            file_differs: gauges(
                "seckill_activity_file_differs",
                "1 if this gate's file differs from what was preheated, which counts.",
                &["activity"],
            )?,
            // A bar that is harmless before the start is an alarm within the window, and nothing after it.
            starts_at: gauges(
                "seckill_activity_starts_at_seconds",
                "First moment of the sale, in Unix time.",
                &["activity"],
            )?,
            ends_at: gauges(
                "seckill_activity_ends_at_seconds",
                "First moment after the sale, in Unix time.",
                &["activity"],
            )?,
            reading: Mutex::default(),
        })
    }

    fn read(&self) {
        let now = self.clock.now().store;
        self.parts().into_iter().for_each(IntGaugeVec::reset);
        for activity in (self.activities)() {
            let view = activity.view();
            let name = activity.id().as_str();
            for (sku, stock) in &view.stock {
                for (kind, units) in [
                    ("total", stock.total),
                    ("left", stock.left),
                    ("returning", stock.returning),
                    ("withheld", stock.withheld),
                ] {
                    self.stock.with_label_values(&[name, sku.as_str(), kind]).set(units);
                }
            }
            self.unsettled.with_label_values(&[name]).set(signed(view.unsettled));
            let age = view.oldest_unsettled.map_or(0, |won| won.until(now).as_secs());
            self.oldest.with_label_values(&[name]).set(signed(age));
            self.dead.with_label_values(&[name]).set(signed(view.dead));
            let broken = view.stock.iter().filter(|(_, stock)| !stock.adds_up()).count();
            self.violations.with_label_values(&[name, "INV-2"]).set(signed(broken as u64));
            self.starts_at.with_label_values(&[name]).set(signed(view.starts_at.0 / 1_000));
            self.ends_at.with_label_values(&[name]).set(signed(view.ends_at.0 / 1_000));
            self.file_differs.with_label_values(&[name]).set(i64::from(!activity.file_differs().is_empty()));
        }
    }

    fn parts(&self) -> [&IntGaugeVec; 8] {
        [
            &self.stock,
            &self.unsettled,
            &self.oldest,
            &self.dead,
            &self.violations,
            &self.file_differs,
            &self.starts_at,
            &self.ends_at,
        ]
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Collector for ViewMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        self.read();
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}
