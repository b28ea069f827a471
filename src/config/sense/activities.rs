//! The sales.

use super::super::load::{Parts, Report};
use super::super::problem::Problem;
use super::super::scalars::Span;
use super::super::schema::Activity;
use super::{above_zero, at_most};

/// Units that all SKUs of one activity may offer together: every sum of them fits 32 bits wherever it is kept.
const MAX_TOTAL: u64 = i32::MAX as u64;

pub(super) fn check(parts: &Parts, report: &mut Report<'_>) {
    for (id, activity) in &parts.activities {
        of_activity(&format!("/activities/{id}"), activity, report);
    }
}

fn of_activity(pointer: &str, activity: &Activity, report: &mut Report<'_>) {
    if activity.ends_at <= activity.starts_at {
        let starts_at = activity.starts_at.to_string();
        report.at(&format!("{pointer}/ends_at"), Problem::EndsBeforeStart { starts_at });
    }
    above_zero(activity.payment_deadline, &format!("{pointer}/payment_deadline"), "`15m`", report);
    if activity.retention <= activity.payment_deadline {
        let deadline = activity.payment_deadline.to_string();
        report.at(&format!("{pointer}/retention"), Problem::RetentionTooShort { deadline });
    }
    at_most(
        activity.retention,
        Span::seconds(366 * 86_400),
        "366d",
        "the store would keep every win for years",
        &format!("{pointer}/retention"),
        report,
    );
    let total: u64 = activity.skus.values().map(|sku| u64::from(sku.stock)).sum();
    if total > MAX_TOTAL {
        report.at(&format!("{pointer}/skus"), Problem::TotalTooLarge { total, limit: MAX_TOTAL });
    }
    for (name, sku) in &activity.skus {
        if let Some(max_qty) = sku.max_qty.filter(|&qty| qty > activity.per_user_limit) {
            let problem = Problem::QtyAboveLimit { max_qty, limit: activity.per_user_limit };
            report.at(&format!("{pointer}/skus/{name}/max_qty"), problem);
        }
    }
}
