//! The part of a running gate that a reload replaces: the activities with their tasks, and what each listener reads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::parts;
use crate::config::{self, Config, Loaded};
use crate::domain::ActivityId;
use crate::domain::admission::{Epoch, JournalCursor, Poll, PolledActivity};
use crate::gate::activity::{Activity, World};
use crate::gate::admin::{AdminAuth, AdminWorld, Managed};
use crate::gate::delivery::courier::Courier;
use crate::gate::delivery::outbox::Outbox;
use crate::gate::delivery::pacer::Pacer;
use crate::gate::delivery::relay;
use crate::gate::edge::Edge;
use crate::gate::reload::danger::Standing;
use crate::gate::reload::{Pages, READ_WITHIN, Site};
use crate::platform::shutdown::{Shutdown, Stage};

/// Activities on this gate that run now.
pub type Activities = BTreeMap<ActivityId, Arc<Activity>>;

/// Starts and stops activities, each with its watch, its combiner and its relay.
pub struct Starter {
    /// What every activity needs.
    pub world: World,
    /// Who delivers winners.
    pub courier: Courier,
    /// Shared by all relays.
    pub pacer: Arc<Mutex<Pacer>>,
    /// The gate's tasks.
    pub tasks: TaskTracker,
    /// The end of the process.
    pub shutdown: Shutdown,
    /// Ends every activity.
    pub ended: CancellationToken,
}

struct Running {
    activity: Arc<Activity>,
    ended: CancellationToken,
    relay: JoinHandle<()>,
}

impl Starter {
    fn start(&self, id: &ActivityId, activity: &config::schema::Activity) -> Running {
        let ended = self.ended.child_token();
        let terms = config::terms(activity, Epoch(1));
        let activity = Activity::start(id.clone(), terms, &self.world, ended.clone());
        self.courier.announce(id);
        let relay = relay::run(
            Arc::clone(&activity) as Arc<dyn Outbox>,
            self.courier.clone(),
            Arc::clone(&self.pacer),
            self.shutdown.clone(),
        );
        let stopped = ended.clone();
        let relay = self.tasks.spawn(async move {
            tokio::select! {
                () = relay => {}
                () = stopped.cancelled() => {}
            }
        });
        Running { activity, ended, relay }
    }

    /// Stops an activity to which nobody is led any more, and forgets what it showed.
    async fn stop(&self, id: &ActivityId, running: Running) {
        running.ended.cancel();
        // It asks for permits, which would open the lane again.
        _ = running.relay.await;
        self.courier.retire(id);
        self.world.metrics.retire(id);
    }
}

/// The activities of a gate. What runs is never looked up here, but in what a reload swaps in.
pub struct Roster {
    starter: Starter,
    running: Mutex<BTreeMap<ActivityId, Running>>,
    /// The present ones, for whoever shows all of them.
    pub present: Arc<ArcSwap<Activities>>,
}

impl Roster {
    /// Starts the activities of a configuration.
    pub fn start(starter: Starter, config: &Config) -> Roster {
        let roster = Roster { starter, running: Mutex::default(), present: Arc::default() };
        roster.follow(config);
        roster
    }

    /// Starts what is new, tells the others what the file says now, and gives all of them, and those that are to be stopped
    /// once nobody is led to them any more.
    fn follow(&self, config: &Config) -> (Arc<Activities>, Vec<(ActivityId, Running)>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, activity) in &config.activities {
            match running.get(id) {
                Some(running) => running.activity.file.replace(config::terms(activity, Epoch(1))),
                None => drop(running.insert(id.clone(), self.starter.start(id, activity))),
            }
        }
        let gone: Vec<ActivityId> = running.keys().filter(|id| !config.activities.contains_key(*id)).cloned().collect();
        let stopped = gone.into_iter().filter_map(|id| running.remove_entry(&id)).collect();
        let present: Activities =
            running.iter().map(|(id, running)| (id.clone(), Arc::clone(&running.activity))).collect();
        let present = Arc::new(present);
        self.present.store(Arc::clone(&present));
        (present, stopped)
    }
}

/// The activities as an operator meets them.
pub fn managed(config: &Config, activities: &Activities) -> BTreeMap<ActivityId, Managed> {
    activities
        .iter()
        .map(|(id, activity)| {
            let managed = Managed {
                activity: Arc::clone(activity) as _,
                terms: activity.file.get().as_ref().clone(),
                payment_deadline: config.activities.get(id).map_or(Duration::ZERO, |a| a.payment_deadline.0),
            };
            (id.clone(), managed)
        })
        .collect()
}

/// A running gate.
pub struct Live {
    /// Its activities.
    pub roster: Roster,
    /// What visitors meet.
    pub edge: Arc<Edge<Activity, Courier>>,
    /// What operators act on.
    pub admin: Arc<ArcSwap<AdminWorld>>,
    /// Who may.
    pub auth: AdminAuth,
    /// Where the admin listener is.
    pub admin_address: std::net::SocketAddr,
    /// The end of the process.
    pub shutdown: Shutdown,
}

#[async_trait]
impl Site for Live {
    fn is_ending(&self) -> bool {
        self.shutdown.stage() > Stage::Running
    }

    async fn standing(&self, id: &ActivityId) -> Standing {
        let world = self.admin.load_full();
        let seen = world.activities.get(id).map(|managed| managed.activity.view());
        let ask = Poll { gate: None, vouched: None, after: JournalCursor::start(), max_entries: 1 };
        let polled = match world.store.poll(id, &ask).await {
            Ok(polled) => polled,
            Err(error) => return Standing::Unknown(error.to_string()),
        };
        let now = polled.now;
        match (polled.activity, seen) {
            (PolledActivity::Stored(state), _) => Standing::Stored { state, now },
            (_, Some(view)) if view.vouched.is_some() => Standing::Lost { ends_at: view.ends_at, now },
            (PolledActivity::NotPreheated, _) => Standing::NotPreheated,
            (PolledActivity::Incomplete, view) => Standing::Lost { ends_at: view.map_or(now, |v| v.ends_at), now },
        }
    }

    async fn apply(&self, loaded: Arc<Loaded>, pages: Pages, dry_run: bool) -> anyhow::Result<()> {
        let address = self.admin_address;
        let of_file = Arc::clone(&loaded);
        let read = move || anyhow::Ok((parts::fallible(&of_file)?, parts::admin_auth(&of_file, address)?));
        let read = tokio::time::timeout(READ_WITHIN, tokio::task::spawn_blocking(read));
        let (fallible, auth) = read.await.context("a secret could not be read in time")???;
        if dry_run {
            return Ok(());
        }
        // From here on nothing fails, and nothing waits until it is in effect.
        let (activities, stopped) = self.roster.follow(&loaded.config);
        let courier = &self.roster.starter.courier;
        let before = self.edge.sale.load_full();
        let metrics = &self.edge.metrics;
        let sale = parts::sale(&loaded, fallible, pages, &activities, courier, metrics, Some(&before.limits));
        self.edge.sale.store(Arc::new(sale));
        let world = self.admin.load_full();
        self.admin.store(Arc::new(world.with(managed(&loaded.config, &activities), parts::gates(&loaded.config))));
        self.auth.follow(&auth);
        for (id, running) in stopped {
            self.roster.starter.stop(&id, running).await;
            metrics.retire(&id);
        }
        Ok(())
    }
}
