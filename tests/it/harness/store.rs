//! An admission store without a gate.

use std::time::Duration;

use seckill_gate::domain::ActivityId;
use seckill_gate::domain::admission::{JournalCursor, Poll, Preheat, Preheated, RunId, Terms};
use seckill_gate::gate::store::AdmissionStore;

/// What somebody asks who only looks.
pub fn look() -> Poll {
    Poll { gate: None, vouched: None, after: JournalCursor::start(), max_entries: 10_000 }
}

/// Creates the activity on the run that answers now; that run, and how it ended.
pub async fn preheat(store: &dyn AdmissionStore, id: &ActivityId, terms: &Terms) -> (RunId, Preheated) {
    let seen = store.poll(id, &look()).await.unwrap();
    let not_after = seen.now.after(Duration::from_secs(10));
    let preheat = Preheat { run_id: seen.server_run.clone(), not_after, terms: terms.clone() };
    let reply = store.preheat(id, &preheat).await.unwrap();
    (seen.server_run, reply.outcome.unwrap())
}
