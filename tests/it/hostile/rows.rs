//! The table: a good attempt with one hostile part each, and the reply that it must have. Here tokens, users and keys.

use aws_lc_rs::hmac;
use seckill_gate::platform::clock::wall_ms;
use serde_json::{Value, json};

use super::makings::*;
use super::wire::{bodies, headers, paths, wire};
use crate::harness::deployment::{OTHER_SALE, SALE};

/// One request and its reply: `STATUS CODE`, with `closed` if the connection ends, or `closed` alone without a word.
pub struct Row {
    pub name: String,
    pub request: Vec<u8>,
    pub reply: &'static str,
}

pub const BAD: &str = "400 BAD_REQUEST";
pub const BAD_CLOSED: &str = "400 BAD_REQUEST closed";
const NOBODY: &str = "401 UNAUTHENTICATED";
const INVALID: &str = "403 TOKEN_INVALID";

pub fn row(name: impl Into<String>, request: Request, reply: &'static str) -> Row {
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
        // A connection option is for whoever is next; what it names is read here all the same.
        row("nominated", good().add("Connection", "Seckill-Token, Authorization"), "202 QUEUED"),
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
