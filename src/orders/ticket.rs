//! The gate's ticket: its word that this win is genuine, good for one delivery.

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;

use crate::domain::{ActivityId, InvalidId, RequestId, SkuId, UserId};

/// Clock difference between gate and order service that is forgiven, in seconds.
const LEEWAY_SECONDS: u64 = 2;

/// What a ticket vouches for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Who won.
    pub user: UserId,
    /// The sale.
    pub activity: ActivityId,
    /// What was won.
    pub sku: SkuId,
    /// Units, at least 1.
    pub qty: u32,
    /// Names the win.
    pub request_id: RequestId,
    /// The epoch of the store in which it was won.
    pub epoch: u64,
}

/// What is wrong with a ticket. None of it refuses the order: the gate signs a new one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TicketFault {
    /// Not a token that our gate's key signed.
    #[error("the ticket is not genuine")]
    Forged,
    /// Its time is over.
    #[error("the ticket has expired")]
    Expired,
    /// It was signed in the future.
    #[error("the ticket is from the future: compare the clocks of gate and order service")]
    FromTheFuture,
    /// Genuine, but a claim is no name of its kind.
    #[error("the ticket's {0}")]
    Claim(String),
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    act: String,
    sku: String,
    qty: u32,
    rid: String,
    epoch: u64,
    iat: u64,
    exp: u64,
}

/// Verifies tickets with the gate's public key.
#[derive(Clone)]
pub struct TicketVerifier {
    key: DecodingKey,
    validation: Validation,
}

impl TicketVerifier {
    /// `public_key_pem` is an Ed25519 public key.
    pub fn new(public_key_pem: &[u8]) -> anyhow::Result<TicketVerifier> {
        let mut validation = Validation::new(Algorithm::EdDSA);
        // Times are judged below, by the clock that is passed in. A ticket carries no audience.
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.required_spec_claims = ["exp", "sub"].map(String::from).into();
        Ok(TicketVerifier { key: DecodingKey::from_ed_pem(public_key_pem)?, validation })
    }

    /// Reads a ticket at `now_ms` of the wall clock.
    pub fn verify(&self, token: &str, now_ms: u64) -> Result<Ticket, TicketFault> {
        let claims = decode::<Claims>(token, &self.key, &self.validation).map_err(|error| match error.kind() {
            ErrorKind::Json(_) | ErrorKind::MissingRequiredClaim(_) => {
                TicketFault::Claim("claims are incomplete".into())
            }
            _ => TicketFault::Forged,
        })?;
        let claims = claims.claims;
        let now = now_ms / 1_000;
        if claims.exp.saturating_add(LEEWAY_SECONDS) <= now {
            return Err(TicketFault::Expired);
        }
        if claims.iat > now + LEEWAY_SECONDS {
            return Err(TicketFault::FromTheFuture);
        }
        let named = |error: InvalidId| TicketFault::Claim(error.to_string());
        if claims.qty == 0 {
            return Err(TicketFault::Claim("quantity must be at least 1".into()));
        }
        Ok(Ticket {
            user: claims.sub.parse().map_err(named)?,
            activity: claims.act.parse().map_err(named)?,
            sku: claims.sku.parse().map_err(named)?,
            qty: claims.qty,
            request_id: claims.rid.parse().map_err(named)?,
            epoch: claims.epoch,
        })
    }
}
