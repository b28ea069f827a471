//! Points in time, in the one clock that judges a sale: the admission store's.

use std::fmt;
use std::time::Duration;

/// Milliseconds since the Unix epoch, read from the admission store's clock (or converted to it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StoreMs(pub u64);

impl StoreMs {
    /// This moment plus `delay`, saturating.
    pub fn after(self, delay: Duration) -> StoreMs {
        StoreMs(self.0.saturating_add(millis(delay)))
    }

    /// How long from this moment until `later`; zero if it has passed.
    pub fn until(self, later: StoreMs) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

impl fmt::Display for StoreMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A duration in whole milliseconds, saturating at `u64::MAX`.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
