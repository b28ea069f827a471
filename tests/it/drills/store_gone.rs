//! The store stops in a rush, or dies and comes back with or without its data: refused in time, by name, nothing admitted,
//! pages served, nothing sold twice.

use std::time::{Duration, Instant};

use futures::future::join_all;
use loadtest::crowd::Crowd;
use seckill_gate::platform::clock::wall_ms;
use serde_json::Value;

use super::measured::{Heard, Ready};
use super::{STOCK, Standing, key, moment, rush, say, until_wins, wins};
use crate::harness::deployment::{Deployment, SALE, Told, Wish, run};
use crate::harness::process::signal;

const DEADLINE: Duration = Duration::from_millis(500);
/// Every reply comes within the store's deadline and this.
const GRACE: Duration = Duration::from_secs(1);
const SEED: u64 = 7;

/// A rush at its moment, before which one user has bought. The crowd comes by one of two gates; so the other's first call
/// to a store that went away is surely an attempt that never won.
struct Scene {
    deployment: Deployment,
    crowd: Crowd,
    ann: Ready,
    ann_was_told: Told,
    /// Attempts to be sent while the store is away, half of each by either gate.
    waves: Vec<Vec<Ready>>,
}

impl Scene {
    async fn set() -> Scene {
        let wish = Wish { gates: 2, stock: STOCK, store_deadline: DEADLINE, durable_store: true, ..Wish::default() };
        let deployment = Deployment::as_wished(wish).await;
        let ann = Ready::users(&deployment, SALE, &[0], "ann", 1).await.remove(0);
        ann.attempt(&deployment).await;
        assert_eq!(deployment.result(SALE, 0, &ann.user, "key").await["state"], "accepted");
        let ann_was_told = ann.attempt(&deployment).await.told;
        assert_eq!(ann_was_told.outcome, "WON");
        let mut waves = Vec::new();
        for wave in 0..4 {
            waves.push(Ready::users(&deployment, SALE, &[0, 1], &format!("wave-{wave}"), 20).await);
        }
        let crowd = rush(&deployment, SALE, &[0], SEED);
        until_wins(&deployment, SALE, moment(SEED)).await;
        Scene { deployment, crowd, ann, ann_was_told, waves }
    }

    /// While the store is away: every reply in time and 503, pages and state served. Only what was under way when it went
    /// may have an unknown outcome; tells how many had. The last wave comes after the crowd has gone home.
    async fn all_hear_unavailable(deployment: &Deployment, waves: &[Vec<Ready>], crowd: Crowd, drill: &str) -> usize {
        let (mut crowd, mut unknown) = (Some(crowd), 0);
        for (number, wave) in waves.iter().enumerate() {
            if number + 1 == waves.len() {
                crowd = None;
            }
            let (heard, ()) = tokio::join!(Ready::attempt_all(wave, deployment), pages_are_served(deployment));
            let slowest = heard.iter().map(|heard| heard.took).max().unwrap();
            say(drill, format_args!("wave {number}: the slowest heard after {slowest:?}"));
            for Heard { told, took } in &heard {
                assert!(*took < DEADLINE + GRACE, "wave {number}: {told:?} after {took:?}");
                let under_way = number == 0 && told.outcome == "OUTCOME_UNKNOWN";
                unknown += usize::from(under_way);
                let named = under_way || told.outcome == "STORE_UNAVAILABLE";
                assert!(told.status == 503 && named, "wave {number}: {told:?}");
            }
        }
        drop(crowd);
        unknown
    }

    /// The activity as operators see it.
    fn status(deployment: &Deployment) -> Value {
        let printed = deployment.command(0, &["status", SALE, "--json"]).output().unwrap().stdout;
        serde_json::from_slice::<Value>(&printed).unwrap()["activities"][0].clone()
    }

    /// Nobody wins, however often and whoever asks; for two seconds, in which the gate polls eight times.
    async fn nobody_wins(deployment: &Deployment, waves: &[Vec<Ready>]) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            for heard in Ready::attempt_all(&waves[0], deployment).await {
                assert_eq!((heard.told.status, heard.told.outcome.as_str()), (503, "PAUSED"), "{heard:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn pages_are_served(deployment: &Deployment) {
    let page = format!("/seckill/{SALE}");
    let look = async |(gate, path): (usize, String)| {
        let begun = Instant::now();
        let status = deployment.look(gate, &path).await;
        assert!(status == 200 && begun.elapsed() < DEADLINE + GRACE, "{path}: {status} after {:?}", begun.elapsed());
    };
    let state = format!("{page}/state");
    join_all([(0, page.clone()), (0, state.clone()), (1, page), (1, state)].map(look)).await;
}

/// Both gates notice. Whoever comes before that is judged by the store itself, and does not win either.
async fn until_paused(deployment: &Deployment, wave: &[Ready]) {
    super::until_async("both gates say paused", async || {
        for heard in Ready::attempt_all(wave, deployment).await {
            assert_eq!(heard.told.status, 503, "{heard:?}");
        }
        let mut paused = true;
        for gate in 0..deployment.gates.len() {
            paused &= deployment.json(gate, &format!("/seckill/{SALE}/state"), "nobody").await["phase"] == "paused";
        }
        paused
    })
    .await;
}

/// When the store judged the latest win, ms of its clock.
fn latest_win(deployment: &Deployment) -> u64 {
    let wins: Vec<String> =
        redis::from_redis_value(deployment.store.command(&["HVALS", &key(SALE, "wins")]).unwrap()).unwrap();
    wins.iter().filter_map(|win| win.split(' ').nth(4)?.parse().ok()).max().unwrap()
}

fn stands_still(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_stands_still_everybody_hears_so_in_time_and_nobody_is_admitted() {
    const DRILL: &str = "store stopped";
    let Scene { deployment, crowd, ann, ann_was_told, waves } = Scene::set().await;
    let store = deployment.store.pid();
    signal(store, "STOP");
    super::until("the store stands still", || stands_still(store)).await;
    let stopped_at = wall_ms();
    let unknown = Scene::all_hear_unavailable(&deployment, &waves, crowd, DRILL).await;
    signal(store, "CONT");
    assert!(unknown > 0, "no batch lay in the socket: the drill is none");
    let before = wins(&deployment, SALE);
    // The same server goes on: a known id is told its win, nothing is suspect.
    assert_eq!(ann.until_answered(&deployment).await, ann_was_told);
    // Everybody has gone home: whoever wins now wins by a call that is too late.
    let latest = latest_win(&deployment);
    assert!(latest <= stopped_at, "somebody was admitted {} ms after the store stopped", latest - stopped_at);
    assert_eq!(wins(&deployment, SALE), before);
    assert!(before < i64::from(STOCK), "nothing was left: the drill is none");

    // The sale sells on.
    let late = &waves[0][0];
    let heard = late.until_answered(&deployment).await;
    assert!(["WON", "QUEUED"].contains(&heard.outcome.as_str()), "{heard:?}");
    assert_eq!(deployment.result(SALE, 0, &late.user, "key").await["state"], "accepted");
    let orders = format!("SELECT COUNT(*) FROM orders WHERE activity = '{SALE}' AND state = 'pending'");
    deployment.until_count(&orders, before + 1).await;
    let users = format!("SELECT COUNT(DISTINCT user) FROM orders WHERE activity = '{SALE}'");
    assert_eq!(deployment.count(&users).await, before + 1);
    run(&mut deployment.command(0, &["audit", SALE]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_back_from_its_disk_is_suspect_and_sells_nothing_twice() {
    const DRILL: &str = "store killed, back from its disk";
    let Scene { mut deployment, crowd, ann, ann_was_told, waves } = Scene::set().await;
    deployment.store.kill();
    Scene::all_hear_unavailable(&deployment, &waves, crowd, DRILL).await;
    deployment.store.start_again();
    let before = wins(&deployment, SALE);
    until_paused(&deployment, &waves[0]).await;

    assert!(before >= moment(SEED), "{before} wins are left: the store lost some");
    let status = Scene::status(&deployment);
    assert_eq!((&status["barred"], &status["phase"]), (&"suspect".into(), &"paused".into()), "{status}");
    alarmed(&deployment, "suspect").await;
    let code = deployment.command(0, &["status", SALE]).output().unwrap().status.code();
    assert_eq!(code, Some(3), "somebody has to look");
    Scene::nobody_wins(&deployment, &waves).await;
    assert_eq!(ann.attempt(&deployment).await.told, ann_was_told, "a known id is told its win");
    assert_eq!(deployment.result(SALE, 0, &ann.user, "key").await["state"], "accepted");
    // A gate that starts now has no memory of the former run, and is not fooled either.
    deployment.kill_gate(0);
    deployment.start_gate(0);
    until_paused(&deployment, &waves[0]).await;
    Scene::nobody_wins(&deployment, &waves).await;
    assert_eq!(ann.attempt(&deployment).await.told, ann_was_told);

    // Whoever was told of a win gets the order.
    let booked = format!("SELECT COUNT(*) FROM orders WHERE activity = '{SALE}' AND state = 'pending'");
    deployment.until_count(&booked, before).await;
    let standing = Standing::of(&deployment, SALE).await;
    assert_eq!(standing.wins, before, "somebody won in a suspect store: {standing:?}");
    assert!(standing.orders == before && standing.users == standing.orders, "{standing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_back_empty_is_fenced_and_preheat_refuses_to_sell_again() {
    const DRILL: &str = "store killed, back empty";
    let Scene { mut deployment, crowd, waves, .. } = Scene::set().await;
    deployment.store.kill();
    Scene::all_hear_unavailable(&deployment, &waves, crowd, DRILL).await;
    deployment.store.forget_everything();
    deployment.store.start_again();
    until_paused(&deployment, &waves[0]).await;

    let status = Scene::status(&deployment);
    assert_eq!((&status["barred"], &status["phase"]), (&"fenced".into(), &"paused".into()), "{status}");
    alarmed(&deployment, "fenced").await;
    preheat_refuses(&deployment);
    Scene::nobody_wins(&deployment, &waves).await;
    // A gate that starts now has never seen the activity; the ledger has.
    deployment.kill_gate(0);
    deployment.start_gate(0);
    preheat_refuses(&deployment);
    until_paused(&deployment, &waves[0]).await;
    Scene::nobody_wins(&deployment, &waves).await;
    // This gate has never seen the sale in its store, so all it knows is what the ledger says.
    let audit = deployment.command(0, &["audit"]).output().unwrap();
    let said = String::from_utf8_lossy(&audit.stdout);
    assert!(audit.status.code() == Some(3) && said.contains("its store is empty: it has lost it"), "{said}");
    assert_eq!(super::stored(&deployment, &["EXISTS", &key(SALE, "stock"), &key(SALE, "wins")]), 0);
    let users = format!("SELECT COUNT(*) - COUNT(DISTINCT user) FROM orders WHERE activity = '{SALE}'");
    assert_eq!(deployment.count(&users).await, 0);
}

/// By every gate.
async fn alarmed(deployment: &Deployment, reason: &str) {
    for gate in 0..deployment.gates.len() {
        let line = format!(r#"seckill_activity_barred{{activity="{SALE}",reason="{reason}"}} 1"#);
        deployment.until_metric(gate, &line).await;
    }
}

fn preheat_refuses(deployment: &Deployment) {
    let output = deployment.command(0, &["preheat", SALE]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("NEEDS_REBUILD"), "preheat: {}\n{said}", output.status);
}
