//! The admission store's operations: what is asked, what is answered, and [`judge`], the order of precedence.
//!
//! The model, the SQLite store and the Lua scripts are three implementations of this one page. They must agree reply by
//! reply (`tests/store_agreement.rs`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::backoff::Backoff;
use super::dead_letters::{DeadLetterPolicy, LastWord};
use super::ids::{Fingerprint, GateId, IdempotencyKey, RequestId, SkuId, UserId};
use super::stock::Stock;
use super::time::{StoreMs, millis};
use super::win::{Release, WinState};

/// The most attempts that one call may carry: bounds how long a store is busy with one activity.
pub const MAX_BATCH: usize = 128;

/// The most dead marks that one claim makes: bounds how long a store is busy with them.
pub const MAX_MARKS: usize = 200;

/// One life of an activity's store. 1 after the first preheat; every rebuild after a loss raises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

/// One run of the store's server process (Redis `run_id`); a restart or failover gives another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunId(pub Arc<str>);

/// What every changing call is told, and the store compares before its first write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The epoch that the caller believes in.
    pub epoch: Epoch,
    /// The run that the caller vouched for.
    pub run_id: RunId,
    /// After this moment of the store's clock the call changes nothing.
    pub not_after: StoreMs,
}

/// Why a guarded call changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Barred {
    /// No activity is stored under this name.
    NotPreheated,
    /// Part of the activity's keys is gone, or the caller's epoch is not the store's.
    Fenced,
    /// The call arrived after its `not_after`.
    Late,
    /// The server runs under another run id than the one stored or vouched for: writes may have been lost.
    Suspect,
}

/// What a guarded call answers: barred (no effect at all), or the store's time and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<T> {
    /// The store's clock at the call.
    pub now: StoreMs,
    /// The answer, or why there was no effect.
    pub outcome: Result<T, Barred>,
}

// ------------------------------------------------------------------------------------------------ preheat

/// What an activity is, as the store keeps it from preheat on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The epoch registered in the ledger before the store is created.
    pub epoch: Epoch,
    /// First moment at which an attempt may win.
    pub starts_at: StoreMs,
    /// First moment at which none may win any more.
    pub ends_at: StoreMs,
    /// Units that one user may hold.
    pub per_user_limit: u32,
    /// Whether units given back are taken off the user's count, so that the user may buy again.
    pub rebuy_after_release: bool,
    /// How long after `ends_at` the store's keys live.
    pub retention: Duration,
    /// Units offered per SKU, in the order of the configuration.
    pub skus: Vec<(SkuId, i64)>,
}

impl Terms {
    /// The terms as one text, kept with the store, so that a repeated preheat can be told from a different one.
    pub fn canonical(&self) -> String {
        let skus: Vec<String> = self.skus.iter().map(|(sku, total)| format!("{sku}={total}")).collect();
        format!(
            "{} {} {} {} {} {} {}",
            self.epoch.0,
            self.starts_at,
            self.ends_at,
            self.per_user_limit,
            u8::from(self.rebuy_after_release),
            millis(self.retention),
            skus.join(",")
        )
    }
}

/// Creates an activity's store, if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preheat {
    /// The run that the caller saw to hold nothing of it. On another one nothing is created ([`Barred::Suspect`]): it may be
    /// the one that has lost the sale.
    pub run_id: RunId,
    /// After this moment of the store's clock nothing is created ([`Barred::Late`]).
    pub not_after: StoreMs,
    /// What to create.
    pub terms: Terms,
}

/// How preheating ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preheated {
    /// The store was created.
    Created,
    /// It stood already, on exactly these terms.
    Already,
    /// It stands on other terms; nothing changed.
    Differs,
    /// A part of its keys exists: the store is incomplete; nothing changed.
    Incomplete,
}

// -------------------------------------------------------------------------------------------------- admit

/// One attempt to win.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Derived from activity, user and key.
    pub request_id: RequestId,
    /// Who wants to buy.
    pub user: UserId,
    /// The client's key.
    pub key: IdempotencyKey,
    /// What.
    pub sku: SkuId,
    /// How many units, at least 1.
    pub qty: u32,
    /// Of the payload.
    pub fingerprint: Fingerprint,
    /// False: look the id up, but never win (token expired, ended, paused, …).
    pub may_win: bool,
    /// The order payload, byte for byte.
    pub payload: Bytes,
}

/// Attempts judged in one atomic step, in order, each seeing the effects of those before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Compared before anything is written.
    pub guard: Guard,
    /// How long the admitting gate has for the first delivery before the relay may claim the win.
    pub first_delivery_lease: Duration,
    /// At most [`MAX_BATCH`].
    pub attempts: Vec<Attempt>,
}

/// The outcome of one attempt. The order of the variants is the order of precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The id won before; this is how it stands.
    Known(KnownWin),
    /// The id won before, with another SKU, quantity or body.
    Conflict,
    /// The id is unknown and may not win.
    NotKnown,
    /// An operator paused the activity.
    Paused,
    /// The store may have lost writes.
    Suspect,
    /// Before the window.
    NotStarted,
    /// After the window.
    Ended,
    /// The activity does not offer this SKU.
    NoSuchSku,
    /// This SKU is stopped.
    SkuStopped,
    /// The user holds as many units as the limit allows, or would hold more.
    AtLimit,
    /// Fewer units left than wanted.
    SoldOut,
    /// Won, now: stock taken, purchase counted, win recorded, delivery due.
    Won,
}

/// A recorded win, as told to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownWin {
    /// Where it stands.
    pub state: WinState,
    /// When it was won.
    pub won_at: StoreMs,
    /// The order service's reply that was kept, if any; opaque to the store.
    pub reply: Option<Bytes>,
}

/// A win with all that the store keeps of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WinRecord {
    /// Its owner.
    pub user: UserId,
    /// The client's key.
    pub key: IdempotencyKey,
    /// What was won.
    pub sku: SkuId,
    /// How many units.
    pub qty: u32,
    /// Of the payload.
    pub fingerprint: Fingerprint,
    /// When it was won.
    pub won_at: StoreMs,
    /// Where it stands.
    pub state: WinState,
    /// Deliveries that ended without a final word.
    pub tries: u32,
    /// When its first delivery began, as far as the store knows: when a relay first claimed it or, if that came before,
    /// when the first delivery by the gate that admitted it ended without a final word.
    pub first_delivery_at: Option<StoreMs>,
    /// What the last of those deliveries brought.
    pub last_word: Option<LastWord>,
    /// When it got its dead mark, if it carries one.
    pub dead_since: Option<StoreMs>,
    /// The payload, until the win is booked or released.
    pub payload: Option<Bytes>,
    /// The order service's reply that was kept.
    pub reply: Option<Bytes>,
}

impl WinRecord {
    /// The part that is told.
    pub fn known(&self) -> KnownWin {
        KnownWin { state: self.state.clone(), won_at: self.won_at, reply: self.reply.clone() }
    }
}

/// The facts that one attempt is judged on.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The record of this request id, if it won before.
    pub known: Option<&'a WinRecord>,
    /// An operator's pause.
    pub paused: bool,
    /// The run is not the one stored or vouched for.
    pub suspect: bool,
    /// The terms of the activity.
    pub terms: &'a Terms,
    /// The SKU's stock, if the activity offers it.
    pub stock: Option<&'a Stock>,
    /// Units that the user holds.
    pub user_units: u32,
}

/// The order of precedence. Guard and completeness are judged before, for the whole batch.
pub fn judge(attempt: &Attempt, facts: Facts<'_>, now: StoreMs) -> Verdict {
    if let Some(record) = facts.known {
        let same = record.sku == attempt.sku && record.qty == attempt.qty && record.fingerprint == attempt.fingerprint;
        return if same { Verdict::Known(record.known()) } else { Verdict::Conflict };
    }
    if !attempt.may_win {
        return Verdict::NotKnown;
    }
    if facts.paused {
        return Verdict::Paused;
    }
    if facts.suspect {
        return Verdict::Suspect;
    }
    if now < facts.terms.starts_at {
        return Verdict::NotStarted;
    }
    if now >= facts.terms.ends_at {
        return Verdict::Ended;
    }
    let Some(stock) = facts.stock else {
        return Verdict::NoSuchSku;
    };
    if stock.stopped {
        return Verdict::SkuStopped;
    }
    if facts.user_units.saturating_add(attempt.qty) > facts.terms.per_user_limit {
        return Verdict::AtLimit;
    }
    if stock.left < i64::from(attempt.qty) {
        return Verdict::SoldOut;
    }
    Verdict::Won
}

// ------------------------------------------------------------------------------------- settle and release

/// The order service's word on a win that does not give units back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Queued there (202): keep the first reply, ask again after the backoff.
    Queued {
        /// Its reply, opaque to the store.
        reply: Bytes,
    },
    /// Booked there: keep the reply for ever.
    Booked {
        /// Its reply, opaque to the store.
        reply: Bytes,
    },
    /// No definite word: try again after the backoff.
    Unknown,
}

/// Records a settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// Compared before anything is written.
    pub guard: Guard,
    /// Which win.
    pub request_id: RequestId,
    /// What was said.
    pub settlement: Settlement,
    /// When to deliver again, by the number of tries so far.
    pub backoff: Backoff,
    /// When it is called dead, and how it is delivered then.
    pub dead_letters: DeadLetterPolicy,
}

/// Gives a win's units back, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseWin {
    /// Compared before anything is written.
    pub guard: Guard,
    /// Which win.
    pub request_id: RequestId,
    /// Whose word it is, and why.
    pub release: Release,
    /// The ledger had no stock for it: store and ledger disagree, so the SKU stops and the units are kept back.
    pub ledger_short: bool,
    /// How long the units stay `returning` before they are on sale.
    pub returning_delay: Duration,
}

/// What the store recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// The event changed the win; this is how it stands now.
    Applied(KnownWin),
    /// The event was recorded, and the win got its dead mark with it. Alarm.
    MarkedDead {
        /// How it stands: held.
        known: KnownWin,
        /// Deliveries so far that ended without a final word.
        tries: u32,
        /// Since its first delivery.
        age: Duration,
    },
    /// It stood like this already.
    Already(KnownWin),
    /// The event contradicts the record, which stands. Alarm.
    Conflict(KnownWin),
    /// No win is recorded under this id.
    UnknownWin,
}

// ---------------------------------------------------------------------------------------------- claim_due

/// Leases overdue outbox entries, puts units that have waited long enough on sale, and marks wins dead that an order
/// service which does not answer has kept waiting for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimDue {
    /// Compared before anything is written.
    pub guard: Guard,
    /// At most this many wins.
    pub limit: usize,
    /// Nobody else may claim them before this has passed.
    pub lease: Duration,
    /// Given by a gate for which the order service does not answer: wins that stay due for [`DeadLetterPolicy::after`], this
    /// claim's own left out, get their dead mark, at most [`MAX_MARKS`] per call, and fall due again at the pace of the
    /// dead. Wins that waited for a gate, and not for the order service, are just delivered.
    pub mark_dead: Option<DeadLetterPolicy>,
}

/// What was claimed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claimed {
    /// Wins to deliver, the longest overdue first.
    pub wins: Vec<DueWin>,
    /// Units that went on sale, in due order.
    pub on_sale: Vec<(SkuId, i64)>,
    /// Wins that got their dead mark now. Alarm.
    pub marked_dead: Vec<RequestId>,
}

/// A win to deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueWin {
    /// Names it everywhere.
    pub request_id: RequestId,
    /// Its owner.
    pub user: UserId,
    /// What was won.
    pub sku: SkuId,
    /// How many units.
    pub qty: u32,
    /// When it was won.
    pub won_at: StoreMs,
    /// Deliveries so far that ended without a final word.
    pub tries: u32,
    /// The order payload, byte for byte.
    pub payload: Bytes,
}

// --------------------------------------------------------------------------------------- operator changes

/// An operator's change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operate {
    /// Compared before anything is written.
    pub guard: Guard,
    /// What to change.
    pub change: Change,
}

/// What an operator may change in a running activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets a total from a known value to a new one, so that repeating it changes nothing.
    SetTotal {
        /// Which SKU.
        sku: SkuId,
        /// The total that the operator saw.
        from: i64,
        /// The total wanted.
        to: i64,
        /// How long added units stay `returning`.
        returning_delay: Duration,
    },
    /// No attempt wins until [`Change::Resume`].
    Pause,
    /// Lifts an operator's pause, nothing else.
    Resume,
    /// No attempt for this SKU wins.
    StopSku(SkuId),
    /// Lifts a stop.
    StartSku(SkuId),
}

/// How an operator's change ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operated {
    /// It was made.
    Applied,
    /// It stood like this already.
    Already,
    /// The activity does not offer this SKU.
    NoSuchSku,
    /// The total is neither `from` nor `to`; this is what it is.
    TotalIs(i64),
    /// Fewer units are left than would be taken away; this many are.
    OnlyLeft(i64),
    /// The SKU's stock is below zero, so it cannot be started.
    BelowZero,
}

// --------------------------------------------------------------------------------------- poll and look-ups

/// A place in an activity's journal; `JournalCursor::START` is before the first entry. Its text is the store's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalCursor(pub Arc<str>);

impl JournalCursor {
    /// Before the first entry.
    pub fn start() -> JournalCursor {
        JournalCursor("0".into())
    }
}

/// A gate's regular question: how does the activity stand, and what changed since?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll {
    /// Which gate asks, recorded in `gates`; `None` for somebody who only reads.
    pub gate: Option<GateId>,
    /// What it vouches for, recorded in `gates`.
    pub vouched: Option<(Epoch, RunId)>,
    /// Entries after this one.
    pub after: JournalCursor,
    /// At most this many entries.
    pub max_entries: usize,
}

/// How the activity stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Polled {
    /// The store's clock.
    pub now: StoreMs,
    /// The run of the server that answered.
    pub server_run: RunId,
    /// The activity, if it is stored.
    pub activity: PolledActivity,
}

/// The stored activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolledActivity {
    /// Nothing is stored under this name.
    NotPreheated,
    /// A part of its keys is gone.
    Incomplete,
    /// All of it.
    Stored(Box<ActivityState>),
}

/// The state of a stored activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityState {
    /// The terms it was preheated on; `skus` holds the present totals.
    pub terms: Terms,
    /// What the store holds against itself: [`Barred::Suspect`] if a poll was ever answered under another run than the one
    /// it was preheated in, this one included; [`Barred::Fenced`] if one ever found a key missing.
    pub barred: Option<Barred>,
    /// An operator's pause.
    pub paused: bool,
    /// Stock per SKU, in the order of the terms.
    pub stock: Vec<(SkuId, Stock)>,
    /// Wins that wait for the order service.
    pub unsettled: u64,
    /// How many of them carry a dead mark.
    pub dead: u64,
    /// Journal entries after the cursor.
    pub entries: Vec<JournalEntry>,
    /// Where to go on.
    pub cursor: JournalCursor,
    /// Whether `entries` reaches the end of the journal.
    pub at_end: bool,
}

/// One change, in the order in which they happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// When.
    pub at: StoreMs,
    /// What.
    pub op: JournalOp,
}

/// What a journal entry tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalOp {
    /// The activity was created.
    Preheated,
    /// Units were won.
    Won {
        /// By which attempt.
        request_id: RequestId,
        /// Under which key.
        key: IdempotencyKey,
        /// Of what.
        sku: SkuId,
        /// How many.
        qty: u32,
    },
    /// An order stands.
    Booked {
        /// For which attempt.
        request_id: RequestId,
    },
    /// Units went back: into `returning`, or (ledger short) towards `left` below zero and `withheld`.
    Released {
        /// Of which attempt.
        request_id: RequestId,
        /// Of what.
        sku: SkuId,
        /// How many.
        qty: u32,
    },
    /// Units went from `returning` to `left`.
    OnSale {
        /// Of what.
        sku: SkuId,
        /// How many.
        qty: i64,
    },
    /// An operator changed the total.
    Total {
        /// Of what.
        sku: SkuId,
        /// By how much.
        delta: i64,
    },
    /// An operator stopped (true) or started a SKU, or a disagreement with the ledger did.
    Stopped {
        /// Which.
        sku: SkuId,
        /// Whether it is stopped now.
        stopped: bool,
    },
    /// An operator paused (true) or resumed the activity.
    Paused(bool),
}

/// A win as its owner sees it in `results`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundWin {
    /// Names it everywhere.
    pub request_id: RequestId,
    /// All that is kept, the payload left out.
    pub record: WinRecord,
}

/// One atomic picture of an activity, for audits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The terms.
    pub terms: Terms,
    /// Stock per SKU, in the order of the terms.
    pub skus: Vec<(SkuId, Stock)>,
    /// Entries of the outbox.
    pub unsettled: u64,
    /// How many of them carry a dead mark.
    pub dead: u64,
}
