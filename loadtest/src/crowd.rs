//! Many buyers at once: their plan, their start, and the count of what became of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::buyer;
use crate::funnel::Funnel;
use crate::signer::Signer;

/// What the crowd is to do.
#[derive(Clone)]
pub struct Plan {
    /// The public listeners of the gates. Most buyers keep to one; one in eight comes by another each time.
    pub gates: Vec<SocketAddr>,
    /// Path prefix of the sale's routes, e.g. `/seckill`.
    pub prefix: String,
    /// The sale.
    pub activity: String,
    /// What they want.
    pub sku: String,
    /// How many of it, each.
    pub qty: u32,
    /// How many buyers.
    pub users: u32,
    /// In front of each buyer's name and key, so that one crowd's buyers are not another's.
    pub name: String,
    /// Attempts that each buyer sends at least, repeats of a win included.
    pub attempts_per_user: u32,
    /// Pause of a patient buyer between two clicks, on average.
    pub pace: Duration,
    /// The looks and token requests before the start are spread over this time.
    pub arrive_within: Duration,
    /// After the start, the buyers' first clicks fall off exponentially with this mean.
    pub surge: Duration,
    /// Buyers connected at once; this bounds the file descriptors.
    pub concurrency: usize,
    /// Deadline of one request, connecting included.
    pub deadline: Duration,
    /// After this time nobody begins another request.
    pub give_up_after: Duration,
    /// Whether each buyer comes from an address of its own in 127.0.0.0/8.
    pub own_addresses: bool,
    /// The same seed makes the same decisions.
    pub seed: u64,
    /// Signs the buyers in.
    pub signer: Arc<Signer>,
}

impl Plan {
    /// A plan with the usual manners; change what differs.
    pub fn new(gates: Vec<SocketAddr>, activity: &str, sku: &str, signer: Arc<Signer>) -> Plan {
        Plan {
            gates,
            prefix: "/seckill".into(),
            activity: activity.into(),
            sku: sku.into(),
            qty: 1,
            users: 1_000,
            name: "buyer".into(),
            attempts_per_user: 4,
            pace: Duration::from_millis(900),
            arrive_within: Duration::from_secs(20),
            surge: Duration::from_secs(3),
            concurrency: 8_000,
            deadline: Duration::from_secs(10),
            give_up_after: Duration::from_secs(180),
            own_addresses: true,
            seed: 1,
            signer,
        }
    }

    /// Where buyer `number` comes from: never 127.0.0.1, which is ours, and never an address of another buyer.
    pub fn source(&self, number: u32) -> Option<IpAddr> {
        // 127.1.0.0 and up: sixteen million addresses, then they repeat.
        let host = (1 << 16) + number % ((1 << 24) - (1 << 16) - 1);
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 0, 0, 0)) + host);
        self.own_addresses.then_some(IpAddr::V4(address))
    }
}

/// How many files this process may hold open (its soft limit), where the system tells. Each connected buyer takes one,
/// and two if the gate runs in the same process: bound [`Plan::concurrency`] by it.
pub fn descriptor_limit() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(usize::MAX),
        number => number.parse().ok(),
    }
}

/// What all buyers share.
pub(crate) struct World {
    pub(crate) plan: Plan,
    /// Bounds the connections.
    pub(crate) seats: Semaphore,
    pub(crate) begun: Instant,
    funnel: Mutex<Funnel>,
}

impl World {
    pub(crate) fn funnel(&self) -> MutexGuard<'_, Funnel> {
        // The funnel only counts: it is whole even if a buyer panicked.
        self.funnel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn out_of_time(&self) -> bool {
        self.begun.elapsed() >= self.plan.give_up_after
    }
}

/// A crowd under way.
pub struct Crowd {
    world: Arc<World>,
    buyers: JoinSet<()>,
}

impl Crowd {
    /// Sends the crowd. Call inside a tokio runtime. Dropping it sends everybody home.
    pub fn send(plan: Plan) -> Crowd {
        let seats = Semaphore::new(plan.concurrency.clamp(1, Semaphore::MAX_PERMITS));
        let users = plan.users;
        let world = Arc::new(World { plan, seats, begun: Instant::now(), funnel: Mutex::default() });
        let mut buyers = JoinSet::new();
        for number in 0..users {
            buyers.spawn(buyer::buy(world.clone(), number));
        }
        Crowd { world, buyers }
    }

    /// How it stands now.
    pub fn funnel(&self) -> Funnel {
        self.world.funnel().clone()
    }

    /// Waits until all have left and tells what became of them; `progress` is called every second. A buyer that
    /// panicked counts as a broken promise: ours.
    pub async fn finish(mut self, mut progress: impl FnMut(Duration, &Funnel)) -> Funnel {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                joined = self.buyers.join_next() => match joined {
                    None => break,
                    Some(Ok(())) => {}
                    Some(Err(error)) => self.world.funnel().broke(format!("the load generator failed: {error}")),
                },
                _ = tick.tick() => progress(self.world.begun.elapsed(), &self.funnel()),
            }
        }
        self.funnel()
    }
}
