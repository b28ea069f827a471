//! A Redis client that says of every failed call whether it may have had its effect.
//!
//! One multiplexed connection, made when it is first needed and replaced after any failure that leaves it in doubt.
//! Nothing is ever sent twice: what to repeat is the caller's decision. Connecting and the call together take no longer
//! than the deadline, and behind a breaker a call to a server that did not answer lately is not begun at all.

use std::sync::{Arc, Mutex as SyncMutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind, Value};
use tokio::sync::Mutex;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use super::breaker::{Circuit, Pass};
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

/// One connection, and the word that it was given up.
struct Shared {
    multiplexed: MultiplexedConnection,
    given_up: CancellationToken,
}

/// The connection on which a call was answered.
pub struct AnsweredOn(Arc<Shared>);

/// The client. Cheap to share behind an `Arc`.
pub struct RedisClient {
    client: Client,
    deadline: Duration,
    /// Bulk calls must not be cut off by the crate's own shorter default.
    config: AsyncConnectionConfig,
    current: ArcSwapOption<Shared>,
    /// Every connection that a call may still be under way on.
    made: SyncMutex<Vec<Weak<Shared>>>,
    /// When connecting failed last. Held while connecting only, so that a hundred callers make one connection.
    connecting: Mutex<Option<Instant>>,
    breaker: Option<Circuit>,
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
            made: SyncMutex::default(),
            connecting: Mutex::new(None),
            breaker: None,
        })
    }

    /// Puts a breaker before every call. Somebody must then probe now and again, or it never closes.
    #[must_use]
    pub fn behind(self, breaker: Circuit) -> RedisClient {
        RedisClient { breaker: Some(breaker), ..self }
    }

    /// The deadline of one call.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Sends one command and waits for its answer, at most for the deadline; not at all while the breaker is open.
    pub async fn call(&self, command: &Cmd) -> Result<Value, CallError> {
        self.ask(command, None).await.map(|(value, _)| value)
    }

    /// The same, and tells on which connection. With `probe_within` it is sent whether or not the breaker is open, and
    /// waits so long at most: somebody must find out whether the server answers again.
    pub async fn ask(&self, command: &Cmd, probe_within: Option<Duration>) -> Result<(Value, AnsweredOn), CallError> {
        self.ask_until(command, self.until(probe_within), probe_within.is_some()).await
    }

    /// When a call that begins now is over at the latest.
    pub fn until(&self, probe_within: Option<Duration>) -> Instant {
        monotonic() + probe_within.unwrap_or(self.deadline)
    }

    /// As [`RedisClient::ask`], but until a fixed moment, which several commands of one call share; a command that comes
    /// after it is not sent. A `probe` is sent whether or not the breaker is open.
    pub async fn ask_until(
        &self,
        command: &Cmd,
        until: Instant,
        probe: bool,
    ) -> Result<(Value, AnsweredOn), CallError> {
        if !probe && self.breaker.as_ref().is_some_and(Circuit::is_open) {
            return Err(CallError::NoEffect("the server did not answer lately, so it was not asked".into()));
        }
        let left = until.saturating_duration_since(monotonic());
        if left.is_zero() {
            return Err(CallError::NoEffect("its time was over before it was sent".into()));
        }
        let shared = match self.connection(until).await {
            Ok(shared) => shared,
            Err(error) => {
                self.no_answer(&error);
                return Err(error);
            }
        };
        let mut connection = shared.multiplexed.clone();
        let answer = tokio::select! {
            answer = timeout_at(until.into(), connection.send_packed_command(command)) => answer,
            () = shared.given_up.cancelled() => {
                return Err(CallError::Unknown("its connection was given up: the server has been restarted".into()));
            }
        };
        let error = match answer {
            Ok(Ok(value)) => {
                self.answered();
                return value.extract_error().map(|value| (value, AnsweredOn(shared))).map_err(|e| classify(&e));
            }
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::Server(_)) || error.code().is_some() => {
                self.answered();
                classify(&error)
            }
            Ok(Err(error)) => {
                let classified = classify(&error);
                self.no_answer(&classified);
                classified
            }
            Err(_) => {
                let late = CallError::Unknown(format!("no answer within {left:?}"));
                self.no_answer(&late);
                late
            }
        };
        if matches!(error, CallError::Unknown(_)) {
            self.discard(&shared);
        }
        Err(error)
    }

    /// Closes every connection but this one, and ends the calls under way on them as unknown.
    pub fn give_up_all_but(&self, kept: &AnsweredOn) {
        for other in self.made().iter().filter_map(Weak::upgrade).filter(|other| !Arc::ptr_eq(other, &kept.0)) {
            self.discard(&other);
            other.given_up.cancel();
        }
    }

    fn answered(&self) {
        if let Some(breaker) = &self.breaker {
            breaker.succeeded();
        }
    }

    fn no_answer(&self, error: &CallError) {
        if let Some(breaker) = &self.breaker {
            breaker.failed(Pass::Normal, &error.to_string());
        }
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Shared>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of one's own, for calls that block; `response_timeout` must exceed the time they block.
    pub async fn dedicated(&self, response_timeout: Duration) -> Result<MultiplexedConnection, CallError> {
        let config = self.config.clone().set_response_timeout(Some(response_timeout));
        self.connect(&config, monotonic() + self.deadline).await
    }

    /// The shared connection, by `until`: whoever waits while another connects waits no longer than that.
    async fn connection(&self, until: Instant) -> Result<Arc<Shared>, CallError> {
        if let Some(connection) = self.current.load_full() {
            return Ok(connection);
        }
        let mut connecting = timeout_at(until.into(), self.connecting.lock()).await.map_err(|_| too_late())?;
        if let Some(connection) = self.current.load_full() {
            return Ok(connection);
        }
        // A hundred callers that waited for an attempt that failed share its failure, instead of failing one by one.
        if connecting.is_some_and(|failed: Instant| failed.elapsed() < CONNECT_AGAIN) {
            return Err(CallError::NoEffect("the last attempt to connect failed just now".into()));
        }
        match self.connect(&self.config, until).await {
            Ok(multiplexed) => {
                let connection = Arc::new(Shared { multiplexed, given_up: CancellationToken::new() });
                let mut made = self.made();
                made.retain(|earlier| earlier.strong_count() > 0);
                made.push(Arc::downgrade(&connection));
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

    async fn connect(
        &self,
        config: &AsyncConnectionConfig,
        until: Instant,
    ) -> Result<MultiplexedConnection, CallError> {
        // Whatever goes wrong here, no command of the caller's was sent.
        let connecting = self.client.get_multiplexed_async_connection_with_config(config);
        match timeout_at(until.into(), connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(CallError::NoEffect(format!("cannot connect: {error}"))),
            Err(_) => Err(too_late()),
        }
    }

    /// Drops `failed` unless somebody has replaced it already.
    fn discard(&self, failed: &Arc<Shared>) {
        let current = self.current.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, failed)) {
            self.current.compare_and_swap(&current, None);
        }
    }
}

fn too_late() -> CallError {
    CallError::NoEffect("no connection in time".into())
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
