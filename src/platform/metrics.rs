//! One registry per process, and the listener's `GET /metrics`.
//!
//! Names begin with `seckill_`, carry base units, and labels are closed sets. `promtool check metrics` must find nothing.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::{StatusCode, header};
use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use prometheus::{Registry, TextEncoder};

/// Buckets for calls between services: 0.5 ms to 10 s.
pub const CALL_SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Buckets for sizes of batches: 1 to 1,024.
pub const BATCH_SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// The process's metrics. The constructors below fail only if a name is taken or breaks Prometheus' rules.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident $vec:ident ($($plain:ident $single:ident)?);)*) => {
        $($(#[$doc])*
        pub fn $name(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<$vec> {
            self.keep($vec::new(Opts::new(name, help), labels)?)
        }
        $(/// The same without labels.
        pub fn $plain(&self, name: &str, help: &str) -> prometheus::Result<$single> {
            self.keep($single::new(name, help)?)
        })?)*
    };
}

impl Metrics {
    /// A registry that holds the build info.
    pub fn new() -> prometheus::Result<Metrics> {
        let metrics = Metrics { registry: Registry::new() };
        let build = metrics.int_gauges("seckill_build_info", "Always 1; which build this is.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(metrics)
    }

    constructors! {
        /// Counters of events, by labels; the name ends in `_total`.
        counters IntCounterVec (counter IntCounter);
        /// Whole numbers that go up and down, by labels.
        int_gauges IntGaugeVec (int_gauge IntGauge);
    }

    /// Histograms, by labels; the name ends in the unit, e.g. `_seconds`.
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }

    /// The registry itself.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Takes a collector that reads its values when asked.
    pub fn register(&self, collector: Box<dyn Collector>) -> prometheus::Result<()> {
        self.registry.register(collector)
    }

    fn keep<C: Collector + Clone + 'static>(&self, collector: C) -> prometheus::Result<C> {
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    /// Everything, in Prometheus' text format.
    pub fn render(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// `GET /metrics`.
pub fn router(metrics: Arc<Metrics>) -> Router {
    Router::new().route(
        "/metrics",
        get(move || async move {
            match metrics.render() {
                Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text),
                Err(error) => {
                    tracing::error!(%error, "cannot write metrics");
                    let plain = "text/plain; charset=utf-8";
                    (
                        StatusCode::INTERNAL_SERVER_ERROR,
                        [(header::CONTENT_TYPE, plain)],
                        "cannot write metrics\n".into(),
                    )
                }
            }
        }),
    )
}
