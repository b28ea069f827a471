//! Connecting, migrating, and the one way in which a transaction is run.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, SqlSafeStr};
use sqlx_core::migrate::{Migration, MigrationType, Migrator};
use tokio::time::timeout;

use super::fault::Fault;
use crate::domain::backoff::Backoff;
use crate::domain::time::millis;

/// Tries of one transaction that meets deadlocks.
const TRIES: u32 = 8;
const PAUSE: Backoff = Backoff { first: Duration::from_millis(5), cap: Duration::from_millis(250) };
/// How long a start waits for another process that migrates.
const MIGRATION_WAIT_SECONDS: u32 = 60;

/// How to reach the database.
#[derive(Clone)]
pub struct MySqlSettings {
    /// `mysql://user@host:port/database`.
    pub url: String,
    /// The password, resolved.
    pub password: Option<String>,
    /// Connections at most.
    pub pool: u32,
    /// Deadline of one transaction.
    pub deadline: Duration,
}

/// The ledger on MySQL or MariaDB. Cheap to clone.
#[derive(Clone)]
pub struct MySqlLedger {
    pool: MySqlPool,
    deadline: Duration,
}

/// Statements that go through or not at all.
#[async_trait]
pub(super) trait Work: Sync {
    type Out: Send;
    async fn run(&self, connection: &mut MySqlConnection) -> Result<Self::Out, Fault>;

    /// What opens the transaction; `None` for a single statement that reads, which needs none.
    fn begin(&self) -> Option<&'static str> {
        Some("START TRANSACTION")
    }
}

impl MySqlLedger {
    /// Connects and brings the tables up to date, one process at a time.
    pub async fn open(settings: &MySqlSettings) -> anyhow::Result<MySqlLedger> {
        let mut options = MySqlConnectOptions::from_str(&settings.url).context("order_service.ledger.url")?;
        if let Some(password) = &settings.password {
            options = options.password(password);
        }
        // A lock wait must end well before the deadline, or the server would go on with what the client gave up.
        let lock_wait_seconds = (settings.deadline.as_secs() / 2).max(1);
        let session = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION innodb_lock_wait_timeout = {lock_wait_seconds}; \
             SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')"
        );
        let pool = MySqlPoolOptions::new()
            .max_connections(settings.pool)
            .acquire_timeout(settings.deadline)
            .after_connect(move |connection, _| {
                let session = session.clone();
                Box::pin(
                    async move { sqlx::raw_sql(AssertSqlSafe(session)).execute(&mut *connection).await.map(|_| ()) },
                )
            })
            .connect_lazy_with(options);
        let ledger = MySqlLedger { pool, deadline: settings.deadline };
        ledger.migrate().await.context("bringing the ledger's tables up to date")?;
        Ok(ledger)
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        let mut connection = self.pool.acquire().await?.detach();
        // sqlx's own lock waits without end, and MariaDB and MySQL differ about negative timeouts.
        let locked: Option<i64> = sqlx::query_scalar("SELECT GET_LOCK(LEFT(CONCAT('seckill.', DATABASE()), 64), ?)")
            .bind(MIGRATION_WAIT_SECONDS)
            .fetch_one(&mut connection)
            .await?;
        anyhow::ensure!(locked == Some(1), "another process has been migrating for {MIGRATION_WAIT_SECONDS} s");
        let tables = Migration::new(
            1,
            Cow::Borrowed("ledger"),
            MigrationType::Simple,
            include_str!("0001_ledger.sql").into_sql_str(),
            false,
        );
        let mut migrator = Migrator::with_migrations(vec![tables]);
        migrator.set_locking(false);
        migrator.run_direct(None, &mut connection, false).await?;
        // Closing the session gives the lock back.
        connection.close().await?;
        Ok(())
    }

    pub(super) fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// Runs `work` in a transaction; repeats all of it after a deadlock.
    pub(super) async fn transact<W: Work>(&self, work: &W) -> Result<W::Out, Fault> {
        self.transact_within(work, self.deadline).await
    }

    /// The same with a deadline of its own for the connection and for each try.
    pub(super) async fn transact_within<W: Work>(&self, work: &W, deadline: Duration) -> Result<W::Out, Fault> {
        let mut tries = 0;
        loop {
            match self.once(work, deadline).await {
                Err(Fault::Again(_)) if tries + 1 < TRIES => {
                    tokio::time::sleep(PAUSE.pause(tries)).await;
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    async fn once<W: Work>(&self, work: &W, deadline: Duration) -> Result<W::Out, Fault> {
        let late = || Fault::Unavailable(format!("no answer within {} ms", millis(deadline)));
        let mut connection = timeout(deadline, self.pool.acquire()).await.map_err(|_| late())??;
        let transaction = async {
            let Some(begin) = work.begin() else { return work.run(&mut connection).await };
            sqlx::raw_sql(begin).execute(&mut *connection).await?;
            let out = work.run(&mut connection).await?;
            sqlx::raw_sql("COMMIT").execute(&mut *connection).await?;
            Ok(out)
        };
        let fault = match timeout(deadline, transaction).await {
            Ok(Ok(out)) => return Ok(out),
            Ok(Err(fault)) => fault,
            Err(_) => {
                // A statement is still under way on this connection: closing it is the only way to end both.
                drop(connection.detach());
                return Err(late());
            }
        };
        let rollback = sqlx::raw_sql("ROLLBACK").execute(&mut *connection);
        if !matches!(timeout(deadline, rollback).await, Ok(Ok(_))) {
            drop(connection.detach());
        }
        Err(fault)
    }
}
