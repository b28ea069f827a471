//! For a shop's own order service: which activities were preheated, in a small file of the gate.
//!
//! Its one purpose is that a store that lost an activity is not filled a second time. So an entry is durable, and read back,
//! before the store is created; a file that cannot be read refuses to preheat rather than forget; and gates that share the
//! file take turns, so that of two that preheat at once one registers. Gates on several machines without a shared file know
//! of each other's preheats only from the store: there, preheat by one gate.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{LedgerAccess, LedgerError, LedgerReport, Registered, Registration, TotalSet, VoidClient, Voided};
use crate::domain::admission::Epoch;
use crate::domain::{ActivityId, RequestId, SkuId};
use crate::platform::clock::monotonic;

/// How long a call waits for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The file. Calls take turns, in this process and between processes.
#[derive(Debug)]
pub struct EpochFile {
    path: PathBuf,
    void: VoidClient,
}

/// Why the file was not read or written. Nothing is ever guessed instead.
#[derive(Debug, thiserror::Error)]
enum FileFault {
    #[error("another gate has held it for {TURN_WITHIN:?}")]
    Taken,
    #[error(
        "not readable as an epoch file ({0}). Restore it from a backup; remove it only if no sale of it was ever preheated"
    )]
    Corrupt(serde_json::Error),
    #[error("what was written did not read back; is the disk sound?")]
    NotWritten,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    activities: BTreeMap<ActivityId, Entry>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    epoch: Epoch,
    terms: Registration,
}

impl EpochFile {
    /// The file at `path`; it is created with the first entry. `void` reaches the shop's order service.
    pub fn new(path: PathBuf, void: VoidClient) -> EpochFile {
        EpochFile { path, void }
    }

    /// Reads, changes and (if `change` says so) writes, off the async threads.
    async fn with<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Contents) -> (T, bool) + Send + 'static,
    ) -> Result<T, LedgerError> {
        let path = self.path.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn(&path)?;
            let mut contents = read(&path)?;
            let (result, changed) = change(&mut contents);
            if changed {
                write(&path, &contents)?;
            }
            Ok(result)
        });
        let said =
            |error: &dyn std::fmt::Display| LedgerError(format!("orders.epoch_file {}: {error}", self.path.display()));
        task.await.map_err(|error| said(&error))?.map_err(|error: FileFault| said(&error))
    }
}

/// Waits for this call's turn. The lock is a file beside it, since the file itself is replaced; the system gives it up
/// when its holder ends, however it ends.
fn turn(path: &Path) -> Result<File, FileFault> {
    fs::create_dir_all(folder(path))?;
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(beside(path, ".lock"))?;
    let started = monotonic();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if started.elapsed() < TURN_WITHIN => std::thread::sleep(LOOK_AGAIN),
            Err(TryLockError::WouldBlock) => return Err(FileFault::Taken),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
}

fn read(path: &Path) -> Result<Contents, FileFault> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(FileFault::Corrupt),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Contents::default()),
        Err(error) => Err(error.into()),
    }
}

/// Replaces the file as a whole: a crash leaves the old one or the new one. Then it is read back.
fn write(path: &Path, contents: &Contents) -> Result<(), FileFault> {
    let next = beside(path, ".next");
    let mut file = File::create(&next)?;
    file.write_all(&serde_json::to_vec_pretty(contents).map_err(std::io::Error::from)?)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    // The folder may be as new as the file.
    for folder in folder(path).ancestors().take(2) {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        File::open(folder)?.sync_all()?;
    }
    if read(path)? == *contents { Ok(()) } else { Err(FileFault::NotWritten) }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[async_trait]
impl LedgerAccess for EpochFile {
    async fn register(&self, activity: &ActivityId, terms: &Registration) -> Result<Registered, LedgerError> {
        let (activity, entry) = (activity.clone(), Entry { epoch: Epoch(1), terms: terms.clone() });
        self.with(move |contents| match contents.activities.get(&activity) {
            // Whoever asks has just seen that there was none: another gate was first, and it creates the store.
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

    fn at(path: &Path) -> EpochFile {
        let url = "http://127.0.0.1:1/orders".parse().unwrap();
        EpochFile::new(path.to_owned(), VoidClient::new(&url, None, Duration::from_secs(1)).unwrap())
    }

    fn terms(stock: i64) -> Registration {
        let skus = BTreeMap::from([("phone".parse().unwrap(), stock)]);
        Registration { per_user_limit: 1, rebuy_after_release: true, payment_deadline_ms: 1, skus }
    }

    #[tokio::test]
    async fn an_activity_is_remembered_across_processes_on_the_terms_it_was_preheated_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("epochs.json");
        let (sale, phone) = ("sale".parse().unwrap(), "phone".parse().unwrap());
        let file = at(&path);
        assert_eq!(file.report(&sale).await, Ok(None));
        assert_eq!(file.register(&sale, &terms(5)).await, Ok(Registered::Stands));
        let file = at(&path);
        assert_eq!(file.report(&sale).await.unwrap().unwrap().epoch, Epoch(1));
        assert_eq!(file.register(&sale, &terms(5)).await, Ok(Registered::Conflict), "registered once");
        assert_eq!(file.set_total(&sale, &phone, 5, 6).await, Ok(TotalSet::Stands));
        assert_eq!(file.set_total(&sale, &phone, 5, 6).await, Ok(TotalSet::Stands));
        assert!(matches!(file.set_total(&sale, &phone, 5, 7).await, Ok(TotalSet::Refused(_))));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_named_and_never_taken_for_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.json");
        let (sale, file) = ("sale".parse().unwrap(), at(&path));
        for broken in ["", "{", "{}", "[]", r#"{"activities":{"sale":{"epoch":1}}}"#, r#"{"activities":{},"more":1}"#] {
            fs::write(&path, broken).unwrap();
            let told = file.register(&sale, &terms(6)).await.unwrap_err().to_string();
            assert!(told.contains("epochs.json") && told.contains("Restore it"), "{broken:?}: {told}");
            assert!(file.report(&sale).await.is_err(), "{broken:?} was taken for an empty one");
            assert_eq!(fs::read_to_string(&path).unwrap(), broken, "left as it is, for whoever mends it");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_many_gates_that_share_the_file_one_registers_each_activity() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.json");
        // A lock belongs to an open file, so each of these is as good as a process.
        let register = |n: usize| {
            let (file, sale) = (at(&path), format!("sale-{}", n % 5).parse().unwrap());
            tokio::spawn(async move { file.register(&sale, &terms(5)).await.unwrap() })
        };
        let outcomes = futures::future::join_all((0..40).map(register)).await;
        let registered = outcomes.iter().filter(|outcome| matches!(outcome, Ok(Registered::Stands))).count();
        assert_eq!(registered, 5);
        let contents = read(&path).unwrap();
        assert_eq!(contents.activities.len(), 5, "none was written over");
    }

    #[tokio::test]
    async fn a_gate_that_died_in_its_turn_holds_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.json");
        fs::write(beside(&path, ".lock"), "").unwrap();
        fs::write(beside(&path, ".next"), "{\"activities\":").unwrap();
        let (sale, file) = ("sale".parse().unwrap(), at(&path));
        assert_eq!(file.register(&sale, &terms(5)).await, Ok(Registered::Stands));
        assert!(file.report(&sale).await.unwrap().is_some());
    }
}
