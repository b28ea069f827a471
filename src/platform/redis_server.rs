//! Whether a Redis is fit to carry a sale. One that would lose or misjudge it is refused with what to do; one that cannot
//! be reached is waited for.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use redis::{Cmd, FromRedisValue};

use super::clock::{monotonic, wall_ms};
use super::redis::RedisClient;

/// Between two looks at a Redis that could not be reached at the start.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// What a look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The version that the server gives itself.
    pub version: String,
    /// How far its clock is from this machine's; zero where nobody asked.
    pub clock_offset: Duration,
}

/// Why a server cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It does not answer (yet), or in a way that makes no sense.
    #[error("{0}")]
    NoAnswer(String),
    /// It answers, and must not be used.
    #[error("{0}")]
    Server(String),
}

/// Looks at a server once: its version, whether it evicts, and how far its clock may be off (`None`: its clock does not
/// matter).
pub async fn look(client: &RedisClient, max_clock_offset: Option<Duration>) -> Result<ServerFacts, Unfit> {
    let info: String = ask(client, redis::cmd("INFO").arg("server")).await?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).map_or("unknown", str::trim);
    // Valkey calls itself a Redis 7.2 for the sake of old clients, and is at least that.
    let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    if major < 7 {
        return Err(Unfit::Server(format!("Redis {version} is too old; run Redis 7.0 or later, or Valkey")));
    }
    let memory: String = ask(client, redis::cmd("INFO").arg("memory")).await?;
    if !memory.lines().any(|line| line.trim() == "maxmemory_policy:noeviction") {
        return Err(Unfit::Server("it evicts keys when memory is short; set `maxmemory-policy noeviction`".into()));
    }
    let clock_offset = match max_clock_offset {
        None => Duration::ZERO,
        Some(most) => {
            let sent = monotonic();
            let (seconds, micros): (u64, u64) = ask(client, &redis::cmd("TIME")).await?;
            let server_ms = seconds * 1_000 + micros / 1_000;
            let offset = Duration::from_millis(server_ms.abs_diff(wall_ms())).saturating_sub(sent.elapsed());
            if offset > most {
                return Err(Unfit::Server(format!(
                    "its clock is {offset:?} off this machine's; synchronise both (limit: {most:?})"
                )));
            }
            offset
        }
    };
    Ok(ServerFacts { version: version.to_owned(), clock_offset })
}

async fn ask<T: FromRedisValue>(client: &RedisClient, command: &Cmd) -> Result<T, Unfit> {
    // Whatever a breaker thinks: this finds out whether the server answers.
    let asked = client.ask(command, Some(client.deadline())).await;
    let (value, _) = asked.map_err(|error| Unfit::NoAnswer(error.to_string()))?;
    T::from_redis_value(value).map_err(|error| Unfit::NoAnswer(error.to_string()))
}

/// Refuses an unfit server. One that does not answer is looked at again until it has been; should it be unfit then, the
/// process ends. `name` is what people call it, e.g. `admission store`.
///
/// # Errors
/// The server answers and is unfit; the message says what to do.
pub async fn demand_fit(
    name: &'static str,
    client: Arc<RedisClient>,
    max_clock_offset: Option<Duration>,
) -> anyhow::Result<()> {
    match look(&client, max_clock_offset).await {
        Ok(facts) => {
            let offset_ms = facts.clock_offset.as_millis();
            tracing::info!(server = name, version = facts.version, offset_ms, "the Redis is fit for a sale");
            Ok(())
        }
        Err(Unfit::Server(why)) => bail!("the {name} is not fit for a sale: {why}"),
        Err(Unfit::NoAnswer(why)) => {
            tracing::error!(server = name, %why, "the Redis does not answer; waiting for it");
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(LOOK_AGAIN).await;
                    match look(&client, max_clock_offset).await {
                        Ok(facts) => {
                            tracing::info!(server = name, version = facts.version, "the Redis answers now");
                            return;
                        }
                        Err(Unfit::Server(why)) => {
                            tracing::error!(server = name, why, "the Redis is not fit for a sale: ending the process");
                            std::process::exit(1);
                        }
                        Err(Unfit::NoAnswer(_)) => {}
                    }
                }
            });
            Ok(())
        }
    }
}
