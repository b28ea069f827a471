//! User JWTs as the shop would sign them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use jsonwebtoken::{Algorithm, EncodingKey, Header};

/// Signs in users with the shop's HS256 key.
pub struct Signer {
    key: EncodingKey,
    header: Header,
    issuer: String,
    audience: String,
}

/// The claims of a user JWT.
#[derive(serde::Serialize)]
struct Claims<'a> {
    sub: &'a str,
    iss: &'a str,
    aud: &'a str,
    iat: u64,
    nbf: u64,
    exp: u64,
}

impl Signer {
    /// A signer with the shared secret of the key `kid`. Fails if the secret cannot be a key, e.g. an empty one.
    pub fn hs256(secret: &[u8], kid: &str, issuer: &str, audience: &str) -> anyhow::Result<Signer> {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some(kid.into());
        let key = EncodingKey::from_secret(secret).context("the users' signing key cannot be used")?;
        Ok(Signer { key, header, issuer: issuer.into(), audience: audience.into() })
    }

    /// A JWT for `user`, valid from now for `ttl`. Fails only if the crypto library does.
    pub fn sign(&self, user: &str, ttl: Duration) -> anyhow::Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?.as_secs();
        let claims = Claims {
            sub: user,
            iss: &self.issuer,
            aud: &self.audience,
            iat: now,
            nbf: now,
            exp: now.saturating_add(ttl.as_secs()),
        };
        jsonwebtoken::encode(&self.header, &claims, &self.key).context("cannot sign a user JWT")
    }
}
