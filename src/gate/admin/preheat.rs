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
use crate::domain::admission::{Epoch, Preheated, Terms};
use crate::gate::ledger::{Registered, Registration};
use crate::gate::store::StoreError;

/// Between registering and creating lies the one moment that needs `rebuild` if it fails; so the store is tried so often.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

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
    let stored = world.stored(id).await?;
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
    match create(world, id, &terms).await? {
        Preheated::Created => Ok(Outcome { name: "applied", dry_run }),
        Preheated::Already => Ok(Outcome { name: "already", dry_run }),
        Preheated::Differs => Err(differs()),
        Preheated::Incomplete => Err(needs_rebuild(id, terms.epoch)),
    }
}

/// Creating is idempotent, so neither a refused nor an unknown call forbids another.
async fn create(world: &AdminWorld, id: &ActivityId, terms: &Terms) -> Result<Preheated, StoreError> {
    let mut tries = 1;
    loop {
        match world.store.preheat(id, terms).await {
            Ok((_, preheated)) => return Ok(preheated),
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
         twice, so it is refused; offer what is left as a new activity",
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
