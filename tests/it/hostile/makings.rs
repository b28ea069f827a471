//! What hostile requests are made of: real keys, tokens that are nearly right, bytes.

use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use seckill_gate::domain::RequestId;
use seckill_gate::platform::clock::wall_ms;
use serde_json::{Value, json};

use crate::harness::deployment::{SALE, SKU};

pub const USER: &str = "mallory";
pub const KEY: &str = "k-1";

/// What the deployment signs with.
pub struct Makings {
    pub users: Vec<u8>,
    pub tokens: Vec<u8>,
}

impl Makings {
    pub fn read(folder: &Path) -> Makings {
        let secret = |name: &str| {
            std::fs::read_to_string(folder.join("secrets").join(name)).unwrap().trim_end().as_bytes().to_vec()
        };
        Makings { users: secret("user-jwt-secret"), tokens: secret("token-key") }
    }

    /// A user's JWT with these changes to its claims; `null` takes one away.
    pub fn jwt(&self, changes: Value) -> String {
        let now = wall_ms() / 1_000;
        let claims = json!({ "sub": USER, "iss": "https://shop.test", "aud": "seckill", "exp": now + 600 });
        jws(&self.users, r#"{"alg":"HS256","kid":"shop"}"#, &changed(claims, changes).to_string())
    }

    pub fn claims(&self, changes: Value) -> String {
        let now = wall_ms();
        let claims = json!({ "act": SALE, "rid": rid(SALE, USER, KEY), "sku": SKU, "qty": 1,
            "nbf_ms": now - 60_000, "exp_ms": now + 60_000 });
        changed(claims, changes).to_string()
    }

    /// A sale token, genuinely signed, with these changes.
    pub fn token(&self, changes: Value) -> String {
        jws(&self.tokens, r#"{"alg":"HS256","kid":"one"}"#, &self.claims(changes))
    }

    /// A good attempt.
    pub fn attempt(&self) -> Request {
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

pub fn rid(activity: &str, user: &str, key: &str) -> RequestId {
    RequestId::derive(&activity.parse().unwrap(), &user.parse().unwrap(), &key.parse().unwrap())
}

pub fn changed(mut claims: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => _ = claims.as_object_mut().unwrap().remove(name),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

pub fn part(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

pub fn jws_with(algorithm: hmac::Algorithm, key: &[u8], header: &str, payload: &str) -> String {
    let signed = format!("{}.{}", part(header), part(payload));
    let tag = hmac::sign(&hmac::Key::new(algorithm, key), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

pub fn jws(key: &[u8], header: &str, payload: &str) -> String {
    jws_with(hmac::HMAC_SHA256, key, header, payload)
}

/// `token` with another payload under its old signature.
pub fn tampered(token: &str, payload: &str) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    format!("{}.{}.{}", parts[0], part(payload), parts[2])
}

/// A request before it is bytes.
pub struct Request {
    pub line: Vec<u8>,
    /// Whole lines, without their end.
    pub headers: Vec<Vec<u8>>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn line(mut self, line: impl AsRef<[u8]>) -> Request {
        self.line = line.as_ref().to_vec();
        self
    }

    pub fn to(self, target: impl AsRef<[u8]>) -> Request {
        let line = [b"POST ", target.as_ref(), b" HTTP/1.1"].concat();
        self.line(line)
    }

    /// A header line more, as it stands.
    pub fn raw(mut self, line: impl AsRef<[u8]>) -> Request {
        self.headers.push(line.as_ref().to_vec());
        self
    }

    pub fn add(self, name: &str, value: impl AsRef<[u8]>) -> Request {
        self.raw([name.as_bytes(), b": ", value.as_ref()].concat())
    }

    pub fn without(mut self, name: &str) -> Request {
        let prefix = format!("{name}:").to_ascii_lowercase();
        self.headers.retain(|line| !line.to_ascii_lowercase().starts_with(prefix.as_bytes()));
        self
    }

    pub fn set(self, name: &str, value: impl AsRef<[u8]>) -> Request {
        self.without(name).add(name, value)
    }

    pub fn body(mut self, body: impl AsRef<[u8]>) -> Request {
        self.body = body.as_ref().to_vec();
        self
    }

    /// The bytes; with a true Content-Length unless a header speaks of the body's length already.
    pub fn bytes(&self) -> Vec<u8> {
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
