//! A client that has its token in hand, asks once, and measures how long it waits.

use std::time::{Duration, Instant};

use futures::future::join_all;

use crate::harness::deployment::{Deployment, Told};

/// One attempt that only has to be sent.
pub struct Ready {
    sale: String,
    gate: usize,
    pub user: String,
    pub token: String,
}

/// What it heard, and after how long.
#[derive(Debug)]
pub struct Heard {
    pub told: Told,
    pub took: Duration,
}

impl Ready {
    /// So many users of one name, each with a token; they come by these gates in turn.
    pub async fn users(deployment: &Deployment, sale: &str, gates: &[usize], name: &str, count: usize) -> Vec<Ready> {
        let one = async |n| {
            let gate = gates[n % gates.len()];
            let user = format!("{name}-{n}");
            let token = deployment.token_for(sale, gate, &user, "key").await;
            Ready { sale: sale.into(), gate, user, token }
        };
        join_all((0..count).map(one)).await
    }

    /// Sends it, once more if it was sent before.
    pub async fn attempt(&self, deployment: &Deployment) -> Heard {
        let begun = Instant::now();
        let told = deployment.attempt_at(&self.sale, self.gate, &self.user, "key", &self.token).await;
        Heard { told, took: begun.elapsed() }
    }

    /// Repeats it while the gate has no connection to a store that is back, as its reply says to; fails after 10 s.
    pub async fn until_answered(&self, deployment: &Deployment) -> Told {
        let begun = Instant::now();
        loop {
            let told = self.attempt(deployment).await.told;
            if told.outcome != "STORE_UNAVAILABLE" {
                return told;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{} never had an answer: {told:?}", self.user);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sends all of them at once.
    pub async fn attempt_all(all: &[Ready], deployment: &Deployment) -> Vec<Heard> {
        join_all(all.iter().map(|ready| ready.attempt(deployment))).await
    }
}
