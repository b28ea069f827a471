//! Every operator's change, with its audit line, is a task of its own: a client that hangs up, or the time limit of its
//! request, must not leave a change half-way or without its line. At the end of the process such tasks are waited for.

use std::sync::Arc;

use axum::response::IntoResponse;
use futures::future::BoxFuture;
use http::StatusCode;
use tokio::task::JoinError;
use tokio_util::task::TaskTracker;

use super::body::Outcome;
use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::ActivityId;
use crate::platform::http_server::Peer;

/// What came of a change, as its audit line names it.
pub trait Told: IntoResponse + Send + 'static {
    /// `applied`, `already`, …
    fn outcome(&self) -> &'static str;
    /// How many wins it met, where that is not plain.
    fn count(&self) -> Option<usize> {
        None
    }
}

impl Told for Outcome {
    fn outcome(&self) -> &'static str {
        self.name
    }
}

/// What is asked for, and by whom: the part of the audit line that is known before.
pub struct Line {
    /// Its name.
    pub action: &'static str,
    /// Of which activity.
    pub activity: String,
    /// The other end of the connection.
    pub peer: Option<Peer>,
    /// Whether it is only asked what would happen.
    pub dry_run: bool,
    /// Further arguments.
    pub asked: String,
}

/// Makes a change of a configured activity, in a task of its own, and leaves its audit line.
///
/// # Errors
/// If there is no such activity, if `work` says so, and if the task broke off.
pub async fn change<T: Told>(
    world: Arc<AdminWorld>,
    line: Line,
    work: impl for<'a> FnOnce(&'a AdminWorld, &'a ActivityId, &'a Managed) -> BoxFuture<'a, Result<T, Problem>>
    + Send
    + 'static,
) -> Result<T, Problem> {
    let action = line.action;
    let under_way = world.under_way.clone();
    let task = to_its_end(&under_way, async move {
        let (id, managed) = world.managed(&line.activity)?;
        let outcome = work(&world, id, managed).await;
        line.write(id, &outcome);
        outcome
    });
    task.await.unwrap_or_else(|_| {
        let detail = format!("the {action} broke off; see the log, and repeat it");
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", detail))
    })
}

/// Runs `work` in a task of its own and awaits it; an error means that it panicked.
pub async fn to_its_end<T: Send + 'static>(
    under_way: &TaskTracker,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, JoinError> {
    under_way.spawn(work).await
}

impl Line {
    fn write<T: Told>(&self, activity: &ActivityId, outcome: &Result<T, Problem>) {
        let Line { action, dry_run, asked, .. } = self;
        let peer = self.peer.map(|Peer(address)| address.to_string()).unwrap_or_default();
        match outcome {
            Ok(told) => {
                let (outcome, count) = (told.outcome(), told.count());
                tracing::info!(target: "audit", action, %activity, peer, dry_run, asked, outcome, count, "operator change");
            }
            Err(Problem { code, detail, .. }) => {
                tracing::info!(target: "audit", action, %activity, peer, dry_run, asked,
                outcome = code, detail, "operator change")
            }
        }
    }
}
