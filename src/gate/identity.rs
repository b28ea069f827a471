//! Who is calling: the shop's user JWT, and the device.

use std::collections::HashMap;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};

use crate::config::schema::UserAlgorithm;
use crate::domain::refusal::Code;
use crate::domain::{DeviceId, UserId};
use crate::gate::answer::Refusal;
use crate::gate::request::Inbound;

/// The cookie in which a device id is kept by the browser.
pub const DEVICE_COOKIE: &str = "seckill_device";

/// A key of user JWTs, read from where it is kept.
pub struct UserKey {
    /// Its name.
    pub kid: String,
    /// The only algorithm taken with it.
    pub algorithm: UserAlgorithm,
    /// The shared secret (HS256) or the public key (PEM).
    pub key: Vec<u8>,
}

/// What identity is judged by.
pub struct IdentityParts {
    /// Keys of user JWTs.
    pub keys: Vec<UserKey>,
    /// Required `iss`.
    pub issuer: String,
    /// Required `aud`.
    pub audience: String,
    /// Claim that holds the user.
    pub user_claim: String,
    /// Cookie in which the JWT may also come.
    pub cookie: Option<String>,
    /// Clock difference that is forgiven, in milliseconds.
    pub leeway_ms: u64,
    /// Key that signs device cookies.
    pub device_secret: Vec<u8>,
    /// Whether cookies are sent over TLS only.
    pub secure_cookies: bool,
}

/// A key that cannot be used; `kid` says which.
#[derive(Debug, thiserror::Error)]
#[error("user key `{kid}`: {reason}")]
pub struct BadKey {
    /// Its name.
    pub kid: String,
    /// What is wrong.
    pub reason: String,
}

struct VerifyingKey {
    key: DecodingKey,
    validation: Validation,
}

/// Judges who is calling.
pub struct Identity {
    keys: HashMap<String, VerifyingKey>,
    user_claim: String,
    cookie: Option<String>,
    leeway_ms: u64,
    device_key: hmac::Key,
    secure_cookies: bool,
}

impl Identity {
    /// Prepares the keys.
    ///
    /// # Errors
    /// If a key does not fit its algorithm, is too short, or its name is taken.
    pub fn new(parts: IdentityParts) -> Result<Identity, BadKey> {
        let mut keys = HashMap::new();
        for UserKey { kid, algorithm, key } in parts.keys {
            let bad = |reason: String| BadKey { kid: kid.clone(), reason };
            let (decoding, algorithm) = match algorithm {
                UserAlgorithm::HS256 if key.len() < 32 => return Err(bad("shorter than 32 bytes".into())),
                UserAlgorithm::HS256 => (DecodingKey::from_secret(&key), Algorithm::HS256),
                UserAlgorithm::RS256 => (DecodingKey::from_rsa_pem(&key), Algorithm::RS256),
                UserAlgorithm::ES256 => (DecodingKey::from_ec_pem(&key), Algorithm::ES256),
                UserAlgorithm::EdDSA => (DecodingKey::from_ed_pem(&key), Algorithm::EdDSA),
            };
            let key = decoding.map_err(|e| bad(e.to_string()))?;
            // One algorithm per key: a public key can't be passed off as an HMAC secret. The times are checked by
            // `verify_claims`, on the clock passed in.
            let mut validation = Validation::new(algorithm);
            validation.validate_exp = false;
            validation.validate_nbf = false;
            validation.set_required_spec_claims(&["exp", "iss", "aud"]);
            validation.set_issuer(&[&parts.issuer]);
            validation.set_audience(&[&parts.audience]);
            if keys.insert(kid.clone(), VerifyingKey { key, validation }).is_some() {
                return Err(BadKey { kid, reason: "named twice".into() });
            }
        }
        Ok(Identity {
            keys,
            user_claim: parts.user_claim,
            cookie: parts.cookie,
            leeway_ms: parts.leeway_ms,
            device_key: hmac::Key::new(hmac::HMAC_SHA256, &parts.device_secret),
            secure_cookies: parts.secure_cookies,
        })
    }

    /// Stage 5: the user. The Authorization header wins over the cookie.
    ///
    /// # Errors
    /// UNAUTHENTICATED, for whatever reason; which one is not told.
    pub fn user(&self, request: &Inbound<'_>) -> Result<UserId, Refusal> {
        let token = match request.single("authorization")? {
            Some(value) => bearer(value),
            None => self.cookie.as_deref().and_then(|name| request.cookie(name)),
        };
        token.and_then(|token| self.verify(token, request.wall_ms)).ok_or_else(|| Code::Unauthenticated.into())
    }

    /// The user of a JWT, if it is genuine, for us and of this time.
    pub fn verify(&self, token: &str, wall_ms: u64) -> Option<UserId> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        if header.crit.is_some() {
            return None;
        }
        let key = match header.kid.as_deref() {
            Some(kid) => self.keys.get(kid)?,
            None if self.keys.len() == 1 => self.keys.values().next()?,
            None => return None,
        };
        let claims =
            jsonwebtoken::decode::<serde_json::Map<String, serde_json::Value>>(token, &key.key, &key.validation)
                .ok()?
                .claims;
        let time_ms = |name: &str| match claims.get(name) {
            None => Ok(None),
            // Seconds, perhaps with a fraction; anything else is no time at all.
            Some(value) => {
                value.as_f64().filter(|s| s.is_finite() && *s >= 0.0).map(|s| Some((s * 1_000.0) as u64)).ok_or(())
            }
        };
        let expires = time_ms("exp").ok()??;
        let not_before = time_ms("nbf").ok()?.unwrap_or(0);
        if wall_ms >= expires.saturating_add(self.leeway_ms) || wall_ms.saturating_add(self.leeway_ms) < not_before {
            return None;
        }
        UserId::new(claims.get(&self.user_claim)?.as_str()?).ok()
    }

    /// The device: what the header says, else what our own cookie says; a cookie that is not ours counts as none.
    ///
    /// # Errors
    /// BAD_REQUEST if the header breaks the rule of device ids.
    pub fn device(&self, request: &Inbound<'_>) -> Result<Option<DeviceId>, Refusal> {
        if let Some(text) = request.single("seckill-device")? {
            let device = DeviceId::new(text);
            return device
                .map(Some)
                .map_err(|_| Refusal::bad_request("Seckill-Device must be 1-64 of A-Z a-z 0-9 . _ -."));
        }
        Ok(request.cookie(DEVICE_COOKIE).and_then(|value| self.device_of_cookie(value)))
    }

    fn device_of_cookie(&self, value: &str) -> Option<DeviceId> {
        let (id, tag) = value.rsplit_once('.')?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        // Compares in constant time.
        hmac::verify(&self.device_key, id.as_bytes(), &tag).ok()?;
        DeviceId::new(id).ok()
    }

    /// A `Set-Cookie` value that gives the browser a device id made of these random bytes.
    pub fn issue_device(&self, random: [u8; 16]) -> String {
        let id = URL_SAFE_NO_PAD.encode(random);
        let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&self.device_key, id.as_bytes()));
        let secure = if self.secure_cookies { "; Secure" } else { "" };
        format!("{DEVICE_COOKIE}={id}.{tag}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Lax{secure}")
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::{Value, json};

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const NOW_S: u64 = 1_800_000_000;

    fn identity() -> Identity {
        identity_with(vec![
            UserKey { kid: "h1".into(), algorithm: UserAlgorithm::HS256, key: SECRET.to_vec() },
            UserKey { kid: "h2".into(), algorithm: UserAlgorithm::HS256, key: SECRET.iter().rev().copied().collect() },
        ])
    }

    fn identity_with(keys: Vec<UserKey>) -> Identity {
        Identity::new(IdentityParts {
            keys,
            issuer: "shop".into(),
            audience: "sale".into(),
            user_claim: "sub".into(),
            cookie: Some("session".into()),
            leeway_ms: 2_000,
            device_secret: b"device secret".to_vec(),
            secure_cookies: true,
        })
        .unwrap()
    }

    fn good() -> Value {
        json!({ "sub": "u1", "iss": "shop", "aud": "sale", "exp": NOW_S + 60, "nbf": NOW_S - 60 })
    }

    fn with(changes: Value) -> Value {
        let mut claims = good();
        for (name, value) in changes.as_object().unwrap() {
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        claims
    }

    fn sign(header: Header, claims: &Value) -> String {
        jsonwebtoken::encode(&header, claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap()
    }

    fn hs256(kid: Option<&str>) -> Header {
        Header { kid: kid.map(Into::into), ..Header::new(Algorithm::HS256) }
    }

    #[test]
    fn a_jwt_is_taken_only_if_all_of_it_is_right() {
        let identity = identity();
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let unsigned = |alg: &str| format!("{}.{}.", part(json!({ "alg": alg, "kid": "h1" })), part(good()));
        let signed = |claims: Value| sign(hs256(Some("h1")), &claims);
        let mut tampered = signed(good());
        tampered.truncate(tampered.len() - 2);
        let rows = [
            ("good", signed(good()), true),
            ("audience among others", signed(with(json!({ "aud": ["x", "sale"] }))), true),
            ("no nbf", signed(with(json!({ "nbf": null }))), true),
            ("expired within the leeway", signed(with(json!({ "exp": NOW_S - 1 }))), true),
            ("early within the leeway", signed(with(json!({ "nbf": NOW_S + 2 }))), true),
            ("expired", signed(with(json!({ "exp": NOW_S - 2 }))), false),
            ("not yet", signed(with(json!({ "nbf": NOW_S + 3 }))), false),
            ("no exp", signed(with(json!({ "exp": null }))), false),
            ("exp as text", signed(with(json!({ "exp": "9999999999" }))), false),
            ("nbf as text", signed(with(json!({ "nbf": "0" }))), false),
            ("no iss", signed(with(json!({ "iss": null }))), false),
            ("other iss", signed(with(json!({ "iss": "evil" }))), false),
            ("no aud", signed(with(json!({ "aud": null }))), false),
            ("other aud", signed(with(json!({ "aud": "shop" }))), false),
            ("no user", signed(with(json!({ "sub": null }))), false),
            ("user as number", signed(with(json!({ "sub": 7 }))), false),
            ("user with a space", signed(with(json!({ "sub": "a b" }))), false),
            ("user too long", signed(with(json!({ "sub": "x".repeat(129) }))), false),
            ("no kid among two keys", sign(hs256(None), &good()), false),
            ("unknown kid", sign(hs256(Some("h9")), &good()), false),
            ("another key's kid", sign(hs256(Some("h2")), &good()), false),
            (
                "another algorithm",
                sign(Header { kid: Some("h1".into()), ..Header::new(Algorithm::HS384) }, &good()),
                false,
            ),
            ("critical extension", sign(Header { crit: Some(vec!["x".into()]), ..hs256(Some("h1")) }, &good()), false),
            ("alg none", unsigned("none"), false),
            ("alg NONE", unsigned("NONE"), false),
            ("no signature", unsigned("HS256"), false),
            ("cut off", tampered, false),
            ("nonsense", "a.b.c".into(), false),
            ("empty", String::new(), false),
        ];
        for (name, token, taken) in rows {
            assert_eq!(identity.verify(&token, NOW_S * 1_000).is_some(), taken, "{name}");
        }
    }

    #[test]
    fn each_algorithm_works_and_no_public_key_passes_as_a_secret() {
        use aws_lc_rs::encoding::AsDer;
        use aws_lc_rs::signature::{self, KeyPair};
        let pem = |label: &str, der: &[u8]| {
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
        };
        let ed = signature::Ed25519KeyPair::generate().unwrap();
        let ec = signature::EcdsaKeyPair::generate(&signature::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let rsa = signature::RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
        let public = |der: &[u8]| pem("PUBLIC KEY", der).into_bytes();
        let rsa_public =
            public(AsDer::<aws_lc_rs::encoding::PublicKeyX509Der>::as_der(rsa.public_key()).unwrap().as_ref());
        let ec_public =
            public(AsDer::<aws_lc_rs::encoding::PublicKeyX509Der>::as_der(ec.public_key()).unwrap().as_ref());
        let ed_public =
            public(AsDer::<aws_lc_rs::encoding::PublicKeyX509Der>::as_der(ed.public_key()).unwrap().as_ref());
        let identity = identity_with(vec![
            UserKey { kid: "rs".into(), algorithm: UserAlgorithm::RS256, key: rsa_public.clone() },
            UserKey { kid: "es".into(), algorithm: UserAlgorithm::ES256, key: ec_public },
            UserKey { kid: "ed".into(), algorithm: UserAlgorithm::EdDSA, key: ed_public },
        ]);
        let rsa_private = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der>::as_der(&rsa).unwrap();
        let ed_private = ed.to_pkcs8().unwrap();
        let ec_private = ec.to_pkcs8v1().unwrap();
        let rows = [
            ("rs", Algorithm::RS256, EncodingKey::from_rsa_pem(pem("PRIVATE KEY", rsa_private.as_ref()).as_bytes())),
            ("es", Algorithm::ES256, EncodingKey::from_ec_pem(pem("PRIVATE KEY", ec_private.as_ref()).as_bytes())),
            ("ed", Algorithm::EdDSA, EncodingKey::from_ed_pem(pem("PRIVATE KEY", ed_private.as_ref()).as_bytes())),
        ];
        for (kid, algorithm, key) in rows {
            let header = Header { kid: Some(kid.into()), ..Header::new(algorithm) };
            let token = jsonwebtoken::encode(&header, &good(), &key.unwrap()).unwrap();
            assert_eq!(identity.verify(&token, NOW_S * 1_000).map(|u| u.to_string()), Some("u1".into()), "{kid}");
        }
        let confused = EncodingKey::from_secret(&rsa_public).unwrap();
        let token = jsonwebtoken::encode(&hs256(Some("rs")), &good(), &confused).unwrap();
        assert_eq!(identity.verify(&token, NOW_S * 1_000), None);
    }

    fn request(headers: &HeaderMap) -> Inbound<'_> {
        let now = crate::platform::clock::StoreClock::new().now();
        let body = bytes::Bytes::new();
        let wall_ms = NOW_S * 1_000;
        Inbound { method: &Method::POST, query: None, headers, client: [1, 1, 1, 1].into(), body, now, wall_ms }
    }

    #[test]
    fn the_user_comes_from_header_or_cookie() {
        let identity = identity();
        let token = sign(hs256(Some("h1")), &good());
        let ask = |lines: &[(&'static str, String)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, value.parse().unwrap());
            }
            identity.user(&request(&headers)).map_err(|refusal| refusal.code)
        };
        let bearer = ("authorization", format!("Bearer {token}"));
        assert!(ask(std::slice::from_ref(&bearer)).is_ok());
        assert!(ask(&[("authorization", format!("bearer {token}"))]).is_ok());
        assert!(ask(&[("cookie", format!("a=b; session={token}"))]).is_ok());
        assert_eq!(ask(&[]), Err(Code::Unauthenticated));
        assert_eq!(ask(&[("authorization", format!("Basic {token}"))]), Err(Code::Unauthenticated));
        assert_eq!(ask(&[bearer.clone(), bearer]), Err(Code::BadRequest));
    }

    #[test]
    fn a_device_cookie_counts_only_if_we_signed_it() {
        let identity = identity();
        let issued = identity.issue_device([7; 16]);
        assert!(issued.contains("; HttpOnly; SameSite=Lax; Secure"), "{issued}");
        let pair = issued.split(';').next().unwrap().to_owned();
        let device = |lines: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, value.parse().unwrap());
            }
            identity.device(&request(&headers)).map(|d| d.map(|d| d.to_string())).map_err(|refusal| refusal.code)
        };
        assert_eq!(device(&[("cookie", &pair)]), Ok(Some(URL_SAFE_NO_PAD.encode([7; 16]))));
        assert_eq!(device(&[("cookie", &pair.replace("=B", "=C"))]), Ok(None));
        assert_eq!(device(&[("cookie", "seckill_device=abc")]), Ok(None));
        assert_eq!(device(&[("seckill-device", "phone-1"), ("cookie", &pair)]), Ok(Some("phone-1".into())));
        assert_eq!(device(&[("seckill-device", "a b")]), Err(Code::BadRequest));
    }
}
