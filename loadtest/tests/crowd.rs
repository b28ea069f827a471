//! The crowd against a small gate of the test's own, on real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadtest::crowd::{Crowd, Plan, descriptor_limit};
use loadtest::funnel::{Funnel, outcome};
use loadtest::http::Failure;
use loadtest::signer::Signer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// How the small gate misbehaves.
#[derive(Clone, Copy, PartialEq)]
enum Vice {
    None,
    /// Forgets a win when the winner asks again.
    ForgetsWins,
    /// Drops every tenth connection in place of a reply.
    HangsUp,
    /// Never replies to an attempt.
    IsMute,
    /// Queues its wins before it accepts them, and asks for patience first.
    Queues,
}

struct Gate {
    vice: Vice,
    stock: u64,
    opens: Instant,
    /// Key → times it was told of its win.
    wins: HashMap<String, u64>,
    attempts: u64,
    requests: u64,
    sources: HashSet<IpAddr>,
    keys: HashSet<String>,
}

type Shared = Arc<Mutex<Gate>>;

async fn start(vice: Vice, stock: u64, opens_in: Duration) -> (SocketAddr, Shared) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let gate = Gate {
        vice,
        stock,
        opens: Instant::now() + opens_in,
        wins: HashMap::new(),
        attempts: 0,
        requests: 0,
        sources: HashSet::new(),
        keys: HashSet::new(),
    };
    let gate = Arc::new(Mutex::new(gate));
    let shared = gate.clone();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            gate.lock().unwrap().sources.insert(peer.ip());
            tokio::spawn(serve(stream, gate.clone()));
        }
    });
    (address, shared)
}

async fn serve(mut stream: TcpStream, gate: Shared) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let (head, body_length) = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
                let length = field(&head, "content-length").map_or(0, |length| length.parse().unwrap());
                bytes.drain(..end + 4);
                break (head, length);
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        while bytes.len() < body_length {
            stream.read_buf(&mut bytes).await?;
        }
        bytes.drain(..body_length);
        let reply = gate.lock().unwrap().reply(&head);
        match reply {
            Reply::Text(text) => stream.write_all(text.as_bytes()).await?,
            Reply::HangUp => return Ok(()),
            Reply::Silence => std::future::pending().await,
        }
    }
}

enum Reply {
    Text(String),
    HangUp,
    Silence,
}

fn field(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

fn text(status: u16, fields: &str, body: &str) -> Reply {
    Reply::Text(format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{fields}\r\n{body}", body.len()))
}

fn refusal(status: u16, code: &str, retry_after_ms: u64) -> Reply {
    text(status, "", &format!("{{\"code\":\"{code}\",\"retry_after_ms\":{retry_after_ms}}}"))
}

impl Gate {
    fn reply(&mut self, head: &str) -> Reply {
        let target = head.split(' ').nth(1).unwrap().to_owned();
        assert!(field(head, "authorization").unwrap().starts_with("Bearer ey"), "nobody signed in: {head}");
        self.requests += 1;
        if self.vice == Vice::HangsUp && self.requests.is_multiple_of(10) {
            return Reply::HangUp;
        }
        let to_start = self.opens.saturating_duration_since(Instant::now());
        if target.ends_with("/state") {
            let phase = if to_start.is_zero() { "open" } else { "before" };
            let starts = 1_000_000 + to_start.as_millis();
            let body = format!(r#"{{"phase":"{phase}","server_time_ms":1000000,"starts_at_ms":{starts}}}"#);
            return text(200, "", &body);
        }
        if target.contains("/results/") {
            return text(200, "", r#"{"state":"accepted"}"#);
        }
        let key = field(head, "idempotency-key").unwrap();
        if target.ends_with("/tokens") {
            return text(200, "", &format!(r#"{{"token":"for-{key}"}}"#));
        }
        assert_eq!(target, "/seckill/sale");
        self.attempts += 1;
        self.keys.insert(key.clone());
        if self.vice == Vice::IsMute {
            return Reply::Silence;
        }
        if field(head, "seckill-token") != Some(format!("for-{key}")) {
            return refusal(403, "TOKEN_INVALID", 0);
        }
        if !to_start.is_zero() {
            return refusal(409, "NOT_STARTED", to_start.as_millis() as u64);
        }
        if let Some(times) = self.wins.get_mut(&key) {
            *times += 1;
            return if self.vice == Vice::ForgetsWins { refusal(410, "SOLD_OUT", 0) } else { won(&key) };
        }
        if self.stock == 0 {
            return refusal(410, "SOLD_OUT", 1_000);
        }
        self.stock -= 1;
        self.wins.insert(key.clone(), 1);
        if self.vice == Vice::Queues {
            return text(202, "Seckill-Outcome: QUEUED\r\n", &format!(r#"{{"request_id":"{key}"}}"#));
        }
        won(&key)
    }
}

fn won(key: &str) -> Reply {
    let fields = format!("Seckill-Outcome: WON\r\nSeckill-Request-Id: {key}\r\n");
    text(201, &fields, &format!(r#"{{"order":"{key}"}}"#))
}

fn plan(gates: Vec<SocketAddr>, users: u32) -> Plan {
    let secret = b"0123456789abcdef0123456789abcdef";
    let signer = Arc::new(Signer::hs256(secret, "shop", "https://shop.test", "seckill").unwrap());
    Plan {
        users,
        pace: Duration::from_millis(20),
        arrive_within: Duration::from_millis(100),
        surge: Duration::from_millis(50),
        concurrency: 64,
        deadline: Duration::from_secs(5),
        give_up_after: Duration::from_secs(30),
        ..Plan::new(gates, "sale", "thing", signer)
    }
}

async fn run(plan: Plan) -> Funnel {
    let funnel = Crowd::send(plan).finish(|_, _| {}).await;
    assert!(funnel.adds_up(), "requests were lost:\n{}", funnel.table(None));
    funnel
}

#[tokio::test]
async fn a_crowd_takes_exactly_the_stock_and_each_buyer_is_counted() {
    let (address, gate) = start(Vice::None, 30, Duration::from_millis(800)).await;
    let funnel = run(plan(vec![address], 300)).await;
    let gate = gate.lock().unwrap();
    assert_eq!(funnel.wins.len(), 30);
    assert!(funnel.wins.iter().all(|win| win.accepted && gate.wins.contains_key(&win.request_id)));
    assert!(funnel.attempts.sent >= 4 * 300, "only {} attempts", funnel.attempts.sent);
    assert_eq!(funnel.attempts.sent, gate.attempts);
    assert_eq!((funnel.left, funnel.gave_up, funnel.broken_count), (300, 0, 0), "{:?}", funnel.broken);
    assert!(funnel.attempts.count("NOT_STARTED") > 0, "nobody came early");
    assert!(funnel.attempts.count(outcome::WON_AGAIN) >= 3 * 30, "the winners did not ask again");
    assert_eq!(gate.keys.len(), 300, "a buyer changed its key");
    assert_eq!(gate.sources.len(), 300, "buyers shared addresses");
}

#[tokio::test]
async fn a_win_told_and_then_denied_is_a_broken_promise() {
    let (address, _gate) = start(Vice::ForgetsWins, 5, Duration::ZERO).await;
    let funnel = run(plan(vec![address], 40)).await;
    assert!(funnel.broken_count >= 5 * 3, "{} noticed", funnel.broken_count);
}

#[tokio::test]
async fn a_lost_connection_is_counted_by_name_and_the_attempt_repeated_with_its_key() {
    let (address, gate) = start(Vice::HangsUp, 20, Duration::ZERO).await;
    let funnel = run(plan(vec![address], 100)).await;
    let failures: u64 =
        [&funnel.state, &funnel.tokens, &funnel.attempts].iter().flat_map(|tally| tally.failures.values()).sum();
    assert_eq!(failures, gate.lock().unwrap().requests / 10);
    assert_eq!((funnel.wins.len(), funnel.gave_up, funnel.broken_count), (20, 0, 0), "{:?}", funnel.broken);
}

#[tokio::test]
async fn a_mute_gate_holds_nobody_for_ever() {
    let (address, _gate) = start(Vice::IsMute, 1, Duration::ZERO).await;
    let short =
        Plan { deadline: Duration::from_millis(50), give_up_after: Duration::from_secs(1), ..plan(vec![address], 10) };
    let funnel = run(short).await;
    assert_eq!(funnel.gave_up, 10);
    assert!(funnel.attempts.failures[&Failure::Timeout] >= 10);
}

#[tokio::test]
async fn nobody_listening_is_counted_as_refused() {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let short = Plan { give_up_after: Duration::from_secs(1), ..plan(vec![address], 5) };
    let funnel = run(short).await;
    assert_eq!(funnel.gave_up, 5);
    assert!(funnel.attempts.failures[&Failure::Refused] >= 5);
}

#[tokio::test]
async fn a_queued_win_is_awaited_and_then_told() {
    let (address, _gate) = start(Vice::Queues, 10, Duration::ZERO).await;
    let funnel = run(plan(vec![address], 20)).await;
    assert_eq!(funnel.attempts.count(outcome::QUEUED), 10);
    assert_eq!(funnel.results.count("accepted"), 10);
    assert!(funnel.wins.len() == 10 && funnel.wins.iter().all(|win| win.accepted), "{:?}", funnel.wins);
    assert_eq!(funnel.broken_count, 0, "{:?}", funnel.broken);
}

#[test]
fn the_limit_of_descriptors_is_the_shells() {
    let told = std::process::Command::new("sh").args(["-c", "ulimit -n"]).output().unwrap().stdout;
    let told = String::from_utf8(told).unwrap().trim().parse().unwrap_or(usize::MAX);
    assert_eq!(descriptor_limit(), Some(told));
}

#[tokio::test]
async fn with_two_gates_every_buyer_has_one_and_some_change() {
    let (one, first) = start(Vice::None, 0, Duration::ZERO).await;
    let (two, second) = start(Vice::None, 0, Duration::ZERO).await;
    run(plan(vec![one, two], 80)).await;
    let (first, second) = (first.lock().unwrap(), second.lock().unwrap());
    let both = first.keys.intersection(&second.keys).count();
    assert_eq!(both, 10, "one in eight comes by the other gate, too");
    assert_eq!(first.keys.len() + second.keys.len() - both, 80);
}
