//! The end of the process, in stages, and the signals that begin it.
//!
//! `Running` → (SIGTERM or SIGINT) `Draining`: not ready any more, still serving, so that load balancers notice →
//! (after the drain delay) `Closing`: listeners close, what is in flight is finished. A second signal ends the process
//! at once.

use std::io;
use std::time::Duration;

use futures::Stream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How far the process is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Serving.
    Running,
    /// Serving, but no longer ready.
    Draining,
    /// Taking nothing new; finishing what is in flight.
    Closing,
}

/// The side that ends the process.
#[derive(Debug, Clone)]
pub struct Trigger {
    stage: watch::Sender<Stage>,
}

/// The side that watches for the end. Clones watch the same end.
#[derive(Debug, Clone)]
pub struct Shutdown {
    stage: watch::Receiver<Stage>,
}

/// A pair of both sides, `Running`.
pub fn channel() -> (Trigger, Shutdown) {
    let (sender, receiver) = watch::channel(Stage::Running);
    (Trigger { stage: sender }, Shutdown { stage: receiver })
}

impl Trigger {
    /// Goes on to `stage`; never back.
    pub fn advance(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let later = stage > *now;
            *now = stage.max(*now);
            later
        });
    }
}

impl Shutdown {
    /// The stage now.
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Resolves once `stage` or a later one is reached, or when the trigger is gone.
    pub async fn reached(&self, stage: Stage) {
        // An error means that the trigger was dropped: nobody is left to serve for.
        let _ = self.stage.clone().wait_for(|now| *now >= stage).await;
    }

    /// Sleeps, unless the listeners close before; tells whether to go on.
    pub async fn sleep(&self, duration: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(duration) => true,
            () = self.reached(Stage::Closing) => false,
        }
    }
}

/// Ends the process by stages at SIGTERM or SIGINT, at once at the second signal. Must be called within a runtime; fails
/// if the handlers cannot be installed.
pub fn on_signals(trigger: Trigger, drain_delay: Duration) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let name = either(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = name, drain_delay_ms = drain_delay.as_millis(), "draining");
        trigger.advance(Stage::Draining);
        tokio::select! {
            () = tokio::time::sleep(drain_delay) => {
                tracing::info!("closing listeners, finishing what is in flight");
                trigger.advance(Stage::Closing);
            }
            name = either(&mut terminate, &mut interrupt) => end_now(name),
        }
        end_now(either(&mut terminate, &mut interrupt).await)
    });
    Ok(())
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

fn end_now(signal: &str) -> ! {
    tracing::warn!(signal, "second signal: ending now");
    std::process::exit(1)
}

/// One item per SIGHUP. From the first call on, SIGHUP no longer ends the process.
pub fn reload_signals() -> io::Result<impl Stream<Item = ()> + Unpin + Send> {
    let hangup = signal(SignalKind::hangup())?;
    Ok(Box::pin(futures::stream::unfold(
        hangup,
        |mut hangup| async move { hangup.recv().await.map(|()| ((), hangup)) },
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stages_only_go_forward_and_wake_everybody_who_waits_for_them() {
        let (trigger, shutdown) = channel();
        let waiting = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { shutdown.reached(Stage::Draining).await }
        });
        trigger.advance(Stage::Closing);
        waiting.await.unwrap();
        trigger.advance(Stage::Draining);
        assert_eq!(shutdown.stage(), Stage::Closing);
        assert!(!shutdown.sleep(Duration::from_secs(3600)).await);
    }
}
