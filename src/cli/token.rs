//! `token`: signs a user JWT as the shop would, for trying things out.

use anyhow::Context;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Map, Value};

use super::{ConfigArgs, Outcome, Usage, exit, print};
use crate::config::Loaded;
use crate::config::scalars::Span;
use crate::config::schema::{Identity, UserAlgorithm, UserKey};
use crate::domain::UserId;
use crate::platform::clock;

/// Flags of `token`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Who the token is for
    #[arg(long)]
    user: UserId,
    /// How long it is good for, e.g. 15m
    #[arg(long, default_value = "1h")]
    ttl: Span,
}

/// Prints the token.
pub fn run(args: Args) -> Outcome {
    let loaded = match args.config.load() {
        Ok(loaded) => loaded,
        Err(code) => return Ok(code),
    };
    let now_seconds = clock::wall_ms() / 1_000;
    print(sign(&loaded, &args.user, now_seconds, args.ttl.0.as_secs())?)?;
    Ok(exit::DONE)
}

/// A JWT for `user`, valid from now for `ttl_seconds`.
pub fn sign(loaded: &Loaded, user: &UserId, now_seconds: u64, ttl_seconds: u64) -> anyhow::Result<String> {
    let identity = &loaded.config.identity;
    let signer = signer(identity)?;
    let source = identity.signing_key.as_ref().filter(|_| signer.algorithm != UserAlgorithm::HS256);
    let secret = loaded.secret(source.unwrap_or(&signer.key)).context("the signing key")?;
    let bytes = secret.expose();
    let (algorithm, key) = match signer.algorithm {
        UserAlgorithm::HS256 => (Algorithm::HS256, EncodingKey::from_secret(bytes)),
        UserAlgorithm::RS256 => (Algorithm::RS256, EncodingKey::from_rsa_pem(bytes)),
        UserAlgorithm::ES256 => (Algorithm::ES256, EncodingKey::from_ec_pem(bytes)),
        UserAlgorithm::EdDSA => (Algorithm::EdDSA, EncodingKey::from_ed_pem(bytes)),
    };
    let key =
        key.map_err(|_| Usage(format!("identity.signing_key is no private PEM key for {:?}", signer.algorithm)))?;
    let claims: Map<String, Value> = [
        ("iss".to_owned(), identity.issuer.clone().into()),
        ("aud".to_owned(), identity.audience.clone().into()),
        (identity.user_claim.clone(), user.as_str().into()),
        ("iat".to_owned(), now_seconds.into()),
        ("nbf".to_owned(), now_seconds.into()),
        ("exp".to_owned(), now_seconds.saturating_add(ttl_seconds).into()),
    ]
    .into_iter()
    .collect();
    let header = Header { kid: Some(signer.kid.clone()), ..Header::new(algorithm) };
    jsonwebtoken::encode(&header, &claims, &key).context("cannot sign")
}

/// The key that signs: the one that `identity.signing_key` is the private half of, else the first shared secret.
fn signer(identity: &Identity) -> Result<&UserKey, Usage> {
    let private = identity.signing_key.is_some();
    let found = identity.keys.iter().find(|key| (key.algorithm != UserAlgorithm::HS256) == private);
    found.ok_or_else(|| {
        Usage("the configuration holds public keys only; name the private one as `identity.signing_key`".into())
    })
}
