//! The table: a good attempt with one hostile part each, and the reply that it must have.

use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use seckill_gate::domain::RequestId;
use seckill_gate::platform::clock::wall_ms;
use serde_json::{Value, json};

use crate::harness::deployment::{OTHER_SALE, SALE, SKU};

/// One request and its reply: `STATUS CODE`, with `closed` if the connection ends, or `closed` alone without a word.
pub struct Row {
    pub name: String,
    pub request: Vec<u8>,
    pub reply: &'static str,
}

const BAD: &str = "400 BAD_REQUEST";
const BAD_CLOSED: &str = "400 BAD_REQUEST closed";
const NOBODY: &str = "401 UNAUTHENTICATED";
const INVALID: &str = "403 TOKEN_INVALID";
const METHOD: &str = "405 METHOD_NOT_ALLOWED";

const USER: &str = "mallory";
const KEY: &str = "k-1";

/// What the deployment signs with.
pub struct Makings {
    users: Vec<u8>,
    tokens: Vec<u8>,
}

impl Makings {
    pub fn read(folder: &Path) -> Makings {
        let secret = |name: &str| {
            std::fs::read_to_string(folder.join("secrets").join(name)).unwrap().trim_end().as_bytes().to_vec()
        };
        Makings { users: secret("user-jwt-secret"), tokens: secret("token-key") }
    }

    /// A user's JWT with these changes to its claims; `null` takes one away.
    fn jwt(&self, changes: Value) -> String {
        let now = wall_ms() / 1_000;
        let claims = json!({ "sub": USER, "iss": "https://shop.test", "aud": "seckill", "exp": now + 600 });
        jws(&self.users, r#"{"alg":"HS256","kid":"shop"}"#, &changed(claims, changes).to_string())
    }

    fn claims(&self, changes: Value) -> String {
        let now = wall_ms();
        let claims = json!({ "act": SALE, "rid": rid(SALE, USER, KEY), "sku": SKU, "qty": 1,
            "nbf_ms": now - 60_000, "exp_ms": now + 60_000 });
        changed(claims, changes).to_string()
    }

    /// A sale token, genuinely signed, with these changes.
    fn token(&self, changes: Value) -> String {
        jws(&self.tokens, r#"{"alg":"HS256","kid":"one"}"#, &self.claims(changes))
    }

    /// A good attempt.
    fn attempt(&self) -> Request {
        Request {
            line: format!("POST /seckill/{SALE} HTTP/1.1").into(),
            headers: vec![],
            body: br#"{"address":"1 Test Road"}"#.to_vec(),
        }
        .set("Host", "shop.test")
        .set("Authorization", format!("Bearer {}", self.jwt(json!({}))))
        .set("Idempotency-Key", KEY)
        .set("Seckill-Token", self.token(json!({})))
        .set("Content-Type", "application/json")
    }
}

fn rid(activity: &str, user: &str, key: &str) -> RequestId {
    RequestId::derive(&activity.parse().unwrap(), &user.parse().unwrap(), &key.parse().unwrap())
}

fn changed(mut claims: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => _ = claims.as_object_mut().unwrap().remove(name),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

fn part(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn jws_with(algorithm: hmac::Algorithm, key: &[u8], header: &str, payload: &str) -> String {
    let signed = format!("{}.{}", part(header), part(payload));
    let tag = hmac::sign(&hmac::Key::new(algorithm, key), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

fn jws(key: &[u8], header: &str, payload: &str) -> String {
    jws_with(hmac::HMAC_SHA256, key, header, payload)
}

/// `token` with another payload under its old signature.
fn tampered(token: &str, payload: &str) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    format!("{}.{}.{}", parts[0], part(payload), parts[2])
}

/// A request before it is bytes.
struct Request {
    line: Vec<u8>,
    /// Whole lines, without their end.
    headers: Vec<Vec<u8>>,
    body: Vec<u8>,
}

impl Request {
    fn line(mut self, line: impl AsRef<[u8]>) -> Request {
        self.line = line.as_ref().to_vec();
        self
    }

    fn to(self, target: impl AsRef<[u8]>) -> Request {
        let line = [b"POST ", target.as_ref(), b" HTTP/1.1"].concat();
        self.line(line)
    }

    /// A header line more, as it stands.
    fn raw(mut self, line: impl AsRef<[u8]>) -> Request {
        self.headers.push(line.as_ref().to_vec());
        self
    }

    fn add(self, name: &str, value: impl AsRef<[u8]>) -> Request {
        self.raw([name.as_bytes(), b": ", value.as_ref()].concat())
    }

    fn without(mut self, name: &str) -> Request {
        let prefix = format!("{name}:").to_ascii_lowercase();
        self.headers.retain(|line| !line.to_ascii_lowercase().starts_with(prefix.as_bytes()));
        self
    }

    fn set(self, name: &str, value: impl AsRef<[u8]>) -> Request {
        self.without(name).add(name, value)
    }

    fn body(mut self, body: impl AsRef<[u8]>) -> Request {
        self.body = body.as_ref().to_vec();
        self
    }

    /// The bytes; with a true Content-Length unless a header speaks of the body's length already.
    fn bytes(&self) -> Vec<u8> {
        let framed = |line: &Vec<u8>| {
            let line = line.to_ascii_lowercase();
            line.starts_with(b"content-length") || line.starts_with(b"transfer-encoding")
        };
        let mut bytes = [&self.line[..], b"\r\n"].concat();
        for line in &self.headers {
            bytes.extend_from_slice(line);
            bytes.extend_from_slice(b"\r\n");
        }
        if !self.headers.iter().any(framed) {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        [&bytes[..], b"\r\n", &self.body].concat()
    }
}

fn row(name: impl Into<String>, request: Request, reply: &'static str) -> Row {
    Row { name: name.into(), request: request.bytes(), reply }
}

/// Unusual and allowed: each of these wins or has won.
pub fn wins(makings: &Makings) -> Vec<Row> {
    let good = || makings.attempt();
    vec![
        row("a good attempt", good(), "202 QUEUED"),
        row("a quoted key is the same key", good().set("Idempotency-Key", "\"k-1\""), "202 QUEUED"),
        row("Expect: 100-continue", good().add("Expect", "100-continue"), "202 QUEUED"),
        row(
            "the scheme in lower case",
            good().set("Authorization", format!("bearer {}", makings.jwt(json!({})))),
            "202 QUEUED",
        ),
        row(
            "aud among others",
            good().set("Authorization", format!("Bearer {}", makings.jwt(json!({"aud": ["x", "seckill"]})))),
            "202 QUEUED",
        ),
        row("a charset", good().set("Content-Type", "Application/JSON; charset=utf-8"), "202 QUEUED"),
        row(
            "another user in Seckill-User counts for nothing",
            good().add("Seckill-User", "admin").add("seckill_user", "admin"),
            "202 QUEUED",
        ),
        row("a query", good().to(format!("/seckill/{SALE}?x=/../%2e%2e//;\\")), "202 QUEUED"),
    ]
}

/// For the shop, which never sees a name that is the gate's.
pub fn for_the_shop() -> Vec<Row> {
    let get = |line: &str| Request { line: line.into(), headers: vec![], body: vec![] }.set("Host", "shop.test");
    vec![
        row(
            "a cart",
            get("GET /cart HTTP/1.1").add("Seckill-User", "admin").add("SECKILL_TICKET", "t").add("sEcKiLl-x", "y"),
            "200 shop",
        ),
        row(
            "nominated",
            get("GET /cart HTTP/1.1").add("Seckill-User", "admin").add("Connection", "seckill-user, keep-alive"),
            "200 shop",
        ),
    ]
}

/// None of these may reach the store's `admit`, or the shop.
pub fn hostile(makings: &Makings) -> Vec<Row> {
    [tokens(makings), users(makings), keys(makings), headers(makings), wire(makings), paths(makings), bodies(makings)]
        .into_iter()
        .flatten()
        .collect()
}

fn tokens(m: &Makings) -> Vec<Row> {
    let good = m.token(json!({}));
    let genuine = |changes: Value| m.token(changes);
    let headed = |header: &str| jws(&m.tokens, header, &m.claims(json!({})));
    let payload = |payload: &str| jws(&m.tokens, r#"{"alg":"HS256","kid":"one"}"#, payload);
    let unsigned =
        |alg: &str| format!("{}.{}.", part(&format!(r#"{{"alg":"{alg}","kid":"one"}}"#)), part(&m.claims(json!({}))));
    let hs512 = r#"{"alg":"HS512","kid":"one"}"#;
    let twice = m.claims(json!({})).replacen('{', r#"{"qty":1,"#, 1);
    let other = |activity: &str, user: &str, key: &str| genuine(json!({ "rid": rid(activity, user, key) }));
    let invalid: Vec<(&str, String)> = vec![
        ("empty", String::new()),
        ("dots", "..".into()),
        ("not base64", "a.b.c".into()),
        ("one part", good.split('.').next().unwrap().into()),
        ("no signature", format!("{}.", good.rsplit_once('.').unwrap().0)),
        ("alg none", unsigned("none")),
        ("alg None", unsigned("None")),
        ("alg HS256 and no signature", unsigned("HS256")),
        ("HS512 by the same key", jws_with(hmac::HMAC_SHA512, &m.tokens, hs512, &m.claims(json!({})))),
        ("HS512 in name only", headed(hs512)),
        ("RS256 in name only", headed(r#"{"alg":"RS256","kid":"one"}"#)),
        ("EdDSA in name only", headed(r#"{"alg":"EdDSA","kid":"one"}"#)),
        ("no alg", headed(r#"{"kid":"one"}"#)),
        ("wrong kid", headed(r#"{"alg":"HS256","kid":"two"}"#)),
        ("no kid", headed(r#"{"alg":"HS256"}"#)),
        ("empty kid", headed(r#"{"alg":"HS256","kid":""}"#)),
        ("kid is a path", headed(r#"{"alg":"HS256","kid":"../../secrets/token-key"}"#)),
        ("kid is a number", headed(r#"{"alg":"HS256","kid":1}"#)),
        ("kid is SQL", headed(r#"{"alg":"HS256","kid":"one' OR '1'='1"}"#)),
        ("the users' key", jws(&m.users, r#"{"alg":"HS256","kid":"one"}"#, &m.claims(json!({})))),
        ("no key", jws(b"", r#"{"alg":"HS256","kid":"one"}"#, &m.claims(json!({})))),
        (
            "its key is in its header",
            jws(
                &[1; 32],
                r#"{"alg":"HS256","kid":"one","jwk":{"kty":"oct","k":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE"}}"#,
                &m.claims(json!({})),
            ),
        ),
        ("a user's JWT", m.jwt(json!({}))),
        ("expired and forged", tampered(&good, &m.claims(json!({ "exp_ms": 1 })))),
        ("made to last", tampered(&good, &m.claims(json!({ "exp_ms": 9_999_999_999_999_u64 })))),
        ("another SKU, forged", tampered(&good, &m.claims(json!({ "sku": "tv" })))),
        ("more units, forged", tampered(&good, &m.claims(json!({ "qty": 2 })))),
        ("another activity", genuine(json!({ "act": OTHER_SALE }))),
        ("another activity's id", other(OTHER_SALE, USER, KEY)),
        ("another user's", other(SALE, "ann", KEY)),
        ("another key's", other(SALE, USER, "k-2")),
        ("no units", genuine(json!({ "qty": 0 }))),
        ("less than no units", genuine(json!({ "qty": -1 }))),
        ("too many units to count", genuine(json!({ "qty": 4_294_967_297_u64 }))),
        (
            "more than 64 bits of units",
            payload(&m.claims(json!({ "qty": 1 })).replace(r#""qty":1"#, r#""qty":18446744073709551617"#)),
        ),
        ("half a unit", genuine(json!({ "qty": 0.5 }))),
        ("units with a point", genuine(json!({ "qty": 1.0 }))),
        ("units as text", genuine(json!({ "qty": "1" }))),
        ("units as a list", genuine(json!({ "qty": [1] }))),
        ("no activity", genuine(json!({ "act": null }))),
        ("no id", genuine(json!({ "rid": null }))),
        ("no SKU", genuine(json!({ "sku": null }))),
        ("no quantity", genuine(json!({ "qty": null }))),
        ("no start", genuine(json!({ "nbf_ms": null }))),
        ("no end", genuine(json!({ "exp_ms": null }))),
        ("end as text", genuine(json!({ "exp_ms": "9999999999999" }))),
        ("a SKU that is none", genuine(json!({ "sku": "../phone" }))),
        ("id in capitals", genuine(json!({ "rid": rid(SALE, USER, KEY).to_string().to_uppercase() }))),
        ("a claim twice", payload(&twice)),
        ("claims as a list", payload("[1,2,3]")),
        ("claims as null", payload("null")),
        ("claims that are not JSON", payload("qty=1")),
        ("signature cut", good[..good.len() - 4].into()),
        ("signature padded", format!("{good}=")),
        ("something behind", format!("{good}A")),
        ("a part more", format!("{good}.AA")),
        ("two, joined by a comma", format!("{good}, {good}")),
        ("quoted", format!("\"{good}\"")),
        ("a space within", good.replacen('.', ". ", 1)),
        ("8 KiB of claims", tampered(&good, &m.claims(json!({ "x": "x".repeat(6_000) })))),
        ("8 KiB of nothing", "A".repeat(8_192)),
    ];
    let mut rows: Vec<Row> = invalid
        .into_iter()
        .map(|(name, token)| row(format!("token: {name}"), m.attempt().set("Seckill-Token", token), INVALID))
        .collect();
    rows.extend([
        row("token: missing", m.attempt().without("Seckill-Token"), INVALID),
        row("token: twice", m.attempt().add("Seckill-Token", &good), BAD),
        row(
            "token: in the query",
            m.attempt().without("Seckill-Token").to(format!("/seckill/{SALE}?token={good}")),
            INVALID,
        ),
        row("token: in another spelling", m.attempt().without("Seckill-Token").add("Seckill_Token", &good), INVALID),
        row("token: beyond ASCII", m.attempt().set("Seckill-Token", format!("{good}é")), BAD),
        row("token: another key than its own", m.attempt().set("Idempotency-Key", "k-2"), INVALID),
        row("token: another sale than its own", m.attempt().to(format!("/seckill/{OTHER_SALE}")), INVALID),
    ]);
    rows
}

fn users(m: &Makings) -> Vec<Row> {
    let good = m.jwt(json!({}));
    let signed = |changes: Value| format!("Bearer {}", m.jwt(changes));
    let now = wall_ms() / 1_000;
    let claims =
        changed(json!({ "sub": USER, "iss": "https://shop.test", "aud": "seckill" }), json!({ "exp": now + 600 }));
    let headed = |key: &[u8], header: &str| format!("Bearer {}", jws(key, header, &claims.to_string()));
    let unsigned = |alg: &str| {
        format!("Bearer {}.{}.", part(&format!(r#"{{"alg":"{alg}","kid":"shop"}}"#)), part(&claims.to_string()))
    };
    let endless = claims.to_string().replace(&format!("{}", now + 600), "1e999");
    let thieves = [7; 32];
    let nobody: Vec<(&str, String)> = vec![
        ("empty", String::new()),
        ("Basic", "Basic bWFsbG9yeTpwdw==".into()),
        ("no scheme", good.clone()),
        ("scheme alone", "Bearer".into()),
        ("a tab for the space", format!("Bearer\t{good}")),
        ("twice in one", format!("Bearer {good}, Bearer {good}")),
        ("alg none", unsigned("none")),
        ("alg NONE", unsigned("NONE")),
        ("alg HS256 and no signature", unsigned("HS256")),
        ("another's key", headed(&thieves, r#"{"alg":"HS256","kid":"shop"}"#)),
        ("the tokens' key", headed(&m.tokens, r#"{"alg":"HS256","kid":"shop"}"#)),
        ("another kid", headed(&m.users, r#"{"alg":"HS256","kid":"other"}"#)),
        ("kid is a path", headed(&m.users, r#"{"alg":"HS256","kid":"../user-jwt-secret"}"#)),
        (
            "HS512 by the same key",
            format!(
                "Bearer {}",
                jws_with(hmac::HMAC_SHA512, &m.users, r#"{"alg":"HS512","kid":"shop"}"#, &claims.to_string())
            ),
        ),
        ("RS256 in name only", headed(&m.users, r#"{"alg":"RS256","kid":"shop"}"#)),
        ("critical extension", headed(&m.users, r#"{"alg":"HS256","kid":"shop","crit":["x"],"x":1}"#)),
        (
            "jwk",
            headed(
                &thieves,
                r#"{"alg":"HS256","kid":"shop","jwk":{"kty":"oct","k":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"}}"#,
            ),
        ),
        ("jku", headed(&thieves, r#"{"alg":"HS256","kid":"shop","jku":"http://127.0.0.1:1/jwks.json"}"#)),
        ("x5u", headed(&thieves, r#"{"alg":"HS256","kid":"shop","x5u":"http://127.0.0.1:1/cert.pem"}"#)),
        ("wrong iss", signed(json!({ "iss": "https://evil.test" }))),
        ("no iss", signed(json!({ "iss": null }))),
        ("wrong aud", signed(json!({ "aud": "shop" }))),
        ("no aud", signed(json!({ "aud": null }))),
        ("aud is a list without us", signed(json!({ "aud": ["a", "b"] }))),
        ("aud is an empty list", signed(json!({ "aud": [] }))),
        ("aud is an object", signed(json!({ "aud": { "seckill": true } }))),
        ("expired", signed(json!({ "exp": now - 10 }))),
        ("not yet", signed(json!({ "nbf": now + 600 }))),
        ("no exp", signed(json!({ "exp": null }))),
        ("exp as text", signed(json!({ "exp": "9999999999" }))),
        ("exp below zero", signed(json!({ "exp": -1 }))),
        ("exp beyond all numbers", format!("Bearer {}", jws(&m.users, r#"{"alg":"HS256","kid":"shop"}"#, &endless))),
        ("no sub", signed(json!({ "sub": null }))),
        ("sub empty", signed(json!({ "sub": "" }))),
        ("sub too long", signed(json!({ "sub": "x".repeat(129) }))),
        ("sub with a line feed", signed(json!({ "sub": "mallory\nadmin" }))),
        ("sub with NUL", signed(json!({ "sub": "mallory\u{0}" }))),
        ("sub with a space", signed(json!({ "sub": "mallory admin" }))),
        ("sub beyond ASCII", signed(json!({ "sub": "mällory" }))),
        ("sub is a number", signed(json!({ "sub": 7 }))),
        ("sub is a list", signed(json!({ "sub": [USER] }))),
        (
            "claims tampered with",
            format!("Bearer {}", tampered(&good, &changed(claims.clone(), json!({ "sub": "ann" })).to_string())),
        ),
        ("a sale token", format!("Bearer {}", m.token(json!({})))),
        ("signature cut", format!("Bearer {}", &good[..good.len() - 4])),
        ("signature padded", format!("Bearer {good}=")),
        (
            "16 KiB of claims",
            format!(
                "Bearer {}",
                tampered(&good, &changed(claims.clone(), json!({ "x": "x".repeat(12_000) })).to_string())
            ),
        ),
    ];
    let mut rows: Vec<Row> = nobody
        .into_iter()
        .map(|(name, value)| row(format!("user: {name}"), m.attempt().set("Authorization", value), NOBODY))
        .collect();
    rows.extend([
        row("user: missing", m.attempt().without("Authorization"), NOBODY),
        row("user: named by the client", m.attempt().without("Authorization").add("Seckill-User", USER), NOBODY),
        row(
            "user: in a cookie that is not configured",
            m.attempt().without("Authorization").add("Cookie", format!("session={good}")),
            NOBODY,
        ),
        row(
            "user: in the query",
            m.attempt().without("Authorization").to(format!("/seckill/{SALE}?access_token={good}")),
            NOBODY,
        ),
        row("user: two headers", m.attempt().add("Authorization", format!("Bearer {good}")), BAD),
        row("user: beyond ASCII", m.attempt().set("Authorization", format!("Bearer {good}é")), BAD),
        // Genuine, and with the token of somebody else's attempt.
        row(
            "user: another than the token's",
            m.attempt().set("Authorization", signed(json!({ "sub": "ann" }))),
            INVALID,
        ),
    ]);
    rows
}

fn keys(m: &Makings) -> Vec<Row> {
    let bad = [
        "",
        "\"\"",
        "\"k-1",
        "k-1\"",
        "\"\"k-1\"\"",
        "'k-1'",
        "k-1,k-1",
        "k 1",
        "k/1",
        "../k-1",
        "k%31",
        "k;1",
        "k:1",
        "k-é",
    ];
    let long = "k".repeat(65);
    let mut rows: Vec<Row> = bad
        .into_iter()
        .chain([long.as_str()])
        .map(|key| row(format!("key: {key}"), m.attempt().set("Idempotency-Key", key), BAD))
        .collect();
    rows.extend([
        row("key: missing", m.attempt().without("Idempotency-Key"), BAD),
        row("key: twice", m.attempt().add("Idempotency-Key", KEY), BAD),
        row("device: not one", m.attempt().add("Seckill-Device", "a b"), BAD),
        row("device: twice", m.attempt().add("Seckill-Device", "a").add("Seckill-Device", "a"), BAD),
    ]);
    rows
}

fn headers(m: &Makings) -> Vec<Row> {
    let many = (0..300).fold(m.attempt(), |request, number| request.add(&format!("X-{number}"), "y"));
    let typed = |value: &str| m.attempt().set("Content-Type", value);
    let to = |method: &str| m.attempt().line(format!("{method} /seckill/{SALE} HTTP/1.1"));
    vec![
        row("type: missing", m.attempt().without("Content-Type"), BAD),
        row("type: text", typed("text/plain"), BAD),
        row("type: a form", typed("application/x-www-form-urlencoded"), BAD),
        row("type: parts", typed("multipart/form-data; boundary=x"), BAD),
        row("type: almost", typed("application/jsonx"), BAD),
        row("type: two in one", typed("application/json, text/plain"), BAD),
        row("type: two", m.attempt().add("Content-Type", "application/json"), BAD),
        row(
            "coding: gzip",
            m.attempt()
                .add("Content-Encoding", "gzip")
                .body(b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0\x43\xbf\xa6\xa3\x02\0\0\0"),
            BAD,
        ),
        row("connection: takes the token away", m.attempt().add("Connection", "Seckill-Token"), BAD_CLOSED),
        row("connection: takes the user away", m.attempt().add("Connection", "Authorization"), BAD_CLOSED),
        row("host: none", m.attempt().without("Host"), BAD_CLOSED),
        row("host: two", m.attempt().add("Host", "shop.test"), BAD_CLOSED),
        row("host: two in one", m.attempt().set("Host", "shop.test, evil.test"), BAD_CLOSED),
        row("host: with a path", m.attempt().set("Host", "shop.test/seckill"), BAD_CLOSED),
        row("host: with a user", m.attempt().set("Host", "a@shop.test"), BAD_CLOSED),
        row(
            "host: none, to the shop",
            Request { line: "GET /cart HTTP/1.1".into(), headers: vec![], body: vec![] },
            BAD_CLOSED,
        ),
        row(
            "host: two, to the shop",
            Request {
                line: "GET /cart HTTP/1.1".into(),
                headers: vec![b"Host: a".to_vec(), b"Host: b".to_vec()],
                body: vec![],
            },
            BAD_CLOSED,
        ),
        row("size: 40 KiB in one header", m.attempt().add("X", "x".repeat(40_000)), "431 TOO_LARGE closed"),
        row("size: 300 headers", many, "431 TOO_LARGE closed"),
        row("method: PUT", to("PUT"), METHOD),
        row("method: DELETE", to("DELETE"), METHOD),
        row("method: PATCH", to("PATCH"), METHOD),
        row("method: OPTIONS", to("OPTIONS"), METHOD),
        row("method: TRACE", to("TRACE"), METHOD),
        row("method: CONNECT", to("CONNECT"), METHOD),
        row("method: in lower case", to("post"), METHOD),
        row("method: of nobody", to("BREW"), METHOD),
        row("method: a GET that would be a POST", to("GET").add("X-HTTP-Method-Override", "POST"), "200"),
        row("method: to another host", m.attempt().line("CONNECT evil.test:443 HTTP/1.1"), BAD_CLOSED),
    ]
}

/// What is malformed below the level of headers: framing, lines, versions.
fn wire(m: &Makings) -> Vec<Row> {
    let framed = |line: &str| m.attempt().raw(line);
    let both = |line: &str| m.attempt().raw("Content-Length: 27").raw(line);
    let versioned = |version: &str| m.attempt().line(format!("POST /seckill/{SALE} {version}"));
    let chunked = |body: &str| framed("Transfer-Encoding: chunked").body(body);
    let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    preface.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let with_bytes = |name: &str, request: &[u8], reply| Row { name: name.into(), request: request.to_vec(), reply };
    let replaced = |from: &str, to: &str| {
        let request = String::from_utf8(m.attempt().bytes()).unwrap();
        assert!(request.contains(from), "{from:?} is not in {request}");
        request.replacen(from, to, 1).into_bytes()
    };
    vec![
        row("framing: both", both("Transfer-Encoding: chunked"), BAD_CLOSED),
        row(
            "framing: both, the other way round",
            m.attempt().raw("Transfer-Encoding: chunked").raw("Content-Length: 27"),
            BAD_CLOSED,
        ),
        row("framing: chunked", chunked("1b\r\n{\"address\":\"1 Test Road!\"}\r\n0\r\n\r\n"), BAD_CLOSED),
        row("framing: chunks of nonsense", chunked("zz\r\n{}\r\n0\r\n\r\n"), BAD_CLOSED),
        row("framing: a chunk beyond all numbers", chunked("fffffffffffffffff\r\n{}\r\n0\r\n\r\n"), BAD_CLOSED),
        row("framing: identity", both("Transfer-Encoding: identity"), BAD_CLOSED),
        row("framing: gzip, chunked", framed("Transfer-Encoding: gzip, chunked"), BAD_CLOSED),
        row("framing: hidden chunked", framed("Transfer-Encoding: \x0bchunked"), BAD_CLOSED),
        row("framing: two lengths", m.attempt().raw("Content-Length: 27").raw("Content-Length: 2"), BAD_CLOSED),
        row("framing: two lengths in one", framed("Content-Length: 27, 2"), BAD_CLOSED),
        row("framing: a length below zero", framed("Content-Length: -27"), BAD_CLOSED),
        row("framing: a length with a sign", framed("Content-Length: +27"), BAD_CLOSED),
        row("framing: a length in hex", framed("Content-Length: 0x1b"), BAD_CLOSED),
        row("framing: a length beyond all numbers", framed("Content-Length: 99999999999999999999"), BAD_CLOSED),
        row("framing: no length", framed("Content-Length:"), BAD_CLOSED),
        with_bytes("line: a space before the colon", &replaced("Host:", "Host :"), BAD_CLOSED),
        with_bytes(
            "line: a space before a colon that matters",
            &replaced("Content-Length:", "Content-Length :"),
            BAD_CLOSED,
        ),
        with_bytes("line: no colon", &replaced("Host:", "Host"), BAD_CLOSED),
        with_bytes("line: no name", &replaced("Host:", ": x\r\nHost:"), BAD_CLOSED),
        with_bytes("line: a name with a space", &replaced("Host:", "X Y: x\r\nHost:"), BAD_CLOSED),
        with_bytes("line: folded", &replaced("Host:", "X: a\r\n b\r\nHost:"), BAD_CLOSED),
        with_bytes("line: folded at once", &replaced("Host:", " X: a\r\nHost:"), BAD_CLOSED),
        with_bytes("line: NUL in a value", &replaced("Host:", "X: a\0b\r\nHost:"), BAD_CLOSED),
        with_bytes("line: NUL in a name", &replaced("Host:", "X\0: a\r\nHost:"), BAD_CLOSED),
        with_bytes("line: a bare CR", &replaced("Host:", "X: a\rb\r\nHost:"), BAD_CLOSED),
        with_bytes("line: a bare LF", &replaced("Host:", "X: a\nHost:"), BAD_CLOSED),
        with_bytes("line: bare LFs alone", &replaced("\r\n", "\n"), BAD_CLOSED),
        with_bytes("line: a tab in the first", &replaced("POST ", "POST\t"), BAD_CLOSED),
        with_bytes("line: two spaces in the first", &replaced("POST ", "POST  "), BAD_CLOSED),
        with_bytes("line: a word too many", &replaced(" HTTP/1.1", " x HTTP/1.1"), BAD_CLOSED),
        with_bytes("line: no target", &replaced(&format!(" /seckill/{SALE}"), ""), BAD_CLOSED),
        row("version: none", versioned("").without("Host"), BAD_CLOSED),
        row("version: 2.0", versioned("HTTP/2.0"), BAD_CLOSED),
        row("version: 1.2", versioned("HTTP/1.2"), BAD_CLOSED),
        row("version: 9.9", versioned("HTTP/9.9"), BAD_CLOSED),
        row("version: in lower case", versioned("http/1.1"), BAD_CLOSED),
        with_bytes("version: the preface of HTTP/2", &preface, BAD_CLOSED),
        with_bytes("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", BAD_CLOSED),
        with_bytes("nonsense", b"nonsense\r\n\r\n", BAD_CLOSED),
    ]
}

fn paths(m: &Makings) -> Vec<Row> {
    let no_route = "404 NOT_FOUND";
    let rows: Vec<(String, &'static str)> = vec![
        ("//seckill/launch".into(), BAD),
        ("/seckill//launch".into(), BAD),
        ("/seckill/./launch".into(), BAD),
        ("/seckill/../launch".into(), BAD),
        ("/./seckill/launch".into(), BAD),
        ("/a/../seckill/launch".into(), BAD),
        ("/seckill/launch/.".into(), BAD),
        ("/%2e/seckill/launch".into(), BAD),
        ("/a/%2e%2e/seckill/launch".into(), BAD),
        ("/a/.%2E/seckill/launch".into(), BAD),
        ("/a/%252e%252e/seckill/launch".into(), BAD),
        ("/seckill%2flaunch".into(), BAD),
        ("/seckill%2Flaunch".into(), BAD),
        ("/%2fseckill/launch".into(), BAD),
        ("/%73eckill/launch".into(), BAD),
        ("/%2573eckill/launch".into(), BAD),
        ("/seckill/l%61unch".into(), BAD),
        ("/seckill/launch%00".into(), BAD),
        ("/seckill/launch%0d%0aX:y".into(), BAD),
        ("/seckill/launch%".into(), BAD),
        ("/seckill/launch%zz".into(), BAD),
        ("/seckill;x/launch".into(), BAD),
        ("/;x/seckill/launch".into(), BAD),
        ("/seckill/launch;x".into(), BAD),
        ("/a/..;x/seckill/launch".into(), BAD),
        ("/seckill\\launch".into(), BAD),
        ("\\seckill\\launch".into(), BAD),
        ("/seckill%5claunch".into(), BAD),
        ("/SECKILL/launch".into(), BAD),
        ("/Seckill/launch".into(), BAD),
        ("/seckill/laünch".into(), BAD),
        ("/seckıll/launch".into(), BAD),
        ("/seckill/launch\u{1}".into(), BAD),
        ("/seckill/launch\u{7f}".into(), BAD),
        ("http://shop.test/seckill/launch".into(), BAD),
        ("http://evil.test/cart".into(), BAD),
        ("seckill/launch".into(), BAD),
        ("*".into(), BAD),
        ("/seckill".into(), no_route),
        ("/seckill/".into(), no_route),
        ("/seckill/launch/".into(), no_route),
        ("/seckill/LAUNCH".into(), no_route),
        ("/seckill/launch#x".into(), no_route),
        ("/seckill/launch/x".into(), no_route),
        ("/seckill/launch/tokens/x".into(), no_route),
        ("/seckill/launch,encore".into(), no_route),
        ("/seckill/launch&x=y".into(), no_route),
        ("/seckill/no-such-sale".into(), "404 NO_SUCH_ACTIVITY"),
        (format!("/seckill/{}", "a".repeat(65)), no_route),
        (format!("/seckill/{}", "a".repeat(8_192)), "414 TOO_LARGE closed"),
        (format!("/seckill/launch?{}", "a".repeat(8_192)), "414 TOO_LARGE closed"),
    ];
    let mut rows: Vec<Row> = rows
        .into_iter()
        .map(|(target, reply)| row(format!("path: {target:.60}"), m.attempt().to(target), reply))
        .collect();
    rows.push(row("path: NUL", m.attempt().to("/seckill/launch\0"), BAD_CLOSED));
    rows.push(row("path: not even UTF-8", m.attempt().to(b"/seckill/launch\xff"), BAD));
    rows
}

fn bodies(m: &Makings) -> Vec<Row> {
    let body = |body: &[u8]| m.attempt().body(body);
    let nested = [vec![b'['; 1_000], vec![b']'; 1_000]].concat();
    let ask = |body: &str| m.attempt().to(format!("/seckill/{SALE}/tokens")).body(body);
    vec![
        row("body: too long", body(&[b"\"", &[b'x'; 2_047][..], b"\""].concat()), "413 TOO_LARGE closed"),
        row("body: said to be a gigabyte", m.attempt().raw("Content-Length: 1073741824"), "413 TOO_LARGE closed"),
        row("body: cut off", m.attempt().raw("Content-Length: 100"), "408 TIMEOUT closed"),
        row("body: empty", body(b""), BAD),
        row("body: not JSON", body(b"address=1"), BAD),
        row("body: half an object", body(b"{\"address\":"), BAD),
        row("body: two values", body(b"{}{}"), BAD),
        row("body: something behind", body(b"{} x"), BAD),
        row("body: a comma behind", body(b"{\"a\":1,}"), BAD),
        row("body: a byte order mark", body(b"\xef\xbb\xbf{}"), BAD),
        row("body: UTF-16", body(b"\xff\xfe{\0}\0"), BAD),
        row("body: NaN", body(b"{\"a\":NaN}"), BAD),
        row("body: a comment", body(b"{/* */}"), BAD),
        row("body: single quotes", body(b"{'a':1}"), BAD),
        row("body: a thousand deep", body(&nested), BAD),
        row("body: not UTF-8 in a string", body(b"{\"a\":\"\xff\"}"), BAD),
        row("body: half a character in a string", body(b"{\"a\":\"\xc3\"}"), BAD),
        row("body: an overlong slash in a string", body(b"{\"a\":\"\xc0\xaf\"}"), BAD),
        row("body: a line feed in a string", body(b"{\"a\":\"\n\"}"), BAD),
        row("body: NUL", body(b"{\"a\":\"\0\"}"), BAD),
        row("ask: no such SKU", ask(r#"{"sku":"tv"}"#), "404 NO_SUCH_SKU"),
        row("ask: a SKU that is none", ask(r#"{"sku":"../phone"}"#), BAD),
        row("ask: no units", ask(r#"{"sku":"phone","qty":0}"#), BAD),
        row("ask: less than no units", ask(r#"{"sku":"phone","qty":-1}"#), BAD),
        row("ask: too many units", ask(r#"{"sku":"phone","qty":2}"#), BAD),
        row("ask: too many units to count", ask(r#"{"sku":"phone","qty":4294967297}"#), BAD),
        row("ask: half a unit", ask(r#"{"sku":"phone","qty":0.5}"#), BAD),
        row("ask: units twice", ask(r#"{"sku":"phone","qty":1,"qty":1}"#), BAD),
        row("ask: a list", ask(r#"["phone",1]"#), BAD),
        row("ask: nothing", ask("null"), BAD),
    ]
}
