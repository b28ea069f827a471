//! `seckill-gate orders`: the order service with its consumer.

use std::net::SocketAddr;

use anyhow::Context;
use clap::Args as ClapArgs;
use futures::StreamExt;

use super::{ConfigArgs, Outcome, Usage, exit, runtime};
use crate::config::Scope;
use crate::orders;
use crate::platform::listen::listen;
use crate::platform::{shutdown, telemetry};

/// Arguments.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Listens here instead of `order_service.listen`, so that several processes can share one file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// Runs until SIGTERM or SIGINT; a second one ends the process at once.
pub fn run(args: Args) -> Outcome {
    let loaded = match args.config.load_for(Scope::OrderService) {
        Ok(loaded) => loaded,
        Err(code) => return Ok(code),
    };
    let Some(service) = &loaded.config.order_service else {
        let why = format!("{} has no section `order_service`; the shop's own takes the orders", loaded.path.display());
        return Err(Usage(why).into());
    };
    telemetry::init(&loaded.config.logs)?;
    let address = args.listen.unwrap_or(service.listen);
    runtime(0)?.block_on(async {
        let listener = listen(address).context("order_service.listen")?;
        let (trigger, shutdown) = shutdown::channel();
        // Gates repeat what they could not deliver: nobody has to notice first.
        shutdown::on_signals(trigger, std::time::Duration::ZERO)?;
        let mut hangups = shutdown::reload_signals()?;
        tokio::spawn(async move {
            while hangups.next().await.is_some() {
                tracing::warn!(
                    "SIGHUP: the order service reads its configuration at its start only; nothing has changed"
                );
            }
        });
        orders::serve::serve(&loaded, service, listener, shutdown).await?;
        Ok(exit::DONE)
    })
}
