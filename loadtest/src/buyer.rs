//! One buyer: looks at the sale, fetches a token, clicks until it knows, and a little longer.
//!
//! The key stays the same throughout, as the protocol asks: so a repeat can never win twice, and a win that was told
//! must be told again.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{sleep, sleep_until};

use crate::answer::Answer;
use crate::crowd::World;
use crate::funnel::{Funnel, Tally, ToldWin, outcome};
use crate::http::{Line, Reply};

/// Attempts beyond the plan that a buyer makes to learn an outcome that the gate could not tell.
const EXTRA_ATTEMPTS: u32 = 30;
/// How long a buyer waits for the booking of a queued win.
const RESULT_PATIENCE: Duration = Duration::from_secs(60);
/// How long one look at a result may take on the gate's side.
const RESULT_WAIT: Duration = Duration::from_secs(10);
/// Users stay signed in for longer than any crowd lasts.
const SESSION: Duration = Duration::from_secs(3_600);

#[derive(Debug, Deserialize)]
struct State {
    phase: String,
    server_time_ms: u64,
    starts_at_ms: u64,
}

#[derive(Debug, Deserialize)]
struct Token {
    token: String,
}

#[derive(Debug, Deserialize)]
struct Standing {
    state: String,
}

/// How a buyer behaves.
#[derive(Debug, Clone, Copy)]
struct Manners {
    /// Average pause between two clicks.
    pace: Duration,
    clicks: u32,
    /// How long before the start it clicks for the first time.
    early: Duration,
    /// Comes by another gate each time.
    roams: bool,
}

struct Buyer {
    world: Arc<World>,
    number: u32,
    name: String,
    key: String,
    jwt: String,
    rng: SmallRng,
    line: Line,
    manners: Manners,
    token: Option<String>,
    request: Vec<u8>,
}

/// The whole life of buyer `number`.
pub(crate) async fn buy(world: Arc<World>, number: u32) {
    let arrival = {
        let mut rng = rng(&world, number, 1);
        world.plan.arrive_within.mul_f64(rng.random_range(0.0..1.0))
    };
    sleep(arrival).await;
    let definite = match Buyer::new(world.clone(), number) {
        Ok(mut buyer) => {
            let first_click = buyer.prepare().await;
            sleep_until(first_click.into()).await;
            buyer.click().await
        }
        Err(error) => {
            world.funnel().broke(format!("the load generator failed: {error:#}"));
            false
        }
    };
    let mut funnel = world.funnel();
    funnel.left += 1;
    funnel.gave_up += u64::from(!definite);
}

fn rng(world: &World, number: u32, purpose: u64) -> SmallRng {
    SmallRng::seed_from_u64(world.plan.seed ^ (u64::from(number) << 8) ^ (purpose << 48))
}

impl Buyer {
    fn new(world: Arc<World>, number: u32) -> anyhow::Result<Buyer> {
        let plan = &world.plan;
        let mut rng = rng(&world, number, 2);
        let name = format!("{}-{number}", plan.name);
        let mut manners =
            Manners { pace: plan.pace, clicks: plan.attempts_per_user, early: Duration::ZERO, roams: number % 8 == 7 };
        match rng.random_range(0..100) {
            // Some hammer the button: limits are for them.
            0..10 => manners = Manners { pace: plan.pace / 15, clicks: manners.clicks * 2, ..manners },
            // Some can't wait.
            10..15 => manners.early = Duration::from_millis(400),
            _ => {}
        }
        let gate = plan.gates.get(number as usize % plan.gates.len().max(1)).copied();
        let gate = gate.ok_or_else(|| anyhow::anyhow!("the plan names no gate"))?;
        Ok(Buyer {
            jwt: plan.signer.sign(&name, SESSION)?,
            key: format!("{name}.{}", plan.seed),
            line: Line::new(plan.source(number), gate),
            token: None,
            request: Vec::with_capacity(1_024),
            world,
            number,
            name,
            rng,
            manners,
        })
    }

    /// Looks at the sale and, if it is still to come, fetches a token ahead. Tells when to click first.
    async fn prepare(&mut self) -> Instant {
        let world = self.world.clone();
        let Ok(_seat) = world.seats.acquire().await else { return Instant::now() };
        let surge = self.world.plan.surge.mul_f64(-(1.0 - self.rng.random_range(0.0..1.0_f64)).ln());
        let mut first_click = Instant::now();
        if let Some(state) = self.look().await
            && state.phase == "before"
        {
            let to_start = Duration::from_millis(state.starts_at_ms.saturating_sub(state.server_time_ms));
            first_click = if self.manners.early.is_zero() {
                Instant::now() + to_start + surge
            } else {
                Instant::now() + to_start.saturating_sub(self.manners.early)
            };
            self.fetch_token().await;
        }
        self.line.hang_up();
        first_click
    }

    /// Clicks as often as the buyer likes, and on until it knows where it stands. `false` if it never did.
    async fn click(&mut self) -> bool {
        let world = self.world.clone();
        let Ok(_seat) = world.seats.acquire().await else { return false };
        let mut win: Option<ToldWin> = None;
        let mut told_body: Option<Vec<u8>> = None;
        let mut definite = false;
        let mut sent = 0;
        while !world.out_of_time() {
            self.roam(sent);
            if self.token.is_none() && win.is_none() {
                self.fetch_token().await;
            }
            let answer = self.attempt(win.as_ref(), told_body.as_deref()).await;
            sent += 1;
            definite |= !answer.is_indefinite();
            match &answer {
                Answer::Won { request_id, body } => {
                    told_body.get_or_insert_with(|| body.clone());
                    self.was_told(&mut win, request_id, true);
                }
                Answer::Queued { request_id } => {
                    self.was_told(&mut win, request_id, false);
                    self.wait_for_booking().await;
                }
                // A token that is no longer good is of no use to the next click.
                Answer::Refused { code, .. } if code.starts_with("TOKEN_") && win.is_none() => self.token = None,
                _ => {}
            }
            let enough = if definite { self.manners.clicks } else { self.manners.clicks + EXTRA_ATTEMPTS };
            if sent >= enough {
                break;
            }
            sleep(self.pause_after(&answer)).await;
        }
        if let Some(win) = win {
            self.world.funnel().wins.push(win);
        }
        self.line.hang_up();
        definite
    }

    fn was_told(&self, win: &mut Option<ToldWin>, request_id: &str, accepted: bool) {
        let told = ToldWin { user: self.name.clone(), request_id: request_id.into(), accepted };
        win.get_or_insert(told).accepted |= accepted;
    }

    /// How long to wait before the next click: a moment, and never less than the gate asked for.
    fn pause_after(&mut self, answer: &Answer) -> Duration {
        let moment = self.manners.pace.mul_f64(self.rng.random_range(0.5..1.5));
        let asked = match answer {
            Answer::Refused { retry_after, .. } => retry_after.unwrap_or_default(),
            Answer::Failed(_) => Duration::from_millis(500),
            _ => Duration::ZERO,
        };
        // SOLD_OUT asks for patience that a person in a flash sale does not have.
        let heeded = match answer {
            Answer::Refused { code, .. } if code == "SOLD_OUT" => Duration::ZERO,
            // Not all at the same instant: that would make the next crowd.
            _ => asked + asked.mul_f64(self.rng.random_range(0.0..0.25)),
        };
        moment.max(heeded).min(Duration::from_secs(30))
    }

    fn roam(&mut self, sent: u32) {
        let gates = &self.world.plan.gates;
        if self.manners.roams && gates.len() > 1 {
            let turn = (self.number as usize).wrapping_add(sent as usize) % gates.len();
            self.line.turn_to(gates[turn]);
        }
    }

    async fn look(&mut self) -> Option<State> {
        let path = format!("{}/{}/state", self.world.plan.prefix, self.world.plan.activity);
        let reply = self.call(|funnel| &mut funnel.state, "GET", &path, "", b"", name_of_success).await;
        reply.and_then(|reply| serde_json::from_slice(&reply.body).ok())
    }

    async fn fetch_token(&mut self) {
        let plan = &self.world.plan;
        let path = format!("{}/{}/tokens", plan.prefix, plan.activity);
        let body = json!({ "sku": plan.sku, "qty": plan.qty }).to_string();
        let fields = format!("Idempotency-Key: {}\r\n", self.key);
        let reply =
            self.call(|funnel| &mut funnel.tokens, "POST", &path, &fields, body.as_bytes(), name_of_success).await;
        let token = reply.and_then(|reply| serde_json::from_slice::<Token>(&reply.body).ok());
        self.token = token.map(|token| token.token);
    }

    /// One attempt, counted as what it means to this buyer. Without a token it is sent all the same: the refusal is the
    /// gate's to give.
    async fn attempt(&mut self, win: Option<&ToldWin>, told_body: Option<&[u8]>) -> Answer {
        let plan = &self.world.plan;
        let path = format!("{}/{}", plan.prefix, plan.activity);
        let body = json!({ "sku": plan.sku, "qty": plan.qty, "ship_to": self.name }).to_string();
        let mut fields = format!("Idempotency-Key: {}\r\n", self.key);
        if let Some(token) = &self.token {
            let _ = write!(fields, "Seckill-Token: {token}\r\n");
        }
        self.write_request("POST", &path, &fields, body.as_bytes());
        self.world.funnel().attempts.sent += 1;
        let begun = Instant::now();
        let reply = self.line.call(&self.request, begun + self.world.plan.deadline).await;
        let took = begun.elapsed();
        let answer = Answer::of_attempt(reply);
        let mut funnel = self.world.funnel();
        let again = win.is_some();
        match &answer {
            Answer::Won { .. } => {
                funnel.attempts.answer(if again { outcome::WON_AGAIN } else { outcome::WON }, took);
            }
            Answer::Queued { .. } => {
                funnel.attempts.answer(if again { outcome::QUEUED_AGAIN } else { outcome::QUEUED }, took);
            }
            Answer::Refused { code, limit: Some(limit), .. } => {
                funnel.attempts.answer(&format!("{code} by {limit}"), took);
            }
            Answer::Refused { code, .. } => funnel.attempts.answer(code, took),
            Answer::Failed(failure) => funnel.attempts.failure(*failure),
        }
        if let Some(win) = win
            && !answer.may_follow(win, told_body)
        {
            funnel.broke(format!("{} was told its win {} and then {answer:?}", win.user, win.request_id));
        }
        drop(funnel);
        answer
    }

    /// Long-polls until the order service has spoken, or patience ends; the next click tells what was said.
    async fn wait_for_booking(&mut self) {
        let plan = &self.world.plan;
        let path = format!("{}/{}/results/{}?wait={}s", plan.prefix, plan.activity, self.key, RESULT_WAIT.as_secs());
        let until = Instant::now() + RESULT_PATIENCE;
        while Instant::now() < until && !self.world.out_of_time() {
            let reply = self.call(|funnel| &mut funnel.results, "GET", &path, "", b"", standing).await;
            let standing = reply.and_then(|reply| serde_json::from_slice::<Standing>(&reply.body).ok());
            if standing.is_some_and(|standing| standing.state != "queued") {
                return;
            }
            let moment = self.manners.pace.mul_f64(self.rng.random_range(0.5..1.0));
            sleep(moment).await;
        }
    }

    /// Sends a request that is not an attempt, and counts it. `Some` is a success.
    async fn call(
        &mut self,
        tally: impl Fn(&mut Funnel) -> &mut Tally,
        method: &str,
        path: &str,
        fields: &str,
        body: &[u8],
        success: fn(&Reply) -> String,
    ) -> Option<Reply> {
        self.write_request(method, path, fields, body);
        tally(&mut self.world.funnel()).sent += 1;
        let begun = Instant::now();
        let reply = self.line.call(&self.request, begun + self.world.plan.deadline + RESULT_WAIT).await;
        let took = begun.elapsed();
        let mut funnel = self.world.funnel();
        let tally = tally(&mut funnel);
        match reply {
            Ok(reply) if (200..300).contains(&reply.status) => {
                tally.answer(&success(&reply), took);
                Some(reply)
            }
            Ok(reply) => {
                if let Answer::Refused { code, .. } = Answer::refusal(&reply) {
                    tally.answer(&code, took);
                }
                None
            }
            Err(failure) => {
                tally.failure(failure);
                None
            }
        }
    }

    fn write_request(&mut self, method: &str, path: &str, fields: &str, body: &[u8]) {
        self.request.clear();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nSeckill-Device: d-{}\r\n{fields}",
            self.line.target(),
            self.jwt,
            self.name,
        );
        if method == "POST" {
            let _ = write!(head, "Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        head.push_str("\r\n");
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
    }
}

fn name_of_success(_: &Reply) -> String {
    outcome::OK.to_owned()
}

/// The state that a result told.
fn standing(reply: &Reply) -> String {
    serde_json::from_slice::<Standing>(&reply.body).map_or_else(|_| "unreadable".to_owned(), |standing| standing.state)
}
