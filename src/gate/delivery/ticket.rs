//! Tickets: a JWT, signed anew for each delivery, that tells the order service which win it holds in its hands.
//!
//! A ticket expires soon after its delivery's deadline. An expired one is *unknown* to the gate, never a refusal.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::{Deserialize, Serialize};

use crate::domain::admission::{DueWin, Epoch};
use crate::domain::{ActivityId, RequestId, SkuId, UserId};

/// `aud` of every ticket.
pub const AUDIENCE: &str = "seckill-orders";
/// `iss` of every ticket.
pub const ISSUER: &str = "seckill-gate";

/// How long after the delivery's deadline a ticket is still good: what the order service's clock may lag behind.
const GRACE: Duration = Duration::from_secs(2);

/// The claims of a ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Always [`ISSUER`].
    pub iss: String,
    /// Always [`AUDIENCE`].
    pub aud: String,
    /// The user.
    pub sub: UserId,
    /// The activity.
    pub act: ActivityId,
    /// What was won.
    pub sku: SkuId,
    /// How many units.
    pub qty: u32,
    /// The request id.
    pub rid: RequestId,
    /// The epoch under which the gate delivers.
    pub epoch: Epoch,
    /// Signed at, seconds since the Unix epoch.
    pub iat: u64,
    /// Good until, seconds since the Unix epoch.
    pub exp: u64,
}

/// A key that cannot sign, or a signature that failed.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// Not a private key of the right kind.
    #[error("the ticket key is not an Ed25519 private key in PKCS#8 PEM (`seckill-gate keygen` makes one)")]
    BadKey,
    /// The signature could not be made.
    #[error("cannot sign a ticket: {0}")]
    Signing(#[from] jsonwebtoken::errors::Error),
}

/// Signs tickets.
pub struct TicketSigner {
    key: EncodingKey,
    header: Header,
    jwks: Bytes,
}

impl std::fmt::Debug for TicketSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketSigner").field("kid", &self.header.kid).finish_non_exhaustive()
    }
}

impl TicketSigner {
    /// A signer with an Ed25519 private key in PKCS#8 PEM.
    pub fn from_pem(pem: &[u8]) -> Result<TicketSigner, TicketError> {
        let key = EncodingKey::from_ed_pem(pem).map_err(|_| TicketError::BadKey)?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.as_bytes()).map_err(|_| TicketError::BadKey)?;
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        let kid = thumbprint(&x);
        let jwks = serde_json::json!({ "keys": [
            { "kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid, "alg": "EdDSA", "use": "sig" },
        ]});
        let header = Header { kid: Some(kid), ..Header::new(Algorithm::EdDSA) };
        Ok(TicketSigner { key, header, jwks: Bytes::from(jwks.to_string()) })
    }

    /// A ticket for one delivery that starts at `wall_ms` (the machine's wall clock) and ends within `deadline`.
    pub fn sign(
        &self,
        activity: &ActivityId,
        win: &DueWin,
        epoch: Epoch,
        wall_ms: u64,
        deadline: Duration,
    ) -> Result<String, TicketError> {
        let iat = wall_ms / 1_000;
        let until_ms = wall_ms.saturating_add(crate::domain::time::millis(deadline + GRACE));
        let claims = Ticket {
            iss: ISSUER.into(),
            aud: AUDIENCE.into(),
            sub: win.user.clone(),
            act: activity.clone(),
            sku: win.sku.clone(),
            qty: win.qty,
            rid: win.request_id,
            epoch,
            iat,
            exp: until_ms.div_ceil(1_000),
        };
        Ok(jsonwebtoken::encode(&self.header, &claims, &self.key)?)
    }

    /// The public key as a JWKS document, for `GET /seckill/jwks.json`.
    pub fn jwks(&self) -> Bytes {
        self.jwks.clone()
    }
}

/// The key's id: RFC 7638 thumbprint of the public key, so that the same key has the same id on every gate.
fn thumbprint(x: &str) -> String {
    let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    URL_SAFE_NO_PAD.encode(digest(&SHA256, canonical.as_bytes()))
}

/// A fresh key pair.
pub struct TicketKeyPair {
    /// PKCS#8, for the gate. A secret.
    pub private_pem: String,
    /// SubjectPublicKeyInfo, for the order service.
    pub public_pem: String,
}

/// Makes a key pair; fails only if the system's random source does.
pub fn generate_key_pair() -> Result<TicketKeyPair, TicketError> {
    let pair = Ed25519KeyPair::generate().map_err(|_| TicketError::BadKey)?;
    // Version 1: OpenSSL 3.0 and older tools cannot read the other.
    let pkcs8 = pair.to_pkcs8v1().map_err(|_| TicketError::BadKey)?;
    // SEQUENCE { SEQUENCE { OID 1.3.101.112 }, BIT STRING } (RFC 8410).
    let mut spki = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    spki.extend_from_slice(pair.public_key().as_ref());
    Ok(TicketKeyPair { private_pem: pem("PRIVATE KEY", pkcs8.as_ref()), public_pem: pem("PUBLIC KEY", &spki) })
}

fn pem(label: &str, der: &[u8]) -> String {
    // Both kinds of key fit into two lines of 64 characters; the standard asks for the break.
    let base64 = STANDARD.encode(der);
    let (first, rest) = base64.split_at(base64.len().min(64));
    let rest = if rest.is_empty() { String::new() } else { format!("{rest}\n") };
    format!("-----BEGIN {label}-----\n{first}\n{rest}-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{IdempotencyKey, StoreMs};
    use jsonwebtoken::{DecodingKey, Validation};

    fn win() -> DueWin {
        let (user, sku) = (UserId::new("u1").unwrap(), SkuId::new("phone").unwrap());
        let request_id = RequestId::derive(&"sale".parse().unwrap(), &user, &IdempotencyKey::new("k").unwrap());
        DueWin { request_id, user, sku, qty: 2, won_at: StoreMs(5), tries: 0, payload: Bytes::from_static(b"{}") }
    }

    fn sign(signer: &TicketSigner, wall_ms: u64) -> String {
        signer.sign(&"sale".parse().unwrap(), &win(), Epoch(3), wall_ms, Duration::from_secs(2)).unwrap()
    }

    #[test]
    fn a_ticket_holds_the_win_and_verifies_with_the_public_half_only() {
        let (pair, other) = (generate_key_pair().unwrap(), generate_key_pair().unwrap());
        let signer = TicketSigner::from_pem(pair.private_pem.as_bytes()).unwrap();
        let now = crate::platform::clock::wall_ms();
        let token = sign(&signer, now);
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[ISSUER]);
        let public = DecodingKey::from_ed_pem(pair.public_pem.as_bytes()).unwrap();
        let ticket = jsonwebtoken::decode::<Ticket>(&token, &public, &validation).unwrap().claims;
        assert_eq!((ticket.sub.as_str(), ticket.sku.as_str(), ticket.qty), ("u1", "phone", 2));
        assert_eq!((ticket.rid, ticket.epoch, ticket.iat), (win().request_id, Epoch(3), now / 1_000));
        let stranger = DecodingKey::from_ed_pem(other.public_pem.as_bytes()).unwrap();
        assert!(jsonwebtoken::decode::<Ticket>(&token, &stranger, &validation).is_err());
    }

    #[test]
    fn a_ticket_outlives_its_delivery_by_a_little() {
        let pair = generate_key_pair().unwrap();
        let signer = TicketSigner::from_pem(pair.private_pem.as_bytes()).unwrap();
        let claims = sign(&signer, 10_001).split('.').nth(1).unwrap().to_owned();
        let claims: Ticket = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
        assert_eq!((claims.iat, claims.exp), (10, 15));
    }

    #[test]
    fn the_published_key_is_named_like_the_tickets() {
        let pair = generate_key_pair().unwrap();
        let signer = TicketSigner::from_pem(pair.private_pem.as_bytes()).unwrap();
        let jwks: jsonwebtoken::jwk::JwkSet = serde_json::from_slice(&signer.jwks()).unwrap();
        let header = jsonwebtoken::decode_header(sign(&signer, 1_000)).unwrap();
        let jwk = jwks.find(&header.kid.unwrap()).unwrap();
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.set_audience(&[AUDIENCE]);
        let token = sign(&signer, crate::platform::clock::wall_ms());
        jsonwebtoken::decode::<Ticket>(&token, &DecodingKey::from_jwk(jwk).unwrap(), &validation).unwrap();
    }

    #[test]
    fn other_keys_are_refused_with_advice() {
        let error = TicketSigner::from_pem(b"secret").unwrap_err();
        assert!(error.to_string().contains("keygen"), "{error}");
    }
}
