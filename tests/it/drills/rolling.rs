//! Two gates are restarted one after the other in a rush.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loadtest::crowd::Crowd;
use loadtest::http::Line;
use tokio::task::JoinSet;

use super::measured::Ready;
use super::{audited, leave, plan, say, until_whole, until_wins};
use crate::harness::deployment::{Deployment, OTHER_SALE, SALE, Wish, run};

/// Enough that units are left while both gates restart.
const UNITS: u32 = 200;
/// Visitors beside the crowd, who never pause.
const VISITORS: usize = 8;
const SEED: u64 = 11;

/// Sends its visitors to gates that say they are ready, as a load balancer does.
struct Balancer {
    gates: Vec<(SocketAddr, String, AtomicBool)>,
    answered: AtomicUsize,
    over: AtomicBool,
}

impl Balancer {
    fn before(deployment: &Deployment) -> Arc<Balancer> {
        let gate = |gate: &crate::harness::deployment::Gate| {
            let ready = format!("http://127.0.0.1:{}/readyz", gate.admin);
            (([127, 0, 0, 1], gate.public).into(), ready, AtomicBool::new(true))
        };
        let gates = deployment.gates.iter().map(gate).collect();
        Arc::new(Balancer { gates, answered: AtomicUsize::new(0), over: AtomicBool::new(false) })
    }

    async fn watch(self: Arc<Balancer>, number: usize) {
        let client = reqwest::Client::builder().timeout(Duration::from_millis(500)).build().unwrap();
        let (_, url, ready) = &self.gates[number];
        while !self.over.load(Ordering::Relaxed) {
            let asked = client.get(url).send().await;
            ready.store(asked.is_ok_and(|reply| reply.status() == 200), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Looks at the sale and repeats its attempt, by turns. What was lost: requests that a ready gate did not answer, or
    /// not as it should have.
    async fn visit(self: Arc<Balancer>, visitor: Visitor) -> Vec<String> {
        let mut lost = Vec::new();
        let mut line = Line::new(None, self.gates[0].0);
        let mut turn = visitor.number;
        while !self.over.load(Ordering::Relaxed) {
            turn += 1;
            let (gate, _, ready) = &self.gates[turn / 4 % self.gates.len()];
            if !ready.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            line.turn_to(*gate);
            let request = if turn.is_multiple_of(2) { &visitor.look } else { &visitor.attempt };
            match line.call(request.as_bytes(), Instant::now() + Duration::from_secs(10)).await {
                Ok(reply) if turn.is_multiple_of(2) && reply.status == 200 => {}
                Ok(reply) if turn % 2 == 1 && reply.header("seckill-outcome").is_some() => {}
                Ok(reply) => lost.push(format!("{gate}: {}", String::from_utf8_lossy(&reply.body))),
                Err(failure) => lost.push(format!("{gate}: {}", failure.name())),
            }
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        lost
    }
}

/// What one visitor sends.
struct Visitor {
    number: usize,
    look: String,
    attempt: String,
}

impl Visitor {
    async fn all(deployment: &Deployment) -> Vec<Visitor> {
        let tokens = Ready::users(deployment, OTHER_SALE, &[0], "visitor", VISITORS).await;
        let visitor = |(number, ready): (usize, &Ready)| {
            let jwt = deployment.signer().sign(&ready.user, Duration::from_secs(600)).unwrap();
            let look = format!("GET /seckill/{OTHER_SALE}/state HTTP/1.1\r\nHost: shop.test\r\n\r\n");
            let attempt = format!(
                "POST /seckill/{OTHER_SALE} HTTP/1.1\r\nHost: shop.test\r\nAuthorization: Bearer {jwt}\r\n\
                 Idempotency-Key: key\r\nSeckill-Token: {}\r\nContent-Type: application/json\r\n\
                 Content-Length: 2\r\n\r\n{{}}",
                ready.token
            );
            Visitor { number, look, attempt }
        };
        tokens.iter().enumerate().map(visitor).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_two_gates_in_a_rush_loses_nothing() {
    const DRILL: &str = "rolling restart";
    let drain_delay = Duration::from_secs(1);
    let mut deployment = Deployment::as_wished(Wish { gates: 2, stock: UNITS, drain_delay, ..Wish::default() }).await;
    let balancer = Balancer::before(&deployment);
    let mut visitors = JoinSet::new();
    for number in 0..2 {
        tokio::spawn(Arc::clone(&balancer).watch(number));
    }
    for visitor in Visitor::all(&deployment).await {
        visitors.spawn(Arc::clone(&balancer).visit(visitor));
    }
    let mut plan = plan(&deployment, SALE, &[0, 1], SEED);
    plan.users = 2 * UNITS;
    plan.arrive_within = Duration::from_secs(12);
    let crowd = Crowd::send(plan);
    until_wins(&deployment, SALE, 10).await;
    for gate in 0..2 {
        deployment.end_gate(gate);
        deployment.start_gate(gate);
        deployment.until_phase(SALE, gate, "open").await;
        let answered = balancer.answered.swap(0, Ordering::Relaxed);
        say(DRILL, format_args!("gate {gate} is back, {answered} visitors were answered meanwhile"));
        assert!(answered > 0);
    }
    until_whole(&deployment, SALE, UNITS, Instant::now(), DRILL).await;
    let funnel = leave(crowd, DRILL).await;
    balancer.over.store(true, Ordering::Relaxed);
    let lost: Vec<String> = visitors.join_all().await.into_iter().flatten().collect();
    assert_eq!(lost, Vec::<String>::new(), "requests that a ready gate did not answer");
    audited(&deployment, SALE, &funnel).await;
    // Each visitor's attempt was one, however often it was sent.
    let visitors = format!("SELECT COUNT(*) FROM orders WHERE activity = '{OTHER_SALE}' AND state = 'pending'");
    deployment.until_count(&visitors, VISITORS as i64).await;
    run(&mut deployment.command(0, &["audit", OTHER_SALE]));
}
