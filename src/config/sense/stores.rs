//! Store, queue and ledger.

use std::path::Path;

use super::super::load::{Parts, Report};
use super::super::problem::Problem;
use super::super::scalars::Span;
use super::super::schema::{Ledger, Queue, Store};
use super::{above_zero, at_most, urls};

pub(super) fn check(parts: &Parts, report: &mut Report<'_>) {
    if let Some(store) = &parts.store {
        let (Store::Redis { deadline, .. } | Store::Sqlite { deadline, .. }) = store;
        above_zero(*deadline, "/store/deadline", "`500ms`", report);
        at_most(
            *deadline,
            Span::seconds(30),
            "30s",
            "buyers would wait that long for a dead store",
            "/store/deadline",
            report,
        );
        match store {
            Store::Redis { url, max_clock_offset, .. } => {
                urls::redis(url, "/store/url", report);
                above_zero(*max_clock_offset, "/store/max_clock_offset", "`30s`", report);
            }
            Store::Sqlite { path, .. } => not_empty(path, "/store/path", report),
        }
    }
    let Some(Some(service)) = &parts.order_service else { return };
    let store_file = match &parts.store {
        Some(Store::Sqlite { path, .. }) => Some(path),
        _ => None,
    };
    match &service.queue {
        Queue::Redis { url, .. } => urls::redis(url, "/order_service/queue/url", report),
        Queue::Sqlite { path } => {
            not_empty(path, "/order_service/queue/path", report);
            apart(path, store_file, "/order_service/queue/path", report);
        }
    }
    match &service.ledger {
        Ledger::Mysql { url, deadline, .. } => {
            urls::mysql(url, "/order_service/ledger/url", report);
            above_zero(*deadline, "/order_service/ledger/deadline", "`5s`", report);
        }
        Ledger::Sqlite { path } => {
            not_empty(path, "/order_service/ledger/path", report);
            apart(path, store_file, "/order_service/ledger/path", report);
        }
    }
}

fn not_empty(path: &Path, pointer: &str, report: &mut Report<'_>) {
    if path.as_os_str().is_empty() {
        report.at(pointer, Problem::EmptyText("the path of a file"));
    }
}

/// The store locks its file for its own process.
fn apart(path: &Path, store: Option<&std::path::PathBuf>, pointer: &str, report: &mut Report<'_>) {
    if store.is_some_and(|store| store == path && !path.as_os_str().is_empty()) {
        report.at(pointer, Problem::SameFile { other: "store.path" });
    }
}
