//! For a shop's own order service: which activities were preheated, in a small file of the gate.
//!
//! Its one purpose is that a store that lost an activity is not filled a second time. So an entry is durable before the
//! store is created, and a file that cannot be read refuses to preheat rather than forget.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::{LedgerAccess, LedgerError, LedgerReport, Registered, Registration, TotalSet, VoidClient, Voided};
use crate::domain::admission::Epoch;
use crate::domain::{ActivityId, RequestId, SkuId};

/// The file. One gate writes it, one call at a time.
#[derive(Debug)]
pub struct EpochFile {
    path: PathBuf,
    void: VoidClient,
    writing: Mutex<()>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    activities: BTreeMap<ActivityId, Entry>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    epoch: Epoch,
    terms: Registration,
}

impl EpochFile {
    /// The file at `path`; it is created with the first entry. `void` reaches the shop's order service.
    pub fn new(path: PathBuf, void: VoidClient) -> EpochFile {
        EpochFile { path, void, writing: Mutex::new(()) }
    }

    /// Reads, changes and (if `change` says so) writes, off the async threads.
    async fn with<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Contents) -> (T, bool) + Send + 'static,
    ) -> Result<T, LedgerError> {
        let _alone = self.writing.lock().await;
        let path = self.path.clone();
        let task = tokio::task::spawn_blocking(move || {
            let mut contents = read(&path)?;
            let (result, changed) = change(&mut contents);
            if changed {
                write(&path, &contents)?;
            }
            Ok(result)
        });
        let said = |error: &dyn std::fmt::Display| LedgerError(format!("{}: {error}", self.path.display()));
        task.await.map_err(|error| said(&error))?.map_err(|error: std::io::Error| said(&error))
    }
}

fn read(path: &Path) -> std::io::Result<Contents> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(std::io::Error::other),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Contents::default()),
        Err(error) => Err(error),
    }
}

/// Replaces the file as a whole: a crash leaves the old one or the new one.
fn write(path: &Path, contents: &Contents) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let next = path.with_extension("next");
    let mut file = File::create(&next)?;
    file.write_all(&serde_json::to_vec_pretty(contents)?)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    File::open(folder)?.sync_all()
}

#[async_trait]
impl LedgerAccess for EpochFile {
    async fn register(&self, activity: &ActivityId, terms: &Registration) -> Result<Registered, LedgerError> {
        let (activity, entry) = (activity.clone(), Entry { epoch: Epoch(1), terms: terms.clone() });
        self.with(move |contents| match contents.activities.get(&activity) {
            Some(known) if *known == entry => (Registered::Stands, false),
            Some(_) => (Registered::Conflict, false),
            None => {
                contents.activities.insert(activity, entry);
                (Registered::Stands, true)
            }
        })
        .await
    }

    /// The shop keeps its own totals; only the file's copy changes.
    async fn set_total(&self, activity: &ActivityId, sku: &SkuId, from: i64, to: i64) -> Result<TotalSet, LedgerError> {
        let (activity, sku) = (activity.clone(), sku.clone());
        self.with(move |contents| {
            match contents.activities.get_mut(&activity).and_then(|entry| entry.terms.skus.get_mut(&sku)) {
                Some(total) if *total == to => (TotalSet::Stands, false),
                Some(total) if *total == from => {
                    *total = to;
                    (TotalSet::Stands, true)
                }
                Some(total) => (TotalSet::Refused(format!("the total is {total}")), false),
                None => (TotalSet::Refused("the activity or SKU was never preheated".into()), false),
            }
        })
        .await
    }

    async fn void(&self, activity: &ActivityId, id: RequestId) -> Result<Voided, LedgerError> {
        self.void.void(activity, id).await
    }

    async fn report(&self, activity: &ActivityId) -> Result<Option<LedgerReport>, LedgerError> {
        let activity = activity.clone();
        self.with(move |contents| {
            let report = contents.activities.get(&activity).map(|entry| LedgerReport {
                epoch: entry.epoch,
                per_user_limit: Some(entry.terms.per_user_limit),
                skus: BTreeMap::new(),
            });
            (report, false)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(stock: i64) -> Registration {
        let skus = BTreeMap::from([("phone".parse().unwrap(), stock)]);
        Registration { per_user_limit: 1, rebuy_after_release: true, payment_deadline_ms: 1, skus }
    }

    #[tokio::test]
    async fn an_activity_is_remembered_across_processes_on_the_terms_it_was_preheated_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("epochs.json");
        let (sale, phone) = ("sale".parse().unwrap(), "phone".parse().unwrap());
        let url = "http://127.0.0.1:1/orders".parse().unwrap();
        let void = VoidClient::new(&url, None, std::time::Duration::from_secs(1)).unwrap();
        let file = EpochFile::new(path.clone(), void.clone());
        assert_eq!(file.report(&sale).await, Ok(None));
        assert_eq!(file.register(&sale, &terms(5)).await, Ok(Registered::Stands));
        let file = EpochFile::new(path.clone(), void);
        assert_eq!(file.report(&sale).await.unwrap().unwrap().epoch, Epoch(1));
        assert_eq!(file.register(&sale, &terms(5)).await, Ok(Registered::Stands));
        assert_eq!(file.register(&sale, &terms(6)).await, Ok(Registered::Conflict));
        assert_eq!(file.set_total(&sale, &phone, 5, 6).await, Ok(TotalSet::Stands));
        assert_eq!(file.set_total(&sale, &phone, 5, 6).await, Ok(TotalSet::Stands));
        assert_eq!(file.register(&sale, &terms(6)).await, Ok(Registered::Stands));
        fs::write(&path, "{").unwrap();
        assert!(file.register(&sale, &terms(6)).await.is_err(), "a broken file was taken for an empty one");
    }
}
