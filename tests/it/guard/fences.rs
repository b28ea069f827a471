//! Suspect and fenced: recognised within a second, told to nobody as sold out, and not lifted by accident.

use std::time::{Duration, Instant};

use seckill_gate::domain::admission::{Barred, Change, Claimed, Preheated, Recorded, Settlement, Verdict};
use seckill_gate::domain::dead_letters::DeadPage;
use seckill_gate::domain::refusal::Code;
use seckill_gate::gate::activity::{Activity, Admitted, Phase};
use seckill_gate::gate::stages::outcome::{Fate, fate};
use seckill_gate::gate::stages::time::Leave;

use super::{Bench, TcpProxy, admit, attempt, eventually, terms, won};
use crate::harness::process::signal;
use crate::harness::redis::Redis;
use crate::harness::store::preheat;

const DEADLINE: Duration = Duration::from_millis(500);
/// Within a second, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(3);

pub(super) async fn is_barred(activity: &Activity, barred: Barred) {
    let took = eventually(&format!("{} is {barred:?}", activity.id), || activity.view().barred == Some(barred)).await;
    assert!(took < SOON, "took {took:?}");
    let view = activity.view();
    assert_eq!(view.phase(view.starts_at), Phase::Paused);
    assert!(view.sold_out_lease_until.is_none());
}

/// What a new user's attempt is told.
async fn told(activity: &Activity, user: &str) -> Fate {
    let now = activity.file.get().starts_at.after(Duration::from_secs(60));
    fate(admit(activity, user).await, &Leave::MayWin, now, activity.file.get().starts_at)
}

#[tokio::test]
async fn a_store_that_loses_a_key_is_fenced_and_the_other_sales_go_on() {
    const ROLES: [&str; 10] =
        ["meta", "stock", "buyers", "wins", "bodies", "due", "returning", "journal", "gates", "dead"];
    let redis = Redis::start();
    let bench = Bench::new(&redis.url(), DEADLINE);
    let other = bench.sale("other").await;
    let mut sales = Vec::new();
    for role in ROLES {
        sales.push(bench.sale(&format!("lost-{role}")).await);
    }
    assert!(bench.shows(r#"seckill_activity_barred{activity="lost-due",reason="fenced"} 0"#));
    let key = |role: &str| format!("sk:{{lost-{role}.0}}:{role}");
    let kept = redis.command(&["DUMP", &key("wins")]).unwrap();
    for role in ROLES {
        redis.command(&["DEL", &key(role)]).unwrap();
    }
    for activity in &sales {
        is_barred(activity, Barred::Fenced).await;
        assert_eq!(told(activity, "ann").await, Fate::Refused(Code::Paused), "{}", activity.id);
        assert_eq!(activity.preheat(&activity.file.get()).await.unwrap(), Ok(Preheated::Incomplete), "{}", activity.id);
        tells_of_no_win(&bench, activity, Barred::Fenced).await;
    }
    assert!(bench.shows(r#"seckill_activity_barred{activity="lost-due",reason="fenced"} 1"#));
    assert!(bench.shows(r#"seckill_activity_barred{activity="other",reason="fenced"} 0"#));
    assert!(won(&admit(&other, "ann").await));

    // A key that comes back as it was does not tell what was lost meanwhile.
    let redis::Value::BulkString(kept) = kept else { panic!("{kept:?}") };
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    redis::cmd("RESTORE").arg(key("wins")).arg(0).arg(kept).exec(&mut connection).unwrap();
    let again = &sales[3];
    eventually("complete again", || again.view().unsettled == 0 && polls_of(&bench, "lost-wins") > 0).await;
    let polls = polls_of(&bench, "lost-wins");
    eventually("polled again", || polls_of(&bench, "lost-wins") > polls + 2).await;
    assert_eq!(again.view().barred, Some(Barred::Fenced));
}

/// Look-ups say why they find nothing, and not that there is nothing.
async fn tells_of_no_win(bench: &Bench, activity: &Activity, barred: Barred) {
    let ann = attempt(&activity.id, "ann");
    assert_eq!(activity.find(ann.request_id).await.unwrap(), Err(barred), "{}", activity.id);
    assert_eq!(activity.wins_of(&ann.user).await.unwrap(), Err(barred), "{}", activity.id);
    let page = DeadPage { after: None, limit: 1 };
    assert_eq!(bench.world.store.dead_letters(&activity.id, &page).await.unwrap(), Err(barred), "{}", activity.id);
}

fn polls_of(bench: &Bench, sale: &str) -> u64 {
    let metrics = bench.metrics.render().unwrap();
    let name = format!("seckill_store_polls_total{{activity=\"{sale}\",result=\"ok\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_store_that_is_emptied_or_made_anew_is_fenced() {
    let redis = Redis::start();
    let bench = Bench::new(&redis.url(), DEADLINE);
    let [emptied, anew, epoch] = [bench.sale("emptied").await, bench.sale("anew").await, bench.sale("epoch").await];
    // One poll before the preheat, one of the preheat's own: after the next the watch itself has read the journal.
    for name in ["emptied", "anew", "epoch"] {
        eventually("its journal was read", || polls_of(&bench, name) >= 4).await;
    }
    redis.command(&["FLUSHALL"]).unwrap();
    // At once, mostly before any gate has seen it empty.
    preheat(bench.world.store.as_ref(), &anew.id, &anew.file.get()).await;
    preheat(bench.world.store.as_ref(), &epoch.id, &terms(2)).await;
    for activity in [&emptied, &anew, &epoch] {
        is_barred(activity, Barred::Fenced).await;
    }
    assert_eq!(told(&emptied, "ann").await, Fate::Refused(Code::Paused));
    tells_of_no_win(&bench, &emptied, Barred::NotPreheated).await;
    assert_eq!(told(&epoch, "ann").await, Fate::Refused(Code::Paused));
}

#[tokio::test]
async fn a_restarted_store_is_suspect_and_an_empty_one_fenced() {
    let mut kept = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut lost = Redis::start();
    let (suspect, fenced) = (Bench::new(&kept.url(), DEADLINE), Bench::new(&lost.url(), DEADLINE));
    let (on_kept, on_lost) = (suspect.sale("sale").await, fenced.sale("sale").await);
    assert!(won(&admit(&on_kept, "ann").await) && won(&admit(&on_lost, "ann").await));
    for server in [&mut kept, &mut lost] {
        server.kill();
        server.start_again();
    }
    is_barred(&on_kept, Barred::Suspect).await;
    is_barred(&on_lost, Barred::Fenced).await;
    assert!(suspect.shows(r#"seckill_activity_barred{activity="sale",reason="suspect"} 1"#));
    assert!(fenced.shows(r#"seckill_activity_barred{activity="sale",reason="fenced"} 1"#));
    // A known win is told, nobody wins, and nothing is made anew.
    let again = admit(&on_kept, "ann").await;
    assert!(matches!(again, Admitted::Judged(Verdict::Known(_), _)), "{again:?}");
    assert!(on_kept.find(attempt(&on_kept.id, "ann").request_id).await.unwrap().unwrap().is_some());
    assert_eq!(told(&on_kept, "bob").await, Fate::Refused(Code::Paused));
    assert_eq!(told(&on_lost, "bob").await, Fate::Refused(Code::Paused));
    assert_eq!(on_kept.preheat(&on_kept.file.get()).await.unwrap(), Ok(Preheated::Already));
    assert_eq!(on_kept.snapshot().await.unwrap().unwrap().skus[0].1.left, 49);
    // The win goes on to its end.
    let id = attempt(&on_kept.id, "ann").request_id;
    let booked = Settlement::Booked { reply: "booked".into() };
    assert!(matches!(on_kept.settle(id, booked).await, Ok(Ok(Recorded::Applied(_)))));
    assert_eq!(on_kept.claim_due(10, Duration::from_secs(1), false).await.unwrap(), Ok(Claimed::default()));
    let change = on_kept.operate(Change::Pause).await;
    assert!(matches!(change, Ok(Err(Barred::Suspect))), "{change:?}");
}

#[tokio::test]
async fn calls_on_a_connection_to_the_former_run_are_given_up_once_another_run_is_seen() {
    let (former, present) = (Redis::start(), Redis::start());
    let proxy = TcpProxy::start(former.port).await;
    // Far beyond the test: whatever ends before was given up.
    let deadline = Duration::from_secs(60);
    let bench = Bench::new(&format!("redis://127.0.0.1:{}/", proxy.port), deadline);
    let activity = bench.sale("sale").await;
    assert!(won(&admit(&activity, "ann").await));
    // The former server neither answers nor closes anything; whoever connects anew is led to the other one.
    signal(former.pid(), "STOP");
    proxy.lead_to(present.port);
    let started = Instant::now();
    let hanging = admit(&activity, "bob").await;
    assert_eq!(hanging, Admitted::Unknown, "it was sent, and nobody knows");
    assert!(started.elapsed() < SOON, "took {:?}", started.elapsed());
    is_barred(&activity, Barred::Fenced).await;
    // What the former server would still answer is heard by nobody.
    signal(former.pid(), "CONT");
    assert_eq!(told(&activity, "cat").await, Fate::Refused(Code::Paused));
}
