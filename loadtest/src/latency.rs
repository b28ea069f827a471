//! Latencies in buckets that grow with the value: 16 per doubling, so a quantile is off by at most 1/16.

use std::time::Duration;

/// Sub-buckets per doubling, as a power of two.
const PRECISION_BITS: u32 = 4;
/// Enough buckets for any `u64` of microseconds.
const BUCKETS: usize = ((64 - PRECISION_BITS as usize) + 1) << PRECISION_BITS;

/// A histogram of durations, in microseconds.
#[derive(Debug, Clone)]
pub struct Latency {
    counts: Vec<u64>,
    total: u64,
    longest_us: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { counts: vec![0; BUCKETS], total: 0, longest_us: 0 }
    }
}

impl Latency {
    /// Adds one measurement.
    pub fn record(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(us)] += 1;
        self.total += 1;
        self.longest_us = self.longest_us.max(us);
    }

    /// The value below or at which the share `q` (0 to 1) of all measurements lies; `None` if there are none.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        // The rank is at most `total`, which is far below 2^52: no precision is lost.
        let rank = ((self.total as f64 * q).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(Duration::from_micros(upper_bound(index).min(self.longest_us)));
            }
        }
        None
    }

    /// The longest measurement.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us)
    }

    /// How many were measured.
    pub fn count(&self) -> u64 {
        self.total
    }
}

fn bucket(us: u64) -> usize {
    if us < 1 << PRECISION_BITS {
        return us as usize;
    }
    let doubling = us.ilog2() - PRECISION_BITS;
    (((u64::from(doubling) + 1) << PRECISION_BITS) + ((us >> doubling) - (1 << PRECISION_BITS))) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 1 << PRECISION_BITS {
        return bucket;
    }
    let doubling = (bucket >> PRECISION_BITS) - 1;
    let sub = bucket & ((1 << PRECISION_BITS) - 1);
    // The next bucket's first value, less one.
    ((1u128 << PRECISION_BITS) + u128::from(sub) + 1)
        .checked_shl(doubling as u32)
        .map_or(u64::MAX, |next| u64::try_from(next - 1).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_no_bucket_is_wider_than_a_sixteenth() {
        for us in (0..100_000).chain([1 << 20, (1 << 33) + 7, u64::MAX]) {
            let upper = upper_bound(bucket(us));
            assert!(upper >= us, "{us} above {upper}");
            assert!(upper - us <= us / 16 + 1, "{us} is far below {upper}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        for ms in 1..=100 {
            latency.record(Duration::from_millis(ms));
        }
        let median = latency.quantile(0.5).unwrap().as_millis();
        assert!((50..=54).contains(&median), "{median}");
        assert_eq!(latency.quantile(1.0), Some(Duration::from_millis(100)));
        assert_eq!(latency.count(), 100);
    }
}
