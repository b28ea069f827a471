//! One sale's flood, fence or sick order service leaves the others alone: their buyers get exactly the outcomes of a quiet
//! day.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::post;
use futures::future::join_all;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::harness::deployment::{Deployment, SALE, Told, Wish, run, seckill_gate};

/// Units of each sale.
const STOCK: usize = 12;
/// Buyers who come too late.
const TOO_LATE: usize = 6;
/// Whatever happens elsewhere, nobody waits longer for an answer.
const IN_TIME: Duration = Duration::from_secs(5);

/// How a buyer fared: what the attempt came to, and (for a winner) what the result says in the end.
type Outcome = (String, Option<String>);

/// A sale's whole life: as many buyers as there are units, all at once, over both gates; then some more.
async fn outcomes(deployment: &Deployment, sale: &str) -> Vec<Outcome> {
    // Tokens were got before, as by everybody who waits for a sale.
    let users: Vec<String> = (0..STOCK + TOO_LATE).map(|number| format!("{sale}-{number}")).collect();
    let tokens = join_all(users.iter().map(|user| deployment.token_for(sale, 0, user, user))).await;
    let buy = async |number: usize| {
        let (user, started) = (&users[number], Instant::now());
        let told = deployment.attempt_at(sale, number % 2, user, user, &tokens[number]).await;
        assert!(started.elapsed() < IN_TIME, "{user} waited {:?} for {told:?}", started.elapsed());
        judged(deployment, sale, number % 2, user, told).await
    };
    let mut all = join_all((0..STOCK).map(&buy)).await;
    all.extend(join_all((STOCK..STOCK + TOO_LATE).map(&buy)).await);
    all
}

/// A winner's end; WON and QUEUED are the same win, told sooner or later.
async fn judged(deployment: &Deployment, sale: &str, gate: usize, user: &str, told: Told) -> Outcome {
    match told.outcome.as_str() {
        "WON" | "QUEUED" => {
            let started = Instant::now();
            let result = deployment.result(sale, gate, user, user).await;
            assert!(started.elapsed() < IN_TIME, "{user} waited {:?} for {result}", started.elapsed());
            ("won".into(), Some(result["state"].as_str().unwrap().into()))
        }
        other => (other.into(), None),
    }
}

fn quiet_day() -> Vec<Outcome> {
    let won = (0..STOCK).map(|_| ("won".to_owned(), Some("accepted".to_owned())));
    won.chain((0..TOO_LATE).map(|_| ("SOLD_OUT".to_owned(), None))).collect()
}

/// Users who want to buy in one sale, again and again, some with tokens that are worth nothing, until told to stop.
struct Flood {
    stop: Arc<AtomicBool>,
    attempts: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl Flood {
    const USERS: usize = 48;

    async fn start(deployment: &Arc<Deployment>, sale: &'static str) -> Flood {
        let (stop, attempts) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let tokens = join_all((0..Flood::USERS).map(|n| async move {
            let user = format!("crowd-{n}");
            (deployment.token_for(sale, n % 2, &user, "k").await, user)
        }));
        let tasks = tokens.await.into_iter().enumerate().map(|(number, (token, user))| {
            let (deployment, stop, attempts) = (Arc::clone(deployment), Arc::clone(&stop), Arc::clone(&attempts));
            tokio::spawn(async move {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    let (gate, forged) = ((number + round) % 2, format!("{token}x"));
                    // The same key again, and (no token is for it) another one; a winner's goes to the store each time.
                    let (key, token) = match round % 3 {
                        0 => ("k", &token),
                        1 => ("other", &token),
                        _ => ("k", &forged),
                    };
                    let told = deployment.attempt_at(sale, gate, &user, key, token).await;
                    assert!(round % 3 == 0 || !matches!(told.outcome.as_str(), "WON" | "QUEUED"), "{told:?}");
                    attempts.fetch_add(1, Ordering::Relaxed);
                    round += 1;
                }
            })
        });
        let tasks = tasks.collect();
        let flood = Flood { stop, attempts, tasks };
        flood.until_more(Flood::USERS * 4).await;
        flood
    }

    /// Waits for this many more attempts; fails after 20 s.
    async fn until_more(&self, attempts: usize) {
        let (started, before) = (Instant::now(), self.attempts.load(Ordering::Relaxed));
        while self.attempts.load(Ordering::Relaxed) < before + attempts {
            assert!(started.elapsed() < Duration::from_secs(20), "the flood dried up");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// How many attempts were answered; fails if one of the users did.
    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.attempts.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_and_a_fence_on_one_sale_change_nothing_for_the_buyers_of_another() {
    let sales = [SALE, "calm", "beside-flood", "beside-fence"];
    let wish = Wish { gates: 2, stock: STOCK as u32, sales: sales.map(String::from).to_vec(), ..Wish::default() };
    let deployment = Arc::new(Deployment::as_wished(wish).await);
    let calm = outcomes(&deployment, "calm").await;
    assert_eq!(calm, quiet_day());

    let flood = Flood::start(&deployment, SALE).await;
    let before = flood.attempts.load(Ordering::Relaxed);
    assert_eq!(outcomes(&deployment, "beside-flood").await, calm);
    assert!(flood.attempts.load(Ordering::Relaxed) > before, "there was no flood");

    // One of the flooded sale's keys is gone: it is fenced at both gates, and nobody else notices.
    deployment.store.command(&["DEL", &format!("sk:{{{SALE}.0}}:buyers")]).unwrap();
    for gate in [0, 1] {
        deployment.until_phase(SALE, gate, "paused").await;
    }
    let before = flood.attempts.load(Ordering::Relaxed);
    assert_eq!(outcomes(&deployment, "beside-fence").await, calm);
    assert!(flood.attempts.load(Ordering::Relaxed) > before, "there was no flood");
    flood.end().await;
    for gate in [0, 1] {
        deployment.until_phase(SALE, gate, "paused").await;
    }

    // Each sale sold its stock and no more, to that many users.
    for sale in ["calm", "beside-flood", "beside-fence"] {
        let orders = format!("SELECT COUNT(DISTINCT user) FROM orders WHERE activity = '{sale}'");
        deployment.until_count(&orders, STOCK as i64).await;
        run(seckill_gate().args(["audit", sale, "-c"]).arg(&deployment.config));
    }
}

/// A shop's order service that hangs for one sale and answers at once for the others.
async fn hangs_for(sale: &'static str) -> (u16, Arc<AtomicUsize>) {
    let hanging = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&hanging);
    let order = post(move |headers: HeaderMap| async move {
        let id = headers["idempotency-key"].to_str().unwrap().to_owned();
        if headers["seckill-activity"] == sale {
            counter.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        (StatusCode::CREATED, [(header::CONTENT_TYPE, "application/json")], format!(r#"{{"order":"{id}"}}"#))
            .into_response()
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route("/orders", order);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (port, hanging)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_service_that_hangs_for_one_sale_serves_the_buyers_of_another_in_time() {
    /// As many deliveries as one gate has under way at most; far fewer than the sick sale has wins.
    const IN_FLIGHT: usize = 4;
    let (port, hanging) = hangs_for(SALE).await;
    let wish = Wish {
        gates: 2,
        stock: STOCK as u32,
        sales: vec![SALE.into(), "calm".into(), "beside-hang".into()],
        shops_own_orders: Some(port),
        // Longer than anybody here waits: nothing is freed by a delivery's deadline.
        orders: "  max_in_flight: 4\n  deadline: 20s\n  answer_within: 500ms\n",
        ..Wish::default()
    };
    let deployment = Deployment::as_wished(wish).await;
    let calm = outcomes(&deployment, "calm").await;
    assert_eq!(calm, quiet_day());
    // All units of the sick sale are won; its deliveries hang at both gates.
    for number in 0..STOCK {
        let user = format!("sick-{number}");
        let token = deployment.token_for(SALE, number % 2, &user, "k").await;
        let told = deployment.attempt_at(SALE, number % 2, &user, "k", &token).await;
        assert_eq!(told.outcome, "QUEUED", "{told:?}");
    }
    assert!(STOCK / 2 > IN_FLIGHT && hanging.load(Ordering::Relaxed) > 0);
    assert_eq!(outcomes(&deployment, "beside-hang").await, calm);
    // None of the sick sale's wins was given up.
    let text = run(&mut deployment.command(0, &["status", SALE, "--json"]));
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["activities"][0]["wins"]["held"], STOCK, "{status}");
}
