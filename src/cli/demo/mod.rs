//! `seckill-gate demo`: a whole sale in one process: a small shop, the order service, a gate, and a crowd beside the
//! person trying it. Embedded stores, generated secrets, loopback only.

mod audit;
mod setup;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args as ClapArgs;
use loadtest::crowd::{Crowd, Plan, descriptor_limit};
use loadtest::funnel::Funnel;
use loadtest::shop::{self, Shop};
use loadtest::signer::Signer;
use serde_json::json;
use tokio::task::JoinHandle;

use self::setup::{Demo, SKU};
use super::{Outcome, exit, runtime};
use crate::config::scalars::Span;
use crate::config::{self, Loaded, Scope};
use crate::gate::serve::{Reloads, serve};
use crate::orders;
use crate::platform::shutdown::{self, Shutdown, Stage, Trigger};
use crate::platform::telemetry;

/// How long after the crowd's last click the last order may take to be booked.
const BOOKED_WITHIN: Duration = Duration::from_secs(60);

/// How long listeners may take to come up.
const UP_WITHIN: Duration = Duration::from_secs(20);

/// Arguments.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Simulated buyers beside you
    #[arg(long, default_value_t = 2_000, value_name = "N")]
    crowd: u32,
    /// Units on sale
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stock: u32,
    /// When the sale opens, from now
    #[arg(long, default_value = "20s", value_name = "SPAN")]
    opens_in: Span,
    /// End when the crowd has left and every order is booked; the last line is JSON, the exit code the audit's
    #[arg(long)]
    exit_after_sale: bool,
    /// Keep the data here; a temporary folder that is removed at the end by default
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// Runs the demo.
pub fn run(args: Args) -> Outcome {
    // Removed when the demo ends, unless the data is to be kept.
    let temporary = match &args.data {
        Some(_) => None,
        None => Some(tempfile::tempdir().context("cannot make a temporary folder")?),
    };
    let folder = match (&args.data, &temporary) {
        (Some(folder), _) => folder.clone(),
        (None, Some(temporary)) => temporary.path().to_owned(),
        (None, None) => bail!("no folder for the data"),
    };
    runtime(0)?.block_on(demo(args, folder))
}

async fn demo(args: Args, folder: PathBuf) -> Outcome {
    let demo = setup::setup(&folder, args.stock, args.opens_in.0)?;
    let loaded = Arc::new(demo.loaded.clone());
    telemetry::init(&loaded.config.logs)?;
    let (trigger, shutdown) = shutdown::channel();
    shutdown::on_signals(trigger.clone(), Duration::ZERO)?;

    let signer = Arc::new(demo.signer()?);
    let services = start(demo.sockets, &loaded, Arc::clone(&signer), demo.activity.clone(), shutdown.clone())?;
    let (admin, ledger) = audit::clients(&loaded)?;
    let up = async {
        while admin.post(&["activities", &demo.activity, "preheat"], &json!({})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if tokio::time::timeout(UP_WITHIN, up).await.is_err() {
        let why = admin.post(&["activities", &demo.activity, "preheat"], &json!({})).await;
        bail!("the demo did not come up: {:#}", why.err().map_or_else(|| anyhow!("no reason known"), |e| e.error));
    }
    let jwt = signer.sign("you", Duration::from_secs(3_600))?;
    println!("The shop    http://{}/", loaded.config.gate.listen);
    println!("You         http://{}/login?user=you   (signs you in)", loaded.config.gate.listen);
    println!("The sale    http://{}{}/{}", loaded.config.gate.listen, loaded.config.gate.prefix, demo.activity);
    println!(
        "Admin       http://{}/admin/activities   (token in {}/secrets)",
        loaded.config.gate.admin,
        folder.display()
    );
    println!("Metrics     http://{}/metrics", loaded.config.gate.metrics);
    println!("A buyer     curl -H 'Authorization: Bearer {jwt}' …");
    println!("\n{} buyers want {} units. The sale opens in {}.\n", args.crowd, args.stock, args.opens_in);

    let outcome = async {
        let funnel = crowd(&args, &loaded, &demo.activity, signer).await?;
        let attempts = funnel.attempts.sent;
        println!("\n{}", funnel.table(None));
        let audited = audit::after_booking(&admin, &ledger, &demo.activity, BOOKED_WITHIN).await?;
        println!("{}", audited.table);
        for broken in &funnel.broken {
            println!("BROKEN: {broken}");
        }
        let violations = audited.violations as u64 + funnel.broken_count;
        let line = json!({
            "stock": args.stock, "sold": audited.sold, "orders": audited.orders,
            "distinct_users": audited.distinct_users, "attempts": attempts, "violations": violations,
        });
        Ok::<_, anyhow::Error>((violations == 0, line))
    };
    let (sound, line) = tokio::select! {
        outcome = outcome => outcome?,
        () = shutdown.reached(Stage::Draining) => {
            end(&trigger, services).await?;
            return Ok(exit::DONE);
        }
    };
    if !args.exit_after_sale {
        println!("The sale goes on for whoever looks at it; Ctrl-C ends the demo.");
        shutdown.reached(Stage::Draining).await;
    }
    end(&trigger, services).await?;
    if args.exit_after_sale {
        println!("{line}");
    }
    Ok(if sound { exit::DONE } else { exit::FOUND })
}

type Services = Vec<JoinHandle<anyhow::Result<()>>>;

/// Starts shop, order service and gate.
fn start(
    sockets: setup::DemoSockets,
    loaded: &Arc<Loaded>,
    signer: Arc<Signer>,
    activity: String,
    shutdown: Shutdown,
) -> anyhow::Result<Services> {
    let cookie = loaded.config.identity.cookie.clone().unwrap_or_default();
    let prefix = loaded.config.gate.prefix.clone();
    let shop = Shop { signer, cookie, prefix, sales: Arc::new(move || vec![activity.clone()]) };
    let closing = {
        let shutdown = shutdown.clone();
        async move { shutdown.reached(Stage::Closing).await }
    };
    let shop = tokio::spawn(shop::serve(sockets.shop, shop, closing));
    let orders = tokio::spawn({
        let (loaded, shutdown) = (Arc::clone(loaded), shutdown.clone());
        async move {
            let service = loaded.config.order_service.as_ref().context("the demo has no order service")?;
            orders::serve::serve(&loaded, service, sockets.orders, shutdown).await
        }
    });
    let loaded = Arc::clone(loaded);
    let file = loaded.path.clone();
    let reread = Arc::new(move || config::check(&file, None, Scope::Everything));
    let reloads = Reloads { reread, asked: Box::pin(futures::stream::pending()) };
    let gate = tokio::spawn(async move { serve(&loaded, sockets.gate, shutdown, reloads).await });
    Ok(vec![shop, orders, gate])
}

/// Ends everything that was started.
async fn end(trigger: &Trigger, services: Services) -> anyhow::Result<()> {
    trigger.advance(Stage::Closing);
    for service in services {
        service.await??;
    }
    Ok(())
}

/// Sends the crowd and shows the funnel while it runs.
async fn crowd(args: &Args, loaded: &Loaded, activity: &str, signer: Arc<Signer>) -> anyhow::Result<Funnel> {
    let mut plan = Plan::new(vec![loaded.config.gate.listen], activity, SKU, signer);
    plan.users = args.crowd;
    plan.prefix = loaded.config.gate.prefix.clone();
    // At most some thousand arrivals a second: a demo should show the gate, not the machine's limits.
    let patience = Duration::from_secs(u64::from(args.crowd) / 4_000);
    plan.arrive_within = args.opens_in.0.max(patience).max(Duration::from_secs(1));
    plan.surge = Duration::from_secs(2).max(patience / 2);
    plan.give_up_after = args.opens_in.0 + Duration::from_secs(120);
    // Two descriptors a buyer, one at each end; the rest is for files and everybody else.
    let seats = descriptor_limit().unwrap_or(1_024).saturating_sub(200) / 2;
    plan.concurrency = plan.concurrency.min(seats.max(50));
    if args.crowd == 0 {
        return Ok(Funnel::default());
    }
    let funnel =
        Crowd::send(plan).finish(|elapsed, funnel| println!("{:>4}s {}", elapsed.as_secs(), funnel.line())).await;
    Ok(funnel)
}

impl Demo {
    fn signer(&self) -> anyhow::Result<Signer> {
        let key = self.loaded.config.identity.keys.first().context("the demo has no user key")?;
        let secret = self.loaded.secret(&key.key)?;
        let identity = &self.loaded.config.identity;
        Signer::hs256(secret.expose(), &key.kid, &identity.issuer, &identity.audience)
    }
}
