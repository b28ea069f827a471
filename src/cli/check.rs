//! `check`: every fault of a configuration, and a summary of one without.

use std::fmt::Write;

use serde_json::json;

use super::{ConfigArgs, Outcome, draw, exit, print};
use crate::config::schema::{Config, Ledger, OrdersKind, Queue, Store};
use crate::config::{self, Loaded, Scope};

/// Flags of `check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Read only the secrets, keys and pages that this process needs
    #[arg(long = "for", value_name = "PROCESS", value_enum, default_value_t)]
    process: Process,
    /// Do not read the secrets, keys and pages that the file names (for machines that do not hold them)
    #[arg(long)]
    file_only: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Whose view a check takes.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Process {
    /// Everything that the file names
    #[default]
    All,
    /// `serve`
    Gate,
    /// `orders`
    OrderService,
}

/// Exit 0 and a summary, or 2 and all faults.
pub fn run(args: Args) -> Outcome {
    let (path, gate) = (&args.config.config, args.config.gate.as_deref());
    let scope = match args.process {
        Process::All => Scope::Everything,
        Process::Gate => Scope::Gate,
        Process::OrderService => Scope::OrderService,
    };
    let checked = if args.file_only { config::load_as(path, gate) } else { config::check(path, gate, scope) };
    match checked {
        Ok(loaded) if args.json => {
            print(json!({ "file": loaded.path.display().to_string(), "faults": [] }))?;
            Ok(exit::DONE)
        }
        Ok(loaded) => {
            print(summary(&loaded).trim_end())?;
            Ok(exit::DONE)
        }
        Err(faults) if args.json => {
            print(faults.to_json())?;
            Ok(exit::USAGE)
        }
        Err(faults) => {
            draw(&faults);
            Ok(exit::USAGE)
        }
    }
}

fn summary(loaded: &Loaded) -> String {
    let Config { gate, deployment, store, orders, order_service, activities, .. } = &loaded.config;
    let mut text = format!("{}: no faults\n", loaded.path.display());
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<14} {value}");
    };
    line("gate", format!("{} of {}, {}{}", gate.id, deployment.gates.len().max(1), gate.listen, gate.prefix));
    line("admin, metrics", format!("{}, {}", gate.admin, gate.metrics));
    line("shop", gate.shop.url.clone());
    line(
        "store",
        match store {
            Store::Redis { url, .. } => url.clone(),
            Store::Sqlite { path, .. } => format!("SQLite {}", loaded.resolve(path).display()),
        },
    );
    let whose = if orders.kind == OrdersKind::Internal { "ours" } else { "the shop's" };
    line("orders", format!("{whose}, {}", orders.url));
    if let Some(service) = order_service {
        line(
            "queue",
            match &service.queue {
                Queue::Redis { url, .. } => url.clone(),
                Queue::Sqlite { path } => format!("SQLite {}", loaded.resolve(path).display()),
            },
        );
        line(
            "ledger",
            match &service.ledger {
                Ledger::Mysql { url, .. } => url.clone(),
                Ledger::Sqlite { path } => format!("SQLite {}", loaded.resolve(path).display()),
            },
        );
    }
    for (id, activity) in activities {
        let skus: Vec<String> = activity.skus.iter().map(|(name, sku)| format!("{} of {name}", sku.stock)).collect();
        line("activity", format!("{id}: {} to {}, {}", activity.starts_at, activity.ends_at, skus.join(", ")));
    }
    text
}
