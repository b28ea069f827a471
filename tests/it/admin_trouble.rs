//! Operators' changes that meet trouble on their way: a client that hangs up, a store that would refuse them.

use std::time::Duration;

use seckill_gate::domain::admission::{Barred, Epoch};
use seckill_gate::domain::win::WinState;
use seckill_gate::gate::ledger::Voided;
use serde_json::json;

use crate::admin_rig::{Rig, found, rig};
use crate::harness::log::Log;

#[tokio::test]
async fn a_change_whose_client_hangs_up_is_made_nevertheless_and_leaves_its_audit_line() {
    let (log, _guard) = Log::start();
    let win = found("ann", WinState::Held);
    let of_win = |action: &str| format!("dead-letters/{}/{action}", win.request_id);
    let sku = json!({ "sku": "phone" });
    for (path, body, line) in [
        ("pause".to_owned(), json!({}), "pause"),
        ("resume".into(), json!({}), "resume"),
        ("stop-sku".into(), sku.clone(), "stop-sku"),
        ("start-sku".into(), sku, "start-sku"),
        ("totals".into(), json!({ "sku": "phone", "from": 10, "to": 12 }), "totals"),
        ("releases".into(), json!({ "request_id": win.request_id, "reason": "expired" }), "release"),
        (of_win("retry"), json!({}), "dead-letter-retry"),
        (of_win("release"), json!({}), "dead-letter-release"),
        ("dead-letters/retry-all".into(), json!({}), "dead-letter-retry-all"),
    ] {
        let rig = rig().await;
        rig.store_holds(3, 7);
        rig.ledger_holds(10, 7);
        rig.activity.win("ann", b"{}");
        let mut dead = win.clone();
        dead.record.dead_since = Some(seckill_gate::domain::StoreMs(1));
        rig.store.state.lock().unwrap().wins = vec![dead];
        *rig.ledger.voided.lock().unwrap() = Some(Voided::Void);
        let audited = || log.lines(&format!("action=\"{line}\""));

        let held = rig.activity.hold.write().await;
        let url = rig.url(&format!("/admin/activities/sale/{path}"));
        let request = rig.http.post(url).bearer_auth("change").json(&body).timeout(Duration::from_millis(300));
        assert!(request.send().await.unwrap_err().is_timeout(), "{line} was not held up");
        // Time for the listener to notice that nobody listens.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(audited(), [""; 0]);
        drop(held);
        for _ in 0..100 {
            if !audited().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(audited().len(), 1, "{line}");
        assert!(audited()[0].contains("outcome=\"applied\""), "{:?}", audited());
        if line == "totals" {
            assert_eq!(rig.calls(), ["ledger 10 -> 12", "store change"], "half-way");
        }
    }
}

/// What may have befallen a store, how to bring it about, and how changes are then refused.
type Trouble = (&'static str, fn(&Rig), &'static str);

const TROUBLES: [Trouble; 6] = [
    ("restarted, not seen yet", |rig| rig.store.state.lock().unwrap().restarted = true, "SUSPECT"),
    ("restarted, and followed", followed, "SUSPECT"),
    ("of another epoch", another_epoch, "FENCED"),
    ("incomplete", |rig| rig.store.state.lock().unwrap().incomplete = true, "FENCED"),
    ("gone", |rig| rig.store.state.lock().unwrap().snapshot = None, "FENCED"),
    ("whole again", |rig| rig.activity.state.lock().unwrap().seen = Some(Barred::Fenced), "FENCED"),
];

fn followed(rig: &Rig) {
    rig.store.state.lock().unwrap().restarted = true;
    rig.activity.state.lock().unwrap().follows = Some("another");
}

fn another_epoch(rig: &Rig) {
    rig.store.state.lock().unwrap().snapshot.as_mut().unwrap().terms.epoch = Epoch(2);
}

#[tokio::test]
async fn a_change_that_the_store_would_refuse_moves_nothing_and_is_not_promised() {
    for (trouble, befall, code) in TROUBLES {
        let rig = rig().await;
        rig.store_holds(3, 7);
        rig.ledger_holds(10, 7);
        befall(&rig);
        for (action, body) in [
            ("pause", json!({})),
            ("resume", json!({})),
            ("stop-sku", json!({ "sku": "phone" })),
            ("start-sku", json!({ "sku": "phone" })),
            ("totals", json!({ "sku": "phone", "from": 10, "to": 12 })),
            ("totals", json!({ "sku": "phone", "from": 10, "to": 8 })),
        ] {
            for dry_run in [false, true] {
                let mut asked = body.clone();
                asked["dry_run"] = dry_run.into();
                assert_eq!(rig.change(action, asked).await, (409, code.into()), "{trouble}: {action}, {dry_run}");
            }
        }
        assert_eq!(rig.calls(), [""; 0], "{trouble}: something moved");
    }
}

#[tokio::test]
async fn a_win_is_given_up_only_where_the_store_would_take_its_release() {
    for (trouble, befall, code) in TROUBLES {
        let rig = rig().await;
        rig.store_holds(3, 7);
        let mut win = found("ann", WinState::Held);
        win.record.dead_since = Some(seckill_gate::domain::StoreMs(1));
        rig.activity.win("ann", b"{}");
        rig.store.state.lock().unwrap().wins = vec![win.clone()];
        *rig.ledger.voided.lock().unwrap() = Some(Voided::Void);
        befall(&rig);
        let of_win = |action: &str| format!("dead-letters/{}/{action}", win.request_id);
        // A store that is suspect still takes the order service's word, from a gate that follows its run.
        let goes_on = ["restarted, and followed", "whole again"].contains(&trouble);
        let told = |done: &str| if goes_on { (200, done.to_owned()) } else { (409, code.to_owned()) };
        let ended = json!({ "request_id": win.request_id, "reason": "expired", "dry_run": true });
        assert_eq!(rig.change("releases", ended).await, told("would_apply"), "{trouble}");
        for action in [of_win("retry"), of_win("release"), "dead-letters/retry-all".into()] {
            assert_eq!(
                rig.change(&action, json!({ "dry_run": true })).await,
                told("would_apply"),
                "{trouble}: {action}"
            );
        }
        assert_eq!(rig.change(&of_win("release"), json!({})).await, told("applied"), "{trouble}");
        let voided = if goes_on { vec![format!("void {}", win.request_id)] } else { Vec::new() };
        assert_eq!(rig.calls(), voided, "{trouble}");
    }
}

#[tokio::test]
async fn a_store_that_has_lost_something_is_not_said_to_hold_nothing() {
    for (trouble, befall, code) in TROUBLES.into_iter().filter(|(trouble, ..)| ["incomplete", "gone"].contains(trouble))
    {
        let rig = rig().await;
        rig.store_holds(10, 0);
        let id = found("ann", WinState::Held).request_id.to_string();
        let (exit, out, _) = rig.command("read", &["why", &id]).await;
        assert!(exit == 1 && out.contains("It never won"), "{out}");
        befall(&rig);
        for path in ["dead-letters".to_owned(), "wins".into(), format!("wins/{id}")] {
            let (status, told) = rig.get(&format!("/admin/activities/sale/{path}")).await;
            assert_eq!((status, told["code"].as_str()), (409, Some(code)), "{trouble}: {path}");
        }
        let (exit, out, _) = rig.command("read", &["why", &id]).await;
        assert!(exit == 1 && out.contains("FENCED") && !out.contains("It never won"), "{trouble}: {out}");
    }
}
