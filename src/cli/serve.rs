//! `seckill-gate serve`: the gate.

use std::net::SocketAddr;

use clap::Args as ClapArgs;
use futures::StreamExt;

use super::{ConfigArgs, Outcome, exit, runtime};
use crate::config::Scope;
use crate::gate::serve::{Sockets, serve};
use crate::platform::{shutdown, telemetry};

/// Arguments.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Public listener, in place of `gate.listen`, so that several gates can share one file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Admin listener, in place of `gate.admin`
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Metrics listener, in place of `gate.metrics`
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
}

/// Runs until SIGTERM or SIGINT and the drain after it; a second signal ends the process at once.
pub fn run(args: Args) -> Outcome {
    let mut loaded = match args.config.load_for(Scope::Gate) {
        Ok(loaded) => loaded,
        Err(code) => return Ok(code),
    };
    let gate = &mut loaded.config.gate;
    gate.listen = args.listen.unwrap_or(gate.listen);
    gate.admin = args.admin.unwrap_or(gate.admin);
    gate.metrics = args.metrics.unwrap_or(gate.metrics);
    let (threads, drain_delay) = (gate.threads, gate.drain_delay.0);
    telemetry::init(&loaded.config.logs)?;
    runtime(threads)?.block_on(async {
        let sockets = Sockets::bind(&loaded.config.gate)?;
        let (trigger, shutdown) = shutdown::channel();
        shutdown::on_signals(trigger, drain_delay)?;
        let mut reloads = shutdown::reload_signals()?;
        tokio::spawn(async move {
            while reloads.next().await.is_some() {
                tracing::warn!("SIGHUP: this release cannot reload its configuration; nothing has changed");
            }
        });
        serve(&loaded, sockets, shutdown).await?;
        Ok(exit::DONE)
    })
}
