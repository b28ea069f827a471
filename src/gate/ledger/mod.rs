//! What the gate asks of the ledger: that a sale is registered before its store is created, and that totals agree.
//!
//! With our own order service the ledger is reached over HTTP ([`client`]); for a shop's own order service only the epoch
//! is kept, in a small file of the gate ([`epoch_file`]).

pub mod client;
pub mod epoch_file;
pub mod void;

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::domain::admission::{Epoch, Terms};
use crate::domain::time::millis;
use crate::domain::{ActivityId, RequestId, SkuId};
pub use void::{VoidClient, Voided};

/// What is registered, in the order service's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// Units that one user may hold.
    pub per_user_limit: u32,
    /// Whether a user whose order ended may buy again.
    pub rebuy_after_release: bool,
    /// How long an order may stay unpaid, milliseconds.
    pub payment_deadline_ms: u64,
    /// Units offered per SKU.
    pub skus: BTreeMap<SkuId, i64>,
}

impl Registration {
    /// Of these terms.
    pub fn of(terms: &Terms, payment_deadline: std::time::Duration) -> Registration {
        Registration {
            per_user_limit: terms.per_user_limit,
            rebuy_after_release: terms.rebuy_after_release,
            payment_deadline_ms: millis(payment_deadline),
            skus: terms.skus.iter().cloned().collect(),
        }
    }
}

/// How registering ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The ledger holds exactly this, now or since before.
    Stands,
    /// It remembers the activity with another epoch, other terms, or orders.
    Conflict,
}

/// How setting a total ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TotalSet {
    /// The total is the one wanted.
    Stands,
    /// It is not, and why, in the ledger's words.
    Refused(String),
}

/// What the ledger knows of an activity. Unknown fields are ignored: the order service may be newer than the gate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LedgerReport {
    /// The epoch it registered.
    pub epoch: Epoch,
    /// Units that one user may hold.
    #[serde(default)]
    pub per_user_limit: Option<u32>,
    /// Stock per SKU; empty where only the epoch is kept.
    #[serde(default)]
    pub skus: BTreeMap<SkuId, LedgerStock>,
}

/// The ledger's stock of one SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct LedgerStock {
    /// Units offered.
    pub total: i64,
    /// Units in orders that stand.
    pub sold: i64,
}

/// The ledger did not answer as agreed. The call may have had its effect; every call here may be repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the ledger did not answer: {0}")]
pub struct LedgerError(pub String);

/// The ledger, as the admin listener needs it.
#[async_trait]
pub trait LedgerAccess: Send + Sync + 'static {
    /// Registers an activity: epoch 0 → 1 by compare-and-set, with its terms.
    async fn register(&self, activity: &ActivityId, terms: &Registration) -> Result<Registered, LedgerError>;
    /// Sets a total from a known value to a new one; not below what is sold.
    async fn set_total(&self, activity: &ActivityId, sku: &SkuId, from: i64, to: i64) -> Result<TotalSet, LedgerError>;
    /// Asks the order service to promise that no order ever comes of this id.
    async fn void(&self, activity: &ActivityId, id: RequestId) -> Result<Voided, LedgerError>;
    /// What is known of an activity; `None` if it is not registered.
    async fn report(&self, activity: &ActivityId) -> Result<Option<LedgerReport>, LedgerError>;
}
