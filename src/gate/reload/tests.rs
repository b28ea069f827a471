//! A reloader on a gate that only notes what it is told.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex as SyncMutex, mpsc};

use super::*;
use crate::config::load::{Depth, read};

const FILE: &str = include_str!("../../../conf/minimal.yaml");

fn loaded(text: &str) -> Result<Loaded, Faults> {
    read(Path::new("file.yaml"), text, None, Depth::File)
}

/// Every activity stands like this.
struct Gate {
    standing: Standing,
    applied: AtomicUsize,
}

#[async_trait]
impl Site for Gate {
    fn is_ending(&self) -> bool {
        false
    }
    async fn standing(&self, _: &ActivityId) -> Standing {
        self.standing.clone()
    }
    async fn apply(&self, _: Arc<Loaded>, _: Pages, _: bool) -> anyhow::Result<()> {
        self.applied.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn reloader(standing: Standing, reread: Reread) -> (Reloader, Arc<Gate>) {
    let gate = Arc::new(Gate { standing, applied: AtomicUsize::new(0) });
    let before = loaded(FILE).unwrap();
    let (config, picture) = (before.config.clone(), Picture::of(&before).unwrap());
    let site = Arc::clone(&gate) as Arc<dyn Site>;
    (Reloader::new(Path::new("file.yaml"), config, picture, reread, site, &Metrics::new().unwrap()).unwrap(), gate)
}

#[tokio::test]
async fn users_become_others_only_while_no_sale_is_kept() {
    for (standing, taken) in [(Standing::NotPreheated, true), (Standing::Unknown("away".into()), false)] {
        let by_email = FILE.replacen("\n  audience:", "\n  user_claim: email\n  audience:", 1);
        assert_ne!(by_email, FILE);
        let (reloader, gate) = reloader(standing, Arc::new(move || loaded(&by_email)));
        match reloader.run(false).await {
            Ok(reloaded) => assert!(taken && reloaded.changes[0].edit.key == "identity.user_claim", "{reloaded:?}"),
            Err(refused) => assert!(!taken && refused.detail().contains("identity.user_claim"), "{refused:?}"),
        }
        assert_eq!(gate.applied.load(Ordering::Relaxed), usize::from(taken));
    }
}

#[tokio::test]
async fn a_reading_that_hangs_is_given_up_and_blocks_no_later_one() {
    let (go_on, wait) = mpsc::channel();
    let wait = SyncMutex::new(Some(wait));
    let reread = move || {
        // Only the first one hangs, until the test is over.
        let hangs = wait.lock().unwrap().take();
        hangs.map(|wait: mpsc::Receiver<()>| wait.recv());
        loaded(&FILE.replacen("stock: 500", "stock: 600", 1))
    };
    let (mut reloader, gate) = reloader(Standing::NotPreheated, Arc::new(reread));
    reloader.read_within = Duration::from_millis(200);
    let given_up = tokio::time::timeout(Duration::from_secs(10), reloader.run(false)).await;
    let refused = given_up.expect("it is given up").unwrap_err();
    assert_eq!(refused.code(), "RELOAD_FAILED");
    assert!(refused.detail().contains("could not be read within"), "{}", refused.detail());
    reloader.read_within = READ_WITHIN;
    assert_eq!(reloader.run(false).await.unwrap().outcome(), "applied");
    assert_eq!(gate.applied.load(Ordering::Relaxed), 1, "what was given up changes nothing");
    drop(go_on);
}
