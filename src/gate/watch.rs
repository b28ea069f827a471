//! Polls one activity's store and keeps what the gate knows of it: phase, stock, winners' keys, unsettled wins.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::domain::admission::{ActivityState, Barred, JournalCursor, JournalOp, Poll, Polled, PolledActivity, RunId};
use crate::domain::{RequestId, StoreMs};
use crate::gate::activity::Activity;
use crate::gate::view::{POLL_EVERY, SOLD_OUT_LEASE, View};
use crate::platform::clock::monotonic;

/// Journal entries per poll; more are fetched at once by further polls.
const MAX_ENTRIES: usize = 1_000;

/// Where the watch of one activity stands.
pub struct Watch {
    cursor: JournalCursor,
    /// The run and epoch that the cursor belongs to.
    followed: Option<(u64, RunId)>,
    /// Wins without a final word, and when they were won.
    unsettled: HashMap<RequestId, StoreMs>,
    /// So that a lasting state is logged once.
    last_logged: Option<String>,
}

impl Watch {
    /// Before the first poll.
    pub fn new() -> Watch {
        Watch { cursor: JournalCursor::start(), followed: None, unsettled: HashMap::new(), last_logged: None }
    }

    /// Polls until cancelled.
    pub async fn run(mut self, activity: Arc<Activity>, cancelled: CancellationToken) {
        let mut ticks = tokio::time::interval(POLL_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancelled.cancelled() => return,
                _ = ticks.tick() => {}
            }
            while self.poll(&activity).await {}
            activity.waiters.sweep();
        }
    }

    /// Polls once; true if the journal goes on.
    pub async fn poll(&mut self, activity: &Activity) -> bool {
        let _one_at_a_time = activity.polling.lock().await;
        let vouched = activity.view().vouched.clone();
        let ask =
            Poll { gate: Some(activity.gate.clone()), vouched, after: self.cursor.clone(), max_entries: MAX_ENTRIES };
        let sent = monotonic();
        match activity.store.poll(&activity.id, &ask).await {
            Ok(polled) => {
                activity.clock.observe(polled.now, sent);
                activity.metrics.polls_ok.inc();
                self.take(activity, polled, sent)
            }
            Err(error) => {
                activity.metrics.polls_failed.inc();
                self.log_once(activity, format!("poll failed: {error}"));
                false
            }
        }
    }

    fn take(&mut self, activity: &Activity, polled: Polled, sent: std::time::Instant) -> bool {
        let state = match polled.activity {
            PolledActivity::Stored(state) => *state,
            PolledActivity::NotPreheated | PolledActivity::Incomplete => {
                let incomplete = polled.activity == PolledActivity::Incomplete;
                // A store that was there and is not any more has lost writes: that is a fence, not a fresh start.
                let lost = incomplete || activity.view().vouched.is_some();
                let barred = if lost { Barred::Fenced } else { Barred::NotPreheated };
                self.log_once(activity, format!("not on sale: {barred:?}"));
                let view = View {
                    reached: true,
                    barred: Some(barred),
                    winners_known_at: None,
                    sold_out_lease_until: None,
                    ..View::clone(&activity.view())
                };
                activity.publish(view);
                return false;
            }
        };
        if self.restart_if_moved(&state, &polled.server_run) {
            // The cursor belonged to another life of the store; read its journal from the start.
            return true;
        }
        self.follow(activity, &state);
        let suspect = state.run_id != polled.server_run;
        if suspect {
            self.log_once(activity, "suspect: the store restarted and may have lost writes".into());
        } else {
            self.log_once(activity, format!("on sale under epoch {}", state.terms.epoch.0));
            activity.warn_if_file_differs(&state.terms);
        }
        let at_end = state.at_end;
        activity.publish(View {
            reached: true,
            vouched: Some((state.terms.epoch, polled.server_run)),
            starts_at: state.terms.starts_at,
            ends_at: state.terms.ends_at,
            per_user_limit: state.terms.per_user_limit,
            barred: suspect.then_some(Barred::Suspect),
            paused: state.paused,
            unsettled: state.unsettled,
            oldest_unsettled: self.unsettled.values().min().copied(),
            winners_known_at: (at_end && !suspect).then_some(polled.now),
            sold_out_lease_until: (at_end && !suspect).then(|| sent + SOLD_OUT_LEASE),
            stock: state.stock,
        });
        !at_end
    }

    /// True if epoch or run changed, so that the cursor had to go back to the start.
    fn restart_if_moved(&mut self, state: &ActivityState, run: &RunId) -> bool {
        let now = (state.terms.epoch.0, run.clone());
        let moved = self.followed.as_ref().is_some_and(|followed| *followed != now);
        self.followed = Some(now);
        if moved {
            self.cursor = JournalCursor::start();
            self.unsettled.clear();
        }
        moved
    }

    fn follow(&mut self, activity: &Activity, state: &ActivityState) {
        for entry in &state.entries {
            match &entry.op {
                JournalOp::Won { request_id, key, .. } => {
                    activity.remember_winner(key);
                    self.unsettled.insert(*request_id, entry.at);
                }
                JournalOp::Booked { request_id } | JournalOp::Released { request_id, .. } => {
                    self.unsettled.remove(request_id);
                    activity.waiters.tell(request_id);
                }
                _ => {}
            }
        }
        self.cursor = state.cursor.clone();
    }

    fn log_once(&mut self, activity: &Activity, state: String) {
        if self.last_logged.as_ref() != Some(&state) {
            tracing::info!(activity = %activity.id, state, "activity");
            self.last_logged = Some(state);
        }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Watch::new()
    }
}
