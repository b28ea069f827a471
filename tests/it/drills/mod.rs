//! Failure drills: a rush on a whole deployment, and in the middle of it a fault. Nothing may be lost or doubled.
//!
//! A seed decides when the fault strikes: after so many wins as the store counts them, never after so much time. The
//! seeds are those of [`seeds`], or what `SECKILL_SEEDS` names (`make drill`). Where a drill has several seeds, each has
//! a sale of its own in one deployment, so that the servers start once.

mod crashes;
mod ledger_away;
mod measured;
mod rolling;
mod store_gone;
mod store_stalls;

use std::time::{Duration, Instant};

use loadtest::crowd::{Crowd, Plan};
use loadtest::funnel::Funnel;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::harness::deployment::{Deployment, SKU, Wish, run};

/// Units of each sale.
const STOCK: u32 = 60;
/// Buyers of each rush.
const USERS: u32 = 300;
/// Wins that are certainly still to come when a fault strikes.
const STILL_TO_COME: u32 = 25;
/// The rule: everything is booked so long after the fault is over.
const BOOKED_WITHIN: Duration = Duration::from_secs(30);

/// One sale for each.
fn seeds() -> Vec<u64> {
    match std::env::var("SECKILL_SEEDS") {
        Ok(text) => {
            text.split_whitespace().map(|seed| seed.parse().expect("SECKILL_SEEDS: numbers, blanks between")).collect()
        }
        Err(_) => vec![1, 2, 3, 4, 5],
    }
}

/// The sale of a seed.
fn sale_of(seed: u64) -> String {
    format!("drill-{seed}")
}

/// What most drills need: a sale for each seed.
fn wish() -> Wish {
    Wish { stock: STOCK, sales: seeds().into_iter().map(sale_of).collect(), ..Wish::default() }
}

/// After how many wins the fault strikes.
fn moment(seed: u64) -> i64 {
    i64::from(SmallRng::seed_from_u64(seed).random_range(1..=STOCK - STILL_TO_COME))
}

/// For whoever runs the drills by hand and wants to see how far they are.
fn say(drill: &str, what: impl std::fmt::Display) {
    println!("drill: {drill}: {what}");
}

/// A crowd that wants more than there is, and comes by these gates.
fn plan(deployment: &Deployment, sale: &str, gates: &[usize], seed: u64) -> Plan {
    let gates = gates.iter().map(|gate| ([127, 0, 0, 1], deployment.gates[*gate].public).into()).collect();
    let mut plan = Plan::new(gates, sale, SKU, deployment.signer());
    plan.users = USERS;
    plan.attempts_per_user = 2;
    plan.pace = Duration::from_millis(200);
    plan.arrive_within = Duration::from_secs(2);
    plan.concurrency = USERS as usize;
    plan.give_up_after = Duration::from_secs(90);
    plan.seed = seed;
    plan
}

/// Sends it.
fn rush(deployment: &Deployment, sale: &str, gates: &[usize], seed: u64) -> Crowd {
    Crowd::send(plan(deployment, sale, gates, seed))
}

/// Waits until everybody has left. No promise may have been broken, and everybody must know where it stands.
async fn leave(crowd: Crowd, drill: &str) -> Funnel {
    let funnel = crowd.finish(|_, _| ()).await;
    say(drill, funnel.line());
    assert_eq!(funnel.broken, Vec::<String>::new());
    assert!(funnel.adds_up(), "{}", funnel.table(None));
    assert_eq!(funnel.gave_up, 0, "buyers never learned their outcome:\n{}", funnel.table(None));
    funnel
}

/// A key of a sale in the store.
fn key(sale: &str, name: &str) -> String {
    format!("sk:{{{sale}.0}}:{name}")
}

/// One number from the store.
fn stored(deployment: &Deployment, words: &[&str]) -> i64 {
    number(deployment.store.command(words))
}

fn number(value: Result<redis::Value, String>) -> i64 {
    redis::from_redis_value(value.unwrap()).unwrap()
}

/// Wins that the store holds; one member of the hash is empty on purpose.
fn wins(deployment: &Deployment, sale: &str) -> i64 {
    stored(deployment, &["HLEN", &key(sale, "wins")]) - 1
}

/// Wins without a final word.
fn unsettled(deployment: &Deployment, sale: &str) -> i64 {
    stored(deployment, &["ZCARD", &key(sale, "due")]) - 1
}

/// Waits for the moment of the fault; fails after 20 s.
async fn until_wins(deployment: &Deployment, sale: &str, wanted: i64) {
    until(&format!("{wanted} wins of {sale}"), || wins(deployment, sale) >= wanted).await;
}

/// Waits until this holds; fails after 20 s.
async fn until(what: &str, holds: impl Fn() -> bool) {
    until_async(what, async || holds()).await;
}

/// The same, where looking takes time.
async fn until_async(what: &str, holds: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(20), "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// How a sale stands in ledger and store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    orders: i64,
    /// Of orders that are not ended or refused.
    live: i64,
    request_ids: i64,
    users: i64,
    sold: i64,
    set_aside: i64,
    wins: i64,
    unsettled: i64,
    left: i64,
}

impl Standing {
    async fn of(deployment: &Deployment, sale: &str) -> Standing {
        let count = async |what: &str, table: &str| {
            deployment.count(&format!("SELECT {what} FROM {table} WHERE activity = '{sale}'")).await
        };
        Standing {
            orders: count("COUNT(*)", "orders").await,
            live: count("CAST(COALESCE(SUM(state = 'pending'), 0) AS SIGNED)", "orders").await,
            request_ids: count("COUNT(DISTINCT request_id)", "orders").await,
            users: count("COUNT(DISTINCT user)", "orders").await,
            sold: count("CAST(SUM(sold) AS SIGNED)", "stock").await,
            set_aside: count("COUNT(*)", "set_aside").await,
            wins: wins(deployment, sale),
            unsettled: unsettled(deployment, sale),
            left: stored(deployment, &["HGET", &key(sale, "stock"), &format!("{SKU}:left")]),
        }
    }

    /// Everything sold, booked and told: orders = wins = stock, none twice.
    fn whole(stock: u32) -> Standing {
        let all = i64::from(stock);
        let (set_aside, unsettled, left) = (0, 0, 0);
        let (orders, live, request_ids, users, sold, wins) = (all, all, all, all, all, all);
        Standing { orders, live, request_ids, users, sold, set_aside, wins, unsettled, left }
    }
}

/// Waits until everything won is booked, at most [`BOOKED_WITHIN`] from `since`.
async fn until_whole(deployment: &Deployment, sale: &str, stock: u32, since: Instant, drill: &str) {
    loop {
        let standing = Standing::of(deployment, sale).await;
        if standing == Standing::whole(stock) {
            say(drill, format_args!("{sale} is whole {:.1} s after the fault", since.elapsed().as_secs_f64()));
            return;
        }
        assert!(since.elapsed() < BOOKED_WITHIN, "{sale} after {:?}: {standing:#?}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The operators' own check finds nothing either, and every win that was told is the ledger's.
async fn audited(deployment: &Deployment, sale: &str, funnel: &Funnel) {
    run(&mut deployment.command(0, &["audit", sale]));
    let booked = strings(deployment, &format!("SELECT request_id FROM orders WHERE activity = '{sale}'")).await;
    for win in &funnel.wins {
        assert!(booked.contains(&win.request_id), "{} was told {}, which is no order", win.user, win.request_id);
    }
}

/// A column of the ledger.
async fn strings(deployment: &Deployment, query: &str) -> Vec<String> {
    use sqlx::Connection;
    let mut connection = sqlx::MySqlConnection::connect(&deployment.ledger_url).await.unwrap();
    sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned())).fetch_all(&mut connection).await.unwrap()
}
