//! Which sales the ledger knows, as this process last heard.

use std::collections::BTreeSet;
use std::sync::{Arc, RwLock};

use super::ledger::{Ledger, LedgerError};
use crate::domain::ActivityId;

/// A shared, growing set. Sales are never taken out of a ledger.
#[derive(Clone, Default)]
pub struct Activities(Arc<RwLock<BTreeSet<ActivityId>>>);

impl Activities {
    /// Whether the ledger is known to hold it.
    pub fn contains(&self, activity: &ActivityId) -> bool {
        self.read().contains(activity)
    }

    /// All of them.
    pub fn all(&self) -> Vec<ActivityId> {
        self.read().iter().cloned().collect()
    }

    /// Notes one.
    pub fn add(&self, activity: &ActivityId) {
        self.write().insert(activity.clone());
    }

    /// Asks the ledger.
    pub async fn refresh(&self, ledger: &dyn Ledger) -> Result<(), LedgerError> {
        let found = ledger.activities().await?;
        self.write().extend(found);
        Ok(())
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeSet<ActivityId>> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeSet<ActivityId>> {
        self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
