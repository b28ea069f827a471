//! Opens the admission store that the configuration names.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::config::Loaded;
use crate::config::schema::Store;
use crate::domain::StoreMs;
use crate::domain::backoff::Backoff;
use crate::gate::store::AdmissionStore;
use crate::gate::store::redis::RedisStore;
use crate::gate::store::sqlite::SqliteStore;
use crate::gate::view::POLL_EVERY;
use crate::platform::breaker::{BreakerMetrics, Policy};
use crate::platform::clock::wall_ms;
use crate::platform::redis::RedisSettings;
use crate::platform::redis_server::demand_fit;

/// A store, and how a gate may use it.
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn AdmissionStore>,
    /// Deadline of one call.
    pub deadline: Duration,
    /// Attempts that may wait per activity.
    pub queue: usize,
}

/// Three calls in a row without an answer; after that the gate's polls, four a second, find out when there is one again.
const BREAKER: Policy = Policy {
    failures: 3,
    probes: Backoff { first: POLL_EVERY, cap: POLL_EVERY },
    at_once: 1,
    probe_lasts: Duration::MAX,
};

/// Opens it. A Redis that could lose or misjudge a sale is refused; one that cannot be reached is not, since the shop
/// behind the gate must not go down with it: it is looked at again until it has been.
pub async fn open(loaded: &Loaded, breakers: &BreakerMetrics) -> anyhow::Result<OpenStore> {
    match &loaded.config.store {
        Store::Redis { url, username, password, deadline, max_clock_offset, queue } => {
            let password = match password {
                Some(source) => Some(loaded.secret(source).context("store.password")?.expose_text()?.to_owned()),
                None => None,
            };
            let settings =
                RedisSettings { url: url.clone(), username: username.clone(), password, deadline: deadline.0 };
            let breaker = breakers.circuit("store", "", BREAKER);
            let store = Arc::new(RedisStore::behind(&settings, breaker).context("store.url")?);
            demand_fit("admission store", store.client(), Some(max_clock_offset.0)).await?;
            Ok(OpenStore { store, deadline: deadline.0, queue: *queue })
        }
        Store::Sqlite { path, deadline, queue } => {
            let path = loaded.resolve(path);
            let clock = Arc::new(|| StoreMs(wall_ms()));
            let on_fatal = Box::new(|why: &str| {
                // Whether the last transaction stands is not known; the next start reads the truth from the file.
                tracing::error!(why, "the embedded store failed: ending the process");
                std::process::exit(1);
            });
            let store = SqliteStore::open(&path, deadline.0, clock, on_fatal).await.context("store.path")?;
            Ok(OpenStore { store: Arc::new(store), deadline: deadline.0, queue: *queue })
        }
    }
}
