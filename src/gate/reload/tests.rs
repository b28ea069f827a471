//! A reloader on a gate that only notes what it is told.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    (Reloader::new(config, picture, reread, site, &Metrics::new().unwrap()).unwrap(), gate)
}

#[tokio::test]
async fn users_become_others_only_while_no_sale_is_kept() {
    for (standing, taken) in [(Standing::NotPreheated, true), (Standing::Unknown("away".into()), false)] {
        let by_email = FILE.replacen("\n  audience:", "\n  user_claim: email\n  audience:", 1);
        assert_ne!(by_email, FILE);
        let (reloader, gate) = reloader(standing, Arc::new(move || loaded(&by_email)));
        match reloader.reload(false).await {
            Ok(reloaded) => assert!(taken && reloaded.changes[0].edit.key == "identity.user_claim", "{reloaded:?}"),
            Err(refused) => assert!(!taken && refused.detail().contains("identity.user_claim"), "{refused:?}"),
        }
        assert_eq!(gate.applied.load(Ordering::Relaxed), usize::from(taken));
    }
}
