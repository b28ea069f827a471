//! Repeats deliveries that are due, for one activity: lease, deliver, back off. Any gate may do it for any win.
//!
//! Permits and rate are taken *before* wins are claimed, so that no lease runs out in a queue. The first tries of fresh
//! winners compete for the same permits (see [`crate::gate::delivery::lanes`]). While the activity's breaker is open, the
//! relay has one permit now and then: its delivery is the probe.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::domain::admission::Claimed;
use crate::gate::delivery::courier::Courier;
use crate::gate::delivery::lanes::{Errand, Permit};
use crate::gate::delivery::outbox::{Guarded, Outbox};
use crate::gate::delivery::pacer::Pacer;
use crate::platform::clock::monotonic;
use crate::platform::shutdown::{Shutdown, Stage};

/// The most wins that one call claims: bounds how long the store is busy and how many payloads are in memory.
const MAX_CLAIM: usize = 64;

/// How soon to look again.
const SOON: Duration = Duration::from_millis(10);
const BUSY: Duration = Duration::from_millis(50);
const IDLE: Duration = Duration::from_millis(200);
const TROUBLE: Duration = Duration::from_millis(1_000);

/// Runs one activity's relay until the listeners close. `pacer` is shared by all relays of the gate.
pub async fn run(outbox: Arc<dyn Outbox>, courier: Courier, pacer: Arc<Mutex<Pacer>>, shutdown: Shutdown) {
    let relay = Relay { outbox, courier, pacer };
    let mut troubled = false;
    while shutdown.stage() < Stage::Closing {
        let (pause, trouble) = relay.round().await;
        if trouble != troubled {
            troubled = trouble;
            let activity = relay.outbox.id();
            match trouble {
                true => tracing::warn!(%activity, "the relay cannot claim from the store"),
                false => tracing::info!(%activity, "the relay claims from the store again"),
            }
        }
        if !shutdown.sleep(jittered(pause, rand::random_range(0.8..1.2))).await {
            break;
        }
    }
}

struct Relay {
    outbox: Arc<dyn Outbox>,
    courier: Courier,
    pacer: Arc<Mutex<Pacer>>,
}

impl Relay {
    /// One claim and the start of its deliveries. Tells how long to pause, and whether the store was in trouble.
    async fn round(&self) -> (Duration, bool) {
        if self.outbox.view().epoch().is_none() {
            return (IDLE, false);
        }
        let mut permits = self.permits();
        let limit = self.paced(|pacer| pacer.take(permits.len(), monotonic()));
        permits.truncate(limit);
        // Without a permit the claim still puts returned units on sale, and tells which wins an order service that does not
        // answer keeps waiting for too long.
        let unanswered = self.courier.is_unanswered(self.outbox.id());
        let claimed = self.outbox.claim_due(limit, self.courier.lease(), unanswered).await;
        let wins = match &claimed {
            Ok(Ok(claimed)) => claimed.wins.len(),
            _ => 0,
        };
        self.paced(|pacer| pacer.give_back(limit.saturating_sub(wins)));
        let (pause, trouble) = pause_after(&claimed, limit);
        if let Ok(Ok(Claimed { wins, marked_dead, .. })) = claimed {
            if let Some(first) = marked_dead.first() {
                // One line for all of them: there may be thousands.
                tracing::error!(activity = %self.outbox.id(), wins = marked_dead.len(), request_id = %first,
                    "DEAD LETTER: too long due, and no delivery could be made; they are tried on slowly");
            }
            for (win, permit) in wins.into_iter().zip(permits) {
                // What a relay delivery tells is read from the store by whoever waits for it.
                drop(self.courier.start(self.outbox.clone(), win, None, permit));
            }
        }
        (pause, trouble)
    }

    fn permits(&self) -> Vec<Permit> {
        let permit = || self.courier.try_permit(self.outbox.id(), Errand::Relay).ok();
        std::iter::from_fn(permit).take(MAX_CLAIM).collect()
    }

    fn paced<T>(&self, act: impl FnOnce(&mut Pacer) -> T) -> T {
        // A pacer is a handful of numbers: there is no half-made state that a panic could leave behind.
        act(&mut self.pacer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// When to look again: at once where more may be due, seldom where nothing was, slowly where the store is in trouble.
fn pause_after(claimed: &Guarded<Claimed>, limit: usize) -> (Duration, bool) {
    match claimed {
        Ok(Ok(claimed)) if limit > 0 && claimed.wins.len() >= limit => (SOON, false),
        Ok(Ok(claimed)) if limit == 0 || !claimed.wins.is_empty() => (BUSY, false),
        Ok(Ok(_)) => (IDLE, false),
        Ok(Err(_)) | Err(_) => (TROUBLE, true),
    }
}

fn jittered(pause: Duration, factor: f64) -> Duration {
    pause.mul_f64(factor)
}
