//! Operating commands when something else answers than they expect, or nothing does: they say where to look.

use std::net::SocketAddr;
use std::process::Command;

use axum::Router;
use axum::routing::get;
use seckill_gate::domain::win::WinState;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::admin::CONFIGURATION;
use crate::admin_rig::{found, rig};
use crate::harness::process::free_port;

/// A command without anything from the environment: exit code, and all that it printed.
async fn run(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill-gate"));
    command.args(arguments).env_clear().envs(environment.iter().copied());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let printed = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.code(), printed)
}

async fn serve(routes: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address
}

/// A configuration whose admin listener is there, and whose token is this.
fn configuration(folder: &tempfile::TempDir, admin: &str, token: &str) -> String {
    std::fs::write(folder.path().join("admin-token"), token).unwrap();
    let file = folder.path().join("gate.yaml");
    std::fs::write(&file, CONFIGURATION.replace("ADMIN", admin)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn why_says_why_the_ledger_was_not_asked_and_asks_it_when_the_store_is_silent() {
    let rig = rig().await;
    let win = found("u1", WinState::Accepted);
    let id = win.request_id.to_string();
    rig.store_holds(9, 1);
    rig.store.state.lock().unwrap().wins = vec![win];
    let order = json!({ "order_id": "o-1", "state": "paid", "created_at_ms": 1_000 });
    let of = |order: Value| Router::new().route("/orders/{id}", get(async move || axum::Json(order)));
    let orders = format!("http://{}/orders", serve(of(order)).await);
    let nobody = format!("http://127.0.0.1:{}/orders", free_port());
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(&folder, &rig.address.to_string(), "read");
    let (admin, away) = (format!("http://{}", rig.address), format!("http://127.0.0.1:{}", free_port()));
    let why = async |more: &[&str]| {
        let told = run(&[&["why", id.as_str()], more].concat(), &[("SECKILL_ADMIN_TOKEN", "read")]).await;
        (told.0.unwrap(), told.1)
    };
    let named = ["--orders", orders.as_str(), "--orders-token", "api"];

    let (code, told) = why(&["--admin", &admin]).await;
    assert!(code == 0 && told.contains("ledger   not asked: it is not named; use -c FILE"), "{code} {told}");
    let (code, told) = why(&["-c", &file]).await;
    assert!(code == 0 && told.contains("ledger   not asked: the order service is the shop's own"), "{code} {told}");
    let (code, told) = why(&["--admin", &admin, "--orders", &nobody, "--orders-token", "api"]).await;
    assert!(code == 0 && told.contains("ledger   not answered: "), "{code} {told}");
    let (code, told) = why(&[&["--admin", &admin], &named[..]].concat()).await;
    assert!(code == 0 && told.contains("told WON"), "{code} {told}");

    rig.store.state.lock().unwrap().down = true;
    for gate in [&admin, &away] {
        let (code, told) = why(&[&["--admin", gate.as_str()], &named[..]].concat()).await;
        let parts = ["store    not answered: ", "ledger   order o-1: paid", "Booked: the order stands"];
        assert!(code == 1 && parts.iter().all(|part| told.contains(part)), "{code} {told}");
    }
    let (code, told) = why(&["--admin", &admin]).await;
    assert!(code == 1 && told.contains("STORE_UNAVAILABLE"), "{code} {told}");
    // A question that is wrong is no silence.
    let (code, told) = why(&[&["--admin", &admin, "--activity", "nosuch"], &named[..]].concat()).await;
    assert!(code == 1 && told.contains("NO_SUCH_ACTIVITY") && !told.contains("Booked"), "{code} {told}");
}

#[tokio::test]
async fn what_is_no_admin_listener_is_named_and_doubted() {
    let problem = json!({ "code": "NOT_FOUND", "detail": "no such route" }).to_string();
    let not_found = move || async move { (http::StatusCode::NOT_FOUND, problem) };
    let others = [
        ("a metrics listener", Router::new()),
        ("a shop's page", Router::new().fallback(async || "<!doctype html>")),
        ("another listener of ours", Router::new().fallback(not_found)),
    ];
    for (what, routes) in others {
        let url = format!("http://{}", serve(routes).await);
        let (code, told) = run(&["status", "--admin", &url], &[("SECKILL_ADMIN_TOKEN", "x")]).await;
        let parts = [url.as_str(), "is it the admin listener", "8081"];
        assert!(code == Some(1) && parts.iter().all(|part| told.contains(part)), "{what}: {code:?} {told}");
        assert!(!told.contains("gate.admin"), "{what}: {told}");
    }
}

#[tokio::test]
async fn a_token_or_an_address_that_only_the_file_has_changed_is_explained() {
    let rig = rig().await;
    let folder = tempfile::tempdir().unwrap();
    let file = configuration(&folder, &rig.address.to_string(), "a-new-token");
    let (code, told) = run(&["status", "-c", &file], &[]).await;
    let parts = ["UNAUTHENTICATED", file.as_str(), "SIGHUP", "SECKILL_ADMIN_TOKEN"];
    assert!(code == Some(1) && parts.iter().all(|part| told.contains(part)), "{code:?} {told}");
    let (code, told) = run(&["status", "-c", &file], &[("SECKILL_ADMIN_TOKEN", "wrong")]).await;
    assert!(code == Some(1) && told.contains("UNAUTHENTICATED") && !told.contains("SIGHUP"), "{code:?} {told}");

    let file = configuration(&folder, &format!("127.0.0.1:{}", free_port()), "change");
    let (code, told) = run(&["status", "-c", &file], &[]).await;
    let parts = ["does the gate run?", "`gate.admin`", file.as_str(), "--admin"];
    assert!(code == Some(1) && parts.iter().all(|part| told.contains(part)), "{code:?} {told}");
    let url = format!("http://127.0.0.1:{}", free_port());
    let (code, told) = run(&["status", "-c", &file, "--admin", &url], &[]).await;
    assert!(code == Some(1) && !told.contains("`gate.admin`"), "{code:?} {told}");
}
