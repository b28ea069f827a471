//! Reads the scripts' replies. Whatever has another form than expected is a named error, never a guess.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use crate::domain::admission::{
    ActivityState, Barred, Claimed, DueWin, Epoch, FoundWin, JournalCursor, JournalEntry, JournalOp, KnownWin,
    Operated, Poll, Preheated, Recorded, RunId, Snapshot, Terms, Verdict, WinRecord,
};
use crate::domain::dead_letters::{LastWord, Retried};
use crate::domain::stock::{Stock, WinUnits};
use crate::domain::win::{Cause, Reason, Release, WinState};
use crate::domain::{ActivityId, SkuId, StoreMs};

use super::scripts::Keys;

/// What was not as expected.
pub type Malformed = String;

/// What a value is, without its content: that may be a buyer's order.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Int(_) => "an integer",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "text",
        Value::Array(_) => "an array",
        _ => "another kind of value",
    }
}

/// The elements of an array.
pub fn array(value: Value) -> Result<Vec<Value>, Malformed> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(format!("an array was expected, not {}", kind(&other))),
    }
}

/// Takes the next element.
pub fn next(values: &mut impl Iterator<Item = Value>) -> Result<Value, Malformed> {
    values.next().ok_or_else(|| "the reply is too short".into())
}

/// Bytes, or `None` for nil.
pub fn optional_bytes(value: Value) -> Result<Option<Bytes>, Malformed> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        Value::SimpleString(text) => Ok(Some(text.into())),
        other => Err(format!("bytes were expected, not {}", kind(&other))),
    }
}

/// Text.
pub fn text(value: Value) -> Result<String, Malformed> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|e| e.to_string()),
        Value::SimpleString(text) => Ok(text),
        Value::Int(number) => Ok(number.to_string()),
        other => Err(format!("text was expected, not {}", kind(&other))),
    }
}

/// A whole number, as an integer or in digits.
pub fn number<N: std::str::FromStr>(value: Value) -> Result<N, Malformed> {
    let digits = text(value)?;
    digits.parse().map_err(|_| format!("a number was expected, not `{digits}`"))
}

/// Anything that is written as text.
pub fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, Malformed> {
    text.parse().map_err(|_| format!("`{text}` is not valid here"))
}

/// A time of the store's clock.
pub fn time(value: Value) -> Result<StoreMs, Malformed> {
    number(value).map(StoreMs)
}

/// A score that is a time, or nil. Redis writes scores as floating-point numbers; times are whole ones far below 2^53.
pub fn optional_time(value: Value) -> Result<Option<StoreMs>, Malformed> {
    match value {
        Value::Nil => Ok(None),
        Value::Double(ms) => Ok(Some(StoreMs(ms as u64))),
        other => time(other).map(Some),
    }
}

/// Why a call was barred; `None` for `ok`.
pub fn barred(status: &str) -> Result<Option<Barred>, Malformed> {
    match status {
        "ok" => Ok(None),
        "not_preheated" => Ok(Some(Barred::NotPreheated)),
        "fenced" => Ok(Some(Barred::Fenced)),
        "late" => Ok(Some(Barred::Late)),
        "suspect" => Ok(Some(Barred::Suspect)),
        other => Err(format!("`{other}` is no status")),
    }
}

/// One verdict of `admit.lua`.
pub fn verdict(value: Value) -> Result<Verdict, Malformed> {
    match value {
        Value::Array(told) => known_win(&mut told.into_iter()).map(Verdict::Known),
        Value::Int(2) => Ok(Verdict::Conflict),
        Value::Int(3) => Ok(Verdict::NotKnown),
        Value::Int(4) => Ok(Verdict::Paused),
        Value::Int(5) => Ok(Verdict::Suspect),
        Value::Int(6) => Ok(Verdict::NotStarted),
        Value::Int(7) => Ok(Verdict::Ended),
        Value::Int(8) => Ok(Verdict::NoSuchSku),
        Value::Int(9) => Ok(Verdict::SkuStopped),
        Value::Int(10) => Ok(Verdict::AtLimit),
        Value::Int(11) => Ok(Verdict::SoldOut),
        Value::Int(12) => Ok(Verdict::Won),
        other => Err(format!("{} is no verdict", kind(&other))),
    }
}

/// State, time and kept reply.
fn known_win(values: &mut impl Iterator<Item = Value>) -> Result<KnownWin, Malformed> {
    Ok(KnownWin {
        state: state(&text(next(values)?)?)?,
        won_at: time(next(values)?)?,
        reply: optional_bytes(next(values)?)?,
    })
}

fn state(text: &str) -> Result<WinState, Malformed> {
    match text {
        "h" => return Ok(WinState::Held),
        "a" => return Ok(WinState::Accepted),
        _ => {}
    }
    let release = text
        .strip_prefix("r:")
        .and_then(|rest| rest.split_once(':'))
        .and_then(|(cause, reason)| Some(Release { cause: Cause::parse(cause)?, reason: Reason::new(reason).ok()? }));
    release.map(WinState::Released).ok_or_else(|| format!("`{text}` is no state of a win"))
}

/// The outcome of `settle.lua` and `release.lua`.
pub fn recorded(values: &mut impl Iterator<Item = Value>) -> Result<Recorded, Malformed> {
    match text(next(values)?)?.as_str() {
        "applied" => known_win(values).map(Recorded::Applied),
        "marked_dead" => Ok(Recorded::MarkedDead {
            known: known_win(values)?,
            tries: number(next(values)?)?,
            age: Duration::from_millis(number(next(values)?)?),
        }),
        "already" => known_win(values).map(Recorded::Already),
        "conflict" => known_win(values).map(Recorded::Conflict),
        "unknown_win" => Ok(Recorded::UnknownWin),
        other => Err(format!("`{other}` is no record")),
    }
}

/// The outcome of `preheat.lua`.
pub fn preheated(values: &mut impl Iterator<Item = Value>) -> Result<Preheated, Malformed> {
    match text(next(values)?)?.as_str() {
        "created" => Ok(Preheated::Created),
        "already" => Ok(Preheated::Already),
        "differs" => Ok(Preheated::Differs),
        "incomplete" => Ok(Preheated::Incomplete),
        other => Err(format!("`{other}` is no outcome of preheating")),
    }
}

/// The outcome of an operator's change.
pub fn operated(values: &mut impl Iterator<Item = Value>) -> Result<Operated, Malformed> {
    match text(next(values)?)?.as_str() {
        "applied" => Ok(Operated::Applied),
        "already" => Ok(Operated::Already),
        "no_such_sku" => Ok(Operated::NoSuchSku),
        "total_is" => number(next(values)?).map(Operated::TotalIs),
        "only_left" => number(next(values)?).map(Operated::OnlyLeft),
        "below_zero" => Ok(Operated::BelowZero),
        other => Err(format!("`{other}` is no outcome of a change")),
    }
}

/// A value of the `wins` hash; payload, reply and dead mark are kept elsewhere.
pub fn win(text: &str) -> Result<WinRecord, Malformed> {
    let parts: Vec<&str> = text.split(' ').collect();
    let [state_text, user, sku, qty, won_at, key, fingerprint, tries, first, word] = parts[..] else {
        return Err("a win has another form".to_owned());
    };
    Ok(WinRecord {
        user: parsed(user)?,
        key: parsed(key)?,
        sku: parsed(sku)?,
        qty: parsed(qty)?,
        fingerprint: parsed(fingerprint)?,
        won_at: StoreMs(parsed(won_at)?),
        state: state(state_text)?,
        tries: parsed(tries)?,
        first_delivery_at: Some(StoreMs(parsed(first)?)).filter(|first| first.0 > 0),
        last_word: match word {
            "q" => Some(LastWord::Queued),
            "u" => Some(LastWord::Unknown),
            _ => None,
        },
        dead_since: None,
        payload: None,
        reply: None,
    })
}

/// Field → value, from an alternating array.
pub fn fields(value: Value) -> Result<HashMap<String, String>, Malformed> {
    let mut values = array(value)?.into_iter();
    let mut fields = HashMap::with_capacity(values.len() / 2);
    while let Some(field) = values.next() {
        fields.insert(text(field)?, text(next(&mut values)?)?);
    }
    Ok(fields)
}

/// One field of [`fields`].
fn field<T: std::str::FromStr>(fields: &HashMap<String, String>, name: &str) -> Result<T, Malformed> {
    parsed(fields.get(name).ok_or_else(|| format!("the field `{name}` is missing"))?)
}

/// `meta` and `stock` together: the terms with present totals, the stock, the pause, the stored run, the mark.
pub struct Stored {
    /// With the present totals.
    pub terms: Terms,
    /// In the order of the terms.
    pub stock: Vec<(SkuId, Stock)>,
    /// An operator's pause.
    pub paused: bool,
    /// The run the activity was preheated in.
    pub run_id: RunId,
    /// What an earlier poll saw that bars it.
    pub barred: Option<Barred>,
}

/// Reads `meta` and `stock`.
pub fn stored(meta: Value, stock: Value) -> Result<Stored, Malformed> {
    let (meta, stock_fields) = (fields(meta)?, fields(stock)?);
    let names: String = field(&meta, "skus")?;
    let mut stock = Vec::new();
    for name in names.split(' ') {
        let part = |part: &str| field::<i64>(&stock_fields, &format!("{name}:{part}"));
        let sum = |state: &str| {
            let wins = field::<u64>(&stock_fields, &format!("{name}:{state}n"))?;
            Ok::<_, Malformed>((wins, part(&format!("{state}u"))?))
        };
        let of_sku = Stock {
            total: part("total")?,
            left: part("left")?,
            returning: part("returning")?,
            withheld: part("withheld")?,
            stopped: part("stopped")? == 1,
            wins: WinUnits { held: sum("h")?, accepted: sum("a")?, released: sum("r")? },
        };
        stock.push((parsed::<SkuId>(name)?, of_sku));
    }
    let terms = Terms {
        epoch: Epoch(field(&meta, "epoch")?),
        starts_at: StoreMs(field(&meta, "starts_at")?),
        ends_at: StoreMs(field(&meta, "ends_at")?),
        per_user_limit: field(&meta, "per_user_limit")?,
        rebuy_after_release: field::<u8>(&meta, "rebuy")? == 1,
        retention: Duration::from_millis(field(&meta, "retention")?),
        skus: stock.iter().map(|(sku, stock)| (sku.clone(), stock.total)).collect(),
    };
    let run_id: String = field(&meta, "run_id")?;
    let barred = match meta.get("barred") {
        None => None,
        Some(mark) => barred(mark)?,
    };
    Ok(Stored { terms, stock, paused: field::<u8>(&meta, "paused")? == 1, run_id: RunId(Arc::from(run_id)), barred })
}

/// One stream entry: its id, and what it tells (a batch of wins is one entry).
pub fn journal(value: Value, into: &mut Vec<JournalEntry>) -> Result<String, Malformed> {
    let mut entry = array(value)?.into_iter();
    let id = text(next(&mut entry)?)?;
    let fields = fields(next(&mut entry)?)?;
    let at = StoreMs(field(&fields, "at")?);
    let op: String = field(&fields, "op")?;
    let single = match op.as_str() {
        "won" => {
            let items: String = field(&fields, "items")?;
            for item in items.split('\n') {
                let parts: Vec<&str> = item.split(' ').collect();
                let [request_id, key, sku, qty] = parts[..] else {
                    return Err(format!("`{item}` is no journal item"));
                };
                let op = JournalOp::Won {
                    request_id: parsed(request_id)?,
                    key: parsed(key)?,
                    sku: parsed(sku)?,
                    qty: parsed(qty)?,
                };
                into.push(JournalEntry { at, op });
            }
            return Ok(id);
        }
        "preheated" => JournalOp::Preheated,
        "booked" => JournalOp::Booked { request_id: field(&fields, "id")? },
        "released" => JournalOp::Released {
            request_id: field(&fields, "id")?,
            sku: field(&fields, "sku")?,
            qty: field(&fields, "qty")?,
        },
        "on_sale" => JournalOp::OnSale { sku: field(&fields, "sku")?, qty: field(&fields, "qty")? },
        "total" => JournalOp::Total { sku: field(&fields, "sku")?, delta: field(&fields, "delta")? },
        "stopped" => JournalOp::Stopped { sku: field(&fields, "sku")?, stopped: field::<u8>(&fields, "on")? == 1 },
        "paused" => JournalOp::Paused(field::<u8>(&fields, "on")? == 1),
        other => return Err(format!("`{other}` is no journal entry")),
    };
    into.push(JournalEntry { at, op: single });
    Ok(id)
}

/// What `poll.lua` tells of a stored activity.
pub fn state_of_activity(
    values: &mut impl Iterator<Item = Value>,
    poll: &Poll,
    server_run: &RunId,
) -> Result<ActivityState, Malformed> {
    let stored = stored(next(values)?, next(values)?)?;
    let unsettled = number(next(values)?)?;
    let dead = number(next(values)?)?;
    let raw = array(next(values)?)?;
    let at_end = raw.len() < poll.max_entries;
    let mut entries = Vec::with_capacity(raw.len());
    let mut cursor = poll.after.clone();
    for entry in raw {
        cursor = JournalCursor(journal(entry, &mut entries)?.into());
    }
    Ok(ActivityState {
        terms: stored.terms,
        barred: stored.barred.or_else(|| (stored.run_id != *server_run).then_some(Barred::Suspect)),
        paused: stored.paused,
        stock: stored.stock,
        unsettled,
        dead,
        entries,
        cursor,
        at_end,
    })
}

/// The picture of `snapshot.lua`; `None` if the activity is not (or not wholly) stored.
pub fn snapshot(value: Value) -> Result<Option<Snapshot>, Malformed> {
    let mut values = array(value)?.into_iter();
    if text(next(&mut values)?)? != "ok" {
        return Ok(None);
    }
    let stored = stored(next(&mut values)?, next(&mut values)?)?;
    let (unsettled, dead) = (number(next(&mut values)?)?, number(next(&mut values)?)?);
    Ok(Some(Snapshot { terms: stored.terms, skus: stored.stock, unsettled, dead }))
}

/// A page of `dead_letters.lua`.
pub fn dead_letters(value: Value) -> Result<Result<Vec<FoundWin>, Barred>, Malformed> {
    let mut values = array(value)?.into_iter();
    if let Some(why) = barred(&text(next(&mut values)?)?)? {
        return Ok(Err(why));
    }
    let mut page = Vec::with_capacity(values.len() / 3);
    while let Some(id) = values.next() {
        let request_id = parsed(&text(id)?)?;
        let record = win(&text(next(&mut values)?)?)?;
        let dead_since = optional_time(next(&mut values)?)?;
        page.push(FoundWin { request_id, record: WinRecord { dead_since, ..record } });
    }
    Ok(Ok(page))
}

/// What `claim_due.lua` claimed.
pub fn claimed(values: &mut impl Iterator<Item = Value>) -> Result<Claimed, Malformed> {
    let mut claimed = Claimed::default();
    let mut on_sale = array(next(values)?)?.into_iter();
    while let Some(sku) = on_sale.next() {
        claimed.on_sale.push((parsed(&text(sku)?)?, number(next(&mut on_sale)?)?));
    }
    let mut wins = array(next(values)?)?.into_iter();
    while let Some(id) = wins.next() {
        let request_id = parsed(&text(id)?)?;
        let WinRecord { user, sku, qty, won_at, tries, .. } = win(&text(next(&mut wins)?)?)?;
        let payload = optional_bytes(next(&mut wins)?)?.unwrap_or_default();
        claimed.wins.push(DueWin { request_id, user, sku, qty, won_at, tries, payload });
    }
    for id in array(next(values)?)? {
        claimed.marked_dead.push(parsed(&text(id)?)?);
    }
    Ok(claimed)
}

/// One step of a scan: adds the activities whose keys it shows, and gives the cursor of the next step, `0` at the end.
pub fn scanned(value: Value, into: &mut Vec<ActivityId>) -> Result<String, Malformed> {
    let mut values = array(value)?.into_iter();
    let cursor = text(next(&mut values)?)?;
    for key in array(next(&mut values)?)? {
        // A key that only looks like ours is somebody else's.
        into.extend(Keys::activity_of(&text(key)?));
    }
    Ok(cursor)
}

/// What became of one id of `retry.lua`.
pub fn retried(value: Value) -> Result<Retried, Malformed> {
    Ok(match text(value)?.as_str() {
        "due" => Retried::Due,
        "unknown_win" => Retried::UnknownWin,
        other => Retried::Final(state(other)?),
    })
}
