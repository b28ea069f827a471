//! A new reading of the file while the gate serves: all of it checked, then everything that may change swapped at once; or
//! all of it refused, and what was there stays.
//!
//! [`effect`] decides what an edit of each key does, [`danger`] which edits of activities are refused, [`Reloader`] runs
//! one reload at a time, and [`Site`] is the gate that it changes.

pub mod danger;
pub mod effect;
mod metrics;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use futures::FutureExt;
use tokio::sync::{Mutex, Semaphore};

use self::danger::{Standing, objection, objection_to_other_users, objection_to_removal};
use self::effect::{Effect, effect_of};
use self::metrics::ReloadMetrics;
pub use self::report::{Change, Refused, Reloaded, Verdict};
use crate::config::compare::{Edit, Picture, pattern};
use crate::config::load::recheck;
use crate::config::{Config, Faults, Loaded};
use crate::domain::{ActivityId, GateId};
use crate::gate::pages::Page;
use crate::platform::http_server::Peer;
use crate::platform::metrics::Metrics;

/// How long the file and what it points at may take to be read; less than the admin listener gives a request. A disk that
/// hangs must not hold up every later reload.
pub const READ_WITHIN: Duration = Duration::from_secs(10);

/// Readings under way at once: those that hang cannot be ended, and each has a thread.
const MAX_READINGS: usize = 4;

/// Reads the file again, as it was read at the start: the same path, the same flags in place of its keys.
pub type Reread = Arc<dyn Fn() -> Result<Loaded, Faults> + Send + Sync>;

/// The pages that lie in directories, by activity.
pub type Pages = BTreeMap<ActivityId, Page>;

/// The gate as a reload sees it.
#[async_trait]
pub trait Site: Send + Sync + 'static {
    /// Whether it is on its way out; then nothing is changed any more.
    fn is_ending(&self) -> bool;
    /// How an activity stands in the store now.
    async fn standing(&self, activity: &ActivityId) -> Standing;
    /// Makes everything that can fail, then swaps it in at once; with `dry_run` it stops before the swap.
    ///
    /// # Errors
    /// If a part cannot be made. Then nothing has changed.
    async fn apply(&self, loaded: Arc<Loaded>, pages: Pages, dry_run: bool) -> anyhow::Result<()>;
}

/// Who asked for a reload.
#[derive(Debug, Clone, Copy)]
pub enum Asker {
    /// Somebody at the admin listener.
    Admin(Option<Peer>),
    /// Whoever may send this process a signal.
    Sighup,
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asker::Admin(Some(Peer(address))) => address.fmt(f),
            Asker::Admin(None) => Ok(()),
            Asker::Sighup => f.write_str("SIGHUP"),
        }
    }
}

/// Runs reloads, one at a time.
pub struct Reloader {
    /// The gate's name, which no reload changes.
    pub gate: GateId,
    /// The file that is read again, from the root: the operator may have edited another one.
    pub file: PathBuf,
    reread: Reread,
    site: Arc<dyn Site>,
    metrics: ReloadMetrics,
    running: Mutex<Running>,
    readings: Arc<Semaphore>,
    read_within: Duration,
}

/// What the gate runs on: the file as it was read, without the edits that wait for a restart.
struct Running {
    config: Config,
    picture: Picture,
}

/// One reading of the file, and what it points at.
struct Reading {
    loaded: Loaded,
    pages: Pages,
    picture: Picture,
}

/// Reads what the file points at: the pages that lie in directories, and the picture of it all.
///
/// # Errors
/// If a page cannot be read; says which.
pub fn look(loaded: &Loaded) -> anyhow::Result<(Pages, Picture)> {
    let mut pages = Pages::new();
    let mut picture = Picture::of(loaded)?;
    for (id, activity) in &loaded.config.activities {
        let Some(directory) = &activity.page else { continue };
        let directory = loaded.resolve(directory);
        let page = Page::load(&directory).with_context(|| format!("the page of `{id}` in {}", directory.display()))?;
        picture.note(format!("activities.{id}.page"), page.fingerprint());
        pages.insert(id.clone(), page);
    }
    Ok((pages, picture))
}

impl Reloader {
    /// A reloader of a gate that runs on this configuration, read from `file`, whose picture is this.
    ///
    /// # Errors
    /// If the metrics' names are taken.
    pub fn new(
        file: &Path,
        config: Config,
        picture: Picture,
        reread: Reread,
        site: Arc<dyn Site>,
        metrics: &Metrics,
    ) -> prometheus::Result<Reloader> {
        let gate = config.gate.id.clone();
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Ok(Reloader {
            gate,
            file,
            reread,
            site,
            metrics: ReloadMetrics::register(metrics)?,
            running: Mutex::new(Running { config, picture }),
            readings: Arc::new(Semaphore::new(MAX_READINGS)),
            read_within: READ_WITHIN,
        })
    }

    /// Reloads, or with `dry_run` says what would happen. Leaves its log lines, its metrics and, whoever asked, the line of
    /// an operator's change.
    pub async fn reload(self: &Arc<Self>, dry_run: bool, asker: Asker) -> Result<Reloaded, Refused> {
        let reloader = Arc::clone(self);
        let broke_off = || Err(Refused::Failed("the reload broke off; see the log".into()));
        // A task of its own: a client that gives up must end neither the reload half-way nor its audit line.
        let task = tokio::spawn(async move {
            let running = AssertUnwindSafe(reloader.run(dry_run)).catch_unwind();
            let outcome = running.await.unwrap_or_else(|_| broke_off());
            let named = outcome.as_ref().map_or_else(Refused::code, Reloaded::outcome);
            let peer = asker.to_string();
            tracing::info!(target: "audit", action = "reload", peer, dry_run, outcome = named, "operator change");
            outcome
        });
        task.await.unwrap_or_else(|_| broke_off())
    }

    async fn run(&self, dry_run: bool) -> Result<Reloaded, Refused> {
        let mut running = self.running.lock().await;
        let outcome = self.attempt(&mut running, dry_run).await;
        match &outcome {
            Ok(reloaded) => reloaded.log(),
            Err(refused) => refused.log(dry_run),
        }
        if !dry_run {
            self.metrics.note(&outcome);
        }
        outcome
    }

    async fn attempt(&self, running: &mut Running, dry_run: bool) -> Result<Reloaded, Refused> {
        if self.site.is_ending() {
            return Err(Refused::Failed("the gate is ending".into()));
        }
        let Reading { loaded, pages, picture: mut new } = self.read().await?;
        let edits = running.picture.edits(&new);
        let mut changes = Vec::with_capacity(edits.len());
        for edit in edits {
            let verdict = self.judge(&edit, &running.config, &loaded.config).await;
            changes.push(Change { edit, verdict });
        }
        if changes.iter().any(|change| matches!(change.verdict, Verdict::Refused(_))) {
            return Err(Refused::Dangerous(changes));
        }
        for change in changes.iter().filter(|change| change.verdict == Verdict::NeedsRestart) {
            new.restore(&change.edit, &running.picture);
        }
        let failed = |error: anyhow::Error| Refused::Failed(format!("{error:#}"));
        let config = new.config().map_err(|error| failed(error.into()))?;
        // What is applied and what is left to a restart may make sense only together.
        recheck(&config, &loaded.path).map_err(Refused::Halves)?;
        if changes.iter().any(|change| change.verdict == Verdict::Applied) {
            let effective = Arc::new(Loaded { config: config.clone(), ..loaded });
            self.site.apply(effective, pages, dry_run).await.map_err(failed)?;
        }
        if !dry_run {
            *running = Running { config, picture: new };
        }
        Ok(Reloaded { changes, dry_run })
    }

    /// Files are read on a thread where that may take its time.
    async fn read(&self) -> Result<Reading, Refused> {
        let reread = Arc::clone(&self.reread);
        let place = Arc::clone(&self.readings).try_acquire_owned();
        let place = place.map_err(|_| Refused::Failed("earlier readings of the file hang; see its disks".into()))?;
        let read = move || {
            let _place = place;
            let loaded = reread().map_err(Refused::Faults)?;
            let failed = |error: anyhow::Error| Refused::Failed(format!("{error:#}"));
            let (pages, picture) = look(&loaded).map_err(failed)?;
            Ok(Reading { loaded, pages, picture })
        };
        match tokio::time::timeout(self.read_within, tokio::task::spawn_blocking(read)).await {
            Ok(Ok(reading)) => reading,
            Ok(Err(_)) => Err(Refused::Failed("reading the file broke off; see the log".into())),
            Err(_) => Err(Refused::Failed(format!(
                "the file, or a secret or page that it points at, could not be read within {:?}",
                self.read_within
            ))),
        }
    }

    async fn judge(&self, edit: &Edit, old: &Config, new: &Config) -> Verdict {
        let mut parts = edit.key.splitn(3, '.');
        let activity = match (parts.next(), parts.next().map(ActivityId::new)) {
            (Some("activities"), Some(Ok(id))) => Some((id, parts.next().is_none())),
            _ => None,
        };
        let objection = match activity {
            Some((id, true)) => match (old.activities.get(&id), new.activities.get(&id)) {
                (Some(old), None) => objection_to_removal(old, &self.site.standing(&id).await),
                _ => None,
            },
            Some((id, false)) => match (effect_of(&pattern(&edit.key)), new.activities.get(&id)) {
                (Effect::Preheated, Some(new)) => objection(&id, edit, new, &self.site.standing(&id).await),
                (Effect::Live, _) => None,
                _ => return Verdict::NeedsRestart,
            },
            None => match effect_of(&pattern(&edit.key)) {
                Effect::Live => None,
                Effect::BetweenSales => self.objection_of_any_sale(old, new).await,
                Effect::OrderService => return Verdict::OrderService,
                Effect::Preheated | Effect::Restart => return Verdict::NeedsRestart,
            },
        };
        objection.map_or(Verdict::Applied, Verdict::Refused)
    }

    /// Those that join count too: another gate may have preheated them.
    async fn objection_of_any_sale(&self, old: &Config, new: &Config) -> Option<String> {
        let joining = new.activities.iter().filter(|(id, _)| !old.activities.contains_key(*id));
        for (id, activity) in old.activities.iter().chain(joining) {
            let objection = objection_to_other_users(id, activity, &self.site.standing(id).await);
            if objection.is_some() {
                return objection;
            }
        }
        None
    }
}
