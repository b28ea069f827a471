//! Fresh wins that found no permit: delivered by this gate as permits and rate allow, instead of waiting for the relay to
//! find their first lease run out.
//!
//! The outbox of the store remains the truth. The backlog is bounded and forgets a win whose lease is about to end, since
//! a relay, of this gate or of another, may then claim it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::domain::ActivityId;
use crate::domain::admission::DueWin;
use crate::gate::delivery::courier::Courier;
use crate::gate::delivery::lanes::{Errand, NoPermit};
use crate::gate::delivery::outbox::Outbox;
use crate::gate::delivery::pacer::Pacer;
use crate::platform::clock::monotonic;
use crate::platform::shutdown::{Shutdown, Stage};

/// Wins that may wait here per activity, and on their way here; with a payload of 2 KiB each, 8 MiB.
pub const CAPACITY: usize = 4_096;

/// How long to wait for the rate.
const PAUSE: Duration = Duration::from_millis(5);

/// A win that waits for its first delivery.
pub struct Deferred {
    /// Where it is recorded.
    pub outbox: Arc<dyn Outbox>,
    /// The win.
    pub win: DueWin,
    /// The client's, if it sent one.
    pub traceparent: Option<String>,
    /// Not to be started after this: its lease would end under way.
    pub until: Instant,
}

/// The waiting wins of one gate.
pub struct Backlog {
    /// Filled by [`Courier`].
    pub(super) waiting: mpsc::Receiver<Deferred>,
}

impl Backlog {
    /// Delivers what waits until the listeners close. `pacer` is the relays'. Each activity has a queue of its own: one
    /// whose deliveries hang holds nobody up.
    pub async fn run(mut self, courier: Courier, pacer: Arc<Mutex<Pacer>>, shutdown: Shutdown) {
        let mut queues = Queues::new();
        loop {
            let waits = !queues.is_empty();
            let mut arrived = tokio::select! {
                () = shutdown.reached(Stage::Closing) => return,
                arrived = self.waiting.recv() => match arrived {
                    Some(deferred) => Some(deferred),
                    None => return,
                },
                () = courier.freed(), if waits => None,
                // The rate, and leases that end, are told by no event.
                () = tokio::time::sleep(PAUSE), if waits => None,
            };
            while let Some(deferred) = arrived {
                keep(&mut queues, deferred);
                arrived = self.waiting.try_recv().ok();
            }
            while start_one_each(&mut queues, &courier, &pacer) {}
            queues.retain(|(_, queue)| !queue.is_empty());
        }
    }
}

/// What waits, by activity; the first is the next whose turn it is.
type Queues = VecDeque<(ActivityId, VecDeque<Deferred>)>;

fn keep(queues: &mut Queues, deferred: Deferred) {
    let id = deferred.outbox.id();
    match queues.iter_mut().find(|(activity, _)| activity == id) {
        // Beyond the bound it is the relay's.
        Some((_, queue)) if queue.len() >= CAPACITY => {}
        Some((_, queue)) => queue.push_back(deferred),
        None => queues.push_back((id.clone(), VecDeque::from([deferred]))),
    }
}

/// Starts the first of each queue that may be; true if there was one.
fn start_one_each(queues: &mut Queues, courier: &Courier, pacer: &Mutex<Pacer>) -> bool {
    let mut any = false;
    for _ in 0..queues.len() {
        let Some((activity, queue)) = queues.front_mut() else { break };
        let now = monotonic();
        while queue.front().is_some_and(|deferred| now >= deferred.until) {
            queue.pop_front();
        }
        if !queue.is_empty() {
            let mut pacer = pacer.lock().unwrap_or_else(PoisonError::into_inner);
            if pacer.take(1, now) == 0 {
                // It keeps its turn.
                return false;
            }
            match courier.try_permit(activity, Errand::First) {
                Ok(permit) => {
                    if let Some(deferred) = queue.pop_front() {
                        // The task records what it learns; nobody waits for it.
                        drop(courier.start(deferred.outbox, deferred.win, deferred.traceparent, permit));
                        any = true;
                    }
                }
                Err(why) => {
                    pacer.give_back(1);
                    if why == NoPermit::BreakerOpen {
                        // They are the relay's, as those won from now on.
                        queue.clear();
                    }
                }
            }
        }
        queues.rotate_left(1);
    }
    any
}
