//! Who may deliver now: a lane per activity, so that one activity's hung deliveries never hold every permit of the gate,
//! and a breaker per lane, so that nobody waits for an order service that does not answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::domain::ActivityId;
use crate::domain::backoff::Backoff;
use crate::gate::delivery::word::{Why, Word};
use crate::platform::breaker::{BreakerMetrics, Circuit, Pass, Policy};

/// More failures than the two that a restart of the order service gives an id; to one that is down at most `at_once`
/// deliveries at a time, and after each that fails a pause of up to a second.
const POLICY: Policy = Policy {
    failures: 5,
    probes: Backoff { first: Duration::from_millis(250), cap: Duration::from_secs(1) },
    // Some orders may be what makes it sick: a few at a time, so that one of the others soon shows that it is well.
    at_once: 8,
    // Each has its deadline.
    probe_lasts: Duration::MAX,
};

/// What the breakers stand before.
const TARGET: &str = "orders";

/// On whose behalf a delivery begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// A winner's, for the first time. Never a probe: the winner is not made to wait for a sick order service.
    First,
    /// The relay's.
    Relay,
}

/// Why there is no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPermit {
    /// As many as may be are under way.
    Full,
    /// The order service does not answer for this activity.
    BreakerOpen,
}

/// The permits of one gate.
pub struct Lanes {
    max: usize,
    breakers: BreakerMetrics,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    in_use: usize,
    lanes: HashMap<ActivityId, Lane>,
}

struct Lane {
    in_use: usize,
    by_relay: usize,
    circuit: Arc<Circuit>,
}

/// The right to have one delivery under way.
pub struct Permit {
    lanes: Arc<Lanes>,
    activity: ActivityId,
    errand: Errand,
    circuit: Arc<Circuit>,
    pass: Pass,
    heard: bool,
}

impl Lanes {
    /// At most `max` deliveries under way at once.
    pub fn new(max: usize, breakers: BreakerMetrics) -> Arc<Lanes> {
        Arc::new(Lanes { max: max.max(1), breakers, state: Mutex::default(), freed: Notify::new() })
    }

    /// Opens an activity's lane, so that its share is kept and its series exist.
    pub fn announce(&self, activity: &ActivityId) {
        self.lock().lane(activity, &self.breakers);
    }

    /// Closes the lane of an activity that this gate does not run any more: the others have its share, and its series go.
    /// To be called when nobody asks for its permits any more; those still given out end as they may.
    pub fn retire(&self, activity: &ActivityId) {
        let mut state = self.lock();
        state.lanes.remove(activity);
        self.breakers.retire(TARGET, activity.as_str());
        drop(state);
        self.freed.notify_one();
    }

    /// A permit, if there is one.
    pub fn try_permit(self: &Arc<Lanes>, activity: &ActivityId, errand: Errand) -> Result<Permit, NoPermit> {
        let mut state = self.lock();
        let all_in_use = state.in_use >= self.max;
        state.lane(activity, &self.breakers);
        // One activity may have everything; of several none may have more than half, of which the relay's repetitions
        // leave half to fresh winners.
        let share = if state.lanes.len() > 1 { (self.max / 2).max(1) } else { self.max };
        let lane = state.lane(activity, &self.breakers);
        if errand == Errand::First && lane.circuit.is_open() {
            return Err(NoPermit::BreakerOpen);
        }
        let relay_full = errand == Errand::Relay && lane.by_relay >= (share / 2).max(1);
        if all_in_use || lane.in_use >= share || relay_full {
            return Err(NoPermit::Full);
        }
        let pass = lane.circuit.ask();
        if matches!(pass, Pass::Refused(_)) {
            return Err(NoPermit::BreakerOpen);
        }
        lane.in_use += 1;
        lane.by_relay += usize::from(errand == Errand::Relay);
        let circuit = Arc::clone(&lane.circuit);
        state.in_use += 1;
        Ok(Permit { lanes: Arc::clone(self), activity: activity.clone(), errand, circuit, pass, heard: false })
    }

    /// Whether the activity's breaker is open.
    pub fn is_unanswered(&self, activity: &ActivityId) -> bool {
        self.lock().lanes.get(activity).is_some_and(|lane| lane.circuit.is_open())
    }

    /// Resolves when a permit has been given back since the last time.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters that are changed together, by code that does not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lane(&mut self, activity: &ActivityId, breakers: &BreakerMetrics) -> &mut Lane {
        self.lanes.entry(activity.clone()).or_insert_with(|| Lane {
            in_use: 0,
            by_relay: 0,
            circuit: Arc::new(breakers.circuit(TARGET, activity.as_str(), POLICY)),
        })
    }
}

impl Permit {
    /// Tells the breaker what the delivery heard.
    pub fn heard(&mut self, word: &Word) {
        match word {
            Word::Unknown(Why::Deadline | Why::Unreachable | Why::Broken | Why::Status(500..)) => {
                self.circuit.failed(self.pass, word.label());
            }
            // Somebody answers, though nothing definite: no reason to open, none to close.
            Word::Unknown(_) if matches!(self.pass, Pass::Probe(_)) => self.circuit.failed(self.pass, word.label()),
            Word::Unknown(_) => {}
            Word::Booked(_) | Word::Queued(_) | Word::Ended(_) => self.circuit.succeeded(),
        }
        self.heard = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.heard {
            self.circuit.abandoned(self.pass);
        }
        let mut state = self.lanes.lock();
        state.in_use -= 1;
        // Not if its lane is gone, perhaps with a new one in its place.
        if let Some(lane) = state.lanes.get_mut(&self.activity)
            && Arc::ptr_eq(&lane.circuit, &self.circuit)
        {
            lane.in_use -= 1;
            lane.by_relay -= usize::from(self.errand == Errand::Relay);
        }
        drop(state);
        self.lanes.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::metrics::Metrics;

    fn lanes(max: usize) -> Arc<Lanes> {
        Lanes::new(max, BreakerMetrics::register(&Metrics::new().unwrap()).unwrap())
    }

    fn take(lanes: &Arc<Lanes>, activity: &str, errand: Errand) -> Vec<Permit> {
        std::iter::from_fn(|| lanes.try_permit(&activity.parse().unwrap(), errand).ok()).take(100).collect()
    }

    #[test]
    fn one_activity_has_everything_and_of_two_each_keeps_its_half() {
        let lanes = lanes(8);
        let alone = take(&lanes, "a", Errand::First);
        assert_eq!(alone.len(), 8);
        lanes.announce(&"b".parse().unwrap());
        drop(alone);
        let a = take(&lanes, "a", Errand::First);
        let b = take(&lanes, "b", Errand::First);
        assert_eq!((a.len(), b.len()), (4, 4));
        drop(a);
        assert_eq!(take(&lanes, "a", Errand::Relay).len(), 2, "the relay leaves half of the share to winners");
        assert_eq!(take(&lanes, "a", Errand::First).len(), 4, "dropped permits come back");
    }

    #[test]
    fn an_activity_that_is_gone_leaves_its_share_to_the_others_and_its_permits_disturb_nobody() {
        let lanes = lanes(8);
        let b = "b".parse().unwrap();
        lanes.announce(&"a".parse().unwrap());
        let old = take(&lanes, "b", Errand::First);
        assert_eq!(old.len(), 4);
        lanes.retire(&b);
        assert_eq!(take(&lanes, "a", Errand::First).len(), 4, "four are still under way");
        lanes.announce(&b);
        let new = take(&lanes, "b", Errand::First);
        assert_eq!(new.len(), 4);
        drop((old, new));
        lanes.retire(&b);
        assert_eq!(take(&lanes, "a", Errand::First).len(), 8);
    }

    #[test]
    fn an_order_service_that_does_not_answer_gets_a_few_probes_at_a_time_from_the_relay() {
        let lanes = lanes(8);
        let id = "a".parse().unwrap();
        for _ in 0..POLICY.failures {
            lanes.try_permit(&id, Errand::First).unwrap().heard(&Word::Unknown(Why::Deadline));
        }
        assert_eq!(lanes.try_permit(&id, Errand::First).err(), Some(NoPermit::BreakerOpen));
        assert_eq!(lanes.try_permit(&id, Errand::Relay).err(), Some(NoPermit::BreakerOpen));
        assert!(lanes.try_permit(&"b".parse().unwrap(), Errand::First).is_ok(), "the other activity is not affected");
        std::thread::sleep(POLICY.probes.first);
        assert_eq!(lanes.try_permit(&id, Errand::First).err(), Some(NoPermit::BreakerOpen), "no winner probes");
        let probes = take(&lanes, "a", Errand::Relay);
        assert!((1..=POLICY.at_once as usize).contains(&probes.len()), "{} probes", probes.len());
        drop(probes);
        let mut probe = lanes.try_permit(&id, Errand::Relay).expect("a probe with nothing to deliver makes room");
        probe.heard(&Word::Queued(crate::gate::delivery::reply::StoredReply {
            status: 202,
            content_type: None,
            location: None,
            body: bytes::Bytes::new(),
        }));
        assert!(lanes.try_permit(&id, Errand::First).is_ok());
    }

    #[test]
    fn a_word_that_says_nothing_definite_opens_nothing() {
        let lanes = lanes(8);
        let id = "a".parse().unwrap();
        for _ in 0..20 {
            lanes.try_permit(&id, Errand::First).unwrap().heard(&Word::Unknown(Why::Status(409)));
        }
        assert!(lanes.try_permit(&id, Errand::First).is_ok());
    }
}
