//! The one place that reads the clock.
//!
//! A sale is judged by the admission store's clock. A gate measures its offset to it with each poll and adds it to its
//! own *monotonic* clock, so that a step of the machine's wall clock moves nothing.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::domain::StoreMs;

/// One reading, taken once per request and passed inward.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic, for deadlines and leases.
    pub instant: Instant,
    /// The store's clock as this gate knows it, for windows and tokens.
    pub store: StoreMs,
}

/// The machine's wall clock, for certificates of time that leave the deployment (JWT `iat` and `exp`).
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, crate::domain::time::millis)
}

/// The machine's monotonic clock, for measuring how long something took.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The store's clock, estimated.
#[derive(Debug)]
pub struct StoreClock {
    origin: Instant,
    /// Store milliseconds at `origin`.
    at_origin_ms: AtomicI64,
}

impl StoreClock {
    /// A clock that shows the machine's wall clock until [`StoreClock::observe`] is called.
    pub fn new() -> StoreClock {
        let wall = i64::try_from(wall_ms()).unwrap_or(i64::MAX);
        StoreClock { origin: Instant::now(), at_origin_ms: AtomicI64::new(wall) }
    }

    /// Reads both clocks.
    pub fn now(&self) -> Now {
        let instant = Instant::now();
        let since = i64::try_from(instant.duration_since(self.origin).as_millis()).unwrap_or(i64::MAX);
        let store = self.at_origin_ms.load(Ordering::Relaxed).saturating_add(since);
        Now { instant, store: StoreMs(u64::try_from(store).unwrap_or(0)) }
    }

    /// Takes over a time that the store told between `sent` and now. Half of the round trip is assumed to lie behind it.
    pub fn observe(&self, told: StoreMs, sent: Instant) {
        let round_trip = sent.elapsed();
        let since = sent.duration_since(self.origin) + round_trip / 2;
        let since = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        let told = i64::try_from(told.0).unwrap_or(i64::MAX);
        self.at_origin_ms.store(told.saturating_sub(since), Ordering::Relaxed);
    }
}

impl Default for StoreClock {
    fn default() -> Self {
        StoreClock::new()
    }
}
