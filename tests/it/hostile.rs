//! What no honest client sends, byte for byte, to a whole gate: each has its exact reply, and none of it reaches the
//! store's `admit` or the shop. The table is in
//! [`rows`] and [`wire`]; this is who sends it and who watches.

mod makings;
mod rows;
mod wire;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use seckill_gate::gate::store::redis::{Keys, LuaScript, Scripts};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::harness::deployment::{Deployment, SALE, Wish};
use crate::harness::redis::Redis;
use makings::Makings;
use rows::Row;

const PATIENCE: Duration = Duration::from_secs(10);

/// A shop that answers everything, and keeps what it was sent.
async fn shop() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let all = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = Arc::clone(&all);
            tokio::spawn(async move {
                let mut chunk = [0; 65_536];
                // Whatever arrives counts, a whole request or not.
                while let Ok(read @ 1..) = stream.read(&mut chunk).await {
                    seen.lock().unwrap().push(String::from_utf8_lossy(&chunk[..read]).into_owned());
                    _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nshop").await;
                }
            });
        }
    });
    (port, seen)
}

/// Every command that the store's server executes, as it tells them itself.
struct Watched {
    lines: Arc<Mutex<Vec<String>>>,
    markers: usize,
}

impl Watched {
    async fn start(redis: &Redis) -> Watched {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port)).await.unwrap();
        stream.write_all(b"MONITOR\r\n").await.unwrap();
        let mut lines = BufReader::new(stream).split(b'\n');
        assert_eq!(lines.next_segment().await.unwrap().unwrap(), b"+OK\r");
        let watched = Watched { lines: Arc::default(), markers: 0 };
        let seen = Arc::clone(&watched.lines);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_segment().await {
                seen.lock().unwrap().push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        watched
    }

    /// Calls of `admit` since the last time this was asked. A command of our own marks the place up to which the server has
    /// told everything.
    async fn admits(&mut self, redis: &Redis, admit: &Admit) -> usize {
        self.markers += 1;
        let marker = format!("up-to-here-{}", self.markers);
        redis.command(&["ECHO", &marker]).unwrap();
        let (started, marker) = (Instant::now(), format!("\"ECHO\" \"{marker}\""));
        loop {
            {
                let mut lines = self.lines.lock().unwrap();
                if let Some(at) = lines.iter().position(|line| line.contains(&marker)) {
                    return lines.drain(..=at).filter(|line| admit.is_called_in(line)).count();
                }
            }
            assert!(started.elapsed() < PATIENCE, "the server told nothing of {marker}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The script, as MONITOR shows it.
struct Admit {
    sha: String,
    source: String,
}

impl Admit {
    fn new() -> Admit {
        let script: LuaScript = Scripts::built_in().admit;
        let keys = Keys::of(&SALE.parse().unwrap());
        let argument = |command: redis::Cmd| {
            let second = command.args_iter().nth(1);
            let Some(redis::Arg::Simple(bytes)) = second else { panic!("no script in the command") };
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        // The server shows a line feed as two characters.
        let source = argument(script.by_source(&keys)).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        Admit { sha: argument(script.by_sha(&keys)), source }
    }

    fn is_called_in(&self, line: &str) -> bool {
        line.contains(&self.sha) || line.contains(&self.source)
    }
}

/// Sends these bytes on a connection of their own, and tells what came back: `STATUS CODE`, then `closed` if the connection
/// ends with it. One that stays open must be where it was: the next request on it has its own answer.
async fn exchange(port: u16, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    // The gate may close before everything is written, having said why.
    _ = stream.write_all(request).await;
    let mut unread = Vec::new();
    let Some(reply) = read_reply(&mut stream, &mut unread).await else { return "closed".into() };
    if reply.closes {
        let end = timeout(PATIENCE, stream.read_to_end(&mut unread)).await;
        let rest = String::from_utf8_lossy(&unread);
        return match end {
            Ok(Ok(_)) if unread.is_empty() => format!("{} closed", reply.said),
            ended => format!("{}, said to close, then {ended:?} and {rest:?}", reply.said),
        };
    }
    _ = stream.write_all(b"GET /seckill/no-such-sale HTTP/1.1\r\nHost: x\r\n\r\n").await;
    match read_reply(&mut stream, &mut unread).await {
        Some(next) if next.said == "404 NO_SUCH_ACTIVITY" => reply.said,
        next => format!("{}, then {:?}", reply.said, next.map(|next| next.said)),
    }
}

struct Reply {
    said: String,
    closes: bool,
}

/// The next reply; `None` if the connection ends before one is whole.
async fn read_reply(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Reply> {
    loop {
        if let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(unread[..end].to_vec()).unwrap();
            let status = head.split(' ').nth(1)?.to_owned();
            let header = |name: &str| {
                let mut fields = head.lines().filter_map(|line| line.split_once(':'));
                fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
            };
            let length = header("content-length").map_or(0, |length| length.parse().unwrap());
            if status == "100" {
                unread.drain(..end + 4);
                continue;
            }
            if unread.len() >= end + 4 + length {
                let body = String::from_utf8(unread.drain(..end + 4 + length).skip(end + 4).collect()).unwrap();
                let json = serde_json::from_str::<serde_json::Value>(&body).ok();
                let code = json.and_then(|json| json["code"].as_str().map(str::to_owned));
                let word =
                    code.or(header("seckill-outcome")).unwrap_or(if body == "shop" { body } else { String::new() });
                let closes = header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
                return Some(Reply { said: format!("{status} {word}").trim_end().to_owned(), closes });
            }
        }
        let mut chunk = [0; 65_536];
        match timeout(PATIENCE, stream.read(&mut chunk)).await.expect("neither a reply nor an end") {
            Ok(read @ 1..) => unread.extend_from_slice(&chunk[..read]),
            _ => return None,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_get_their_exact_reply_and_reach_neither_store_nor_shop() {
    let (shop, at_shop) = shop().await;
    let wish = Wish {
        stock: 1_000,
        shop,
        // Nobody listens there: wins stay queued.
        shops_own_orders: Some(crate::harness::process::free_port()),
        gate: "  body_deadline: 500ms",
        ..Wish::default()
    };
    let deployment = Deployment::as_wished(wish).await;
    let (port, store, admit) = (deployment.gates[0].public, &deployment.store, Admit::new());
    let mut watched = Watched::start(store).await;
    let makings = Makings::read(deployment.config.parent().unwrap());
    let hostile = rows::hostile(&makings);
    assert!(hostile.len() >= 80, "{} rows", hostile.len());
    // The server gets the script's source with the first call of all; from then on there is one command per call.
    assert_eq!(exchange(port, &rows::wins(&makings)[0].request).await, "202 QUEUED");
    assert_eq!(watched.admits(store, &admit).await, 2);
    let mut wrong = Vec::new();
    let mut check = async |row: &Row, admits: usize, shops: usize| {
        at_shop.lock().unwrap().clear();
        let said = exchange(port, &row.request).await;
        let seen = (watched.admits(store, &admit).await, at_shop.lock().unwrap().len());
        if said != row.reply || seen != (admits, shops) {
            let (name, reply) = (&row.name, row.reply);
            let (calls, requests) = seen;
            wrong.push(format!("{name}: {said}, not {reply}; {calls} calls of admit, {requests} reads at the shop"));
        }
    };
    // The controls: the same request without its hostile part is seen at the store, and one for the shop there.
    for row in rows::wins(&makings) {
        check(&row, 1, 0).await;
    }
    for row in rows::for_the_shop() {
        check(&row, 0, 1).await;
        for request in at_shop.lock().unwrap().iter() {
            assert!(!request.to_ascii_lowercase().contains("seckill"), "{}: the shop got {request}", row.name);
        }
    }
    for row in &hostile {
        check(row, 0, 0).await;
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), hostile.len(), wrong.join("\n"));
}

/// What the watch can see: a server that does not know the script gets its source.
#[tokio::test(flavor = "multi_thread")]
async fn admit_is_seen_by_its_hash_and_by_its_source() {
    let (redis, admit) = (Redis::start(), Admit::new());
    let mut watched = Watched::start(&redis).await;
    assert_eq!(watched.admits(&redis, &admit).await, 0);
    let script = Scripts::built_in().admit;
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let keys = Keys::of(&SALE.parse().unwrap());
    for command in [script.by_sha(&keys), script.by_source(&keys)] {
        // What it answers is of no interest: there are no arguments.
        _ = command.query::<redis::Value>(&mut connection);
        assert_eq!(watched.admits(&redis, &admit).await, 1);
    }
}
