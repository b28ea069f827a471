//! What the public edge counts. Every counter is looked up once, by index, never by label on the hot path; a series
//! appears when it is first counted.

use std::sync::OnceLock;

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::domain::ActivityId;
use crate::domain::refusal::Code;
use crate::gate::request::RouteName;

/// Where in the funnel a request was refused, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stage {
    Shape,
    Activity,
    SoldOut,
    AddressLimit,
    Identity,
    CallerLimit,
    Token,
    Sku,
    Time,
    Store,
    Delivery,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Stage; 11] = [
        Stage::Shape,
        Stage::Activity,
        Stage::SoldOut,
        Stage::AddressLimit,
        Stage::Identity,
        Stage::CallerLimit,
        Stage::Token,
        Stage::Sku,
        Stage::Time,
        Stage::Store,
        Stage::Delivery,
    ];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Shape => "shape",
            Stage::Activity => "activity",
            Stage::SoldOut => "sold_out",
            Stage::AddressLimit => "address_limit",
            Stage::Identity => "identity",
            Stage::CallerLimit => "caller_limit",
            Stage::Token => "token",
            Stage::Sku => "sku",
            Stage::Time => "time",
            Stage::Store => "store",
            Stage::Delivery => "delivery",
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// Told WON.
    Won,
    /// Told QUEUED.
    Queued,
    /// Told this.
    Refused(Code),
}

impl AttemptOutcome {
    /// What counts beside the refusals' codes.
    const NAMES: [&str; 2] = ["WON", "QUEUED"];
}

/// Counters that are looked up at their first use.
struct Cells {
    family: IntCounterVec,
    cells: Box<[OnceLock<IntCounter>]>,
}

impl Cells {
    fn new(family: &IntCounterVec, count: usize) -> Cells {
        Cells { family: family.clone(), cells: (0..count).map(|_| OnceLock::new()).collect() }
    }

    fn count(&self, index: usize, labels: &[&str]) {
        if let Some(cell) = self.cells.get(index) {
            cell.get_or_init(|| self.family.with_label_values(labels)).inc();
        }
    }
}

const FIRST_STATUS: usize = 100;
const STATUSES: usize = 500;

/// The edge's metrics.
pub struct Metrics {
    requests: Cells,
    attempts: IntCounterVec,
    refusals: IntCounterVec,
    page_hits: IntCounterVec,
    limiter_keys: IntGaugeVec,
}

impl Metrics {
    /// Registers the families.
    ///
    /// # Errors
    /// If one of their names is registered already.
    pub fn new(registry: &Registry) -> prometheus::Result<Metrics> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let family = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok::<_, prometheus::Error>(family)
        };
        let limiter_keys = IntGaugeVec::new(
            Opts::new("seckill_limiter_keys", "Keys held by each rate limiter, by route and policy."),
            &["route", "policy"],
        )?;
        registry.register(Box::new(limiter_keys.clone()))?;
        let requests = counter(
            "seckill_requests_total",
            "Requests on the public listener, by route and status.",
            &["route", "status"],
        )?;
        Ok(Metrics {
            requests: Cells::new(&requests, RouteName::ALL.len() * STATUSES),
            attempts: counter(
                "seckill_attempts_total",
                "Attempts, by activity and what they were told.",
                &["activity", "outcome"],
            )?,
            refusals: counter(
                "seckill_refusals_total",
                "Refusals of attempts and token requests, by activity, stage of the funnel and code.",
                &["activity", "stage", "code"],
            )?,
            page_hits: counter("seckill_page_hits_total", "Activity pages served from memory.", &["activity"])?,
            limiter_keys,
        })
    }

    /// Counts a finished request.
    pub fn request(&self, route: RouteName, status: u16) {
        let slot = usize::from(status).saturating_sub(FIRST_STATUS).min(STATUSES - 1);
        let index = route as usize * STATUSES + slot;
        match self.requests.cells.get(index).and_then(OnceLock::get) {
            Some(counter) => counter.inc(),
            None => self.requests.count(index, &[route.name(), &status.to_string()]),
        }
    }

    /// Shows the number of keys held, as [`crate::gate::limits::Limits::held`] gives it.
    pub fn limiter_keys(&self, held: &[(&'static str, &'static str, usize)]) {
        for (route, policy, keys) in held {
            self.limiter_keys.with_label_values(&[route, policy]).set(i64::try_from(*keys).unwrap_or(i64::MAX));
        }
    }

    /// Forgets the series of an activity that is on the edge no more.
    pub fn retire(&self, activity: &ActivityId) {
        let id = activity.as_str();
        // An error says only that there was none.
        _ = self.page_hits.remove_label_values(&[id]);
        for outcome in AttemptOutcome::NAMES.into_iter().chain(Code::ALL.iter().map(|code| code.name())) {
            _ = self.attempts.remove_label_values(&[id, outcome]);
        }
        for stage in Stage::ALL {
            for code in Code::ALL {
                _ = self.refusals.remove_label_values(&[id, stage.name(), code.name()]);
            }
        }
    }

    /// The counters of one activity.
    pub fn meter(&self, activity: &ActivityId) -> Meter {
        self.meter_named(activity.as_str())
    }

    /// The counters of requests that name no known activity.
    pub fn meter_of_none(&self) -> Meter {
        self.meter_named("")
    }

    fn meter_named(&self, activity: &str) -> Meter {
        Meter {
            activity: activity.into(),
            attempts: Cells::new(&self.attempts, Code::ALL.len() + 2),
            refusals: Cells::new(&self.refusals, Stage::ALL.len() * Code::ALL.len()),
            page_hits: Cells::new(&self.page_hits, 1),
        }
    }
}

/// The counters of one activity.
pub struct Meter {
    activity: Box<str>,
    attempts: Cells,
    refusals: Cells,
    page_hits: Cells,
}

impl Meter {
    /// Counts a refusal where it happened.
    pub fn refused(&self, stage: Stage, code: Code) {
        let index = stage as usize * Code::ALL.len() + code as usize;
        self.refusals.count(index, &[&self.activity, stage.name(), code.name()]);
    }

    /// Counts what an attempt was told.
    pub fn attempt(&self, outcome: AttemptOutcome) {
        let [won, queued] = AttemptOutcome::NAMES;
        let (index, name) = match outcome {
            AttemptOutcome::Won => (0, won),
            AttemptOutcome::Queued => (1, queued),
            AttemptOutcome::Refused(code) => (2 + code as usize, code.name()),
        };
        self.attempts.count(index, &[&self.activity, name]);
    }

    /// Counts a page.
    pub fn page_hit(&self) {
        self.page_hits.count(0, &[&self.activity]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_appear_under_their_labels() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        let meter = metrics.meter(&"sale".parse().unwrap());
        meter.refused(Stage::Time, Code::NotStarted);
        meter.refused(Stage::Time, Code::NotStarted);
        meter.attempt(AttemptOutcome::Refused(Code::NotStarted));
        meter.attempt(AttemptOutcome::Won);
        metrics.request(RouteName::Attempt, 409);
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"seckill_refusals_total{activity="sale",code="NOT_STARTED",stage="time"} 2"#,
            r#"seckill_attempts_total{activity="sale",outcome="NOT_STARTED"} 1"#,
            r#"seckill_attempts_total{activity="sale",outcome="WON"} 1"#,
            r#"seckill_requests_total{route="attempt",status="409"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
