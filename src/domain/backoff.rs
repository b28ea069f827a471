//! When to try again.

use std::time::Duration;

/// Doubling pauses: `first`, twice that, … up to `cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first try.
    pub first: Duration,
    /// The longest pause.
    pub cap: Duration,
}

impl Backoff {
    /// The pause after try number `tries` (counted from 0).
    pub fn pause(&self, tries: u32) -> Duration {
        // 2^20 first pauses are longer than any cap of ours.
        self.first.saturating_mul(1 << tries.min(20)).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap() {
        let backoff = Backoff { first: Duration::from_millis(300), cap: Duration::from_secs(5) };
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, 5, 63, u32::MAX]
            .iter()
            .map(|&tries| super::super::time::millis(backoff.pause(tries)))
            .collect();
        assert_eq!(pauses, [300, 600, 1200, 2400, 4800, 5000, 5000, 5000]);
    }
}
