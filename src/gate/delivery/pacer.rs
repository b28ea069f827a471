//! The relay's rate, shared by all activities of a gate: a burst of thousands of wins never becomes a burst at the shop.

use std::time::{Duration, Instant};

/// A token bucket that hands out many at once and takes unused ones back. Time comes in as an argument.
#[derive(Debug)]
pub struct Pacer {
    per_second: f64,
    capacity: f64,
    tokens: f64,
    filled_at: Instant,
}

impl Pacer {
    /// So many `per`, at most a quarter of a second's worth (and at least one) at once.
    pub fn new(count: u32, per: Duration, now: Instant) -> Pacer {
        let per_second = f64::from(count) / per.as_secs_f64().max(0.001);
        let capacity = (per_second / 4.0).max(1.0);
        Pacer { per_second, capacity, tokens: capacity, filled_at: now }
    }

    /// Takes as many as there are, at most `wanted`.
    pub fn take(&mut self, wanted: usize, now: Instant) -> usize {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.filled_at = self.filled_at.max(now);
        self.tokens = (self.tokens + passed * self.per_second).min(self.capacity);
        let taken = (self.tokens as usize).min(wanted);
        self.tokens -= taken as f64;
        taken
    }

    /// Takes back what was not used.
    pub fn give_back(&mut self, unused: usize) {
        self.tokens = (self.tokens + unused as f64).min(self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_the_rate_and_all_of_it() {
        let start = Instant::now();
        let mut pacer = Pacer::new(100, Duration::from_secs(1), start);
        let taken: usize = (0..=1_000_u64).map(|ms| pacer.take(64, start + Duration::from_millis(ms))).sum();
        assert!((124..=125).contains(&taken), "{taken}");
    }

    #[test]
    fn unused_ones_are_not_lost_and_not_saved_up() {
        let start = Instant::now();
        let mut pacer = Pacer::new(40, Duration::from_secs(1), start);
        assert_eq!(pacer.take(64, start), 10);
        assert_eq!(pacer.take(64, start), 0);
        pacer.give_back(7);
        assert_eq!(pacer.take(64, start), 7);
        assert_eq!(pacer.take(64, start + Duration::from_secs(3600)), 10);
    }

    #[test]
    fn a_slow_rate_still_moves() {
        let start = Instant::now();
        let mut pacer = Pacer::new(1, Duration::from_secs(60), start);
        assert_eq!(pacer.take(5, start), 1);
        assert_eq!(pacer.take(5, start + Duration::from_secs(59)), 0);
        assert_eq!(pacer.take(5, start + Duration::from_secs(61)), 1);
    }
}
