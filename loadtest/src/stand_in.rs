//! `loadtest shop`: the shop's stand-in as a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use loadtest::shop::{Shop, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::UserKey;

/// Flags of `shop`.
#[derive(clap::Args)]
pub struct Args {
    /// Its listener
    #[arg(long, default_value = "127.0.0.1:8070")]
    listen: SocketAddr,
    #[command(flatten)]
    key: UserKey,
    /// Cookie that carries the user's JWT
    #[arg(long, default_value = "shop_session")]
    cookie: String,
    /// File with the names of the sales to link to, one a line, oldest first; read for each page
    #[arg(long, value_name = "FILE")]
    sales_file: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let sales_file = args.sales_file;
    let sales = move || -> Vec<String> {
        let text = sales_file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        text.lines().rev().map(str::to_owned).collect()
    };
    let shop =
        Shop { signer: args.key.signer()?, cookie: args.cookie, prefix: "/seckill".into(), sales: Arc::new(sales) };
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    println!("shop: http://{}/", args.listen);
    serve(listener, shop, shutdown).await
}
