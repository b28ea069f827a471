//! Log lines to standard error, as text for people or JSON for machines, and panics among them.

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::schema::{LogFormat, Logs};

/// Starts logging for the whole process. Fails on a filter that cannot be read, or if logging was started before.
pub fn init(logs: &Logs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&logs.filter).with_context(|| {
        format!("logs.filter `{}` is no filter; write one like `info` or `info,seckill_gate=debug`", logs.filter)
    })?;
    let builder = SubscriberBuilder::default().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match logs.format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).finish().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
    };
    started.context("logging was started twice")?;
    log_panics();
    Ok(())
}

/// A panic in a task would otherwise leave only free text on standard error, which no log collector parses.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("(no message)");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(panic = message, place, %backtrace, "panic");
    }));
}
