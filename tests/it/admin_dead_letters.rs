//! The dead-letter routes and command over an activity, a store and an order service in memory: every word of the order
//! service to a void, pages, dry runs, and who may not.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use seckill_gate::domain::StoreMs;
use seckill_gate::domain::admission::{FoundWin, WinRecord};
use seckill_gate::domain::dead_letters::LastWord;
use seckill_gate::domain::win::{Cause, Reason, Release, WinState};
use seckill_gate::gate::ledger::{VoidClient, Voided};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::admin_rig::{Rig, answer, found, rig};
use crate::fake_activity::Noted;

fn dead(user: &str, since: u64) -> FoundWin {
    let win = found(user, WinState::Held);
    let record = WinRecord {
        tries: 70,
        first_delivery_at: Some(StoreMs(since - 600_000)),
        last_word: Some(LastWord::Unknown),
        dead_since: Some(StoreMs(since)),
        ..win.record
    };
    FoundWin { record, ..win }
}

/// A rig whose store holds these wins.
async fn holding(wins: Vec<FoundWin>) -> Rig {
    let rig = rig().await;
    rig.store_holds(10, 0);
    for win in &wins {
        rig.activity.win(win.record.user.as_str(), b"{}");
    }
    rig.store.state.lock().unwrap().wins = wins;
    rig
}

#[tokio::test]
async fn a_win_is_released_only_on_the_order_services_word() {
    let refused = Release { cause: Cause::Refused, reason: Reason::lossy("no_stock") };
    let ended = Release { cause: Cause::Ended, reason: Reason::lossy("expired") };
    let released = |cause, reason: &str, short| vec![Noted::Released(cause, reason.into(), short)];
    let rows = [
        (Some(Voided::Void), (200, "applied"), released("void", "void", false), 0),
        (Some(Voided::Ended(refused)), (200, "refused"), released("refused", "no_stock", true), 0),
        (Some(Voided::Ended(ended)), (200, "ended"), released("ended", "expired", false), 0),
        (Some(Voided::OrderExists), (409, "ORDER_EXISTS"), vec![], 1),
        (Some(Voided::CannotVoid), (409, "CANNOT_VOID"), vec![], 0),
        (None, (503, "VOID_UNKNOWN"), vec![], 0),
    ];
    for (voided, expected, noted, retried) in rows {
        let rig = holding(vec![dead("ann", 700_000)]).await;
        let id = found("ann", WinState::Held).request_id;
        *rig.ledger.voided.lock().unwrap() = voided.clone();
        let told = rig.change(&format!("dead-letters/{id}/release"), json!({})).await;
        assert_eq!(told, (expected.0, expected.1.to_owned()), "{voided:?}");
        assert_eq!(rig.calls(), [format!("void {id}")], "{voided:?}");
        assert_eq!(rig.activity.noted(id), noted, "{voided:?}");
        assert_eq!(rig.activity.state.lock().unwrap().retried.len(), retried, "{voided:?}");
    }
}

#[tokio::test]
async fn a_word_that_contradicts_the_win_is_counted_whoever_meets_it() {
    let ann = dead("ann", 700_000);
    let rig = holding(vec![ann.clone()]).await;
    let count = || {
        let text = rig.metrics.render().unwrap();
        text.lines().any(|line| line == "seckill_win_conflicts_total{activity=\"sale\"} 1")
    };
    // Booked by a delivery between the look-up and the release.
    rig.activity.state.lock().unwrap().wins.get_mut(&ann.request_id).unwrap().state = WinState::Accepted;
    let refused = Release { cause: Cause::Refused, reason: Reason::lossy("no_stock") };
    *rig.ledger.voided.lock().unwrap() = Some(Voided::Ended(refused));
    assert!(!count());
    let told = rig.change(&format!("dead-letters/{}/release", ann.request_id), json!({})).await;
    assert_eq!(told, (409, "CONFLICT".into()));
    assert!(count());
}

#[tokio::test]
async fn nothing_is_voided_for_a_win_that_has_its_word_or_in_a_dry_run_or_without_the_token() {
    let release = WinState::Released(Release { cause: Cause::Void, reason: Reason::lossy("void") });
    let wins = vec![dead("ann", 700_000), found("bob", WinState::Accepted), found("eve", release)];
    let ids: Vec<String> = wins.iter().map(|win| win.request_id.to_string()).collect();
    let rig = holding(wins).await;
    *rig.ledger.voided.lock().unwrap() = Some(Voided::Void);
    let nobody = "f".repeat(32);
    let rows = [
        (&ids[0], "release", true, (200, "would_apply")),
        (&ids[0], "retry", true, (200, "would_apply")),
        (&ids[1], "release", false, (409, "ORDER_EXISTS")),
        (&ids[1], "retry", true, (200, "already_accepted")),
        (&ids[2], "release", false, (200, "already")),
        (&ids[2], "retry", true, (200, "already_released")),
        (&nobody, "release", false, (404, "UNKNOWN_WIN")),
        (&nobody, "retry", true, (404, "UNKNOWN_WIN")),
        (&"nonsense".to_owned(), "release", false, (400, "BAD_REQUEST")),
        (&"nonsense".to_owned(), "retry", false, (400, "BAD_REQUEST")),
    ];
    for (id, action, dry_run, expected) in rows {
        let body = if dry_run { json!({ "dry_run": true }) } else { json!({}) };
        let told = rig.change(&format!("dead-letters/{id}/{action}"), body).await;
        assert_eq!(told, (expected.0, expected.1.to_owned()), "{action} {id}, dry run {dry_run}");
    }
    let (status, all) = rig.post("dead-letters/retry-all", json!({ "dry_run": true })).await;
    assert_eq!((status, all), (200, json!({ "outcome": "would_apply", "count": 1, "dry_run": true })));
    let url = rig.url(&format!("/admin/activities/sale/dead-letters/{}/release", ids[0]));
    assert_eq!(answer(rig.http.post(url).bearer_auth("read").json(&json!({}))).await.0, 403);
    assert_eq!(rig.calls(), [""; 0]);
    let state = rig.activity.state.lock().unwrap();
    assert!(state.noted.is_empty() && state.retried.is_empty());
}

#[tokio::test]
async fn dead_letters_are_listed_and_retried_page_by_page_in_the_order_of_their_marks() {
    // More than one page, some of them marked in the same millisecond; and one that lives.
    let mut wins: Vec<FoundWin> = (0..450).map(|n| dead(&format!("u{n}"), 700_000 + n / 100)).collect();
    let mut ids: Vec<_> = wins.iter().map(|win| (win.record.dead_since, win.request_id)).collect();
    ids.sort();
    wins.push(found("alive", WinState::Held));
    let rig = holding(wins).await;
    let (mut after, mut seen, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let (status, page) = rig.get(&format!("/admin/activities/sale/dead-letters?after={after}")).await;
        assert_eq!(status, 200);
        seen.extend(page["dead_letters"].as_array().unwrap().iter().map(|win| win["request_id"].clone()));
        pages += 1;
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    let expected: Vec<Value> = ids.iter().map(|(_, id)| json!(id)).collect();
    assert_eq!((pages, seen), (3, expected));
    for after in ["x", "1-x", "-", "1"] {
        assert_eq!(rig.get(&format!("/admin/activities/sale/dead-letters?after={after}")).await.0, 400, "{after}");
    }
    let (status, all) = rig.post("dead-letters/retry-all", json!({})).await;
    assert_eq!((status, all), (200, json!({ "outcome": "applied", "count": 450 })));
    let retried = rig.activity.state.lock().unwrap().retried.clone();
    assert_eq!(retried, ids.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_command_lists_retries_and_releases() {
    let rig = holding(vec![dead("ann", 700_000)]).await;
    let id = found("ann", WinState::Held).request_id.to_string();
    let (code, out, errors) = rig.command("read", &["dead-letters", "list", "sale"]).await;
    assert_eq!((code, errors.as_str()), (3, ""), "found something");
    assert!(out.contains(&id) && out.contains("ann") && out.contains("10 min 0 s"), "{out}");
    let (_, out, _) = rig.command("read", &["dead-letters", "list", "sale", "--json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["dead_letters"][0]["request_id"], id.as_str());

    let (code, out, _) = rig.command("change", &["dead-letters", "retry", "sale", &id]).await;
    assert_eq!((code, out.trim()), (0, format!("sale dead-letters {id} retry: applied").as_str()));
    let (code, out, _) = rig.command("change", &["dead-letters", "retry-all", "sale"]).await;
    assert_eq!((code, out.trim()), (0, "sale dead-letters retry-all: applied (1)"));
    assert_eq!(rig.activity.state.lock().unwrap().retried.len(), 2);

    *rig.ledger.voided.lock().unwrap() = Some(Voided::CannotVoid);
    let (code, _, errors) = rig.command("change", &["dead-letters", "release", "sale", &id]).await;
    assert_eq!(code, 1);
    assert!(errors.contains("CANNOT_VOID: the order service cannot void"), "{errors}");
    let (code, out, _) = rig.command("change", &["dead-letters", "release", "sale", &id, "--dry-run"]).await;
    assert_eq!((code, out.trim()), (0, format!("sale dead-letters {id} release: would apply").as_str()));
    *rig.ledger.voided.lock().unwrap() = Some(Voided::Void);
    let (code, out, _) = rig.command("change", &["dead-letters", "release", "sale", &id, "--json"]).await;
    assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()), (0, json!({ "outcome": "applied" })));

    assert_eq!(rig.command("change", &["dead-letters", "retry", "sale", "not-an-id"]).await.0, 2);
    rig.store.state.lock().unwrap().wins.clear();
    let (code, out, _) = rig.command("read", &["dead-letters", "list", "sale"]).await;
    assert_eq!((code, out.trim()), (0, "sale: no dead letters"));
    for action in
        [&["dead-letters", "--help"][..], &["dead-letters", "list", "--help"], &["dead-letters", "release", "--help"]]
    {
        assert_eq!(rig.command("x", action).await.0, 0, "{action:?}");
    }
}

/// What one void looked like: path, authorization, activity.
type Asked = Arc<Mutex<Vec<(String, Option<String>, Option<String>)>>>;

async fn shop(status: u16, body: &'static str) -> (SocketAddr, Asked) {
    let asked = Asked::default();
    let note = asked.clone();
    let routes = Router::new().fallback(move |request: Request| {
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let path = format!("{} {}", request.method(), request.uri());
        note.lock().unwrap().push((path, header("authorization"), header("seckill-activity")));
        async move { (http::StatusCode::from_u16(status).unwrap(), body) }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (address, asked)
}

#[tokio::test]
async fn a_shops_own_order_service_is_asked_behind_its_orders_url_with_the_token_if_there_is_one() {
    let id = found("ann", WinState::Held).request_id;
    let sale = "sale".parse().unwrap();
    let client = |address: SocketAddr, token: Option<&str>| {
        let url = format!("http://{address}/shop/orders?x=1").parse().unwrap();
        VoidClient::new(&url, token.map(str::to_owned), Duration::from_millis(500)).unwrap()
    };
    let (address, asked) = shop(200, "{\"state\":\"void\"}").await;
    assert_eq!(client(address, Some("secret")).void(&sale, id).await, Ok(Voided::Void));
    assert_eq!(client(address, None).void(&sale, id).await, Ok(Voided::Void));
    let path = format!("POST /shop/orders/{id}/void");
    let activity = Some("sale".to_owned());
    let expected = [(path.clone(), Some("Bearer secret".into()), activity.clone()), (path, None, activity)];
    assert_eq!(*asked.lock().unwrap(), expected);
    assert_eq!(client(shop(404, "").await.0, None).void(&sale, id).await, Ok(Voided::CannotVoid));
    assert!(client(shop(302, "").await.0, None).void(&sale, id).await.is_err());
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert!(client(nobody, None).void(&sale, id).await.is_err());
    // Accepts, and then hangs: unknown, and in time.
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(deaf.local_addr().unwrap(), None);
    let hung = tokio::time::timeout(Duration::from_secs(5), client.void(&sale, id));
    let error = hung.await.expect("the deadline did not hold").unwrap_err().to_string();
    assert!(!error.contains("127.0.0.1"), "{error}");
}
