//! A circuit breaker: after some failures in a row nobody waits for a sick neighbour any more, and a few calls at a time
//! find out whether it has recovered.
//!
//! [`Breaker`] is the state machine, time being an argument. [`Circuit`] is one that is shared, counted and logged.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::clock::monotonic;
use super::metrics::Metrics;
use crate::domain::backoff::Backoff;

/// When a breaker opens, and how often it lets a probe through.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Failures in a row that open it.
    pub failures: u32,
    /// Pauses between probes while it is open.
    pub probes: Backoff,
    /// Probes under way at once, at least 1.
    pub at_once: u32,
    /// How long a probe that tells nothing counts as under way; `MAX` for calls that surely end.
    pub probe_lasts: Duration,
}

/// What a breaker says of a call that wants to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Go on; nothing is wrong.
    Normal,
    /// Go on, as one of the calls that find out, begun at this moment.
    Probe(Instant),
    /// Do not begin; there may be a probe after this time.
    Refused(Duration),
}

/// What a report changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// It opened.
    Opened,
    /// It closed.
    Closed,
}

/// The state machine. Every call that passed is to be reported once, by `succeeded`, `failed` or `abandoned`.
#[derive(Debug)]
pub struct Breaker {
    policy: Policy,
    state: State,
}

#[derive(Debug)]
enum State {
    Closed { failures: u32 },
    Open { failed_probes: u32, probe_at: Instant, probing: Vec<Instant> },
}

impl Breaker {
    /// A closed one.
    pub fn new(policy: Policy) -> Breaker {
        Breaker { policy, state: State::Closed { failures: 0 } }
    }

    /// Whether calls are refused.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Whether a call may begin.
    pub fn ask(&mut self, now: Instant) -> Pass {
        match &mut self.state {
            State::Closed { .. } => Pass::Normal,
            State::Open { probe_at, probing, .. } => {
                // Whoever holds one for long does not keep the others from finding out.
                probing.retain(|since| now.saturating_duration_since(*since) < self.policy.probe_lasts);
                if probing.len() < self.policy.at_once as usize && now >= *probe_at {
                    probing.push(now);
                    return Pass::Probe(now);
                }
                Pass::Refused(probe_at.saturating_duration_since(now).max(self.policy.probes.first))
            }
        }
    }

    /// A call was answered. The first success closes, whoever had it.
    pub fn succeeded(&mut self) -> Change {
        let was_open = self.is_open();
        self.state = State::Closed { failures: 0 };
        if was_open { Change::Closed } else { Change::None }
    }

    /// A call that had `pass` was not answered.
    pub fn failed(&mut self, pass: Pass, now: Instant) -> Change {
        match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                if *failures < self.policy.failures {
                    return Change::None;
                }
                let probe_at = now + self.policy.probes.pause(0);
                self.state = State::Open { failed_probes: 0, probe_at, probing: Vec::new() };
                Change::Opened
            }
            State::Open { failed_probes, probe_at, probing } => {
                // A call from before the opening says nothing new.
                if let Pass::Probe(since) = pass {
                    *failed_probes += 1;
                    *probe_at = now + self.policy.probes.pause(*failed_probes);
                    end(probing, since);
                }
                Change::None
            }
        }
    }

    /// A call that had `pass` ended without telling anything: somebody else may probe.
    pub fn abandoned(&mut self, pass: Pass) {
        if let (State::Open { probing, .. }, Pass::Probe(since)) = (&mut self.state, pass) {
            end(probing, since);
        }
    }
}

/// Takes one probe that began then off the list; it may not count any more.
fn end(probing: &mut Vec<Instant>, since: Instant) {
    if let Some(at) = probing.iter().position(|begun| *begun == since) {
        probing.swap_remove(at);
    }
}

/// The metrics of all breakers of a process. Clones share them.
#[derive(Clone)]
pub struct BreakerMetrics {
    open: IntGaugeVec,
    opened: IntCounterVec,
}

impl BreakerMetrics {
    /// Registers them; fails if their names are taken.
    pub fn register(metrics: &Metrics) -> prometheus::Result<BreakerMetrics> {
        // `activity` is empty, which to Prometheus is absent, for what all activities share.
        const LABELS: &[&str] = &["target", "activity"];
        Ok(BreakerMetrics {
            open: metrics.int_gauges(
                "seckill_breaker_open",
                "1 while calls to this target are refused at once.",
                LABELS,
            )?,
            opened: metrics.counters("seckill_breaker_opened_total", "How often calls began to be refused.", LABELS)?,
        })
    }

    /// A breaker whose series exist from now on. `target` is `store`, `orders` or `shop`; `activity` is empty if all
    /// activities share it.
    pub fn circuit(&self, target: &'static str, activity: &str, policy: Policy) -> Circuit {
        Circuit {
            breaker: Mutex::new(Breaker::new(policy)),
            target,
            activity: activity.to_owned(),
            open: self.open.with_label_values(&[target, activity]),
            opened: self.opened.with_label_values(&[target, activity]),
        }
    }

    /// Takes the series of an activity's breaker off the page: it is gone, and would stand as it was for ever.
    pub fn retire(&self, target: &'static str, activity: &str) {
        let labels = [target, activity];
        // An error says only that there was none.
        _ = (self.open.remove_label_values(&labels), self.opened.remove_label_values(&labels));
    }
}

/// A shared breaker that is counted and logged.
#[derive(Debug)]
pub struct Circuit {
    breaker: Mutex<Breaker>,
    target: &'static str,
    activity: String,
    open: IntGauge,
    opened: IntCounter,
}

impl Circuit {
    /// Whether calls are refused.
    pub fn is_open(&self) -> bool {
        self.lock().is_open()
    }

    /// Whether a call may begin now.
    pub fn ask(&self) -> Pass {
        self.lock().ask(monotonic())
    }

    /// See [`Breaker::succeeded`].
    pub fn succeeded(&self) {
        self.report("", Breaker::succeeded);
    }

    /// See [`Breaker::failed`]; `why` is logged if this opens it.
    pub fn failed(&self, pass: Pass, why: &str) {
        self.report(why, |breaker| breaker.failed(pass, monotonic()));
    }

    /// See [`Breaker::abandoned`].
    pub fn abandoned(&self, pass: Pass) {
        self.lock().abandoned(pass);
    }

    fn report(&self, why: &str, report: impl FnOnce(&mut Breaker) -> Change) {
        let mut breaker = self.lock();
        let change = report(&mut breaker);
        if change != Change::None {
            // Under the lock: of two changes that follow one another, the later one is shown.
            self.open.set(i64::from(breaker.is_open()));
        }
        drop(breaker);
        let (target, activity) = (self.target, &self.activity);
        match change {
            Change::None => {}
            Change::Opened => {
                self.opened.inc();
                tracing::warn!(of = target, activity, why, "breaker open: it does not answer, so calls fail at once");
            }
            Change::Closed => tracing::info!(of = target, activity, "breaker closed: it answers again"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Breaker> {
        // A handful of numbers: there is no half-made state that a panic could leave behind.
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn breaker() -> Breaker {
        Breaker::new(Policy {
            failures: 3,
            probes: Backoff { first: MS(100), cap: MS(300) },
            at_once: 1,
            probe_lasts: Duration::MAX,
        })
    }

    /// One step: at this millisecond, do this, and this is what comes of it.
    enum Do {
        Ask(Pass),
        Fail(Pass, Change),
        Succeed(Change),
        Abandon(Pass),
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_one_probe_at_a_time_finds_out() {
        use Do::*;
        let start = monotonic();
        let wait = |ms| Pass::Refused(MS(ms));
        let probe = |ms| Pass::Probe(start + MS(ms));
        let steps = [
            (0, Ask(Pass::Normal)),
            (0, Fail(Pass::Normal, Change::None)),
            (0, Fail(Pass::Normal, Change::None)),
            // A success in between starts the count anew.
            (0, Succeed(Change::None)),
            (0, Fail(Pass::Normal, Change::None)),
            (0, Fail(Pass::Normal, Change::None)),
            (0, Ask(Pass::Normal)),
            (0, Fail(Pass::Normal, Change::Opened)),
            (0, Ask(wait(100))),
            // Those that were under way add nothing.
            (50, Fail(Pass::Normal, Change::None)),
            (99, Ask(wait(100))),
            (100, Ask(probe(100))),
            (100, Ask(wait(100))),
            (900, Ask(wait(100))),
            // Nor do they end the probe.
            (900, Fail(Pass::Normal, Change::None)),
            (900, Ask(wait(100))),
            (900, Fail(probe(100), Change::None)),
            (900, Ask(wait(200))),
            (1_100, Ask(probe(1_100))),
            // A probe that ends without a word makes room for another.
            (1_100, Abandon(probe(1_100))),
            (1_100, Ask(probe(1_100))),
            (1_100, Fail(probe(1_100), Change::None)),
            // 400 would be next; the cap is 300.
            (1_100, Ask(wait(300))),
            (1_400, Ask(probe(1_400))),
            (1_400, Succeed(Change::Closed)),
            (1_400, Ask(Pass::Normal)),
            (1_400, Fail(Pass::Normal, Change::None)),
        ];
        let mut breaker = breaker();
        for (n, (ms, step)) in steps.into_iter().enumerate() {
            let now = start + MS(ms);
            match step {
                Ask(expected) => assert_eq!(breaker.ask(now), expected, "step {n}"),
                Fail(pass, expected) => assert_eq!(breaker.failed(pass, now), expected, "step {n}"),
                Succeed(expected) => assert_eq!(breaker.succeeded(), expected, "step {n}"),
                Abandon(pass) => breaker.abandoned(pass),
            }
        }
    }

    #[test]
    fn as_many_probes_as_allowed_are_under_way_and_each_failure_puts_the_next_off() {
        let now = monotonic();
        let policy =
            Policy { failures: 1, probes: Backoff { first: MS(10), cap: MS(10) }, at_once: 2, probe_lasts: MS(1_000) };
        let mut breaker = Breaker::new(policy);
        assert_eq!(breaker.failed(Pass::Normal, now), Change::Opened);
        let later = now + MS(10);
        let probe = Pass::Probe(later);
        assert_eq!([(); 3].map(|()| breaker.ask(later)), [probe, probe, Pass::Refused(MS(10))]);
        assert_eq!(breaker.failed(probe, later), Change::None);
        assert_eq!(breaker.ask(later), Pass::Refused(MS(10)));
        let third = later + MS(10);
        assert_eq!(breaker.ask(third), Pass::Probe(third));
        assert_eq!(breaker.ask(third), Pass::Refused(MS(10)), "one of the first two is still under way");
        // It tells nothing for so long that it counts no more; what becomes of it then is nothing to the others.
        let fourth = later + MS(1_000);
        assert_eq!(breaker.ask(fourth - MS(1)), Pass::Refused(MS(10)));
        assert_eq!(breaker.ask(fourth), Pass::Probe(fourth));
        breaker.abandoned(probe);
        assert_eq!(breaker.ask(fourth), Pass::Refused(MS(10)));
    }

    #[test]
    fn a_late_success_of_any_call_closes_it() {
        let mut breaker = breaker();
        for _ in 0..3 {
            breaker.failed(Pass::Normal, monotonic());
        }
        assert!(breaker.is_open());
        assert_eq!(breaker.succeeded(), Change::Closed);
        assert!(!breaker.is_open());
    }

    #[test]
    fn what_opens_and_closes_is_counted_from_the_start() {
        let metrics = Metrics::new().unwrap();
        let policy = Policy {
            failures: 1,
            probes: Backoff { first: MS(10), cap: MS(10) },
            at_once: 1,
            probe_lasts: Duration::MAX,
        };
        let circuit = BreakerMetrics::register(&metrics).unwrap().circuit("shop", "", policy);
        let shown = |open: u8, opened: u8| {
            let text = metrics.render().unwrap();
            text.contains(&format!("seckill_breaker_open{{activity=\"\",target=\"shop\"}} {open}\n"))
                && text.contains(&format!("seckill_breaker_opened_total{{activity=\"\",target=\"shop\"}} {opened}\n"))
        };
        assert!(shown(0, 0));
        circuit.failed(Pass::Normal, "refused");
        assert!(shown(1, 1) && circuit.is_open());
        circuit.succeeded();
        assert!(shown(0, 1) && !circuit.is_open());
    }
}
