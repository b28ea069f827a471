//! Preheating: the ledger first, then the store. A gate never creates stock by itself.
//!
//! What the ledger remembers and the store does not is a lost store: filling it again would sell everything twice.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};

use super::body::{Asked, Outcome, Plain};
use super::changes::would;
use super::own_task::{Line, change};
use super::problem::Problem;
use super::world::{AdminWorld, Managed};
use crate::domain::ActivityId;
use crate::domain::admission::{Barred, Epoch, PolledActivity, Preheat, Preheated, Terms};
use crate::gate::ledger::{Registered, Registration};
use crate::gate::store::StoreError;

/// Between registering and creating lies the one moment that needs `rebuild` if it fails; so the store is tried so often.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// How long after its look at the empty store a preheat may still fill it, by the store's clock: enough for every try to
/// meet its deadline. Later, somebody else may have preheated and the store may have lost that again.
const NOT_AFTER: Duration = Duration::from_secs(10);

/// `POST …/preheat`
pub async fn preheat(
    State(world): State<Arc<AdminWorld>>,
    Path(name): Path<String>,
    asked: Asked<Plain>,
) -> Result<Outcome, Problem> {
    let dry_run = asked.body.dry_run;
    let line = Line { action: "preheat", activity: name, peer: asked.peer, dry_run, asked: String::new() };
    change(world, line, move |world, id, managed| Box::pin(apply(world, id, managed, dry_run))).await
}

async fn apply(world: &AdminWorld, id: &ActivityId, managed: &Managed, dry_run: bool) -> Result<Outcome, Problem> {
    let terms = Terms { epoch: Epoch(1), ..managed.terms.clone() };
    let remembered = world.ledger.report(id).await?;
    let seen = world.poll(id).await?;
    let stored = match seen.activity {
        PolledActivity::Stored(state) => Some(*state),
        PolledActivity::NotPreheated | PolledActivity::Incomplete => None,
    };
    match (&remembered, &stored) {
        (Some(report), None) => return Err(needs_rebuild(id, report.epoch)),
        (None, Some(_)) => {
            return Err(Problem::conflict(
                "LEDGER_EMPTY",
                "the store holds the activity, but the ledger does not know it: is this the right order service?",
            ));
        }
        (Some(_), Some(stored)) => {
            let same = Terms { epoch: stored.terms.epoch, ..terms } == stored.terms;
            return if same { Ok(Outcome { name: "already", dry_run }) } else { Err(differs()) };
        }
        // A gate that has seen the activity knows better than an epoch file that is another machine's.
        (None, None) if let Some(epoch) = managed.activity.view().epoch() => return Err(needs_rebuild(id, epoch)),
        (None, None) if dry_run => return Ok(would(false)),
        (None, None) => {}
    }
    match world.ledger.register(id, &Registration::of(&terms, managed.payment_deadline)).await? {
        Registered::Stands => {}
        // Another gate may have been first, a moment ago.
        Registered::Conflict => {
            return match world.stored(id).await? {
                Some(stored) if (Terms { epoch: stored.terms.epoch, ..terms }) == stored.terms => {
                    Ok(Outcome { name: "already", dry_run })
                }
                _ => Err(needs_rebuild(id, Epoch(1))),
            };
        }
    }
    let epoch = terms.epoch;
    let preheat = Preheat { run_id: seen.server_run, not_after: seen.now.after(NOT_AFTER), terms };
    match create(world, id, &preheat).await? {
        Ok(Preheated::Created) => {
            // Whoever asks for its status next is not told that it is not preheated.
            managed.activity.poll_now().await;
            Ok(Outcome { name: "applied", dry_run })
        }
        Ok(Preheated::Already) => Ok(Outcome { name: "already", dry_run }),
        Ok(Preheated::Differs) => Err(differs()),
        Ok(Preheated::Incomplete) | Err(_) => Err(needs_rebuild(id, epoch)),
    }
}

/// Creating is idempotent on the run that was seen, so neither a refused nor an unknown call forbids another.
async fn create(
    world: &AdminWorld,
    id: &ActivityId,
    preheat: &Preheat,
) -> Result<Result<Preheated, Barred>, StoreError> {
    let mut tries = 1;
    loop {
        match world.store.preheat(id, preheat).await {
            Ok(reply) => return Ok(reply.outcome),
            Err(error) if tries >= TRIES => return Err(error),
            Err(error) => {
                tracing::warn!(activity = %id, %error, tries, "preheat: the store did not answer, trying again")
            }
        }
        tries += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

fn needs_rebuild(id: &ActivityId, epoch: Epoch) -> Problem {
    let detail = format!(
        "the ledger remembers `{id}` at epoch {}, but its store is empty or incomplete. Preheating could sell everything \
         twice, so it is refused. How to offer what is left, docs/operations.md tells (When Redis fails)",
        epoch.0
    );
    Problem::conflict("NEEDS_REBUILD", detail)
}

fn differs() -> Problem {
    Problem::conflict(
        "TERMS_DIFFER",
        "the activity was preheated on other terms, which stand; totals change by `seckill-gate totals`",
    )
}
