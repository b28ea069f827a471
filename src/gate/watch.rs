//! Polls one activity's store and keeps what the gate knows of it: phase, stock, winners' keys, unsettled wins.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::domain::admission::{
    ActivityState, Barred, Epoch, JournalCursor, JournalOp, Poll, Polled, PolledActivity, RunId,
};
use crate::domain::stock::Stock;
use crate::domain::{RequestId, SkuId, StoreMs};
use crate::gate::activity::{Activity, BarredBecause};
use crate::gate::view::{POLL_EVERY, SOLD_OUT_LEASE, View};
use crate::platform::clock::monotonic;

/// Journal entries per poll; more are fetched at once by further polls.
const MAX_ENTRIES: usize = 1_000;

/// Where the watch of one activity stands.
pub struct Watch {
    cursor: JournalCursor,
    /// The run that the cursor belongs to.
    followed: Option<RunId>,
    /// Wins without a final word, and when they were won.
    unsettled: HashMap<RequestId, StoreMs>,
    /// SKUs whose stock did not add up when last polled, so that each is logged once.
    broken: BTreeSet<SkuId>,
    /// How the activity stood when last logged, so that a lasting state is logged once.
    logged: Option<Option<Barred>>,
    /// Whether the last poll was answered.
    answered: bool,
}

impl Watch {
    /// Before the first poll.
    pub fn new() -> Watch {
        Watch {
            cursor: JournalCursor::start(),
            followed: None,
            unsettled: HashMap::new(),
            broken: BTreeSet::new(),
            logged: None,
            answered: true,
        }
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
        let polled = activity.store.poll(&activity.id, &ask).await;
        activity.metrics.show(BarredBecause::Unreachable, polled.is_err());
        activity.metrics.show(BarredBecause::WinLog, activity.wins.has_failed());
        match polled {
            Ok(polled) => {
                activity.clock.observe(polled.now, sent);
                activity.metrics.polls_ok.inc();
                if !std::mem::replace(&mut self.answered, true) {
                    tracing::info!(activity = %activity.id, "the store answers again");
                }
                self.take(activity, polled, sent)
            }
            Err(error) => {
                activity.metrics.polls_failed.inc();
                if std::mem::replace(&mut self.answered, false) {
                    tracing::warn!(activity = %activity.id, %error, "the store does not answer");
                }
                false
            }
        }
    }

    fn take(&mut self, activity: &Activity, polled: Polled, sent: std::time::Instant) -> bool {
        let before = activity.view();
        let state = match polled.activity {
            PolledActivity::Stored(state) => *state,
            PolledActivity::Incomplete => return self.bar(activity, Barred::Fenced, "a part of its keys is gone"),
            PolledActivity::NotPreheated => {
                // A store that was there and is not any more has lost writes, unless its keys ran out, which they do when the
                // retention is over and nobody waits for an order.
                let expired = polled.now >= before.ends_at.after(before.retention) && before.unsettled == 0;
                return match before.vouched.is_some() && !expired {
                    true => self.bar(activity, Barred::Fenced, "the store is empty"),
                    false => self.bar(activity, Barred::NotPreheated, ""),
                };
            }
        };
        if before.epoch().is_some_and(|followed| followed != state.terms.epoch) {
            return self.bar(activity, Barred::Fenced, "the store is under another epoch");
        }
        let at_start = self.cursor == JournalCursor::start();
        if !at_start && state.entries.iter().any(|entry| matches!(entry.op, JournalOp::Preheated)) {
            return self.bar(activity, Barred::Fenced, "the store was emptied and made anew");
        }
        if self.restart_if_moved(&polled.server_run) {
            // The cursor belonged to another run of the store; read its journal from the start.
            return true;
        }
        self.follow(activity, &state);
        self.check_sums(activity, &state.stock);
        let barred = if before.vouched.is_some() && before.barred == Some(Barred::Fenced) {
            // Keys that come back do not tell what was lost meanwhile: a fence is not lifted by itself.
            Some(Barred::Fenced)
        } else {
            state.barred
        };
        self.stands(
            activity,
            barred,
            "a part of its keys was gone, and what was lost with it is not known",
            state.terms.epoch,
        );
        if barred.is_none() {
            activity.file.compare(&activity.id, &state.terms);
        }
        let at_end = state.at_end;
        activity.publish(View {
            reached: true,
            vouched: Some((state.terms.epoch, polled.server_run)),
            starts_at: state.terms.starts_at,
            ends_at: state.terms.ends_at,
            per_user_limit: state.terms.per_user_limit,
            retention: state.terms.retention,
            barred,
            // A gate whose win log has failed admits nobody, as if it were paused.
            paused: state.paused || activity.wins.has_failed(),
            unsettled: state.unsettled,
            dead: state.dead,
            oldest_unsettled: self.unsettled.values().min().copied(),
            winners_known_at: (at_end && barred.is_none()).then_some(polled.now),
            sold_out_lease_until: (at_end && barred.is_none()).then(|| sent + SOLD_OUT_LEASE),
            stock: state.stock,
        });
        !at_end
    }

    /// Nothing can be followed: keeps what was known, and bars every win.
    fn bar(&mut self, activity: &Activity, barred: Barred, why: &str) -> bool {
        let before = activity.view();
        self.stands(activity, Some(barred), why, before.epoch().unwrap_or(Epoch(0)));
        let known = match before.vouched {
            Some(_) => View::clone(&before),
            // Until it is preheated the file's word stands, and a reload may have changed it.
            None => View::unpolled(&activity.file.get()),
        };
        let view =
            View { reached: true, barred: Some(barred), winners_known_at: None, sold_out_lease_until: None, ..known };
        activity.publish(view);
        false
    }

    /// Shows how the activity stands, and logs it if that is new.
    fn stands(&mut self, activity: &Activity, barred: Option<Barred>, why: &str, epoch: Epoch) {
        for (because, of) in [
            (BarredBecause::NotPreheated, Barred::NotPreheated),
            (BarredBecause::Suspect, Barred::Suspect),
            (BarredBecause::Fenced, Barred::Fenced),
        ] {
            activity.metrics.show(because, barred == Some(of));
        }
        let before = self.logged.replace(barred);
        if before == Some(barred) {
            return;
        }
        let id = &activity.id;
        if let Some(Some(ended @ (Barred::Suspect | Barred::Fenced))) = before {
            tracing::info!(activity = %id, was = ?ended, "no longer");
        }
        match barred {
            None => tracing::info!(activity = %id, epoch = epoch.0, "on sale"),
            Some(Barred::Suspect) => tracing::error!(activity = %id, epoch = epoch.0,
                "SUSPECT: the store's server was restarted or replaced, and may have lost its last writes. Nobody can win; \
                 known wins are told and delivered. Look at the server. This release cannot reopen the sale; how to \
                 offer what is left, docs/operations.md tells (When Redis fails)"),
            Some(Barred::Fenced) => tracing::error!(activity = %id, epoch = epoch.0, why,
                "FENCED: the store has lost the sale, or a part of it. Nobody can win, and nothing is changed in it. Do \
                 not preheat it again, which would sell everything twice. This release cannot reopen the sale; how to \
                 offer what is left, docs/operations.md tells (When Redis fails)"),
            Some(Barred::NotPreheated | Barred::Late) => tracing::info!(activity = %id, "not preheated"),
        }
    }

    /// True if the run changed, so that the cursor had to go back to the start.
    fn restart_if_moved(&mut self, run: &RunId) -> bool {
        let moved = self.followed.as_ref().is_some_and(|followed| followed != run);
        self.followed = Some(run.clone());
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

    /// INV-2, at every poll: whatever broke it, nobody should sell on unseen.
    fn check_sums(&mut self, activity: &Activity, stock: &[(SkuId, Stock)]) {
        for (sku, stock) in stock {
            if stock.adds_up() {
                if self.broken.remove(sku) {
                    tracing::info!(activity = %activity.id, %sku, "INV-2 holds again: the stock adds up");
                }
            } else if self.broken.insert(sku.clone()) {
                tracing::error!(activity = %activity.id, %sku, ?stock, "INV-2 BROKEN: the stock does not add up");
            }
        }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Watch::new()
    }
}
