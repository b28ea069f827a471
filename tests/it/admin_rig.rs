//! An admin listener on a real socket, over an activity, a store and a ledger in memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seckill_gate::domain::admission::{Epoch, FoundWin, WinRecord};
use seckill_gate::domain::win::WinState;
use seckill_gate::domain::{ActivityId, Fingerprint, IdempotencyKey, RequestId, SkuId, StoreMs, UserId};
use seckill_gate::gate::admin::{AdminAuth, AdminWorld, Managed, router};
use seckill_gate::gate::delivery::conflicts::Conflicts;
use seckill_gate::gate::ledger::{
    LedgerAccess, LedgerError, LedgerReport, LedgerStock, Registered, Registration, TotalSet, Voided,
};
use seckill_gate::platform::clock::StoreClock;
use seckill_gate::platform::http_server::{HttpLimits, serve};
use seckill_gate::platform::metrics::Metrics;
use seckill_gate::platform::shutdown::{self, Trigger};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::fake_activity::FakeActivity;
use crate::fake_store::{FakeStore, snapshot, terms};

/// A ledger in memory that notes when it was asked.
#[derive(Default)]
pub struct FakeLedger {
    pub report: Mutex<Option<LedgerReport>>,
    pub calls: Arc<Mutex<Vec<String>>>,
    pub refuses: AtomicBool,
    /// What the order service says to a void; silence is an error.
    pub voided: Mutex<Option<Voided>>,
}

#[async_trait]
impl LedgerAccess for FakeLedger {
    async fn register(&self, _: &ActivityId, terms: &Registration) -> Result<Registered, LedgerError> {
        self.calls.lock().unwrap().push("ledger register".into());
        let skus =
            terms.skus.iter().map(|(sku, total)| (sku.clone(), LedgerStock { total: *total, sold: 0 })).collect();
        *self.report.lock().unwrap() = Some(LedgerReport { epoch: Epoch(1), per_user_limit: Some(1), skus });
        Ok(Registered::Stands)
    }
    async fn set_total(&self, _: &ActivityId, _: &SkuId, from: i64, to: i64) -> Result<TotalSet, LedgerError> {
        self.calls.lock().unwrap().push(format!("ledger {from} -> {to}"));
        if self.refuses.load(std::sync::atomic::Ordering::SeqCst) {
            return Ok(TotalSet::Refused("7 are sold".into()));
        }
        Ok(TotalSet::Stands)
    }
    async fn void(&self, _: &ActivityId, id: RequestId) -> Result<Voided, LedgerError> {
        self.calls.lock().unwrap().push(format!("void {id}"));
        self.voided.lock().unwrap().clone().ok_or_else(|| LedgerError("timeout".into()))
    }
    async fn report(&self, _: &ActivityId) -> Result<Option<LedgerReport>, LedgerError> {
        Ok(self.report.lock().unwrap().clone())
    }
}

pub struct Rig {
    pub address: SocketAddr,
    pub activity: Arc<FakeActivity>,
    pub store: Arc<FakeStore>,
    pub ledger: Arc<FakeLedger>,
    pub world: Arc<AdminWorld>,
    pub trigger: Trigger,
    pub metrics: Metrics,
    pub http: reqwest::Client,
}

pub async fn rig() -> Rig {
    let (activity, store, ledger) =
        (FakeActivity::new(), Arc::new(FakeStore::default()), Arc::new(FakeLedger::default()));
    // One list of calls for both, so that their order shows.
    store.state.lock().unwrap().calls = ledger.calls.clone();
    activity.state.lock().unwrap().calls = ledger.calls.clone();
    let (trigger, shutdown) = shutdown::channel();
    let metrics = Metrics::new().unwrap();
    let managed = Managed { activity: activity.clone(), terms: terms(), payment_deadline: Duration::from_secs(900) };
    let world = Arc::new(AdminWorld {
        activities: BTreeMap::from([("sale".parse().unwrap(), managed)]),
        store: store.clone(),
        ledger: ledger.clone(),
        clock: Arc::new(StoreClock::new()),
        gates: vec!["gate-1".parse().unwrap()],
        returning_delay: Duration::from_secs(1),
        conflicts: Conflicts::register(&metrics).unwrap(),
        started: Arc::default(),
        under_way: TaskTracker::new(),
        shutdown: shutdown.clone(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let auth = AdminAuth::new(b"change", Some(b"read"), address, &[]);
    tokio::spawn(serve("admin", listener, router(world.clone(), auth), HttpLimits::default(), shutdown));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    Rig { address, activity, store, ledger, world, trigger, metrics, http }
}

impl Rig {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.http.get(self.url(path)).bearer_auth("read")).await
    }

    pub async fn post(&self, action: &str, body: Value) -> (u16, Value) {
        answer(self.http.post(self.url(&format!("/admin/activities/sale/{action}"))).bearer_auth("change").json(&body))
            .await
    }

    /// Status, and `outcome` or `code`.
    pub async fn change(&self, action: &str, body: Value) -> (u16, String) {
        let (status, body) = self.post(action, body).await;
        let named = body.get("outcome").or(body.get("code")).and_then(Value::as_str).unwrap_or_default();
        (status, named.to_owned())
    }

    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.ledger.calls.lock().unwrap())
    }

    pub fn store_holds(&self, left: i64, accepted: i64) {
        let wins = u64::try_from(accepted).unwrap();
        self.store.state.lock().unwrap().snapshot = Some(snapshot(left, (0, 0), (wins, accepted)));
    }

    pub fn ledger_holds(&self, total: i64, sold: i64) {
        let skus = BTreeMap::from([("phone".parse().unwrap(), LedgerStock { total, sold })]);
        *self.ledger.report.lock().unwrap() = Some(LedgerReport { epoch: Epoch(1), per_user_limit: Some(1), skus });
    }

    /// Runs a command of ours against this listener.
    pub async fn command(&self, token: &str, arguments: &[&str]) -> (i32, String, String) {
        let admin = format!("http://{}", self.address);
        let token = token.to_owned();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let run = move || {
            Command::new(env!("CARGO_BIN_EXE_seckill-gate"))
                .args(arguments)
                .env("SECKILL_ADMIN", admin)
                .env("SECKILL_ADMIN_TOKEN", token)
                .stdin(Stdio::null())
                .output()
                .unwrap()
        };
        let Output { status, stdout, stderr } = tokio::task::spawn_blocking(run).await.unwrap();
        (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

pub async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or(Value::Null))
}

pub fn found(user: &str, state: WinState) -> FoundWin {
    let (user, key) = (UserId::new(user).unwrap(), IdempotencyKey::new("k").unwrap());
    let request_id = RequestId::derive(&"sale".parse().unwrap(), &user, &key);
    let sku = SkuId::new("phone").unwrap();
    let (fingerprint, won_at) = (Fingerprint::of(b"{}"), StoreMs(2_000));
    let record = WinRecord {
        user,
        key,
        sku,
        qty: 1,
        fingerprint,
        won_at,
        state,
        tries: 0,
        first_delivery_at: None,
        last_word: None,
        dead_since: None,
        payload: None,
        reply: None,
    };
    FoundWin { request_id, record }
}
