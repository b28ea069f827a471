//! A Redis client that says of every failed call whether it may have had its effect.
//!
//! One multiplexed connection, made when it is first needed and replaced after any failure that leaves it in doubt.
//! Nothing is ever sent twice: what to repeat is the caller's decision.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind, Value};
use tokio::sync::Mutex;

use super::clock::monotonic;

/// After a failed attempt to connect, callers fail at once for so long.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);

/// Where a server is and how to talk to it.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://host:port/db` or `rediss://…` (TLS).
    pub url: String,
    /// ACL user.
    pub username: Option<String>,
    /// Password; never logged.
    pub password: Option<String>,
    /// Deadline of a connection attempt and of each call.
    pub deadline: Duration,
}

/// Why a call gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It had no effect: no connection could be made, or the server refused it before executing anything.
    #[error("{0}")]
    NoEffect(String),
    /// The server does not know the script; nothing was executed.
    #[error("the server does not know the script")]
    NoScript,
    /// It may have had its effect: timeout, lost connection, an error out of a running script.
    #[error("{0}")]
    Unknown(String),
}

/// The client. Cheap to share behind an `Arc`.
pub struct RedisClient {
    client: Client,
    deadline: Duration,
    /// Bulk calls must not be cut off by the crate's own shorter default.
    config: AsyncConnectionConfig,
    current: ArcSwapOption<MultiplexedConnection>,
    /// When connecting failed last. Held while connecting only, so that a hundred callers make one connection.
    connecting: Mutex<Option<Instant>>,
}

impl RedisClient {
    /// Checks the settings; connects later.
    pub fn new(settings: &RedisSettings) -> Result<RedisClient, String> {
        let info = settings.url.as_str().into_connection_info().map_err(|e| e.to_string())?;
        let mut redis = info.redis_settings().clone();
        if let Some(username) = &settings.username {
            redis = redis.set_username(username);
        }
        if let Some(password) = &settings.password {
            redis = redis.set_password(password);
        }
        let client = Client::open(info.set_redis_settings(redis)).map_err(|e| e.to_string())?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(settings.deadline))
            .set_response_timeout(Some(settings.deadline));
        Ok(RedisClient {
            client,
            deadline: settings.deadline,
            config,
            current: ArcSwapOption::empty(),
            connecting: Mutex::new(None),
        })
    }

    /// Sends one command and waits for its answer, at most for the deadline.
    pub async fn call(&self, command: &Cmd) -> Result<Value, CallError> {
        let shared = self.connection().await?;
        let mut connection = MultiplexedConnection::clone(&shared);
        match connection.send_packed_command(command).await {
            Ok(value) => value.extract_error().map_err(|e| classify(&e)),
            Err(error) => {
                let classified = classify(&error);
                if matches!(classified, CallError::Unknown(_)) {
                    self.discard(&shared);
                }
                Err(classified)
            }
        }
    }

    /// A connection of one's own, for calls that block; `response_timeout` must exceed the time they block.
    pub async fn dedicated(&self, response_timeout: Duration) -> Result<MultiplexedConnection, CallError> {
        let config = self.config.clone().set_response_timeout(Some(response_timeout));
        self.connect(&config).await
    }

    /// The shared connection, within the deadline: whoever waits while another connects waits no longer than that.
    async fn connection(&self) -> Result<Arc<MultiplexedConnection>, CallError> {
        if let Some(connection) = self.current.load_full() {
            return Ok(connection);
        }
        let late = || CallError::NoEffect(format!("no connection within {:?}", self.deadline));
        let mut connecting = tokio::time::timeout(self.deadline, self.connecting.lock()).await.map_err(|_| late())?;
        if let Some(connection) = self.current.load_full() {
            return Ok(connection);
        }
        // A hundred callers that waited for an attempt that failed share its failure, instead of failing one by one.
        if connecting.is_some_and(|failed: Instant| failed.elapsed() < CONNECT_AGAIN) {
            return Err(CallError::NoEffect("the last attempt to connect failed just now".into()));
        }
        match self.connect(&self.config).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                self.current.store(Some(Arc::clone(&connection)));
                *connecting = None;
                Ok(connection)
            }
            Err(error) => {
                *connecting = Some(monotonic());
                Err(error)
            }
        }
    }

    async fn connect(&self, config: &AsyncConnectionConfig) -> Result<MultiplexedConnection, CallError> {
        // Whatever goes wrong here, no command of the caller's was sent.
        let connecting = self.client.get_multiplexed_async_connection_with_config(config);
        match tokio::time::timeout(self.deadline, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(CallError::NoEffect(format!("cannot connect: {error}"))),
            Err(_) => Err(CallError::NoEffect(format!("no connection within {:?}", self.deadline))),
        }
    }

    /// Drops `failed` unless somebody has replaced it already.
    fn discard(&self, failed: &Arc<MultiplexedConnection>) {
        let current = self.current.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, failed)) {
            self.current.compare_and_swap(&current, None);
        }
    }
}

/// Errors that Redis raises before it executes anything.
fn classify(error: &RedisError) -> CallError {
    // An error out of a running script names the script; what it did before stands.
    let from_script = error.detail().is_some_and(|detail| detail.contains("script: "));
    let text = error.to_string();
    if from_script {
        return CallError::Unknown(text);
    }
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoScript) => CallError::NoScript,
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::CrossSlot
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::NoPerm,
        )
        | ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig => CallError::NoEffect(text),
        _ => match error.code() {
            Some("OOM" | "NOREPLICAS" | "BUSY" | "MISCONF" | "NOAUTH" | "WRONGPASS") => CallError::NoEffect(text),
            _ => CallError::Unknown(text),
        },
    }
}
