//! Logged before it leaves: a gate puts a win into its own log before it tells anybody or delivers it anywhere, whichever
//! gate won it: first replies, replays, results and relay deliveries alike.
//!
//! After a store has lost its last writes, these logs are what its told wins are restored from. A log on disk is not built
//! yet: [`NoWinLog`] stands in its place, and every call that it will need is made.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::domain::admission::{DueWin, Epoch, FoundWin};
use crate::domain::{ActivityId, IdempotencyKey, RequestId, SkuId, StoreMs, UserId};

/// How long an append may take before it counts as failed.
const DEADLINE: Duration = Duration::from_secs(1);

/// A win on its way out, as a log keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedWin<'a> {
    /// Names it everywhere.
    pub request_id: RequestId,
    /// Its owner.
    pub user: &'a UserId,
    /// The client's key; not known of a win that the relay claims.
    pub key: Option<&'a IdempotencyKey>,
    /// What was won.
    pub sku: &'a SkuId,
    /// How many units.
    pub qty: u32,
    /// When it was won.
    pub won_at: StoreMs,
    /// The order payload; the store drops it once the win is booked.
    pub payload: Option<&'a Bytes>,
}

impl<'a> From<&'a FoundWin> for LoggedWin<'a> {
    fn from(win: &'a FoundWin) -> LoggedWin<'a> {
        let record = &win.record;
        LoggedWin {
            request_id: win.request_id,
            user: &record.user,
            key: Some(&record.key),
            sku: &record.sku,
            qty: record.qty,
            won_at: record.won_at,
            payload: record.payload.as_ref(),
        }
    }
}

impl<'a> From<&'a DueWin> for LoggedWin<'a> {
    fn from(win: &'a DueWin) -> LoggedWin<'a> {
        LoggedWin {
            request_id: win.request_id,
            user: &win.user,
            key: None,
            sku: &win.sku,
            qty: win.qty,
            won_at: win.won_at,
            payload: Some(&win.payload),
        }
    }
}

/// The log did not take the wins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the win log failed: {0}")]
pub struct NotLogged(pub String);

/// What an append gives.
pub enum Appended {
    /// They are kept already.
    Now,
    /// They are kept once this resolves to `Ok`.
    Soon(Pin<Box<dyn Future<Output = Result<(), NotLogged>> + Send>>),
}

/// A durable log of wins.
pub trait WinLog: Send + Sync + 'static {
    /// Keeps these wins. One that is kept already is no error.
    fn append(&self, activity: &ActivityId, epoch: Epoch, wins: &mut dyn Iterator<Item = LoggedWin<'_>>) -> Appended;
}

/// Keeps nothing: what this release runs on, and what the embedded store, durable itself, will always run on.
pub struct NoWinLog;

impl WinLog for NoWinLog {
    fn append(&self, _: &ActivityId, _: Epoch, _: &mut dyn Iterator<Item = LoggedWin<'_>>) -> Appended {
        Appended::Now
    }
}

/// A gate's log, and whether it still keeps what it is given. After its first failure the gate admits nobody.
pub struct LogFirst {
    log: Box<dyn WinLog>,
    failed: AtomicBool,
}

impl LogFirst {
    /// Puts `log` before everything that leaves the gate.
    pub fn new(log: impl WinLog) -> LogFirst {
        LogFirst { log: Box::new(log), failed: AtomicBool::new(false) }
    }

    /// Resolves when these wins may be told and delivered.
    ///
    /// # Errors
    /// If they may not: nobody is to hear of them from this gate.
    pub fn keep<'s>(
        &'s self,
        activity: &ActivityId,
        epoch: Epoch,
        wins: &mut dyn Iterator<Item = LoggedWin<'_>>,
    ) -> impl Future<Output = Result<(), NotLogged>> + Send + use<'s> {
        let appended = self.log.append(activity, epoch, wins);
        async move {
            let Appended::Soon(kept) = appended else { return Ok(()) };
            let kept = tokio::time::timeout(DEADLINE, kept).await;
            let kept = kept.unwrap_or_else(|_| Err(NotLogged(format!("nothing was kept within {DEADLINE:?}"))));
            if let Err(error) = &kept
                && !self.failed.swap(true, Ordering::Relaxed)
            {
                tracing::error!(%error, "this gate admits nobody any more: mend its disk and start it again");
            }
            kept
        }
    }

    /// Whether an append has failed since the start.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}
