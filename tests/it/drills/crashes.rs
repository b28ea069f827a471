//! Processes that die in a rush, and a queue that is emptied: orders = wins = stock within 30 s.

use std::time::Instant;

use sqlx::{Connection, MySqlConnection};

use super::{
    STOCK, Standing, audited, leave, moment, number, rush, sale_of, say, seeds, unsettled, until, until_whole,
    until_wins, wish,
};
use crate::harness::deployment::{Deployment, Wish};

#[tokio::test(flavor = "multi_thread")]
async fn an_order_service_killed_in_a_rush_loses_and_doubles_nothing() {
    const DRILL: &str = "order service killed";
    let mut deployment = Deployment::as_wished(Wish { gates: 2, ..wish() }).await;
    let mut rushes = Vec::new();
    let mut restarted = Instant::now();
    // The next rush begins while what the last death interrupted is still being made good.
    for seed in seeds() {
        let sale = sale_of(seed);
        let crowd = rush(&deployment, &sale, &[0, 1], seed);
        until_wins(&deployment, &sale, moment(seed)).await;
        deployment.kill_orders();
        let waiting = unsettled(&deployment, &sale);
        assert!(waiting > 0, "it died too late to matter");
        say(DRILL, format_args!("{sale}: {waiting} wins unsettled"));
        deployment.start_orders();
        restarted = Instant::now();
        rushes.push((sale, crowd));
    }
    for (sale, crowd) in rushes {
        until_whole(&deployment, &sale, STOCK, restarted, DRILL).await;
        audited(&deployment, &sale, &leave(crowd, DRILL).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_killed_between_commit_and_acknowledgement_books_nothing_twice() {
    const DRILL: &str = "consumer killed between commit and acknowledgement";
    let mut deployment = Deployment::as_wished(wish()).await;
    for seed in seeds() {
        let sale = sale_of(seed);
        let crowd = rush(&deployment, &sale, &[0], seed);
        until_wins(&deployment, &sale, moment(seed)).await;
        // A batch is handed out and cannot be committed yet; then the queue stops taking acknowledgements.
        let ledger = HeldLedger::hold(&deployment, &sale).await;
        until("a batch is handed out", || pending(&deployment, &sale) > 0).await;
        deployment.queue.command(&["CLIENT", "PAUSE", "60000", "WRITE"]).unwrap();
        let handed_out = pending(&deployment, &sale);
        let before = Standing::of(&deployment, &sale).await.orders;
        ledger.let_go().await;
        let committed = format!("SELECT COUNT(*) FROM orders WHERE activity = '{sale}'");
        deployment.until_count(&committed, before + handed_out).await;
        deployment.kill_orders();
        // The acknowledgement that the dead one may have sent goes down with its connections. (Behind SIGSTOP it would lie
        // in the server's socket and be read afterwards, as if nobody had died.)
        until("the queue knows that the consumer is dead", || clients(&deployment) == 1).await;
        deployment.queue.command(&["CLIENT", "UNPAUSE"]).unwrap();
        assert_eq!(pending(&deployment, &sale), handed_out, "an acknowledgement passed: the drill is none");
        say(DRILL, format_args!("{sale}: {handed_out} orders committed and not acknowledged"));
        deployment.start_orders();
        let restarted = Instant::now();
        until_whole(&deployment, &sale, STOCK, restarted, DRILL).await;
        audited(&deployment, &sale, &leave(crowd, DRILL).await).await;
    }
    // What the dead one held is claimed in the end, and found to be booked.
    let sales: Vec<String> = seeds().into_iter().map(sale_of).collect();
    until("the queue is empty", || sales.iter().all(|sale| waiting(&deployment, sale) == 0)).await;
    for sale in &sales {
        assert_eq!(Standing::of(&deployment, sale).await, Standing::whole(STOCK));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wins_of_a_killed_gate_are_booked_by_the_other_gate_or_after_its_restart() {
    const DRILL: &str = "gate killed";
    let mut deployment = Deployment::as_wished(Wish { gates: 2, ..wish() }).await;
    for (turn, seed) in seeds().into_iter().enumerate() {
        let sale = sale_of(seed);
        let crowd = rush(&deployment, &sale, &[0, 1], seed);
        until_wins(&deployment, &sale, moment(seed)).await;
        deployment.kill_gate(0);
        let alone = turn % 2 == 1;
        if alone {
            deployment.kill_gate(1);
        }
        let waiting = unsettled(&deployment, &sale);
        assert!(waiting > 0, "it died too late to matter");
        let helper = if alone { "nobody else is there" } else { "the other gate lives" };
        say(DRILL, format_args!("{sale}: {waiting} wins unsettled, {helper}"));
        let since = if alone {
            deployment.start_gate(0);
            Instant::now()
        } else {
            Instant::now()
        };
        until_whole(&deployment, &sale, STOCK, since, DRILL).await;
        deployment.start_gate(usize::from(alone));
        audited(&deployment, &sale, &leave(crowd, DRILL).await).await;
        deployment.until_phase(&sale, 0, "sold_out").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_emptied_after_the_202_loses_no_order() {
    const DRILL: &str = "queue emptied";
    let deployment = Deployment::as_wished(Wish { gates: 2, ..wish() }).await;
    for seed in seeds() {
        let sale = sale_of(seed);
        let crowd = rush(&deployment, &sale, &[0, 1], seed);
        // From the start: the consumer holds the first orders in hand, and those that come after them wait in the queue,
        // of which the order service said that it has them.
        let ledger = HeldLedger::hold(&deployment, &sale).await;
        until_wins(&deployment, &sale, moment(seed)).await;
        let untaken = || waiting(&deployment, &sale) - pending(&deployment, &sale);
        until("orders wait in the queue", || pending(&deployment, &sale) > 0 && untaken() > 0).await;
        let lost = untaken();
        deployment.queue.command(&["FLUSHALL"]).unwrap();
        ledger.let_go().await;
        let emptied = Instant::now();
        say(DRILL, format_args!("{sale}: {lost} orders lost by the queue"));
        until_whole(&deployment, &sale, STOCK, emptied, DRILL).await;
        audited(&deployment, &sale, &leave(crowd, DRILL).await).await;
    }
}

/// Keeps the ledger from committing any order of one sale.
struct HeldLedger(MySqlConnection);

impl HeldLedger {
    async fn hold(deployment: &Deployment, sale: &str) -> HeldLedger {
        let mut connection = MySqlConnection::connect(&deployment.ledger_url).await.unwrap();
        let lock = format!("BEGIN; SELECT sold FROM stock WHERE activity = '{sale}' FOR UPDATE");
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut connection).await.unwrap();
        HeldLedger(connection)
    }

    async fn let_go(mut self) {
        sqlx::raw_sql("COMMIT").execute(&mut self.0).await.unwrap();
    }
}

/// Entries in a sale's queue.
fn waiting(deployment: &Deployment, sale: &str) -> i64 {
    number(deployment.queue.command(&["XLEN", &format!("skq:{{{sale}}}")]))
}

/// Those of them that were handed out and not acknowledged.
fn pending(deployment: &Deployment, sale: &str) -> i64 {
    let script = "return redis.call('XPENDING', KEYS[1], 'orders')[1]";
    // Without a group (the queue was emptied just now) nothing is handed out.
    deployment.queue.command(&["EVAL_RO", script, "1", &format!("skq:{{{sale}}}")]).map_or(0, |v| number(Ok(v)))
}

/// Connections to the queue, with the one that asks.
fn clients(deployment: &Deployment) -> usize {
    let list: String = redis::from_redis_value(deployment.queue.command(&["CLIENT", "LIST"]).unwrap()).unwrap();
    list.lines().count()
}
