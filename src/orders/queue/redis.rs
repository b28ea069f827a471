//! The queue on Redis Streams: one stream per activity, one group for all processes.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, FromRedisValue, IntoConnectionInfo, RedisError, Script, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{Claimed, Delivery, MAX_BATCH, MAX_WAITING, OrderQueue, Pushed, QueueError, entry};
use crate::domain::ActivityId;
use crate::domain::time::millis;
use crate::orders::order::NewOrder;

const GROUP: &str = "orders";
/// How long an order counts as waiting; see `lua/queue_push.lua`.
const FORGET_WAITING_AFTER: Duration = Duration::from_secs(600);

/// How to reach the queue's Redis.
#[derive(Clone)]
pub struct RedisQueueSettings {
    /// `redis://` or `rediss://`, host, port, database.
    pub url: String,
    /// ACL user name.
    pub username: Option<String>,
    /// The password, resolved.
    pub password: Option<String>,
    /// This process's name within the group: the same after a restart, another one in each process.
    pub consumer: String,
    /// Deadline of one call, besides the time that a read may wait.
    pub deadline: Duration,
}

/// The queue on Redis Streams.
pub struct RedisQueue {
    commands: Link,
    /// A blocking read would hold up every other command on its connection.
    reads: Link,
    consumer: String,
    grouped: Mutex<HashSet<ActivityId>>,
    push: Script,
    done: Script,
}

impl RedisQueue {
    /// Connects at the first call.
    pub fn new(settings: &RedisQueueSettings) -> anyhow::Result<RedisQueue> {
        let info = settings.url.as_str().into_connection_info()?;
        let mut redis = info.redis_settings().clone();
        if let Some(username) = &settings.username {
            redis = redis.set_username(username);
        }
        if let Some(password) = &settings.password {
            redis = redis.set_password(password);
        }
        let client = Client::open(info.set_redis_settings(redis))?;
        Ok(RedisQueue {
            commands: Link::new(client.clone(), settings.deadline),
            reads: Link::new(client, settings.deadline),
            consumer: settings.consumer.clone(),
            grouped: Mutex::default(),
            push: Script::new(include_str!("../../../lua/queue_push.lua")),
            done: Script::new(include_str!("../../../lua/queue_done.lua")),
        })
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
            match self.commands.query::<Value>(&command, Duration::ZERO).await {
                // The stream may have been lost: whatever was said to wait in it can be queued anew.
                Ok(_) => self.forget_waiting(activity).await?,
                Err(Failed::Server(error)) if error.code() == Some("BUSYGROUP") => {}
                Err(error) => return Err(error.into()),
            }
            grouped.insert(activity.clone());
        }
        Ok(())
    }

    /// Forgets which orders wait. At worst some are queued twice, which the ledger notices.
    async fn forget_waiting(&self, activity: &ActivityId) -> Result<(), QueueError> {
        let mut command = redis::cmd("DEL");
        command.arg(waiting(activity));
        let _: u64 = self.commands.query(&command, Duration::ZERO).await?;
        Ok(())
    }

    /// Somebody emptied the Redis: the groups are made again at the next call.
    async fn unless_group_is_gone<T>(&self, result: Result<T, Failed>) -> Result<T, QueueError> {
        if let Err(Failed::Server(error)) = &result
            && error.code() == Some("NOGROUP")
        {
            self.grouped.lock().await.clear();
        }
        Ok(result?)
    }
}

#[async_trait]
impl OrderQueue for RedisQueue {
    async fn push(&self, order: &NewOrder) -> Result<Pushed, QueueError> {
        let mut call = self.push.key(stream(&order.activity));
        call.key(waiting(&order.activity))
            .arg(order.request_id.hex().as_str())
            .arg(millis(FORGET_WAITING_AFTER))
            .arg(MAX_WAITING);
        for (name, value) in entry::fields(order) {
            call.arg(name).arg(value);
        }
        let answer: String = self.commands.run(Duration::ZERO, async |c| call.invoke_async(c).await).await?;
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
        let read = self.reads.query::<Option<StreamReadReply>>(&command, wait).await;
        let read = self.unless_group_is_gone(read).await?.unwrap_or_default();
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
            let reply = self.commands.query::<StreamAutoClaimReply>(&command, Duration::ZERO).await;
            let reply = self.unless_group_is_gone(reply).await?;
            if !reply.deleted_ids.is_empty() {
                claimed.lost += reply.deleted_ids.len();
                self.forget_waiting(activity).await?;
            }
            claimed.deliveries.extend(reply.claimed.into_iter().map(|id| delivery(activity, id)));
        }
        Ok(claimed)
    }

    async fn done(&self, deliveries: &[Delivery]) -> Result<(), QueueError> {
        let activities: HashSet<&ActivityId> = deliveries.iter().map(|delivery| &delivery.activity).collect();
        for activity in activities {
            let of_activity: Vec<&Delivery> = deliveries.iter().filter(|d| d.activity == *activity).collect();
            for chunk in of_activity.chunks(MAX_BATCH) {
                let mut call = self.done.key(stream(activity));
                call.key(waiting(activity)).arg(GROUP).arg(chunk.len());
                for delivery in chunk {
                    call.arg(&delivery.entry);
                }
                for id in chunk.iter().filter_map(|delivery| delivery.request_id()) {
                    call.arg(id.hex().as_str());
                }
                let _: u64 = self.commands.run(Duration::ZERO, async |c| call.invoke_async(c).await).await?;
            }
        }
        Ok(())
    }

    async fn lag(&self, activity: &ActivityId) -> Result<u64, QueueError> {
        let mut command = redis::cmd("XLEN");
        command.arg(stream(activity));
        Ok(self.commands.query(&command, Duration::ZERO).await?)
    }

    async fn ping(&self) -> Result<(), QueueError> {
        let _: String = self.commands.query(&redis::cmd("PING"), Duration::ZERO).await?;
        Ok(())
    }
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

/// Why a call failed.
enum Failed {
    Server(RedisError),
    Io(String),
}

impl From<Failed> for QueueError {
    fn from(failed: Failed) -> QueueError {
        QueueError::Unavailable(match failed {
            Failed::Server(error) => error.to_string(),
            Failed::Io(text) => text,
        })
    }
}

/// One connection, made when needed, given up after any fault of the wire.
struct Link {
    client: Client,
    deadline: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Link {
    fn new(client: Client, deadline: Duration) -> Link {
        Link { client, deadline, connection: Mutex::new(None) }
    }

    async fn query<T: FromRedisValue>(&self, command: &redis::Cmd, wait: Duration) -> Result<T, Failed> {
        self.run(wait, async |connection| command.query_async(connection).await).await
    }

    /// Runs a call within the deadline plus `wait`.
    async fn run<T>(
        &self,
        wait: Duration,
        call: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, Failed> {
        let limit = self.deadline + wait;
        let mut connection = timeout(limit, self.connect())
            .await
            .map_err(|_| Failed::Io(format!("no connection within {} ms", millis(limit))))??;
        match timeout(limit, call(&mut connection)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.is_unrecoverable_error() || error.is_io_error() => {
                self.forget().await;
                Err(Failed::Io(error.to_string()))
            }
            Ok(Err(error)) => Err(Failed::Server(error)),
            Err(_) => {
                self.forget().await;
                Err(Failed::Io(format!("no answer within {} ms", millis(limit))))
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Failed> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        // The deadline around each call is ours, since a blocking read may take longer than the others.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(self.deadline)).set_response_timeout(None);
        let made = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let made = made.map_err(|error| Failed::Io(error.to_string()))?;
        *connection = Some(made.clone());
        Ok(made)
    }

    async fn forget(&self) {
        *self.connection.lock().await = None;
    }
}
