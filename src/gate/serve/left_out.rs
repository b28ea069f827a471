//! Sales that the store holds and this gate's file does not name: after a restart with a shorter file nobody here would
//! deliver their wins, or mark them dead, and nothing else would say so. (A reload refuses such a file.)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;

use crate::domain::ActivityId;
use crate::domain::admission::{JournalCursor, Poll, PolledActivity};
use crate::gate::serve::live::Activities;
use crate::gate::store::{AdmissionStore, StoreError};
use crate::platform::metrics::Metrics;

/// How often to look: nothing here is urgent by the second.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How soon again if the store did not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Looks for them, and says what it finds.
pub struct LeftOut {
    store: Arc<dyn AdmissionStore>,
    present: Arc<ArcSwap<Activities>>,
    gauge: IntGauge,
    /// What was found when last looked, with the wins that wait.
    known: BTreeMap<ActivityId, u64>,
}

impl LeftOut {
    /// Fails if the metric's name is taken.
    pub fn new(
        store: Arc<dyn AdmissionStore>,
        present: Arc<ArcSwap<Activities>>,
        metrics: &Metrics,
    ) -> prometheus::Result<LeftOut> {
        let gauge = metrics.int_gauge(
            "seckill_activities_left_out",
            "Sales that the store holds, with wins that wait or time to run, and this gate's file does not name.",
        )?;
        Ok(LeftOut { store, present, gauge, known: BTreeMap::new() })
    }

    /// Looks until `ended`.
    pub async fn run(mut self, ended: CancellationToken) {
        loop {
            let pause = match self.look().await {
                Ok(()) => LOOK_EVERY,
                Err(error) => {
                    tracing::debug!(%error, "cannot list the sales of the store");
                    LOOK_AGAIN
                }
            };
            tokio::select! {
                () = ended.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        let mut found = BTreeMap::new();
        for id in self.store.activities().await? {
            if self.present.load().contains_key(&id) {
                continue;
            }
            let ask = Poll { gate: None, vouched: None, after: JournalCursor::start(), max_entries: 1 };
            let polled = self.store.poll(&id, &ask).await?;
            if let PolledActivity::Stored(state) = polled.activity
                && (state.unsettled > 0 || polled.now < state.terms.ends_at)
            {
                found.insert(id, state.unsettled);
            }
        }
        for (activity, unsettled) in &found {
            match unsettled {
                _ if self.known.contains_key(activity) => {}
                0 => tracing::warn!(%activity, "LEFT OUT: the store holds this sale, and the file does not name it"),
                _ => {
                    tracing::error!(%activity, unsettled, "LEFT OUT: the store holds this sale, the file does not name \
                    it, and wins wait in it: this gate neither delivers them nor marks them dead. Put it back into the file")
                }
            }
        }
        for activity in self.known.keys().filter(|activity| !found.contains_key(*activity)) {
            tracing::info!(%activity, "no longer left out");
        }
        self.gauge.set(i64::try_from(found.len()).unwrap_or(i64::MAX));
        self.known = found;
        Ok(())
    }
}
