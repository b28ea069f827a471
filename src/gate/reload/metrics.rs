//! What is counted about reloads.

use prometheus::{IntCounterVec, IntGauge};

use super::report::{Refused, Reloaded, Verdict};
use crate::platform::clock::wall_ms;
use crate::platform::metrics::Metrics;

/// Counters of reloads; the start counts as the first success.
pub(super) struct ReloadMetrics {
    reloads: IntCounterVec,
    successful: IntGauge,
    success_at: IntGauge,
    restart_pending: IntGauge,
}

impl ReloadMetrics {
    pub(super) fn register(metrics: &Metrics) -> prometheus::Result<ReloadMetrics> {
        let registered = ReloadMetrics {
            reloads: metrics.counters(
                "seckill_config_reloads_total",
                "Reloads of the configuration, by result.",
                &["result"],
            )?,
            successful: metrics.int_gauge(
                "seckill_config_last_reload_successful",
                "1 if the last reading of the configuration was taken, 0 if it was refused.",
            )?,
            success_at: metrics.int_gauge(
                "seckill_config_last_reload_success_timestamp_seconds",
                "When a reading of the configuration was last taken.",
            )?,
            restart_pending: metrics.int_gauge(
                "seckill_config_restart_pending_keys",
                "Edits of the configuration that wait for a restart of this gate.",
            )?,
        };
        for result in ["ok", "refused"] {
            registered.reloads.with_label_values(&[result]);
        }
        registered.successful.set(1);
        registered.mark_success();
        Ok(registered)
    }

    pub(super) fn note(&self, outcome: &Result<Reloaded, Refused>) {
        self.reloads.with_label_values(&[if outcome.is_ok() { "ok" } else { "refused" }]).inc();
        self.successful.set(i64::from(outcome.is_ok()));
        if let Ok(reloaded) = outcome {
            self.mark_success();
            let pending = reloaded.changes.iter().filter(|change| change.verdict == Verdict::NeedsRestart).count();
            self.restart_pending.set(i64::try_from(pending).unwrap_or(i64::MAX));
        }
    }

    fn mark_success(&self) {
        let seconds = std::time::Duration::from_millis(wall_ms()).as_secs();
        self.success_at.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }
}
