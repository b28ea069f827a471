//! Words of the order service that contradict the recorded win: logged and counted here, whoever meets them.

use prometheus::IntCounterVec;

use crate::domain::admission::KnownWin;
use crate::domain::{ActivityId, RequestId};
use crate::platform::metrics::Metrics;

/// Counts conflicts by activity. Each one is an alarm. Clones share the counts.
#[derive(Debug, Clone)]
pub struct Conflicts(IntCounterVec);

impl Conflicts {
    /// Registers the counter; fails if its name is taken.
    pub fn register(metrics: &Metrics) -> prometheus::Result<Conflicts> {
        let counter = metrics.counters(
            "seckill_win_conflicts_total",
            "Words of the order service that contradict the recorded win.",
            &["activity"],
        )?;
        Ok(Conflicts(counter))
    }

    /// Shows the activity's count from the start: a rate over a series that appears with its first event misses it.
    pub fn announce(&self, activity: &ActivityId) {
        self.0.with_label_values(&[activity.as_str()]);
    }

    /// Forgets the count of an activity that has stopped.
    pub fn retire(&self, activity: &ActivityId) {
        // An error says only that there was none.
        _ = self.0.remove_label_values(&[activity.as_str()]);
    }

    /// This word contradicts the record, which stands.
    pub fn contradicted(&self, activity: &ActivityId, id: RequestId, word: &str, known: &KnownWin) {
        self.0.with_label_values(&[activity.as_str()]).inc();
        tracing::error!(%activity, request_id = %id, word, state = ?known.state,
            "CONFLICT: the order service contradicts the recorded win, which stands");
    }

    /// The store has no record of a win that this gate knew a moment ago.
    pub fn unknown(&self, activity: &ActivityId, id: RequestId, word: &str) {
        self.0.with_label_values(&[activity.as_str()]).inc();
        tracing::error!(%activity, request_id = %id, word, "the store does not know a win that was delivered or voided");
    }
}
