//! The admin and metrics listeners on real sockets, and the operating commands against them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::routing::get;
use seckill_gate::domain::RequestId;
use seckill_gate::domain::admission::{Change, FoundWin, KnownWin, Operated, Recorded};
use seckill_gate::domain::win::{Cause, Reason, Release, WinState};
use seckill_gate::gate::delivery::metrics::DeliveryMetrics;
use seckill_gate::gate::delivery::outbox::Outbox;
use seckill_gate::gate::ledger::client::LedgerClient;
use seckill_gate::gate::ledger::{LedgerAccess, LedgerStock, Registered, Registration, TotalSet};
use seckill_gate::gate::view_metrics::ViewMetrics;
use seckill_gate::platform::clock::StoreClock;
use seckill_gate::platform::http_server::{HttpLimits, serve};
use seckill_gate::platform::metrics::{self, Metrics};
use seckill_gate::platform::shutdown::{self, Stage};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::admin_rig::{answer, found, rig};
use crate::fake_activity::FakeActivity;
use crate::fake_store::{snapshot, terms};

#[tokio::test]
async fn nobody_changes_anything_without_the_token_the_host_and_the_origin_being_right() {
    let rig = rig().await;
    rig.store_holds(10, 0);
    let path = rig.url("/admin/activities/sale/pause");
    let post = || rig.http.post(&path).json(&json!({}));
    let code = |(status, body): (u16, Value)| (status, body["code"].as_str().unwrap_or_default().to_owned());
    let unauthenticated = (401, "UNAUTHENTICATED".to_owned());
    let forbidden = (403, "FORBIDDEN".to_owned());
    assert_eq!(code(answer(post()).await), unauthenticated);
    assert_eq!(code(answer(post().bearer_auth("wrong")).await), unauthenticated);
    assert_eq!(code(answer(post().bearer_auth("read")).await), forbidden);
    assert_eq!(code(answer(post().bearer_auth("change").header("host", "evil.example")).await), forbidden);
    assert_eq!(code(answer(post().bearer_auth("change").header("origin", "http://evil.example")).await), forbidden);
    assert_eq!(code(answer(rig.http.get(&path).bearer_auth("change")).await), (405, "METHOD_NOT_ALLOWED".to_owned()));
    assert_eq!(code(answer(rig.http.get(rig.url("/admin/none")).bearer_auth("read")).await), (404, "NOT_FOUND".into()));
    assert_eq!(
        code(answer(rig.http.get(rig.url("/admin/none"))).await),
        unauthenticated,
        "routes are no secret to guess"
    );
    assert!(rig.activity.state.lock().unwrap().changes.is_empty());
    assert_eq!(answer(post().bearer_auth("change")).await.0, 200);
    assert_eq!(rig.activity.state.lock().unwrap().changes, [Change::Pause]);
}

#[tokio::test]
async fn bodies_are_strict_and_bounded() {
    let rig = rig().await;
    rig.store_holds(10, 0);
    for (action, body) in [
        ("pause", json!({ "dry-run": true })),
        ("pause", json!([])),
        ("stop-sku", json!({})),
        ("stop-sku", json!({ "sku": "No Such Name" })),
        ("totals", json!({ "sku": "phone", "from": 10 })),
        ("totals", json!({ "sku": "phone", "from": 10, "to": -1 })),
        ("totals", json!({ "sku": "phone", "from": 10, "to": 9_000_000_000_i64 })),
        ("releases", json!({ "request_id": "x", "reason": "expired" })),
        ("releases", json!({ "request_id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "reason": "Not a reason" })),
    ] {
        assert_eq!(rig.change(action, body.clone()).await, (400, "BAD_REQUEST".into()), "{action} {body}");
    }
    let long = rig.post("pause", json!({ "dry_run": " ".repeat(70_000) })).await;
    assert_eq!(long.0, 413);
    let form = rig.http.post(rig.url("/admin/activities/sale/pause")).bearer_auth("change").body("{}");
    assert_eq!(answer(form.header("content-type", "text/plain")).await.0, 400);
    assert_eq!(rig.get("/admin/activities/sale/wins?after=%27%3B").await.0, 400);
    assert_eq!(rig.get("/admin/activities/nosuch").await.1["code"], "NO_SUCH_ACTIVITY");
    assert!(rig.activity.state.lock().unwrap().changes.is_empty());
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_says_what_would() {
    let rig = rig().await;
    rig.activity.state.lock().unwrap().unseen = true;
    assert_eq!(rig.change("preheat", json!({ "dry_run": true })).await, (200, "would_apply".into()));
    rig.activity.state.lock().unwrap().unseen = false;
    assert_eq!(rig.calls(), [""; 0]);
    rig.store_holds(3, 7);
    rig.ledger_holds(10, 7);
    rig.store.state.lock().unwrap().wins = vec![found("u1", WinState::Accepted)];
    let id = rig.store.state.lock().unwrap().wins[0].request_id;
    for (action, body, expected) in [
        ("preheat", json!({}), (200, "already")),
        ("pause", json!({}), (200, "would_apply")),
        ("resume", json!({}), (200, "already")),
        ("stop-sku", json!({ "sku": "phone" }), (200, "would_apply")),
        ("stop-sku", json!({ "sku": "tv" }), (404, "NO_SUCH_SKU")),
        ("start-sku", json!({ "sku": "phone" }), (200, "already")),
        ("totals", json!({ "sku": "phone", "from": 10, "to": 12 }), (200, "would_apply")),
        ("totals", json!({ "sku": "phone", "from": 9, "to": 10 }), (200, "already")),
        ("totals", json!({ "sku": "phone", "from": 9, "to": 12 }), (409, "TOTAL_IS")),
        ("totals", json!({ "sku": "phone", "from": 10, "to": 6 }), (409, "ONLY_LEFT")),
        ("releases", json!({ "request_id": id, "reason": "expired" }), (200, "would_apply")),
        (
            "releases",
            json!({ "request_id": RequestId::derive(&"sale".parse().unwrap(), &"x".parse().unwrap(), &"k".parse().unwrap()), "reason": "expired" }),
            (404, "UNKNOWN_WIN"),
        ),
    ] {
        let mut asked = body.clone();
        asked["dry_run"] = true.into();
        assert_eq!(rig.change(action, asked).await, (expected.0, expected.1.to_owned()), "{action} {body}");
    }
    assert_eq!(rig.calls(), [""; 0]);
    let state = rig.activity.state.lock().unwrap();
    assert!(state.changes.is_empty() && state.noted.is_empty());
}

#[tokio::test]
async fn preheating_registers_in_the_ledger_first_and_fills_a_store_once() {
    let rig = rig().await;
    // Neither ledger nor store know it, but this gate has seen it: both have lost it.
    assert_eq!(rig.change("preheat", json!({})).await, (409, "NEEDS_REBUILD".into()));
    assert_eq!(rig.calls(), [""; 0]);
    rig.activity.state.lock().unwrap().unseen = true;
    rig.store.state.lock().unwrap().failing_preheats = 2;
    assert_eq!(rig.change("preheat", json!({})).await, (200, "applied".into()));
    assert_eq!(rig.calls(), ["ledger register", "store preheat"]);
    assert_eq!(rig.change("preheat", json!({})).await, (200, "already".into()));
    assert_eq!(rig.calls(), [""; 0]);
    // Between the look at the empty store and the filling of it, another server took its place.
    rig.store.state.lock().unwrap().snapshot = None;
    *rig.ledger.report.lock().unwrap() = None;
    rig.store.state.lock().unwrap().replaced = true;
    assert_eq!(rig.change("preheat", json!({})).await, (409, "NEEDS_REBUILD".into()));
    assert_eq!(rig.calls(), ["ledger register"]);
    // The store loses everything; the ledger remembers.
    rig.store.state.lock().unwrap().snapshot = None;
    let (status, problem) = rig.post("preheat", json!({})).await;
    assert_eq!((status, problem["code"].as_str()), (409, Some("NEEDS_REBUILD")));
    assert!(problem["detail"].as_str().unwrap().contains("could sell everything twice"), "{problem}");
    assert_eq!(rig.calls(), [""; 0]);
}

#[tokio::test]
async fn preheating_touches_nothing_where_the_terms_differ_or_the_store_is_down() {
    let rig = rig().await;
    rig.store.state.lock().unwrap().down = true;
    assert_eq!(rig.change("preheat", json!({})).await, (503, "STORE_UNAVAILABLE".into()));
    assert_eq!(rig.calls(), [""; 0], "the ledger was told of an activity whose store is down");
    rig.store.state.lock().unwrap().down = false;
    rig.store_holds(10, 0);
    assert_eq!(rig.change("preheat", json!({})).await, (409, "LEDGER_EMPTY".into()));
    rig.ledger_holds(10, 0);
    rig.store.state.lock().unwrap().snapshot.as_mut().unwrap().terms.per_user_limit = 2;
    assert_eq!(rig.change("preheat", json!({})).await, (409, "TERMS_DIFFER".into()));
    assert_eq!(rig.calls(), [""; 0]);
}

#[tokio::test]
async fn totals_rise_in_the_ledger_first_and_fall_in_the_store_first() {
    let rig = rig().await;
    rig.store_holds(3, 7);
    let total = |from: i64, to: i64| json!({ "sku": "phone", "from": from, "to": to });
    assert_eq!(rig.change("totals", total(10, 12)).await, (200, "applied".into()));
    assert_eq!(rig.calls(), ["ledger 10 -> 12", "store change"]);
    assert_eq!(rig.change("totals", total(10, 8)).await, (200, "applied".into()));
    assert_eq!(rig.calls(), ["store change", "ledger 10 -> 8"]);
    assert_eq!(rig.change("totals", total(9, 12)).await, (409, "TOTAL_IS".into()));
    assert_eq!(rig.calls(), [""; 0], "the ledger moved on a wrong `from`");
    rig.ledger.refuses.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(rig.change("totals", total(10, 12)).await, (409, "LEDGER_REFUSED".into()));
    assert_eq!(rig.calls(), ["ledger 10 -> 12"], "the store rose above the ledger");
}

#[tokio::test]
async fn a_sku_starts_only_where_store_and_ledger_agree() {
    let rig = rig().await;
    rig.store_holds(3, 7);
    let start = json!({ "sku": "phone" });
    rig.ledger_holds(11, 7);
    assert_eq!(rig.change("start-sku", start.clone()).await, (409, "LEDGER_DISAGREES".into()));
    rig.ledger_holds(10, 8);
    assert_eq!(rig.change("start-sku", start.clone()).await, (409, "LEDGER_DISAGREES".into()));
    rig.ledger_holds(10, 7);
    assert_eq!(rig.change("start-sku", start).await, (200, "applied".into()));
}

#[tokio::test]
async fn a_release_is_applied_once_and_an_unknown_win_is_not_released() {
    let rig = rig().await;
    let win = rig.activity.win("u1", b"{}");
    let ended = json!({ "request_id": win.request_id, "reason": "expired" });
    assert_eq!(rig.change("releases", ended.clone()).await, (200, "applied".into()));
    assert_eq!(rig.change("releases", ended).await, (200, "already".into()));
    let stranger = json!({ "request_id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "reason": "expired" });
    assert_eq!(rig.change("releases", stranger).await, (404, "UNKNOWN_WIN".into()));
    let again = Release { cause: Cause::Ended, reason: Reason::lossy("x") };
    let recorded = rig.activity.release(win.request_id, again).await;
    assert!(matches!(recorded, Ok(Ok(Recorded::Already(KnownWin { state: WinState::Released(_), .. })))));
}

#[tokio::test]
async fn wins_are_read_page_by_page_without_gaps() {
    let rig = rig().await;
    rig.activity.state.lock().unwrap().unseen = true;
    assert_eq!(rig.get("/admin/activities/sale/wins").await.1["code"], "NOT_PREHEATED");
    rig.activity.state.lock().unwrap().unseen = false;
    assert_eq!(rig.get("/admin/activities/sale/wins").await.1["code"], "FENCED", "it was there");
    rig.store_holds(7, 3);
    let users = ["u1", "u2", "u3"];
    rig.store.state.lock().unwrap().wins = users.map(|user| found(user, WinState::Held)).to_vec();
    let (mut after, mut seen) = (String::new(), Vec::new());
    loop {
        let (status, page) = rig.get(&format!("/admin/activities/sale/wins?after={after}")).await;
        assert_eq!(status, 200);
        seen.extend(page["wins"].as_array().unwrap().iter().map(|win| win["user"].as_str().unwrap().to_owned()));
        after = page["next"].as_str().unwrap().to_owned();
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(seen, users);
}

#[tokio::test]
async fn readiness_follows_start_and_drain_and_nothing_else() {
    let rig = rig().await;
    let ready =
        || async { rig.http.get(rig.url("/readyz")).header("host", "probe").send().await.unwrap().status().as_u16() };
    assert_eq!(ready().await, 503);
    // A reload that makes its world just before the start, and puts it in just after.
    let reloaded = rig.world.with(BTreeMap::new(), Vec::new());
    rig.world.mark_started();
    assert!(reloaded.is_ready());
    rig.store.state.lock().unwrap().down = true;
    assert_eq!(ready().await, 200);
    rig.trigger.advance(Stage::Draining);
    assert_eq!(ready().await, 503);
    assert_eq!(rig.http.get(rig.url("/healthz")).send().await.unwrap().status(), 200);
    rig.trigger.advance(Stage::Closing);
    let closed = async {
        while TcpStream::connect(rig.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), closed).await.expect("the listener never closed");
}

#[tokio::test]
async fn operators_see_a_sum_that_adds_up_and_are_told_when_it_does_not() {
    let rig = rig().await;
    rig.store.state.lock().unwrap().snapshot = Some(snapshot(3, (2, 2), (5, 5)));
    let (code, out, _) = rig.command("read", &["status"]).await;
    assert_eq!(code, 0);
    assert!(out.contains("phone     10  =     3            0           0       2           5"), "{out}");
    let (code, out, _) = rig.command("read", &["status", "sale", "--json"]).await;
    let status: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &status["activities"][0]["invariants"]["INV-2"]), (0, &json!(true)));
    rig.store.state.lock().unwrap().snapshot = Some(snapshot(4, (2, 2), (5, 5)));
    let (code, out, _) = rig.command("read", &["status"]).await;
    assert_eq!(code, 3);
    assert!(out.contains("DOES NOT ADD UP"), "{out}");
    rig.store.state.lock().unwrap().down = true;
    let (code, out, _) = rig.command("read", &["status"]).await;
    assert_eq!(code, 3);
    assert!(out.contains("store unavailable") && out.contains("last poll"), "{out}");
}

#[tokio::test]
async fn commands_change_what_they_say_and_end_as_they_should() {
    let rig = rig().await;
    rig.store_holds(10, 0);
    for (arguments, change) in [
        (&["pause", "sale"][..], Change::Pause),
        (&["resume", "sale"], Change::Resume),
        (&["stop-sku", "sale", "phone"], Change::StopSku("phone".parse().unwrap())),
        (&["start-sku", "sale", "phone"], Change::StartSku("phone".parse().unwrap())),
    ] {
        let (code, out, errors) = rig.command("change", arguments).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        assert!(out.contains("applied"), "{out}");
        assert_eq!(rig.activity.state.lock().unwrap().changes.pop(), Some(change));
    }
    rig.activity.state.lock().unwrap().operated = Some(Operated::TotalIs(11));
    let (code, _, errors) = rig.command("change", &["totals", "sale", "phone", "--from", "10", "--to", "9"]).await;
    assert_eq!(code, 1);
    assert!(errors.contains("TOTAL_IS: the total is 11 now"), "{errors}");
    let (code, _, errors) = rig.command("read", &["pause", "sale"]).await;
    assert_eq!(code, 1);
    assert!(errors.contains("may only read"), "{errors}");
    assert_eq!(rig.command("change", &["pause", "Not A Name"]).await.0, 2);
    assert_eq!(rig.command("change", &["pause", "sale", "-c", "/nowhere.yaml"]).await.0, 2);
    let (code, _, errors) = rig.command("change", &["pause", "sale", "--admin", "http://127.0.0.1:1"]).await;
    assert_eq!(code, 1);
    assert!(errors.contains("does the gate run?"), "{errors}");
    for command in ["preheat", "pause", "resume", "totals", "stop-sku", "start-sku", "status", "audit", "keygen"] {
        assert_eq!(rig.command("x", &[command, "--help"]).await.0, 0, "{command}");
    }
}

/// The order service's API as the audit and preheat see it: registered terms and two pages of orders.
async fn ledger_api(orders: Vec<Value>, sold: i64) -> SocketAddr {
    type Api = Arc<(Vec<Value>, i64, Mutex<Vec<Value>>)>;
    async fn report(State(api): State<Api>, Path(id): Path<String>) -> axum::Json<Value> {
        axum::Json(json!({ "activity": id, "epoch": 1, "skus": { "phone": { "total": 10, "sold": api.1 } }, "new": 1 }))
    }
    async fn list(State(api): State<Api>, Query(query): Query<BTreeMap<String, String>>) -> axum::Json<Value> {
        let after = query.get("after").cloned().unwrap_or_default();
        let next = api.0.iter().find(|order| order["request_id"].as_str().unwrap() > after.as_str());
        axum::Json(json!({ "orders": next.into_iter().collect::<Vec<_>>() }))
    }
    async fn put(
        State(api): State<Api>,
        headers: http::HeaderMap,
        body: axum::Json<Value>,
    ) -> (http::StatusCode, String) {
        if headers.get("authorization").is_none_or(|value| value != "Bearer api") {
            return (http::StatusCode::UNAUTHORIZED, String::new());
        }
        api.2.lock().unwrap().push(body.0.clone());
        match body.0.get("totals") {
            Some(total) if total["to"] == 1 => {
                (http::StatusCode::CONFLICT, json!({ "detail": "7 are sold" }).to_string())
            }
            None if body.0["register"]["skus"]["phone"] != 10 => (http::StatusCode::BAD_REQUEST, String::new()),
            _ => (http::StatusCode::OK, json!(api.2.lock().unwrap().last()).to_string()),
        }
    }
    let routes = Router::new()
        .route("/activities/{id}", get(report).put(put))
        .route("/activities/{id}/orders", get(list))
        .with_state(Arc::new((orders, sold, Mutex::default())));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address
}

fn order(win: &FoundWin, state: &str) -> Value {
    json!({ "request_id": win.request_id, "user": win.record.user, "sku": "phone", "qty": 1, "state": state, "reason": "" })
}

#[tokio::test]
async fn an_audit_passes_what_is_sound_and_finds_what_is_not() {
    let rig = rig().await;
    let mut wins = ["u1", "u2", "u3"].map(|user| found(user, WinState::Accepted)).to_vec();
    wins.sort_by_key(|win| win.request_id);
    let mut sums = snapshot(7, (0, 0), (3, 3));
    sums.skus[0].1.wins.released = (0, 0);
    rig.store.state.lock().unwrap().snapshot = Some(sums);
    rig.store.state.lock().unwrap().wins = wins.clone();
    let audit = |api: SocketAddr| {
        let orders = format!("http://{api}/orders");
        let rig = &rig;
        async move { rig.command("read", &["audit", "sale", "--orders", &orders, "--orders-token", "api", "--json"]).await }
    };
    let all: Vec<Value> = wins.iter().map(|win| order(win, "pending")).collect();
    let (code, out, errors) = audit(ledger_api(all.clone(), 3).await).await;
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    let checks = serde_json::from_str::<Value>(&out).unwrap()["activities"][0]["checks"].clone();
    assert!(checks.as_array().unwrap().iter().all(|check| check["checked"].as_u64().unwrap() > 0), "{checks}");

    let (code, out, _) = audit(ledger_api(all[..2].to_vec(), 11).await).await;
    assert_eq!(code, 3);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["violations"], 2, "{out}");
    assert!(out.contains("11 sold of 10") && out.contains("accepted, but without an order"), "{out}");
}

#[tokio::test]
async fn the_ledger_client_speaks_the_order_services_language() {
    let api = ledger_api(Vec::new(), 0).await;
    let url = format!("http://{api}/orders").parse().unwrap();
    let client = LedgerClient::new(&url, "api".into(), Duration::from_secs(2)).unwrap();
    let (sale, phone) = ("sale".parse().unwrap(), "phone".parse().unwrap());
    let terms = Registration::of(&terms(), Duration::from_secs(900));
    assert_eq!(client.register(&sale, &terms).await, Ok(Registered::Stands));
    assert_eq!(client.set_total(&sale, &phone, 10, 12).await, Ok(TotalSet::Stands));
    assert_eq!(client.set_total(&sale, &phone, 10, 1).await, Ok(TotalSet::Refused("7 are sold".into())));
    assert_eq!(client.report(&sale).await.unwrap().unwrap().skus[&phone], LedgerStock { total: 10, sold: 0 });
    let stranger = LedgerClient::new(&url, "wrong".into(), Duration::from_secs(2)).unwrap();
    let error = stranger.register(&sale, &terms).await.unwrap_err();
    assert!(error.to_string().contains("api_token") && !error.to_string().contains("wrong"), "{error}");
}

#[tokio::test]
async fn promtool_finds_nothing_wrong_with_the_metrics() {
    let registry = Arc::new(Metrics::new().unwrap());
    let delivery = DeliveryMetrics::register(&registry).unwrap();
    delivery.seconds.with_label_values(&["booked"]).observe(0.02);
    delivery.conflicts.announce(&"sale".parse().unwrap());
    let activity: Arc<dyn Outbox> = FakeActivity::new();
    let views = ViewMetrics::new(move || vec![activity.clone()], Arc::new(StoreClock::new())).unwrap();
    registry.register(Box::new(views)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let (_trigger, shutdown) = shutdown::channel();
    tokio::spawn(serve("metrics", listener, metrics::router(registry), HttpLimits::default(), shutdown));
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    for name in [
        "seckill_build_info",
        "seckill_activity_starts_at_seconds",
        "seckill_wins_unsettled",
        "seckill_stock_units",
        "seckill_deliveries_total",
    ] {
        assert!(text.contains(name), "{name} is missing:\n{text}");
    }
    let mut promtool = tokio::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing; `make test` installs it");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    let output = promtool.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{text}");
}

#[tokio::test]
async fn a_peer_that_sends_half_a_request_is_let_go_and_more_connections_than_allowed_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_trigger, shutdown) = shutdown::channel();
    let routes = Router::new().route("/", get(|| async { "ok" }));
    let limits = HttpLimits { connections: 1, headers: Duration::from_millis(300), ..HttpLimits::default() };
    tokio::spawn(serve("test", listener, routes, limits, shutdown));
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    // The second connection is served as soon as the first was given up.
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    tokio::time::timeout(Duration::from_secs(5), second.read_to_string(&mut reply)).await.unwrap().unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[tokio::test]
async fn commands_find_the_gate_and_its_token_through_the_configuration() {
    let rig = rig().await;
    rig.store_holds(10, 0);
    let folder = tempfile::tempdir().unwrap();
    let (code, _, errors) = rig.command("x", &["keygen", "--out", folder.path().to_str().unwrap()]).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    std::fs::write(folder.path().join("admin-token"), "change\n").unwrap();
    let file = folder.path().join("gate.yaml");
    let text = CONFIGURATION.replace("ADMIN", &rig.address.to_string());
    std::fs::write(&file, text).unwrap();
    let run = |file: std::path::PathBuf| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seckill-gate"));
        command.args(["pause", "sale", "-c"]).arg(file);
        for name in ["SECKILL_ADMIN", "SECKILL_ADMIN_TOKEN", "SECKILL_CONFIG"] {
            command.env_remove(name);
        }
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let output = run(file).await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    assert_eq!(rig.activity.state.lock().unwrap().changes, [Change::Pause]);
    let output = run(folder.path().join("nowhere.yaml")).await.unwrap();
    assert_eq!(output.status.code(), Some(2));
}

pub const CONFIGURATION: &str = "
gate:
  id: gate-1
  listen: 127.0.0.1:18080
  admin: ADMIN
  metrics: 127.0.0.1:18082
  shop: { url: 'http://127.0.0.1:8070' }
  admin_token: { file: admin-token }
store: { kind: sqlite, path: store.db }
identity:
  keys: [{ kid: k1, algorithm: HS256, key: { file: user-jwt-secret } }]
  issuer: shop
  audience: seckill
  device_secret: { file: device-secret }
tokens: { keys: [{ kid: t1, key: { file: token-key } }] }
orders:
  kind: external
  url: http://127.0.0.1:8090/orders
  ticket_key: { file: ticket-private.pem }
activities:
  sale:
    starts_at: 2026-12-12T20:00:00+08:00
    ends_at: 2026-12-12T21:00:00+08:00
    skus: { phone: { stock: 10 } }
";
