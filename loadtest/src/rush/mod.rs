//! `loadtest rush`: the crowd at a running stack, and the audit of what it left behind.

mod audit;
mod scrape;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use loadtest::crowd::{Crowd, Plan, descriptor_limit};
use serde_json::json;

use crate::UserKey;

/// Exit code: something is wrong with the outcome.
const FOUND: u8 = 3;

/// Flags of `rush`.
#[derive(clap::Args)]
pub struct Args {
    /// Public listeners of the gates
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:8080")]
    gates: Vec<SocketAddr>,
    /// Metrics listeners of the gates: they tell which refusals the store gave
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:8082")]
    metrics: Vec<SocketAddr>,
    /// The sale
    #[arg(long)]
    activity: String,
    /// What is on sale
    #[arg(long, default_value = "phone")]
    sku: String,
    /// Units offered
    #[arg(long, default_value_t = 1_000)]
    stock: u32,
    /// Buyers
    #[arg(long, default_value_t = 50_000)]
    users: u32,
    /// Attempts at least, of all buyers together
    #[arg(long, default_value_t = 200_000)]
    attempts: u32,
    /// Buyers connected at once
    #[arg(long, default_value_t = 8_000)]
    concurrency: usize,
    /// Seconds before the start over which the buyers arrive
    #[arg(long, default_value_t = 20)]
    arrive_within_seconds: u64,
    /// Seconds after which the crowd goes home
    #[arg(long, default_value_t = 240)]
    give_up_after_seconds: u64,
    /// Seconds that the bookings may take after the crowd has left
    #[arg(long, default_value_t = 60)]
    settle_within_seconds: u64,
    /// Makes the buyers' decisions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    key: UserKey,
    /// The admission store, `redis://host:port/db`, without a password
    #[arg(long, default_value = "redis://127.0.0.1:6390/")]
    redis: String,
    /// File with its password
    #[arg(long, value_name = "FILE")]
    redis_password_file: Option<PathBuf>,
    /// The ledger, `mysql://user@host:port/database`, without a password
    #[arg(long, default_value = "mysql://seckill@127.0.0.1:3390/seckill")]
    mysql: String,
    /// File with its password
    #[arg(long, value_name = "FILE")]
    mysql_password_file: Option<PathBuf>,
    /// Prints one JSON object in place of the table
    #[arg(long)]
    json: bool,
}

/// Sends the crowd and audits. The result is the exit code.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    anyhow::ensure!(args.users > 0, "a crowd has at least one user");
    let redis_password = args.redis_password_file.as_deref().map(crate::secret).transpose()?;
    let mysql_password = args.mysql_password_file.as_deref().map(crate::secret).transpose()?;
    let place = audit::Place { activity: args.activity.clone(), sku: args.sku.clone() };
    let mut books =
        audit::Books::open(&args.redis, redis_password.as_deref(), &args.mysql, mysql_password.as_deref(), place)
            .await?;
    // Before the crowd, so that a wrong address or password costs nobody a minute.
    let before = books.read().await.context("cannot read the books before the sale")?;
    anyhow::ensure!(
        before.ledger.orders.is_empty() && before.store.left == i64::from(args.stock),
        "{} is no fresh sale of {} units: {} orders, {} left",
        args.activity,
        args.stock,
        before.ledger.orders.len(),
        before.store.left
    );

    // Some are needed for everything else.
    let seats = descriptor_limit().map_or(args.concurrency, |limit| args.concurrency.min(limit.saturating_sub(100)));
    if seats < args.concurrency {
        eprintln!("note: only {seats} buyers at once, for want of file descriptors (ulimit -n)");
    }
    let plan = Plan {
        users: args.users,
        attempts_per_user: args.attempts.div_ceil(args.users),
        concurrency: seats,
        arrive_within: Duration::from_secs(args.arrive_within_seconds),
        give_up_after: Duration::from_secs(args.give_up_after_seconds),
        name: args.activity.clone(),
        seed: args.seed,
        ..Plan::new(args.gates, &args.activity, &args.sku, args.key.signer()?)
    };
    let begun = Instant::now();
    let funnel =
        Crowd::send(plan).finish(|elapsed, funnel| eprintln!("{:>4} s  {}", elapsed.as_secs(), funnel.line())).await;
    let crowd_seconds = begun.elapsed().as_secs_f64();
    eprintln!("the crowd has left after {crowd_seconds:.1} s; waiting for the bookings");

    let seen = scrape::scrape(&args.metrics, &args.activity).await;
    let by_store = seen.as_ref().map(|seen| seen.sold_out_by_store);
    let begun = Instant::now();
    let facts = books.settled(Duration::from_secs(args.settle_within_seconds)).await?;
    let settle_seconds = begun.elapsed().as_secs_f64();
    let expected = audit::Expected { stock: args.stock, users: args.users, attempts: u64::from(args.attempts) };
    let violations = audit::judge(&facts, &funnel, &expected);

    if args.json {
        let report = json!({
            "activity": args.activity, "stock": args.stock, "sold": facts.ledger.sold,
            "orders": facts.ledger.standing().count(), "distinct_users": facts.ledger.distinct_users(),
            "attempts": funnel.attempts.sent, "violations": violations.len(), "violated": violations,
            "store": { "total": facts.store.total, "left": facts.store.left, "returning": facts.store.returning,
                       "withheld": facts.store.withheld, "wins": facts.store.wins.len(), "outbox": facts.store.due },
            "crowd_seconds": crowd_seconds, "settle_seconds": settle_seconds,
            "attempts_seen_by_gates": seen.map(|seen| seen.attempts), "funnel": funnel.json(by_store),
        });
        println!("{report}");
    } else {
        println!("\n{}", funnel.table(by_store));
        println!("{}", latencies(&funnel));
        println!("{}", audit::table(&facts, settle_seconds));
        match seen {
            Some(seen) => println!("gates    saw {} of {} attempts", seen.attempts, funnel.attempts.sent),
            None => println!("note: the gates' metrics could not be read, so SOLD_OUT is not told apart"),
        }
        for violation in &violations {
            println!("WRONG: {violation}");
        }
        if funnel.gave_up > 0 {
            println!("note: {} buyers left without a definite answer", funnel.gave_up);
        }
        if violations.is_empty() {
            println!("{} units, {} orders: nothing is wrong", args.stock, facts.ledger.standing().count());
        }
    }
    Ok(if violations.is_empty() { 0 } else { FOUND })
}

fn latencies(funnel: &loadtest::funnel::Funnel) -> String {
    let ms = |tally: &loadtest::funnel::Tally, q| {
        tally.latency.quantile(q).map_or("-".to_owned(), |took| format!("{:.1}", took.as_micros() as f64 / 1_000.0))
    };
    let mut text =
        format!("{:<12}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "requests", "p50", "p99", "p99.9", "longest");
    let tallies = [
        ("state", &funnel.state),
        ("token", &funnel.tokens),
        ("attempt", &funnel.attempts),
        ("result", &funnel.results),
    ];
    for (name, tally) in tallies {
        text.push_str(&format!(
            "{name:<12}{:>10}{:>10}{:>10}{:>10}{:>10}\n",
            tally.sent,
            ms(tally, 0.5),
            ms(tally, 0.99),
            ms(tally, 0.999),
            ms(tally, 1.0)
        ));
    }
    text
}
