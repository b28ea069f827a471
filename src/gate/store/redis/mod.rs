//! The admission store on Redis (7.0 or later, or Valkey): one Lua script per operation.

mod reply;
mod scripts;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dashmap::DashMap;
use redis::{Cmd, Value};

use self::reply::Malformed;
pub use self::scripts::{Keys, LuaScript, Scripts};
use super::{AdmissionStore, Guarded, StoreError};
use crate::domain::admission::{
    Batch, Change, ClaimDue, Claimed, Epoch, FoundWin, Guard, Operate, Operated, Poll, Polled, PolledActivity, Preheat,
    Preheated, Recorded, ReleaseWin, Reply, RunId, Settle, Settlement, Snapshot, Verdict,
};
use crate::domain::dead_letters::{DeadPage, Retried, Retry};
use crate::domain::time::millis;
use crate::domain::{ActivityId, IdempotencyKey, RequestId, UserId};
use crate::gate::view::POLL_DEADLINE;
use crate::platform::breaker::Circuit;
use crate::platform::redis::{AnsweredOn, CallError, RedisClient, RedisSettings};

/// Ids per look-up: Lua unpacks fewer than 8,000 values, and a look-up must not hold the server up.
const MOST_IDS: usize = 1_000;

/// Steps of one scan over the keys of the server, 1,000 each: it should hold a few dozen.
const MOST_SCANS: usize = 1_000;

/// The store.
pub struct RedisStore {
    client: Arc<RedisClient>,
    scripts: Scripts,
    /// Each activity's keys, made once: every attempt at low load is a call of its own. There are as many as activities
    /// in the file.
    keys: DashMap<ActivityId, Arc<Keys>>,
    /// The run that answered the last poll.
    last_run: Mutex<Option<RunId>>,
}

impl RedisStore {
    /// Checks the settings; connects when first used.
    pub fn new(settings: &RedisSettings) -> Result<RedisStore, StoreError> {
        RedisStore::with_scripts(settings, Scripts::built_in())
    }

    /// As [`RedisStore::new`], with a breaker before every call but a gate's polls, which find out whether the server
    /// answers again.
    pub fn behind(settings: &RedisSettings, breaker: Circuit) -> Result<RedisStore, StoreError> {
        let client = RedisClient::new(settings).map_err(StoreError::Unavailable)?.behind(breaker);
        Ok(RedisStore::of(client, Scripts::built_in()))
    }

    /// As [`RedisStore::new`], with other scripts: so that a test can show that a wrong one is found out.
    pub fn with_scripts(settings: &RedisSettings, scripts: Scripts) -> Result<RedisStore, StoreError> {
        Ok(RedisStore::of(RedisClient::new(settings).map_err(StoreError::Unavailable)?, scripts))
    }

    fn of(client: RedisClient, scripts: Scripts) -> RedisStore {
        RedisStore { client: Arc::new(client), scripts, keys: DashMap::new(), last_run: Mutex::default() }
    }

    /// The connection, to look at the server with.
    pub fn client(&self) -> Arc<RedisClient> {
        Arc::clone(&self.client)
    }

    fn keys_of(&self, activity: &ActivityId) -> Arc<Keys> {
        if let Some(keys) = self.keys.get(activity) {
            return Arc::clone(&keys);
        }
        Arc::clone(&self.keys.entry(activity.clone()).or_insert_with(|| Arc::new(Keys::of(activity))))
    }

    /// Runs a script; sends its source when the server does not know it. NOSCRIPT is the only error after which a call
    /// is repeated, since then nothing was executed.
    async fn run(
        &self,
        script: &LuaScript,
        activity: &ActivityId,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Value, StoreError> {
        self.run_as(script, activity, arguments, None).await.map(|(value, _)| value)
    }

    /// The same; with `probe_within` also while the breaker is open, and within that time.
    async fn run_as(
        &self,
        script: &LuaScript,
        activity: &ActivityId,
        arguments: impl Fn(&mut Cmd),
        probe_within: Option<Duration>,
    ) -> Result<(Value, AnsweredOn), StoreError> {
        let keys = self.keys_of(activity);
        let mut command = script.by_sha(&keys);
        arguments(&mut command);
        // Both together are one call to whoever waits for it, so they share its deadline.
        let (until, probe) = (self.client.until(probe_within), probe_within.is_some());
        match self.client.ask_until(&command, until, probe).await {
            Err(CallError::NoScript) => {
                let mut command = script.by_source(&keys);
                arguments(&mut command);
                self.client.ask_until(&command, until, probe).await.map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    /// Whether the server runs under another id than at the last poll.
    fn has_restarted(&self, run: &RunId) -> bool {
        let mut last = self.last_run.lock().unwrap_or_else(PoisonError::into_inner);
        let other = last.as_ref().is_some_and(|last| last != run);
        *last = Some(run.clone());
        other
    }

    /// Runs a guarded script and reads status and time off its reply.
    async fn run_guarded<T>(
        &self,
        script: &LuaScript,
        activity: &ActivityId,
        guard: &Guard,
        arguments: impl Fn(&mut Cmd),
        read: impl FnOnce(&mut std::vec::IntoIter<Value>) -> Result<T, Malformed>,
    ) -> Result<Reply<T>, StoreError> {
        let value = self
            .run(script, activity, |command| {
                command.arg(guard.epoch.0).arg(&*guard.run_id.0).arg(guard.not_after.0);
                arguments(command);
            })
            .await?;
        let read = || {
            let mut values = reply::array(value)?.into_iter();
            let barred = reply::barred(&reply::text(reply::next(&mut values)?)?)?;
            let now = reply::time(reply::next(&mut values)?)?;
            let outcome = match barred {
                Some(why) => Err(why),
                None => Ok(read(&mut values)?),
            };
            Ok(Reply { now, outcome })
        };
        read().map_err(malformed)
    }
}

impl RedisStore {
    /// Looks at most [`MOST_IDS`] wins up.
    async fn find_some(&self, activity: &ActivityId, ids: &[RequestId]) -> Guarded<Vec<Option<FoundWin>>> {
        let value = self
            .run(&self.scripts.find, activity, |command| {
                for id in ids {
                    command.arg(id.hex().as_str());
                }
            })
            .await?;
        let read = || {
            let mut values = reply::array(value)?.into_iter();
            if let Some(why) = reply::barred(&reply::text(reply::next(&mut values)?)?)? {
                return Ok(Err(why));
            }
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let win = reply::optional_bytes(reply::next(&mut values)?)?;
                let kept = reply::optional_bytes(reply::next(&mut values)?)?;
                let dead_since = reply::optional_time(reply::next(&mut values)?)?;
                found.push(match win {
                    None => None,
                    Some(win) => {
                        let mut record = reply::win(std::str::from_utf8(&win).map_err(|e| e.to_string())?)?;
                        record.reply = kept;
                        record.dead_since = dead_since;
                        Some(FoundWin { request_id: *id, record })
                    }
                });
            }
            Ok(Ok(found))
        };
        read().map_err(malformed)
    }
}

fn failed(error: CallError) -> StoreError {
    match error {
        CallError::NoEffect(why) => StoreError::Unavailable(why),
        // Answered to EVAL this would make no sense; nothing ran in any case.
        CallError::NoScript => StoreError::Unavailable(error.to_string()),
        CallError::Unknown(why) => StoreError::Unknown(why),
    }
}

fn malformed(why: Malformed) -> StoreError {
    StoreError::Unknown(format!("the store's reply makes no sense: {why}"))
}

#[async_trait]
impl AdmissionStore for RedisStore {
    async fn preheat(&self, activity: &ActivityId, preheat: &Preheat) -> Result<Reply<Preheated>, StoreError> {
        let terms = &preheat.terms;
        let guard = Guard { epoch: terms.epoch, run_id: preheat.run_id.clone(), not_after: preheat.not_after };
        let canonical = terms.canonical();
        let arguments = |command: &mut Cmd| {
            command.arg(&canonical).arg(terms.starts_at.0).arg(terms.ends_at.0).arg(terms.per_user_limit);
            command.arg(u8::from(terms.rebuy_after_release)).arg(millis(terms.retention));
            for (sku, total) in &terms.skus {
                command.arg(sku.as_str()).arg(*total);
            }
        };
        self.run_guarded(&self.scripts.preheat, activity, &guard, arguments, reply::preheated).await
    }

    async fn admit(&self, activity: &ActivityId, batch: &Batch) -> Result<Reply<Vec<Verdict>>, StoreError> {
        let arguments = |command: &mut Cmd| {
            command.arg(millis(batch.first_delivery_lease));
            for attempt in &batch.attempts {
                command
                    .arg(attempt.request_id.hex().as_str())
                    .arg(attempt.user.as_str())
                    .arg(attempt.sku.as_str())
                    .arg(attempt.qty)
                    .arg(attempt.key.as_str())
                    .arg(attempt.fingerprint.hex().as_str())
                    .arg(u8::from(attempt.may_win))
                    .arg(&attempt.payload[..]);
            }
        };
        self.run_guarded(&self.scripts.admit, activity, &batch.guard, arguments, |values| {
            let verdicts = values.map(reply::verdict).collect::<Result<Vec<_>, _>>()?;
            if verdicts.len() != batch.attempts.len() {
                return Err(format!("{} verdicts for {} attempts", verdicts.len(), batch.attempts.len()));
            }
            Ok(verdicts)
        })
        .await
    }

    async fn settle(&self, activity: &ActivityId, settle: &Settle) -> Result<Reply<Recorded>, StoreError> {
        let (said, kept): (&str, &[u8]) = match &settle.settlement {
            Settlement::Queued { reply } => ("queued", reply),
            Settlement::Booked { reply } => ("booked", reply),
            Settlement::Unknown => ("unknown", b""),
        };
        let arguments = |command: &mut Cmd| {
            command.arg(settle.request_id.hex().as_str()).arg(said).arg(kept);
            command.arg(millis(settle.backoff.first)).arg(millis(settle.backoff.cap));
            command.arg(millis(settle.dead_letters.after)).arg(millis(settle.dead_letters.retry_every));
        };
        self.run_guarded(&self.scripts.settle, activity, &settle.guard, arguments, reply::recorded).await
    }

    async fn release(&self, activity: &ActivityId, release: &ReleaseWin) -> Result<Reply<Recorded>, StoreError> {
        let arguments = |command: &mut Cmd| {
            command.arg(release.request_id.hex().as_str());
            command.arg(release.release.cause.as_str()).arg(release.release.reason.as_str());
            command.arg(u8::from(release.ledger_short)).arg(millis(release.returning_delay));
        };
        self.run_guarded(&self.scripts.release, activity, &release.guard, arguments, reply::recorded).await
    }

    async fn claim_due(&self, activity: &ActivityId, claim: &ClaimDue) -> Result<Reply<Claimed>, StoreError> {
        let arguments = |command: &mut Cmd| {
            command.arg(claim.limit).arg(millis(claim.lease));
            if let Some(policy) = claim.mark_dead {
                command.arg(millis(policy.after)).arg(millis(policy.retry_every));
            }
        };
        self.run_guarded(&self.scripts.claim_due, activity, &claim.guard, arguments, reply::claimed).await
    }

    async fn retry(&self, activity: &ActivityId, retry: &Retry) -> Result<Reply<Vec<Retried>>, StoreError> {
        let arguments = |command: &mut Cmd| {
            for id in &retry.ids {
                command.arg(id.hex().as_str());
            }
        };
        self.run_guarded(&self.scripts.retry, activity, &retry.guard, arguments, |values| {
            values.map(reply::retried).collect()
        })
        .await
    }

    async fn operate(&self, activity: &ActivityId, operate: &Operate) -> Result<Reply<Operated>, StoreError> {
        let scripts = &self.scripts;
        let script = match operate.change {
            Change::SetTotal { .. } => &scripts.set_total,
            Change::Pause | Change::Resume => &scripts.set_paused,
            Change::StopSku(_) | Change::StartSku(_) => &scripts.set_stopped,
        };
        let arguments = |command: &mut Cmd| match &operate.change {
            Change::SetTotal { sku, from, to, returning_delay } => {
                command.arg(sku.as_str()).arg(*from).arg(*to).arg(millis(*returning_delay));
            }
            Change::Pause => _ = command.arg(1),
            Change::Resume => _ = command.arg(0),
            Change::StopSku(sku) => _ = command.arg(sku.as_str()).arg(1),
            Change::StartSku(sku) => _ = command.arg(sku.as_str()).arg(0),
        };
        self.run_guarded(script, activity, &operate.guard, arguments, reply::operated).await
    }

    async fn poll(&self, activity: &ActivityId, poll: &Poll) -> Result<Polled, StoreError> {
        let (epoch, run) = match &poll.vouched {
            Some((Epoch(epoch), RunId(run))) => (*epoch, &**run),
            None => (0, "-"),
        };
        let arguments = |command: &mut Cmd| {
            command
                .arg(poll.gate.as_ref().map_or("", |gate| gate.as_str()))
                .arg(epoch)
                .arg(run)
                .arg(&*poll.after.0)
                .arg(poll.max_entries);
        };
        // A gate's own polls find out whether a server that did not answer does so again, and soon.
        let probe_within = poll.gate.as_ref().map(|_| self.client.deadline().min(POLL_DEADLINE));
        let (value, answered_on) = self.run_as(&self.scripts.poll, activity, arguments, probe_within).await?;
        let read = || {
            let mut values = reply::array(value)?.into_iter();
            let status = reply::text(reply::next(&mut values)?)?;
            let now = reply::time(reply::next(&mut values)?)?;
            let server_run = RunId(Arc::from(reply::text(reply::next(&mut values)?)?));
            let activity = match status.as_str() {
                "not_preheated" => PolledActivity::NotPreheated,
                "incomplete" => PolledActivity::Incomplete,
                "ok" => PolledActivity::Stored(Box::new(reply::state_of_activity(&mut values, poll, &server_run)?)),
                other => return Err(format!("`{other}` is no status of a poll")),
            };
            Ok(Polled { now, server_run, activity })
        };
        let polled = read().map_err(malformed)?;
        if self.has_restarted(&polled.server_run) {
            // Whatever is still under way belongs to the former run: its answer would be told too late to be true.
            tracing::warn!(run = %polled.server_run.0, "the store has been restarted: its former connections are given up");
            self.client.give_up_all_but(&answered_on);
        }
        Ok(polled)
    }

    async fn find(&self, activity: &ActivityId, ids: &[RequestId]) -> Guarded<Vec<Option<FoundWin>>> {
        let (first, more) = ids.split_at(ids.len().min(MOST_IDS));
        let mut found = match self.find_some(activity, first).await? {
            Ok(found) => found,
            Err(barred) => return Ok(Err(barred)),
        };
        for ids in more.chunks(MOST_IDS) {
            match self.find_some(activity, ids).await? {
                Ok(some) => found.extend(some),
                Err(barred) => return Ok(Err(barred)),
            }
        }
        Ok(Ok(found))
    }

    async fn wins_of(&self, activity: &ActivityId, user: &UserId) -> Guarded<Vec<FoundWin>> {
        let keys = self.keys_of(activity);
        let mut command = redis::cmd("HGET");
        command.arg(keys.buyers()).arg(user.as_str());
        let value = self.client.call(&command).await.map_err(failed)?;
        let ids = match reply::optional_bytes(value).map_err(malformed)? {
            Some(bought) => ids_of_buyer(activity, user, &bought).map_err(malformed)?,
            // Looked up all the same: that there is nothing must not be a loss.
            None => Vec::new(),
        };
        Ok(self.find(activity, &ids).await?.map(|found| found.into_iter().flatten().collect()))
    }

    async fn dead_letters(&self, activity: &ActivityId, page: &DeadPage) -> Guarded<Vec<FoundWin>> {
        let value = self
            .run(&self.scripts.dead_letters, activity, |command| {
                command.arg(page.limit);
                if let Some(after) = page.after {
                    command.arg(after.since.0).arg(after.id.hex().as_str());
                }
            })
            .await?;
        reply::dead_letters(value).map_err(malformed)
    }

    async fn activities(&self) -> Result<Vec<ActivityId>, StoreError> {
        let (mut found, mut cursor) = (Vec::new(), "0".to_owned());
        for _ in 0..MOST_SCANS {
            let mut command = redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(Keys::PATTERN).arg("COUNT").arg(1_000);
            let value = self.client.call(&command).await.map_err(failed)?;
            cursor = reply::scanned(value, &mut found).map_err(malformed)?;
            if cursor == "0" {
                // A scan may show a key twice.
                found.sort();
                found.dedup();
                return Ok(found);
            }
        }
        Err(StoreError::Unavailable("the store holds far too many keys that are not the gate's".into()))
    }

    async fn snapshot(&self, activity: &ActivityId) -> Result<Option<Snapshot>, StoreError> {
        let value = self.run(&self.scripts.snapshot, activity, |_| ()).await?;
        reply::snapshot(value).map_err(malformed)
    }
}

/// "units key key …" → the request ids of those keys.
fn ids_of_buyer(activity: &ActivityId, user: &UserId, bought: &Bytes) -> Result<Vec<RequestId>, Malformed> {
    let text = std::str::from_utf8(bought).map_err(|e| e.to_string())?;
    text.split(' ')
        .skip(1)
        .map(|key| Ok(RequestId::derive(activity, user, &reply::parsed::<IdempotencyKey>(key)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::platform::clock::monotonic;

    fn store(port: u16, deadline: Duration) -> RedisStore {
        let url = format!("redis://127.0.0.1:{port}/");
        RedisStore::new(&RedisSettings { url, username: None, password: None, deadline }).unwrap()
    }

    #[test]
    fn the_keys_of_an_activity_are_made_once() {
        let store = store(9, Duration::from_secs(1));
        let [one, other]: [ActivityId; 2] = ["one", "other"].map(|name| name.parse().unwrap());
        assert!(Arc::ptr_eq(&store.keys_of(&one), &store.keys_of(&one)));
        assert_eq!(store.keys_of(&other).buyers(), Keys::of(&other).buyers());
    }

    /// A server without a single script, that takes this long to say so, and says nothing to any `EVAL`.
    async fn forgetful(mut client: TcpStream, delay: Duration) {
        let mut buffer = [0; 64 << 10];
        while let Ok(length @ 1..) = client.read(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            // Greetings may come several at a time; each begins with its name as the first bulk string of an array.
            for command in text.split("\r\n*") {
                let reply = match command.split("\r\n").nth(2) {
                    Some("EVALSHA") => {
                        tokio::time::sleep(delay).await;
                        "-NOSCRIPT No matching script.\r\n"
                    }
                    Some("EVAL") => return std::future::pending().await,
                    _ => "+OK\r\n",
                };
                client.write_all(reply.as_bytes()).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_script_that_is_sent_again_gets_no_second_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (deadline, delay) = (Duration::from_millis(1_000), Duration::from_millis(700));
        let store = store(listener.local_addr().unwrap().port(), deadline);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forgetful(client, delay));
            }
        });
        let began = monotonic();
        let answer = store.snapshot(&"sale".parse().unwrap()).await;
        let took = monotonic() - began;
        assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
        assert!(took >= deadline, "it did not wait for the second answer: {took:?}");
        assert!(took < deadline + delay / 2, "the second command had a deadline of its own: {took:?}");
    }
}
