//! An operator at work on a whole deployment: what is asked is true while the sale runs, and a change is made once.

use std::time::Duration;

use loadtest::crowd::{Crowd, Plan};
use serde_json::Value;

use crate::harness::deployment::{Deployment, SALE, SKU, Wish, run, seckill_gate};
use crate::harness::proxy::Mode;

fn json(deployment: &Deployment, gate: usize, arguments: &[&str]) -> (Option<i32>, Value) {
    let output = deployment.command(gate, arguments).arg("--json").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e}: {printed}{output:?}"));
    (output.status.code(), value)
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_status_and_why_are_true_while_the_sale_runs() {
    const STOCK: u32 = 500;
    let deployment = Deployment::as_wished(Wish { gates: 2, stock: STOCK, ..Wish::default() }).await;
    let gates = deployment.gates.iter().map(|gate| ([127, 0, 0, 1], gate.public).into()).collect();
    let mut plan = Plan::new(gates, SALE, SKU, deployment.signer());
    (plan.users, plan.attempts_per_user) = (800, 3);
    plan.pace = Duration::from_millis(300);
    plan.arrive_within = Duration::from_secs(3);
    plan.surge = Duration::from_secs(6);
    plan.concurrency = 200;
    plan.give_up_after = Duration::from_secs(60);
    let rush = tokio::spawn(Crowd::send(plan).finish(|_, _| ()));
    let mut audits_amid_wins = 0;
    while !rush.is_finished() {
        let (code, audit) = json(&deployment, 0, &["audit", SALE]);
        assert_eq!((code, &audit["violations"]), (Some(0), &0.into()), "{audit:#}");
        let (code, status) = json(&deployment, 1, &["status", SALE]);
        let activity = &status["activities"][0];
        let sku = &activity["skus"][0];
        let part = |name: &str| sku[name].as_i64().unwrap();
        let sum: i64 = ["left", "returning", "withheld", "held", "accepted"].iter().map(|name| part(name)).sum();
        assert_eq!((code, part("total"), sum), (Some(0), i64::from(STOCK), i64::from(STOCK)), "{status:#}");
        let wins = &activity["wins"];
        if wins["held"].as_i64().unwrap() + wins["accepted"].as_i64().unwrap() > 0 && part("left") > 0 {
            audits_amid_wins += 1;
        }
    }
    let funnel = rush.await.unwrap();
    assert_eq!(funnel.broken, Vec::<String>::new());
    assert!(audits_amid_wins > 0, "the sale was over before it was looked at");
    deployment.until_count("SELECT COUNT(*) FROM orders WHERE state = 'pending'", i64::from(STOCK)).await;
    let (code, audit) = json(&deployment, 0, &["audit", SALE]);
    assert_eq!((code, &audit["violations"]), (Some(0), &0.into()), "{audit:#}");
    let checks = audit["activities"][0]["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["checked"].as_u64().is_some_and(|n| n > 0)), "{audit:#}");

    // An order that nobody won: the audit finds it, and says so by its exit code.
    let forged = format!(
        "UPDATE orders SET request_id = '{}' WHERE activity = '{SALE}' AND state = 'pending' LIMIT 1",
        "f".repeat(32)
    );
    deployment.execute(&forged).await;
    let (code, audit) = json(&deployment, 0, &["audit", SALE]);
    assert_eq!(code, Some(3), "{audit:#}");
    // Half an audit is none: without the ledger it does not say that all is well.
    let gate = format!("http://127.0.0.1:{}", deployment.gates[0].admin);
    let token = std::fs::read_to_string(deployment.config.with_file_name("secrets/admin-token")).unwrap();
    let mut blind = seckill_gate();
    let blind =
        blind.args(["audit", SALE, "--admin", &gate]).env("SECKILL_ADMIN_TOKEN", token.trim()).output().unwrap();
    let said = String::from_utf8_lossy(&blind.stdout);
    assert!(blind.status.code() == Some(1) && said.contains("0 violations, 4 checks not made"), "{blind:?}");
    let (code, why) = json(&deployment, 0, &["why", &"f".repeat(32)]);
    assert!(code == Some(3) && why["verdict"].as_str().unwrap().contains("CONTRADICTION"), "{why:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_tells_what_became_of_an_attempt() {
    let mut deployment = Deployment::start(1, 5).await;
    let told = |deployment: &Deployment, code: i32, arguments: &[&str], part: &str| {
        let output = deployment.command(0, arguments).output().unwrap();
        let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(printed.contains(part), "{printed}");
    };
    // Won while the order service is down: held, in the outbox.
    deployment.kill_orders();
    let token = deployment.token(0, "ann", "k1").await;
    let won = deployment.attempt(0, "ann", "k1", &token).await;
    assert_eq!(won.outcome, "QUEUED");
    let id = won.request_id.unwrap();
    told(&deployment, 0, &["why", &id], "outbox");
    told(&deployment, 0, &["why", &id], "ledger   not answered");
    // Booked.
    deployment.start_orders();
    assert_eq!(deployment.result(SALE, 0, "ann", "k1").await["state"], "accepted");
    told(&deployment, 0, &["why", &id, "--activity", SALE], "told WON");
    told(&deployment, 0, &["why", "--activity", SALE, "--user", "ann", "--key", "k1"], "told WON");
    // Lost, or never sent: nothing is recorded of it.
    told(&deployment, 1, &["why", "--activity", SALE, "--user", "bob", "--key", "k1"], "Not known");
    told(&deployment, 2, &["why"], "Usage");
    told(&deployment, 2, &["why", "x"], "request id");
    told(&deployment, 1, &["why", &id, "--activity", "nothing"], "NO_SUCH_ACTIVITY");
}

#[tokio::test(flavor = "multi_thread")]
async fn totals_whose_reply_was_lost_are_applied_once_when_repeated() {
    let wish = Wish {
        store_proxy: true,
        orders_proxy: true,
        store_deadline: Duration::from_millis(500),
        orders: "  deadline: 1s",
        ..Wish::default()
    };
    let deployment = Deployment::as_wished(wish).await;
    let totals = async |deployment: &Deployment| {
        let of_ledger = deployment.count(&format!("SELECT total FROM stock WHERE activity = '{SALE}'")).await;
        let field = format!("{SKU}:total");
        let of_store = deployment.store.command(&["HGET", &format!("sk:{{{SALE}.0}}:stock"), &field]).unwrap();
        (of_ledger, redis::from_redis_value::<i64>(of_store).unwrap())
    };
    let set = |from: i64, to: i64| {
        let (from, to) = (from.to_string(), to.to_string());
        let arguments = ["totals", SALE, SKU, "--from", &from, "--to", &to];
        deployment.command(0, &arguments).output().unwrap()
    };
    // Raising goes to the ledger first; its reply is lost, then the store's.
    let proxies = [deployment.orders_proxy.as_ref().unwrap(), deployment.store_proxy.as_ref().unwrap()];
    for (lossy, from, to) in [(0, 10, 15), (1, 15, 18), (1, 18, 12), (0, 12, 11)] {
        let before = proxies[lossy].swallowed();
        proxies[lossy].set(Mode::DropReplies);
        let lost = set(from, to);
        assert!(!lost.status.success(), "{lost:?}");
        assert!(proxies[lossy].swallowed() > before);
        proxies[lossy].set(Mode::Pass);
        deployment.until_open(0).await;
        let mut repeated = set(from, to);
        for _ in 0..50 {
            // The gate may still be on connections that it has to give up first.
            if repeated.status.success() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            repeated = set(from, to);
        }
        assert!(repeated.status.success(), "{repeated:?}");
        assert_eq!(totals(&deployment).await, (to, to));
        // And once more: nothing changes.
        let printed = String::from_utf8_lossy(&set(from, to).stdout).into_owned();
        assert!(printed.contains("already"), "{printed}");
        assert_eq!(totals(&deployment).await, (to, to));
    }
    // From a number that is not the total any more, it is refused with the number.
    let refused = set(10, 20);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("11"), "{refused:?}");
    run(seckill_gate().args(["status", SALE, "-c"]).arg(&deployment.config));
}
