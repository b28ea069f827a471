//! Fresh wins that found no permit: delivered by this gate as permits and rate allow, instead of waiting for the relay to
//! find their first lease run out.
//!
//! The outbox of the store remains the truth. The backlog is bounded and forgets a win whose lease is about to end, since
//! a relay, of this gate or of another, may then claim it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::domain::admission::DueWin;
use crate::gate::delivery::courier::Courier;
use crate::gate::delivery::outbox::Outbox;
use crate::gate::delivery::pacer::Pacer;
use crate::platform::clock::monotonic;
use crate::platform::shutdown::{Shutdown, Stage};

/// Wins that may wait here; with a payload of 2 KiB each, 8 MiB.
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
    /// Delivers what waits until the listeners close. `pacer` is the relays'.
    pub async fn run(mut self, courier: Courier, pacer: Arc<Mutex<Pacer>>, shutdown: Shutdown) {
        loop {
            let deferred = tokio::select! {
                () = shutdown.reached(Stage::Closing) => return,
                deferred = self.waiting.recv() => match deferred {
                    Some(deferred) => deferred,
                    None => return,
                },
            };
            let Some(permit) = courier.permit().await else { return };
            let take = || pacer.lock().unwrap_or_else(PoisonError::into_inner).take(1, monotonic());
            while monotonic() < deferred.until && take() == 0 {
                tokio::time::sleep(PAUSE).await;
            }
            if monotonic() < deferred.until {
                // The task records what it learns; nobody waits for it.
                drop(courier.start(deferred.outbox, deferred.win, deferred.traceparent, permit));
            }
        }
    }
}
