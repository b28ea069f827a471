//! Rate limits: GCRA (governor) per address, user, device and activity, in bounded memory.
//!
//! Rates are for the whole deployment; each gate takes its share. A limiter that a reload does not change is kept with
//! all its state.

use std::collections::hash_map::RandomState;
use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dashmap::{DashMap, Entry};
use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::ShrinkableKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::config::schema;
use crate::domain::refusal::Code;
use crate::domain::{ActivityId, DeviceId, UserId};
use crate::gate::address;
use crate::gate::answer::{Exceeded, Refusal};

/// What governor keeps per key: the theoretical arrival time, in nanoseconds since the limiter was made; 0 is "none".
#[derive(Default)]
struct Cell(AtomicU64);

impl Cell {
    fn measure<T, E>(&self, decide: impl Fn(Option<Nanos>) -> Result<(T, Nanos), E>) -> Result<T, E> {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            let (outcome, next) = decide((seen != 0).then(|| Nanos::from(seen)))?;
            match self.0.compare_exchange_weak(seen, next.into(), Ordering::Release, Ordering::Acquire) {
                Ok(_) => return Ok(outcome),
                Err(now) => seen = now,
            }
        }
    }
}

/// Parts of a map, each under a lock of its own. Attempts wait for a part that is being swept, so parts are small: some
/// thousand keys, a fraction of a millisecond.
const SHARDS: usize = 128;

/// Room for so many keys stays, whoever needed it: a rush comes in waves, and must not find maps that have to grow again.
const ROOM_KEPT: usize = 100_000;

/// The states of all keys: at most `capacity` of their own, and one that all further unknown keys share. A flood of
/// made-up keys can fill the map, but takes nothing from the keys that are in it.
struct Cells<K> {
    cells: DashMap<K, Cell, RandomState>,
    held: AtomicUsize,
    /// Shared with the limiter: a reload changes it.
    capacity: Arc<AtomicUsize>,
    overflow: Cell,
}

impl<K: Hash + Eq + Clone> Cells<K> {
    fn new(capacity: Arc<AtomicUsize>) -> Cells<K> {
        let cells = DashMap::with_hasher_and_shard_amount(RandomState::new(), SHARDS);
        Cells { cells, held: AtomicUsize::new(0), capacity, overflow: Cell::default() }
    }
}

impl<K: Hash + Eq + Clone> StateStore for Cells<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        if let Some(cell) = self.cells.get(key) {
            return cell.measure(decide);
        }
        // A place is taken before the key is put in, so the map never grows beyond its capacity.
        let capacity = self.capacity.load(Ordering::Relaxed);
        let reserved = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| (held < capacity).then_some(held + 1))
            .is_ok();
        if !reserved {
            return self.overflow.measure(decide);
        }
        match self.cells.entry(key.clone()) {
            Entry::Occupied(entry) => {
                self.held.fetch_sub(1, Ordering::Relaxed);
                entry.get().measure(decide)
            }
            Entry::Vacant(entry) => entry.insert(Cell::default()).measure(decide),
        }
    }
}

impl<K: Hash + Eq + Clone> ShrinkableKeyedStateStore<K> for Cells<K> {
    fn retain_recent(&self, drop_below: Nanos) {
        let drop_below = drop_below.as_u64();
        self.cells.retain(|_, cell| {
            let keep = cell.0.load(Ordering::Relaxed) > drop_below;
            if !keep {
                self.held.fetch_sub(1, Ordering::Relaxed);
            }
            keep
        });
    }

    fn shrink_to_fit(&self) {
        let room = self.cells.capacity();
        if room > ROOM_KEPT && self.cells.len() < room / 8 {
            self.cells.shrink_to_fit();
        }
    }

    fn len(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What makes two limiters the same, so that a reload keeps one with its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// One request per this time lastingly, for this gate alone.
    interval: Duration,
    /// So many at once, for this gate alone; at least 1.
    burst: NonZeroU32,
}

impl Shape {
    /// This gate's share of a limit. The interval grows by the number of gates, which loses nothing to rounding; a
    /// burst is rounded up, so that it is never 0.
    fn of(limit: &schema::Limit, gates: usize) -> Shape {
        let gates = u32::try_from(gates.max(1)).unwrap_or(u32::MAX);
        let count = limit.rate.count.max(1);
        let interval = limit.rate.per.saturating_mul(gates) / count;
        let burst = limit.burst.unwrap_or(count).div_ceil(gates);
        let interval = interval.max(Duration::from_nanos(1));
        Shape { interval, burst: NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN) }
    }
}

/// One limit over keys of one kind.
struct Limiter<K: Hash + Eq + Clone, C: Clock = MonotonicClock> {
    policy: &'static str,
    shape: Shape,
    capacity: Arc<AtomicUsize>,
    governor: RateLimiter<K, Cells<K>, C, NoOpMiddleware<C::Instant>>,
}

impl<K: Hash + Eq + Clone, C: Clock> Limiter<K, C> {
    fn new(policy: &'static str, shape: Shape, capacity: usize, clock: C) -> Limiter<K, C> {
        let capacity = Arc::new(AtomicUsize::new(capacity));
        let cells = Cells::new(Arc::clone(&capacity));
        // `Shape::of` keeps the interval above zero, which is all that `with_period` asks.
        let quota = Quota::with_period(shape.interval).unwrap_or(Quota::per_second(NonZeroU32::MAX));
        Limiter { policy, shape, capacity, governor: RateLimiter::new(quota.allow_burst(shape.burst), cells, clock) }
    }

    fn check(&self, key: &K) -> Result<(), Refusal> {
        self.governor.check_key(key).map_err(|not_until| {
            let wait = not_until.wait_time_from(self.governor.clock().now());
            let window = self.shape.interval.saturating_mul(self.shape.burst.get());
            let exceeded = Exceeded {
                policy: self.policy,
                quota: self.shape.burst.get(),
                window_seconds: crate::domain::time::millis(window).div_ceil(1_000).max(1),
            };
            Refusal::from(Code::RateLimited).retry_after(wait.max(Duration::from_millis(1))).exceeded(exceeded)
        })
    }

    fn reclaim(&self) {
        self.governor.retain_recent();
        self.governor.shrink_to_fit();
    }
}

type Shared<K> = Option<Arc<Limiter<K>>>;

/// The limits of one route.
pub struct RouteLimits {
    ipv6_prefix: u8,
    address: Shared<u128>,
    user: Shared<UserId>,
    device: Shared<DeviceId>,
    activity: Shared<ActivityId>,
}

impl RouteLimits {
    /// Stage 4: the client's address.
    pub fn check_address(&self, address: IpAddr) -> Result<(), Refusal> {
        match &self.address {
            Some(limiter) => limiter.check(&address::limit_key(address, self.ipv6_prefix)),
            None => Ok(()),
        }
    }

    /// Stage 6: user, device, activity.
    pub fn check_caller(&self, user: &UserId, device: Option<&DeviceId>, activity: &ActivityId) -> Result<(), Refusal> {
        if let Some(limiter) = &self.user {
            limiter.check(user)?;
        }
        if let (Some(limiter), Some(device)) = (&self.device, device) {
            limiter.check(device)?;
        }
        match &self.activity {
            Some(limiter) => limiter.check(activity),
            None => Ok(()),
        }
    }
}

/// All limits of this gate.
pub struct Limits {
    /// Of attempts.
    pub attempts: RouteLimits,
    /// Of token requests.
    pub tokens: RouteLimits,
    /// Of reads (state, results).
    pub reads: RouteLimits,
}

impl Limits {
    /// The limits of a configuration for a deployment of `gates` gates. Limiters of `previous` that are the same are
    /// kept, with their state.
    pub fn new(config: &schema::Limits, gates: usize, previous: Option<&Limits>) -> Limits {
        let capacity = config.max_keys.0;
        let ipv6_prefix = config.ipv6_prefix.0;
        let kept = |limit: &Option<schema::Limit>| limit.as_ref().map(|limit| (Shape::of(limit, gates), capacity));
        let route = |limits: &schema::AttemptLimits, before: Option<&RouteLimits>| RouteLimits {
            ipv6_prefix,
            address: keep_or_make("address", kept(&limits.address), before.map(|b| &b.address)),
            user: keep_or_make("user", kept(&limits.user), before.map(|b| &b.user)),
            device: keep_or_make("device", kept(&limits.device), before.map(|b| &b.device)),
            activity: keep_or_make("activity", kept(&limits.activity), before.map(|b| &b.activity)),
        };
        let reads = schema::AttemptLimits { address: config.reads.address, user: None, device: None, activity: None };
        Limits {
            attempts: route(&config.attempts, previous.map(|p| &p.attempts)),
            tokens: route(&config.tokens, previous.map(|p| &p.tokens)),
            reads: route(&reads, previous.map(|p| &p.reads)),
        }
    }

    /// Drops the keys of one limiter that are as good as new; each of [`LIMITERS`] turns in a row takes another one. It
    /// goes through all its keys: not for a thread that serves.
    pub fn reclaim(&self, turn: usize) {
        if let (.., Some(limiter)) = self.limiters()[turn % LIMITERS] {
            limiter.reclaim();
        }
    }

    /// Keys held by each limiter: route, policy, keys; none where there is no limit.
    pub fn held(&self) -> [(&'static str, &'static str, usize); LIMITERS] {
        self.limiters().map(|(route, policy, limiter)| (route, policy, limiter.map_or(0, Housekeeping::len)))
    }

    fn limiters(&self) -> [(&'static str, &'static str, Option<&dyn Housekeeping>); LIMITERS] {
        fn of<K: Hash + Eq + Clone>(limiter: &Shared<K>) -> Option<&dyn Housekeeping> {
            limiter.as_deref().map(|limiter| limiter as _)
        }
        let Limits { attempts, tokens, reads } = self;
        [
            ("attempts", "address", of(&attempts.address)),
            ("attempts", "user", of(&attempts.user)),
            ("attempts", "device", of(&attempts.device)),
            ("attempts", "activity", of(&attempts.activity)),
            ("tokens", "address", of(&tokens.address)),
            ("tokens", "user", of(&tokens.user)),
            ("tokens", "device", of(&tokens.device)),
            ("tokens", "activity", of(&tokens.activity)),
            ("reads", "address", of(&reads.address)),
        ]
    }
}

/// Limiters of a gate: route by policy.
pub const LIMITERS: usize = 9;

trait Housekeeping {
    fn len(&self) -> usize;
    fn reclaim(&self);
}

impl<K: Hash + Eq + Clone> Housekeeping for Limiter<K> {
    fn len(&self) -> usize {
        self.governor.len()
    }
    fn reclaim(&self) {
        Limiter::reclaim(self);
    }
}

fn keep_or_make<K: Hash + Eq + Clone>(
    policy: &'static str,
    wanted: Option<(Shape, usize)>,
    before: Option<&Shared<K>>,
) -> Shared<K> {
    let (shape, capacity) = wanted?;
    match before {
        Some(Some(limiter)) if limiter.shape == shape => {
            limiter.capacity.store(capacity, Ordering::Relaxed);
            Some(Arc::clone(limiter))
        }
        _ => Some(Arc::new(Limiter::new(policy, shape, capacity, MonotonicClock))),
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn limit(rate: &str, burst: Option<u32>) -> schema::Limit {
        schema::Limit { rate: rate.parse().unwrap(), burst }
    }

    fn limiter(rate: &str, burst: u32, capacity: usize) -> (Limiter<u32, FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        // A theoretical arrival time of 0 means "none", as in governor's own store: keep away from the origin.
        clock.advance(Duration::from_secs(1));
        let shape = Shape::of(&limit(rate, Some(burst)), 1);
        (Limiter::new("user", shape, capacity, clock.clone()), clock)
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let (limiter, clock) = limiter("2/s", 3, 10);
        let passed = (0..10).filter(|_| limiter.check(&1).is_ok()).count();
        assert_eq!(passed, 3);
        let refusal = limiter.check(&1).unwrap_err();
        assert_eq!(refusal.code, Code::RateLimited);
        assert_eq!(refusal.retry_after, Some(Duration::from_millis(500)));
        assert_eq!(refusal.exceeded, Some(Exceeded { policy: "user", quota: 3, window_seconds: 2 }));
        clock.advance(Duration::from_millis(499));
        assert!(limiter.check(&1).is_err());
        clock.advance(Duration::from_millis(1));
        assert!(limiter.check(&1).is_ok());
        assert!(limiter.check(&2).is_ok(), "another key has its own count");
    }

    #[test]
    fn a_flood_of_unknown_keys_takes_nothing_from_known_ones() {
        let (limiter, clock) = limiter("1/s", 2, 100);
        assert!(limiter.check(&7).is_ok());
        let passed = (1_000..51_000).filter(|key| limiter.check(key).is_ok()).count();
        assert_eq!(limiter.governor.len(), 100, "memory is bounded");
        assert_eq!(passed, 99 + 2, "the keys that found no place share one bucket");
        assert!(limiter.check(&7).is_ok(), "the known key still has its second request");
        assert!(limiter.check(&7).is_err(), "and its own count");
        clock.advance(Duration::from_secs(10));
        limiter.reclaim();
        assert_eq!(limiter.governor.len(), 0, "keys as good as new are dropped");
        assert!(limiter.check(&60_000).is_ok());
        assert_eq!(limiter.governor.len(), 1);
    }

    #[test]
    fn rates_are_shared_by_the_gates_and_never_become_zero() {
        let rows = [
            ("2/s", None, 1, 500, 2),
            ("2/s", None, 2, 1_000, 1),
            ("2/s", Some(10), 3, 1_500, 4),
            ("1/h", Some(1), 50, 180_000_000, 1),
            ("1000/s", Some(5), 7, 7, 1),
        ];
        for (rate, burst, gates, interval_ms, at_once) in rows {
            let shape = Shape::of(&limit(rate, burst), gates);
            assert_eq!(shape.interval, Duration::from_millis(interval_ms), "{rate} over {gates}");
            assert_eq!(shape.burst.get(), at_once, "{rate} over {gates}");
        }
        assert!(Shape::of(&limit("4000000000/s", None), 1).interval > Duration::ZERO);
    }

    #[test]
    fn a_reload_keeps_the_state_of_unchanged_limits() {
        let mut config = schema::Limits::default();
        let first = Limits::new(&config, 1, None);
        let address: IpAddr = "1.2.3.4".parse().unwrap();
        while first.attempts.check_address(address).is_ok() {}
        config.tokens.address = None;
        let second = Limits::new(&config, 1, Some(&first));
        assert!(second.attempts.check_address(address).is_err(), "the used-up limit is still used up");
        assert_eq!(second.held()[0], ("attempts", "address", 1));
        let third = Limits::new(&config, 2, Some(&second));
        assert!(third.attempts.check_address(address).is_ok(), "a changed limit starts anew");
    }

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[test]
    fn a_reload_gives_room_for_more_keys_and_forgets_none() {
        let mut config = schema::Limits::default();
        config.attempts.address = Some(limit("1/h", Some(2)));
        config.max_keys = schema::MaxKeys(1);
        let first = Limits::new(&config, 1, None);
        let passes = |limits: &Limits, n| limits.attempts.check_address(address(n)).is_ok();
        assert_eq!([1, 1, 1].map(|n| passes(&first, n)), [true, true, false]);
        assert_eq!([2, 3, 4].map(|n| passes(&first, n)), [true, true, false], "beyond max_keys they share a bucket");
        config.max_keys = schema::MaxKeys(3);
        let second = Limits::new(&config, 1, Some(&first));
        assert!(!passes(&second, 1), "the used-up limit is still used up");
        assert_eq!([4, 5].map(|n| passes(&second, n)), [true, true], "there is room for them now");
        assert_eq!(second.held()[0], ("attempts", "address", 3));
        assert!(!passes(&second, 6), "and no more than that");
        config.max_keys = schema::MaxKeys(1);
        let third = Limits::new(&config, 1, Some(&second));
        assert!(!passes(&third, 1) && passes(&third, 4), "who is known stays known");
    }

    #[test]
    fn each_limiter_has_its_turn_and_its_series() {
        let mut config = schema::Limits::default();
        // As good as new a nanosecond later.
        let fast = Some(limit("1000000000/s", Some(1)));
        (config.attempts.address, config.tokens.address, config.reads.address) = (fast, fast, fast);
        config.tokens.user = None;
        let limits = Limits::new(&config, 1, None);
        for route in [&limits.attempts, &limits.tokens, &limits.reads] {
            assert!(route.check_address(address(1)).is_ok());
        }
        std::thread::sleep(Duration::from_millis(2));
        let held = || limits.held().into_iter().filter(|(.., keys)| *keys > 0).map(|(route, ..)| route);
        assert_eq!(held().collect::<Vec<_>>(), ["attempts", "tokens", "reads"]);
        for (turn, left) in [(0, 2), (1, 2), (4, 1), (5, 1), (8, 0)] {
            limits.reclaim(turn);
            assert_eq!(held().count(), left, "after turn {turn}");
        }
        let mut series: Vec<_> = limits.held().map(|(route, policy, _)| (route, policy)).into();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), LIMITERS);
    }

    #[test]
    fn a_map_keeps_room_for_the_next_wave_and_gives_back_what_a_flood_took() {
        for (keys, kept) in [(40_000, true), (400_000, false)] {
            let cells = Cells::<u32>::new(Arc::new(AtomicUsize::new(1_000_000)));
            for key in 0..keys {
                cells.measure_and_replace(&key, |_| Ok::<_, ()>(((), Nanos::from(1_u64)))).unwrap();
            }
            cells.retain_recent(Nanos::from(1_u64));
            cells.shrink_to_fit();
            assert_eq!(cells.len(), 0);
            let room = cells.cells.capacity();
            assert_eq!(room >= keys as usize, kept, "after {keys} keys there is room for {room}");
        }
    }
}
