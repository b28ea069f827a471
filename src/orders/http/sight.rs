//! Whether intake should ask the ledger just now.
//!
//! The look-up before an order is queued is a courtesy: the ledger drops what it knows already. So a ledger that was silent
//! a moment ago is not asked by everybody again; winners would wait for it, and the pool would be full of them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a silent ledger is left alone; then one caller tries.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// What intake last saw of the ledger.
#[derive(Default)]
pub(in crate::orders) struct Sight(Mutex<Option<Instant>>);

impl Sight {
    /// Whether this caller may ask.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let mut silent_since = self.lock();
        match *silent_since {
            Some(since) if now.saturating_duration_since(since) < LEFT_ALONE => false,
            Some(_) => {
                // This one finds out; the others go on without.
                *silent_since = Some(now);
                true
            }
            None => true,
        }
    }

    /// It answered.
    pub(super) fn answered(&self) {
        *self.lock() = None;
    }

    /// It did not; whether that is news.
    pub(super) fn was_silent(&self, now: Instant) -> bool {
        self.lock().replace(now).is_none()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::clock::monotonic;

    #[test]
    fn a_silent_ledger_is_tried_by_one_caller_a_second() {
        let (sight, start) = (Sight::default(), monotonic());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(sight.may_ask(at(0)) && sight.may_ask(at(0)));
        assert!(sight.was_silent(at(10)), "the first silence is news");
        assert!(!sight.was_silent(at(20)));
        assert!(!sight.may_ask(at(1_019)));
        assert!(sight.may_ask(at(1_020)), "one finds out");
        assert!(!sight.may_ask(at(1_021)), "the others do not wait for it");
        sight.answered();
        assert!(sight.may_ask(at(1_022)) && sight.may_ask(at(1_022)));
    }
}
