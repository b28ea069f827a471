//! Operators' changes that meet trouble on their way: a client that hangs up, a store that would refuse them.

use std::time::Duration;

use seckill_gate::domain::win::WinState;
use seckill_gate::gate::ledger::Voided;
use serde_json::json;

use crate::admin_rig::{found, rig};
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
