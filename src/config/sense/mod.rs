//! Faults of sense: values of the right shape that cannot work, alone or together. Pure functions of the file.

mod activities;
mod gate;
mod identity;
mod orders;
mod stores;
mod urls;

use super::load::{Parts, Report};
use super::problem::Problem;
use super::scalars::Span;

/// Reports every fault of sense in the sections that could be read. `gate` is the name given by `--gate`.
pub fn check(parts: &Parts, gate: Option<&str>, report: &mut Report<'_>) {
    gate::check(parts, gate, report);
    stores::check(parts, report);
    identity::check(parts, report);
    orders::check(parts, report);
    activities::check(parts, report);
    if let Some(logs) = &parts.logs
        && let Err(error) = tracing_subscriber::EnvFilter::try_new(&logs.filter)
    {
        report.at("/logs/filter", Problem::BadLogFilter(error.to_string()));
    }
}

/// A deadline or period of zero would fail everything, or spin.
fn above_zero(span: Span, pointer: &str, example: &'static str, report: &mut Report<'_>) {
    if span.0.is_zero() {
        report.at(pointer, Problem::ZeroSpan(example));
    }
}

/// At most so long.
fn at_most(span: Span, most: Span, limit: &'static str, because: &'static str, pointer: &str, report: &mut Report<'_>) {
    if span > most {
        report.at(pointer, Problem::TooLong { limit, because });
    }
}
