//! What bars a sale for good: a doubt outlives the gate that had it, and the server run that raised it.

use std::time::Duration;

use seckill_gate::domain::StoreMs;
use seckill_gate::domain::admission::{Barred, Preheat, Terms, Verdict};
use seckill_gate::gate::activity::{Activity, Admitted};
use seckill_gate::platform::clock::wall_ms;
use tokio_util::sync::CancellationToken;

use super::fences::is_barred;
use super::{Bench, TcpProxy, admit, eventually, terms, won};
use crate::harness::redis::Redis;
use crate::harness::store::look;

const DEADLINE: Duration = Duration::from_millis(500);

/// Makes one server the replica of another, and waits until it has everything.
async fn follow(replica: &Redis, primary: &Redis) {
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]).unwrap();
    eventually("the replica is linked", || {
        let redis::Value::BulkString(info) = replica.command(&["INFO", "replication"]).unwrap() else { panic!() };
        String::from_utf8(info).unwrap().contains("master_link_status:up")
    })
    .await;
}

/// Another gate, or the same after a restart.
async fn another_gate(url: &str, id: &str) -> (Bench, std::sync::Arc<Activity>) {
    let bench = Bench::new(url, DEADLINE);
    let activity = Activity::start(id.parse().unwrap(), terms(1), &bench.world, CancellationToken::new());
    eventually("it was polled", || activity.view().reached).await;
    (bench, activity)
}

#[tokio::test]
async fn a_former_primary_that_is_promoted_again_is_still_suspect() {
    let options = ["--repl-diskless-sync-delay", "0"];
    let (former, successor) = (Redis::start_with(&options), Redis::start_with(&options));
    follow(&successor, &former).await;
    let proxy = TcpProxy::start(former.port).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port);
    let bench = Bench::new(&url, DEADLINE);
    let activity = bench.sale("sale").await;
    assert!(won(&admit(&activity, "ann").await));
    let copied = redis::Value::Int(2);
    eventually("the win is copied", || successor.command(&["HLEN", "sk:{sale.0}:wins"]).unwrap() == copied).await;
    // Failover. The win came across, but nobody can know that.
    successor.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    proxy.lead_to(successor.port);
    former.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    is_barred(&activity, Barred::Suspect).await;
    // And back: the run in which the sale was preheated, with what the successor held.
    follow(&former, &successor).await;
    former.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    proxy.lead_to(former.port);
    successor.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    let (other, fresh) = another_gate(&former.url(), "sale").await;
    let run = other.world.store.poll(&fresh.id, &look()).await.unwrap().server_run;
    for gate in [&activity, &fresh] {
        eventually("it speaks to the former primary", || gate.view().vouched.as_ref().unwrap().1 == run).await;
        assert_eq!(gate.view().barred, Some(Barred::Suspect));
        let told = admit(gate, "bob").await;
        assert!(matches!(told, Admitted::Judged(Verdict::Suspect, _)), "{told:?}");
    }
    let again = admit(&activity, "ann").await;
    assert!(matches!(again, Admitted::Judged(Verdict::Known(_), _)), "{again:?}");
}

#[tokio::test]
async fn a_gate_that_starts_after_a_lost_key_came_back_finds_the_sale_fenced() {
    let redis = Redis::start();
    let bench = Bench::new(&redis.url(), DEADLINE);
    let activity = bench.sale("sale").await;
    assert!(won(&admit(&activity, "ann").await));
    let redis::Value::BulkString(kept) = redis.command(&["DUMP", "sk:{sale.0}:wins"]).unwrap() else { panic!() };
    redis.command(&["DEL", "sk:{sale.0}:wins"]).unwrap();
    is_barred(&activity, Barred::Fenced).await;
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    redis::cmd("RESTORE").arg("sk:{sale.0}:wins").arg(0).arg(kept).exec(&mut connection).unwrap();
    let (_bench, fresh) = another_gate(&redis.url(), "sale").await;
    assert_eq!(fresh.view().barred, Some(Barred::Fenced));
    assert_eq!(admit(&fresh, "bob").await, Admitted::Barred(Barred::Fenced));
}

#[tokio::test]
async fn an_empty_store_has_run_out_only_if_nobody_waited_for_an_order() {
    let redis = Redis::start();
    let bench = Bench::new(&redis.url(), DEADLINE);
    let ends_at = StoreMs(wall_ms() + 1_500);
    let short = Terms { ends_at, retention: Duration::from_millis(1), ..terms(1) };
    let owed = bench.sale_on("owed", short.clone()).await;
    let idle = bench.sale_on("idle", short).await;
    assert!(won(&admit(&owed, "ann").await));
    // The delivery's own claims keep the keys of `owed` alive; here nobody delivers.
    eventually("the win was seen", || owed.view().unsettled == 1).await;
    eventually("the keys ran out", || redis.command(&["DBSIZE"]).unwrap() == redis::Value::Int(0)).await;
    is_barred(&owed, Barred::Fenced).await;
    eventually("it is simply over", || idle.view().barred == Some(Barred::NotPreheated)).await;
}

#[tokio::test]
async fn a_preheat_fills_only_the_run_that_was_seen_empty_and_only_in_time() {
    let mut redis = Redis::start();
    let bench = Bench::new(&redis.url(), DEADLINE);
    let (store, id) = (&bench.world.store, "sale".parse().unwrap());
    let seen = store.poll(&id, &look()).await.unwrap();
    let late = Preheat { run_id: seen.server_run, not_after: StoreMs(seen.now.0 - 1), terms: terms(1) };
    assert_eq!(store.preheat(&id, &late).await.unwrap().outcome, Err(Barred::Late));
    // Its first try was answered, and the answer lost; then the server loses what it held.
    let preheat = Preheat { not_after: seen.now.after(Duration::from_secs(60)), ..late };
    assert!(store.preheat(&id, &preheat).await.unwrap().outcome.is_ok());
    redis.kill();
    redis.forget_everything();
    redis.start_again();
    let mut again = store.preheat(&id, &preheat).await;
    while again.is_err() {
        again = store.preheat(&id, &preheat).await;
    }
    assert_eq!(again.unwrap().outcome, Err(Barred::Suspect));
    assert_eq!(redis.command(&["DBSIZE"]).unwrap(), redis::Value::Int(0));
}
