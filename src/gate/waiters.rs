//! Those who wait for a change of one win: long polls of `results`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::domain::RequestId;

/// Who waits for what. Entries vanish when told, or when nobody listens any more.
#[derive(Default)]
pub struct Waiters {
    by_id: Mutex<HashMap<RequestId, watch::Sender<()>>>,
}

impl Waiters {
    /// Resolves at the next [`Waiters::tell`] of this id. Subscribe first, look second: so no change is missed.
    pub fn subscribe(&self, id: RequestId) -> impl Future<Output = ()> + Send + use<> {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told = by_id.entry(id).or_insert_with(|| watch::channel(()).0).subscribe();
        async move {
            // An error means that the entry is gone: look again.
            _ = told.changed().await;
        }
    }

    /// Something about this win changed.
    pub fn tell(&self, id: &RequestId) {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiters) = by_id.remove(id) {
            waiters.send_replace(());
        }
    }

    /// Forgets ids that nobody waits for any more.
    pub fn sweep(&self) {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        by_id.retain(|_, waiters| waiters.receiver_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_between_subscribing_and_waiting_is_not_missed() {
        let waiters = Waiters::default();
        let id = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let told = waiters.subscribe(id);
        waiters.tell(&id);
        told.await;
        drop(waiters.subscribe(id));
        waiters.sweep();
        assert!(waiters.by_id.lock().unwrap().is_empty(), "an entry that nobody waits for stays");
    }
}
