//! The one place that reads the clock.
//!
//! A sale is judged by the admission store's clock. A gate measures its offset to it with each poll and adds it to its
//! own *monotonic* clock, so that a step of the machine's wall clock moves nothing.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::domain::StoreMs;
use crate::domain::time::millis;

/// One reading, taken once per request and passed inward.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic, for deadlines and leases.
    pub instant: Instant,
    /// The store's clock as this gate knows it, for windows and tokens.
    pub store: StoreMs,
    /// What the store's clock shows at most, for what must not be said too late: other gates may know it better.
    pub store_at_most: StoreMs,
}

impl Now {
    /// A moment that is known exactly.
    pub fn exactly(instant: Instant, store: StoreMs) -> Now {
        Now { instant, store, store_at_most: store }
    }
}

/// The machine's wall clock, for certificates of time that leave the deployment (JWT `iat` and `exp`).
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
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
    /// What it may have been at most, by the last answer.
    at_origin_at_most_ms: AtomicI64,
    /// Whether the store was heard at all; until then the machine's wall clock stands in.
    observed: AtomicBool,
}

impl StoreClock {
    /// A clock that shows the machine's wall clock until [`StoreClock::observe`] is called.
    pub fn new() -> StoreClock {
        let wall = i64::try_from(wall_ms()).unwrap_or(i64::MAX);
        StoreClock {
            origin: Instant::now(),
            at_origin_ms: AtomicI64::new(wall),
            at_origin_at_most_ms: AtomicI64::new(i64::MAX),
            observed: AtomicBool::new(false),
        }
    }

    /// Reads both clocks.
    pub fn now(&self) -> Now {
        let instant = Instant::now();
        let since = i64::try_from(instant.duration_since(self.origin).as_millis()).unwrap_or(i64::MAX);
        let shown = |at_origin: &AtomicI64| {
            StoreMs(u64::try_from(at_origin.load(Ordering::Relaxed).saturating_add(since)).unwrap_or(0))
        };
        Now { instant, store: shown(&self.at_origin_ms), store_at_most: shown(&self.at_origin_at_most_ms) }
    }

    /// Takes over a time that the store told between `sent` and now.
    ///
    /// The store read its clock somewhere in between, so the offset lies in an interval. The old offset stands if it lies
    /// in there too, else it moves to the nearer end: quick answers set the clock exactly, slow ones do not make it jump.
    pub fn observe(&self, told: StoreMs, sent: Instant) {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let since = |moment: Instant| match moment.checked_duration_since(self.origin) {
            Some(after) => signed(millis(after)),
            None => -signed(millis(self.origin.duration_since(moment))),
        };
        let (earliest, latest) = (signed(told.0) - since(monotonic()), signed(told.0) - since(sent));
        let seen = self.observed.swap(true, Ordering::Relaxed);
        let moved = |old: i64| Some(if seen { old.clamp(earliest, latest) } else { (earliest + latest) / 2 });
        _ = self.at_origin_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved);
        // The store's millisecond and ours are cut off, each at most one too small.
        self.at_origin_at_most_ms.store(latest + 2, Ordering::Relaxed);
    }
}

impl Default for StoreClock {
    fn default() -> Self {
        StoreClock::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slow_answer_does_not_make_the_clock_jump() {
        let clock = StoreClock::new();
        assert_eq!(clock.now().store_at_most, StoreMs(i64::MAX as u64), "anything, as long as it was not heard");
        let hour = 3_600_000;
        clock.observe(StoreMs(hour), monotonic());
        let shown = clock.now().store.0;
        assert!(shown.abs_diff(hour) <= 50, "the first answer sets the clock: {shown}");
        // An answer that took 900 ms, nearly all of it on the way out or on the way back.
        for told in [hour - 10, hour - 890] {
            let sent = monotonic() - Duration::from_millis(900);
            clock.observe(StoreMs(told), sent);
            let now = clock.now().store.0;
            assert!(now.abs_diff(hour) <= 60, "moved to {now} by an answer that said {told}");
        }
        // It may be further on, by as much as the last answer took.
        let Now { store, store_at_most, .. } = clock.now();
        assert!(store_at_most >= store && store.until(store_at_most) <= Duration::from_millis(960), "{store_at_most}");
        // A quick answer that disagrees is believed: the store's clock was set.
        clock.observe(StoreMs(2 * hour), monotonic());
        assert!(clock.now().store.0.abs_diff(2 * hour) <= 50);
        assert!(clock.now().store_at_most.0.abs_diff(2 * hour) <= 60, "and it is known well again");
    }
}
