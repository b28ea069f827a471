//! Delivery, and our own order service.

use super::super::load::{Parts, Report};
use super::super::problem::Problem;
use super::super::scalars::{ByteSize, Span};
use super::super::schema::{Ledger, OrderService, Orders, OrdersKind};
use super::urls::{self, Http};
use super::{above_zero, at_most};

/// Statuses of the 4xx class that say "not now" instead of "no".
const NOT_NOW: [u16; 4] = [401, 408, 425, 429];

pub(super) fn check(parts: &Parts, report: &mut Report<'_>) {
    if let Some(orders) = &parts.orders {
        of_orders(orders, report);
        statuses(orders, report);
        if orders.kind == OrdersKind::External && matches!(&parts.order_service, Some(Some(_))) {
            report.at("/order_service", Problem::ServiceNotUsed);
        }
    }
    if let Some(Some(service)) = &parts.order_service {
        of_service(service, report);
    }
}

fn of_orders(orders: &Orders, report: &mut Report<'_>) {
    urls::http(&orders.url, &Http { example: "http://127.0.0.1:8090/orders", path: true }, "/orders/url", report);
    if orders.kind == OrdersKind::Internal && orders.api_token.is_none() {
        report.at("/orders", Problem::ApiTokenMissing);
    }
    above_zero(orders.deadline, "/orders/deadline", "`2s`", report);
    at_most(orders.deadline, Span::seconds(60), "60s", "deliveries would pile up", "/orders/deadline", report);
    at_most(orders.answer_within, Span::seconds(60), "60s", "browsers give up", "/orders/answer_within", report);
    above_zero(orders.dead_after, "/orders/dead_after", "`10m`", report);
    above_zero(orders.dead_retry_every, "/orders/dead_retry_every", "`60s`", report);
    let because = "dead letters would outlast a mended order service";
    at_most(orders.dead_retry_every, Span::seconds(3_600), "1h", because, "/orders/dead_retry_every", report);
    if orders.max_reply.0 == 0 {
        report.at("/orders/max_reply", Problem::TooSmall { value: "0".into(), limit: "`1B`".into() });
    } else if orders.max_reply > ByteSize(1 << 20) {
        let value = format!("{} bytes", orders.max_reply.0);
        report.at("/orders/max_reply", Problem::TooLarge { value, limit: "`1MiB`".into() });
    }
}

fn statuses(orders: &Orders, report: &mut Report<'_>) {
    for (index, &status) in orders.final_statuses.iter().enumerate() {
        let pointer = format!("/orders/final_statuses/{index}");
        if !(200..=299).contains(&status) {
            report.at(&pointer, Problem::BadStatus { status, range: "200-299" });
        } else if status == 202 && orders.kind == OrdersKind::Internal {
            report.at(&pointer, Problem::InternalNotFinal);
        }
        if orders.final_statuses[..index].contains(&status) {
            report.at(&pointer, Problem::ListedTwice(status.to_string()));
        }
    }
    for (index, &status) in orders.refused_statuses.iter().enumerate() {
        let pointer = format!("/orders/refused_statuses/{index}");
        if !(400..=499).contains(&status) || NOT_NOW.contains(&status) {
            report.at(
                &pointer,
                Problem::BadStatus { status, range: "400-499 (not 401, 408, 425, 429: they mean \"not now\")" },
            );
        }
        if orders.refused_statuses[..index].contains(&status) {
            report.at(&pointer, Problem::ListedTwice(status.to_string()));
        }
    }
}

fn of_service(service: &OrderService, report: &mut Report<'_>) {
    above_zero(service.consumer.claim_after, "/order_service/consumer/claim_after", "`10s`", report);
    if let Ledger::Mysql { deadline, .. } = &service.ledger
        && service.consumer.claim_after < *deadline
    {
        let problem = Problem::TooShort {
            limit: deadline.to_string(),
            because: "a batch would be claimed by others while its transaction may still run (`ledger.deadline`)",
        };
        report.at("/order_service/consumer/claim_after", problem);
    }
}
