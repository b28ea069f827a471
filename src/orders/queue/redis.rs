//! The queue on Redis Streams: one stream per activity, one group for all processes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};
use redis::{Cmd, FromRedisValue, Script, Value};
use tokio::sync::Mutex;

use super::{Claimed, Delivery, MAX_BATCH, MAX_WAITING, OrderQueue, Pushed, QueueError, entry};
use crate::domain::ActivityId;
use crate::domain::time::millis;
use crate::orders::order::NewOrder;
use crate::platform::redis::{CallError, RedisClient, RedisSettings};

const GROUP: &str = "orders";
/// How long an order counts as waiting; see `lua/queue_push.lua`.
const FORGET_WAITING_AFTER: Duration = Duration::from_secs(600);

/// The queue on Redis Streams.
pub struct RedisQueue {
    client: Arc<RedisClient>,
    deadline: Duration,
    /// A blocking read would hold up every other command on its connection.
    reads: Mutex<Option<MultiplexedConnection>>,
    consumer: String,
    grouped: Mutex<HashSet<ActivityId>>,
    push: LuaScript,
    done: LuaScript,
}

impl RedisQueue {
    /// Connects at the first call. `consumer` is this process's name within the group: the same after a restart, another
    /// one in each process.
    ///
    /// # Errors
    /// The url is none.
    pub fn new(settings: &RedisSettings, consumer: String) -> anyhow::Result<RedisQueue> {
        Ok(RedisQueue {
            client: Arc::new(RedisClient::new(settings).map_err(anyhow::Error::msg)?),
            deadline: settings.deadline,
            reads: Mutex::default(),
            consumer,
            grouped: Mutex::default(),
            push: LuaScript::new(include_str!("../../../lua/queue_push.lua")),
            done: LuaScript::new(include_str!("../../../lua/queue_done.lua")),
        })
    }

    /// The connection, to look at the server with.
    pub fn client(&self) -> Arc<RedisClient> {
        Arc::clone(&self.client)
    }

    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, QueueError> {
        read(self.client.call(command).await.map_err(failed)?)
    }

    /// Runs a script on the keys of an activity. NOSCRIPT is the one error after which it is sent again: nothing ran.
    async fn run<T: FromRedisValue>(
        &self,
        script: &LuaScript,
        activity: &ActivityId,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<T, QueueError> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(2).arg(stream(activity)).arg(waiting(activity));
            arguments(&mut command);
            command
        };
        match self.client.call(&command("EVALSHA", &script.sha)).await {
            Err(CallError::NoScript) => self.query(&command("EVAL", script.source)).await,
            other => read(other.map_err(failed)?),
        }
    }

    /// Reads on the connection for blocking calls, which is given up after any failure.
    async fn read_blocking(&self, command: &Cmd, wait: Duration) -> Result<StreamReadReply, QueueError> {
        let mut reads = self.reads.lock().await;
        let limit = wait + self.deadline;
        let mut connection = match reads.take() {
            Some(connection) => connection,
            None => self.client.dedicated(limit).await.map_err(failed)?,
        };
        let unavailable = |error: redis::RedisError| QueueError::Unavailable(error.to_string());
        let answer = connection.send_packed_command(command).await.map_err(unavailable)?;
        *reads = Some(connection);
        let answer = answer.extract_error().map_err(unavailable)?;
        Ok(read::<Option<StreamReadReply>>(answer)?.unwrap_or_default())
    }

    /// Makes sure that each stream has its group, from the first entry on.
    async fn ensure_groups(&self, activities: &[ActivityId]) -> Result<(), QueueError> {
        let mut grouped = self.grouped.lock().await;
        for activity in activities {
            if grouped.contains(activity) {
                continue;
            }
            let mut command = redis::cmd("XGROUP");
            command.arg("CREATE").arg(stream(activity)).arg(GROUP).arg("0").arg("MKSTREAM");
            match self.query::<Value>(&command).await {
                // The stream may have been lost: whatever was said to wait in it can be queued anew.
                Ok(_) => self.forget_waiting(activity).await?,
                Err(error) if says(&error, "BUSYGROUP") => {}
                Err(error) => return Err(error),
            }
            grouped.insert(activity.clone());
        }
        Ok(())
    }

    /// Forgets which orders wait. At worst some are queued twice, which the ledger notices.
    async fn forget_waiting(&self, activity: &ActivityId) -> Result<(), QueueError> {
        let mut command = redis::cmd("DEL");
        command.arg(waiting(activity));
        let _: u64 = self.query(&command).await?;
        Ok(())
    }

    /// Somebody emptied the Redis: the groups are made again at the next call.
    async fn unless_group_is_gone<T>(&self, result: Result<T, QueueError>) -> Result<T, QueueError> {
        if result.as_ref().is_err_and(|error| says(error, "NOGROUP")) {
            self.grouped.lock().await.clear();
        }
        result
    }
}

#[async_trait]
impl OrderQueue for RedisQueue {
    async fn push(&self, order: &NewOrder) -> Result<Pushed, QueueError> {
        let answer: String = self
            .run(&self.push, &order.activity, |command| {
                command.arg(order.request_id.hex().as_str()).arg(millis(FORGET_WAITING_AFTER)).arg(MAX_WAITING);
                for (name, value) in entry::fields(order) {
                    command.arg(name).arg(value);
                }
            })
            .await?;
        match answer.as_str() {
            "QUEUED" => Ok(Pushed::Queued),
            "WAITING" => Ok(Pushed::Waiting),
            "FULL" => Err(QueueError::Full),
            other => Err(QueueError::Unavailable(format!("push answered {other:?}"))),
        }
    }

    async fn take(&self, activities: &[ActivityId], max: usize, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
        self.ensure_groups(activities).await?;
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(&self.consumer).arg("COUNT").arg(max.clamp(1, MAX_BATCH));
        // BLOCK 0 would wait for ever.
        command.arg("BLOCK").arg(millis(wait).max(1)).arg("STREAMS");
        for activity in activities {
            command.arg(stream(activity));
        }
        for _ in activities {
            command.arg(">");
        }
        let read = self.read_blocking(&command, wait).await;
        let read = self.unless_group_is_gone(read).await?;
        let mut deliveries = vec![];
        for key in read.keys {
            let Some(activity) = activities.iter().find(|activity| stream(activity) == key.key) else { continue };
            deliveries.extend(key.ids.into_iter().map(|id| delivery(activity, id)));
        }
        Ok(deliveries)
    }

    async fn claim_stale(&self, activities: &[ActivityId], max: usize, idle: Duration) -> Result<Claimed, QueueError> {
        self.ensure_groups(activities).await?;
        let mut claimed = Claimed::default();
        for activity in activities {
            let mut command = redis::cmd("XAUTOCLAIM");
            command.arg(stream(activity)).arg(GROUP).arg(&self.consumer).arg(millis(idle)).arg("0-0");
            command.arg("COUNT").arg(max.clamp(1, MAX_BATCH));
            let reply = self.query::<StreamAutoClaimReply>(&command).await;
            let reply = self.unless_group_is_gone(reply).await?;
            if !reply.deleted_ids.is_empty() {
                claimed.lost += reply.deleted_ids.len();
                self.forget_waiting(activity).await?;
            }
            claimed.deliveries.extend(reply.claimed.into_iter().map(|id| delivery(activity, id)));
        }
        Ok(claimed)
    }

    async fn keep(&self, deliveries: &[Delivery]) -> Result<(), QueueError> {
        for (activity, chunk) in by_activity(deliveries) {
            // Claiming what is one's own sets its idle time back; what was done meanwhile is not in the group any more.
            let mut command = redis::cmd("XCLAIM");
            command.arg(stream(activity)).arg(GROUP).arg(&self.consumer).arg(0);
            for delivery in &chunk {
                command.arg(&delivery.entry);
            }
            command.arg("JUSTID");
            let _: Vec<String> = self.query(&command).await?;
        }
        Ok(())
    }

    async fn done(&self, deliveries: &[Delivery]) -> Result<(), QueueError> {
        for (activity, chunk) in by_activity(deliveries) {
            let _: u64 = self
                .run(&self.done, activity, |command| {
                    command.arg(GROUP).arg(chunk.len());
                    for delivery in &chunk {
                        command.arg(&delivery.entry);
                    }
                    for id in chunk.iter().filter_map(|delivery| delivery.request_id()) {
                        command.arg(id.hex().as_str());
                    }
                })
                .await?;
        }
        Ok(())
    }

    async fn lag(&self, activity: &ActivityId) -> Result<u64, QueueError> {
        let mut command = redis::cmd("XLEN");
        command.arg(stream(activity));
        self.query(&command).await
    }

    async fn ping(&self) -> Result<(), QueueError> {
        let _: String = self.query(&redis::cmd("PING")).await?;
        Ok(())
    }
}

/// A script and its SHA-1.
struct LuaScript {
    source: &'static str,
    sha: String,
}

impl LuaScript {
    fn new(source: &'static str) -> LuaScript {
        LuaScript { source, sha: Script::new(source).get_hash().to_owned() }
    }
}

/// Deliveries by their streams, in pieces that one call takes.
fn by_activity(deliveries: &[Delivery]) -> Vec<(&ActivityId, Vec<&Delivery>)> {
    let activities: HashSet<&ActivityId> = deliveries.iter().map(|delivery| &delivery.activity).collect();
    let mut pieces = vec![];
    for activity in activities {
        let of_activity: Vec<&Delivery> = deliveries.iter().filter(|d| d.activity == *activity).collect();
        pieces.extend(of_activity.chunks(MAX_BATCH).map(|chunk| (activity, chunk.to_vec())));
    }
    pieces
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, QueueError> {
    T::from_redis_value(value).map_err(|error| QueueError::Unavailable(error.to_string()))
}

/// Whatever may have happened: each call here may be repeated.
fn failed(error: CallError) -> QueueError {
    QueueError::Unavailable(error.to_string())
}

/// Whether the server's own word stands behind an error.
fn says(error: &QueueError, code: &str) -> bool {
    matches!(error, QueueError::Unavailable(text) if text.contains(code))
}

fn stream(activity: &ActivityId) -> String {
    format!("skq:{{{activity}}}")
}

fn waiting(activity: &ActivityId) -> String {
    format!("skq:{{{activity}}}:waiting")
}

fn delivery(activity: &ActivityId, id: StreamId) -> Delivery {
    let text = |value: Value| match value {
        Value::BulkString(bytes) => bytes,
        other => format!("{other:?}").into_bytes(),
    };
    let fields = id.map.into_iter().map(|(name, value)| (name, text(value))).collect();
    Delivery { activity: activity.clone(), entry: id.id, order: entry::parse(activity, fields) }
}
