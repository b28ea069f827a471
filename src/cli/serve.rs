//! `seckill-gate serve`: the gate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::{ConfigArgs, Outcome, drawn, exit, runtime};
use crate::config::{self, Faults, Loaded, Scope};
use crate::gate::serve::{Reloads, Sockets, serve};
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

impl Args {
    /// Reads the file; the flags stand in place of its keys, at the start and at each reload.
    fn read(&self) -> Result<Loaded, Faults> {
        let mut loaded = config::check(&self.config.config, self.config.gate.as_deref(), Scope::Gate)?;
        let gate = &mut loaded.config.gate;
        gate.listen = self.listen.unwrap_or(gate.listen);
        gate.admin = self.admin.unwrap_or(gate.admin);
        gate.metrics = self.metrics.unwrap_or(gate.metrics);
        Ok(loaded)
    }
}

/// Runs until SIGTERM or SIGINT and the drain after it; a second signal ends the process at once. SIGHUP reads the file
/// again.
pub fn run(args: Args) -> Outcome {
    let loaded = match drawn(args.read()) {
        Ok(loaded) => loaded,
        Err(code) => return Ok(code),
    };
    let gate = &loaded.config.gate;
    let (threads, drain_delay) = (gate.threads, gate.drain_delay.0);
    telemetry::init(&loaded.config.logs)?;
    let runtime = runtime(threads)?;
    let ended = runtime.block_on(async {
        let sockets = Sockets::bind(&loaded.config.gate)?;
        let (trigger, shutdown) = shutdown::channel();
        shutdown::on_signals(trigger, drain_delay)?;
        let reloads = Reloads { reread: Arc::new(move || args.read()), asked: Box::pin(shutdown::reload_signals()?) };
        serve(&loaded, sockets, shutdown, reloads).await?;
        Ok(exit::DONE)
    });
    // What still runs on a thread of its own was cut off above; a runtime that is dropped would wait for it.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}
