//! A shop's own order service behind a whole gate: no ledger of ours, an epoch file, and the shop's ways of answering.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use loadtest::signer::Signer;
use reqwest::Client;
use seckill_gate::platform::clock::wall_ms;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::deployment::{run, seckill_gate};
use crate::harness::process::{Process, free_port, listens};
use crate::harness::redis::Redis;

/// Deliveries seen, by request id: their payloads, in order.
type Seen = Arc<Mutex<HashMap<String, Vec<Value>>>>;

/// The shop does what the payload asks for, on the first delivery and on later ones.
async fn shop(State(seen): State<Seen>, headers: HeaderMap, body: Bytes) -> Response {
    let payload: Value = serde_json::from_slice(&body).unwrap();
    let id = headers["idempotency-key"].to_str().unwrap().to_owned();
    assert!(headers.contains_key("seckill-ticket"));
    let tries = {
        let mut seen = seen.lock().unwrap();
        let of_id = seen.entry(id).or_default();
        of_id.push(payload.clone());
        of_id.len()
    };
    let asked = if tries == 1 { &payload["first"] } else { &payload["then"] };
    match asked.as_str().unwrap() {
        "201" => (StatusCode::CREATED, [("location", "/orders/7")], r#"{"order":7}"#).into_response(),
        "202" => (StatusCode::ACCEPTED, r#"{"order":"taken"}"#).into_response(),
        "422" => (StatusCode::UNPROCESSABLE_ENTITY, "no").into_response(),
        "409" => (StatusCode::CONFLICT, "in progress, or not: a bare status").into_response(),
        "long" => (StatusCode::OK, "x".repeat((64 << 10) + 1)).into_response(),
        "10MB" => (StatusCode::OK, "x".repeat(10 << 20)).into_response(),
        other => panic!("{other}"),
    }
}

struct External {
    public: Vec<u16>,
    config: PathBuf,
    seen: Seen,
    http: Client,
    signer: Signer,
    gates: Vec<Process>,
    store: Redis,
    folder: TempDir,
}

impl External {
    async fn start(gates: usize) -> External {
        let folder = tempfile::tempdir().unwrap();
        run(seckill_gate().args(["keygen", "--out"]).arg(folder.path().join("secrets")));
        let seen = Seen::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let orders = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(shop).with_state(seen.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let store = Redis::start();
        let config = folder.path().join("seckill.yaml");
        let ports: Vec<[u16; 3]> = (0..gates).map(|_| [free_port(), free_port(), free_port()]).collect();
        std::fs::write(&config, yaml(orders, ports[0], gates, &store)).unwrap();
        let started = ports.iter().enumerate().map(|(n, [public, admin, metrics])| {
            let mut gate = Process::start(
                "gate",
                seckill_gate().args(["serve", "--gate", &format!("gate-{}", n + 1), "-c"]).arg(&config).args([
                    "--listen",
                    &format!("127.0.0.1:{public}"),
                    "--admin",
                    &format!("127.0.0.1:{admin}"),
                    "--metrics",
                    &format!("127.0.0.1:{metrics}"),
                ]),
            );
            gate.wait_until("listened", || listens(*public) && listens(*admin));
            gate
        });
        let gates = started.collect();
        let key = std::fs::read_to_string(folder.path().join("secrets/user-jwt-secret")).unwrap();
        let signer = Signer::hs256(key.trim().as_bytes(), "shop", "https://shop.test", "seckill").unwrap();
        let http = Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        let public = ports.iter().map(|[public, ..]| *public).collect();
        External { public, config, seen, http, signer, gates, store, folder }
    }

    fn preheat(&self) -> std::process::Output {
        seckill_gate().args(["preheat", "launch", "-c"]).arg(&self.config).output().unwrap()
    }

    fn epoch_file(&self) -> PathBuf {
        self.folder.path().join("state/epochs.json")
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/seckill/launch{path}", self.public[0])
    }

    fn bearer(&self, user: &str) -> String {
        format!("Bearer {}", self.signer.sign(user, Duration::from_secs(600)).unwrap())
    }

    async fn until_open(&self) {
        let started = Instant::now();
        loop {
            let state: Value = self.http.get(self.url("/state")).send().await.unwrap().json().await.unwrap();
            if state["phase"] == "open" {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "never open: {state}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// One attempt; its answer.
    async fn attempt(&self, user: &str, first: &str, then: &str) -> (u16, String, String) {
        let request = |path: &str| {
            let request = self.http.post(self.url(path)).header("Authorization", self.bearer(user));
            request.header("Idempotency-Key", "k")
        };
        let token = request("/tokens").json(&json!({"sku": "phone", "qty": 1})).send().await.unwrap();
        let token: Value = token.json().await.unwrap();
        let attempt = request("").header("Seckill-Token", token["token"].as_str().unwrap_or_else(|| panic!("{token}")));
        let reply = attempt.json(&json!({"first": first, "then": then})).send().await.unwrap();
        let status = reply.status().as_u16();
        let outcome = reply.headers().get("seckill-outcome").map(|o| o.to_str().unwrap().to_owned());
        let body = reply.text().await.unwrap();
        let code = || serde_json::from_str::<Value>(&body).ok()?["code"].as_str().map(str::to_owned);
        let outcome = outcome.or_else(code).unwrap_or_default();
        (status, outcome, body)
    }

    async fn result(&self, user: &str) -> Value {
        let url = self.url("/results/k?wait=10s");
        let reply = self.http.get(url).header("Authorization", self.bearer(user)).send().await.unwrap();
        reply.json().await.unwrap()
    }

    fn deliveries(&self) -> usize {
        self.seen.lock().unwrap().values().map(Vec::len).sum()
    }
}

fn yaml(orders: u16, [public, admin, metrics]: [u16; 3], gates: usize, store: &Redis) -> String {
    let at = |ms: i64| chrono::DateTime::<chrono::Utc>::from_timestamp_millis(ms).unwrap().to_rfc3339();
    let now = i64::try_from(wall_ms()).unwrap();
    let (starts, ends) = (at(now - 3_600_000), at(now + 3_600_000));
    let names: Vec<String> = (1..=gates).map(|n| format!("gate-{n}")).collect();
    format!(
        r#"
gate:
  id: gate-1
  listen: 127.0.0.1:{public}
  admin: 127.0.0.1:{admin}
  metrics: 127.0.0.1:{metrics}
  shop: {{ url: "http://127.0.0.1:9" }}
  admin_token: {{ file: secrets/admin-token }}
  drain_delay: 100ms
deployment: {{ gates: [{names}] }}
store: {{ kind: redis, url: "{store}", deadline: 2s }}
identity:
  keys: [{{ kid: shop, algorithm: HS256, key: {{ file: secrets/user-jwt-secret }} }}]
  issuer: https://shop.test
  audience: seckill
  device_secret: {{ file: secrets/device-secret }}
tokens:
  keys: [{{ kid: one, key: {{ file: secrets/token-key }} }}]
  ttl: 60s
limits:
  attempts: {{ address: null, user: null, device: null }}
  tokens: {{ address: null, user: null, device: null }}
  reads: {{ address: null }}
orders:
  kind: external
  url: http://127.0.0.1:{orders}/api/orders
  ticket_key: {{ file: secrets/ticket-private.pem }}
  epoch_file: state/epochs.json
  final_statuses: [202]
  refused_statuses: [422]
logs: {{ filter: warn }}
activities:
  launch:
    starts_at: {starts}
    ends_at: {ends}
    skus: {{ phone: {{ stock: 20 }} }}
"#,
        names = names.join(", "),
        store = store.url(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shops_own_answers_are_taken_by_its_own_rules() {
    let shop = External::start(1).await;
    let preheated = shop.preheat();
    assert!(preheated.status.success(), "{}", String::from_utf8_lossy(&preheated.stderr));
    let epochs: Value = serde_json::from_slice(&std::fs::read(shop.epoch_file()).unwrap()).unwrap();
    assert_eq!(
        (&epochs["activities"]["launch"]["epoch"], epochs["activities"].as_object().unwrap().len()),
        (&json!(1), 1)
    );
    shop.until_open().await;

    // 202 is this shop's final word, told byte for byte, and asked for once.
    let told = shop.attempt("ann", "202", "202").await;
    assert_eq!(told, (202, "WON".into(), r#"{"order":"taken"}"#.into()));
    assert_eq!(shop.deliveries(), 1);
    // 422 refuses, and the unit comes back.
    let told = shop.attempt("bob", "422", "422").await;
    assert_eq!((told.0, told.1.as_str()), (409, "ORDER_REFUSED"), "{}", told.2);
    assert_eq!(shop.result("bob").await["state"], "refused");
    // A reply above `max_reply` counts by its status; its body is not kept. Repetitions hear the same.
    for (user, reply) in [("cid", "long"), ("dora", "10MB")] {
        let told = shop.attempt(user, reply, "201").await;
        assert_eq!(told, (200, "WON".into(), String::new()), "{user}");
        assert_eq!(shop.attempt(user, reply, "201").await, told, "{user}");
    }
    // A bare 409 says nothing: the same win is delivered again, with the same payload, and booked.
    let told = shop.attempt("eve", "409", "201").await;
    assert_eq!((told.0, told.1.as_str()), (202, "QUEUED"), "{}", told.2);
    let result = shop.result("eve").await;
    assert_eq!((&result["state"], &result["order"]["order"]), (&json!("accepted"), &json!(7)), "{result}");
    assert_eq!(shop.deliveries(), 6, "one each, and eve's second");

    // Nobody has a ledger to look into, and the tools say so.
    let audit = run(seckill_gate().args(["audit", "launch", "-c"]).arg(&shop.config));
    assert!(audit.contains("not checked") && audit.contains("0 violations"), "{audit}");
    let status = run(seckill_gate().args(["status", "-c"]).arg(&shop.config));
    assert!(status.contains("launch"), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_file_forgets_no_preheat_and_is_never_guessed() {
    let shop = External::start(1).await;
    std::fs::create_dir_all(shop.epoch_file().parent().unwrap()).unwrap();
    std::fs::write(shop.epoch_file(), "{\"activities\":{\"laun").unwrap();
    let refused = shop.preheat();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(told.contains("epochs.json") && told.contains("Restore it"), "{told}");
    assert_eq!(shop.store.command(&["DBSIZE"]), Ok(redis::Value::Int(0)), "nothing was created");

    std::fs::remove_file(shop.epoch_file()).unwrap();
    assert!(shop.preheat().status.success());
    assert!(shop.preheat().status.success(), "safe to repeat");
    // The store loses everything; the gate that saw it is started anew, so that only the file remembers.
    drop(shop.gates);
    shop.store.command(&["FLUSHALL"]).unwrap();
    let [public, admin, metrics] = [free_port(), free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let mut gate = Process::start(
        "gate",
        seckill_gate()
            .args(["serve", "--listen", &public, "--admin", &admin, "--metrics", &metrics, "-c"])
            .arg(&shop.config),
    );
    let port = admin.rsplit(':').next().unwrap().parse().unwrap();
    gate.wait_until("listened", || listens(port));
    let token = std::fs::read_to_string(shop.folder.path().join("secrets/admin-token")).unwrap();
    let again = seckill_gate()
        .args(["preheat", "launch", "--admin", &format!("http://{admin}")])
        .env("SECKILL_ADMIN_TOKEN", token.trim())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && told.contains("NEEDS_REBUILD"), "{told}");
    assert_eq!(shop.store.command(&["EXISTS", "sk:{launch.0}:meta"]), Ok(redis::Value::Int(0)), "not sold twice");
}
