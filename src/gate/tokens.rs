//! Sale tokens: a JWT for exactly one attempt.
//!
//! A token names activity, request id (so also user and key), SKU, quantity and device. Used for anything else it is
//! invalid; used again for the same it leads to the same win. So it is single-use without anything being stored.

use std::collections::HashMap;
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use crate::domain::{ActivityId, DeviceId, RequestId, SkuId, StoreMs};
use crate::platform::clock::Now;

/// A signing key, read from where it is kept.
pub struct TokenKey {
    /// Its name.
    pub kid: String,
    /// The secret, at least 32 bytes.
    pub key: Vec<u8>,
}

/// Keys that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadTokenKeys {
    /// There is none.
    #[error("no token key is configured")]
    None,
    /// One is too short or its name is taken.
    #[error("token key `{kid}`: {reason}")]
    Key {
        /// Its name.
        kid: String,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    act: ActivityId,
    rid: RequestId,
    sku: SkuId,
    qty: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dev: Option<DeviceId>,
    /// Whether it is for looking up alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    look: bool,
    /// First moment of validity, store clock, milliseconds.
    nbf_ms: u64,
    /// First moment after it.
    exp_ms: u64,
}

/// What a token is to be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The SKU.
    pub sku: &'a SkuId,
    /// How many units.
    pub qty: u32,
    /// Whether it is on offer. If not, the token leads to an earlier win and to no other.
    pub on_offer: bool,
}

/// A token as it was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The token.
    pub token: String,
    /// First moment of validity.
    pub not_before: StoreMs,
    /// First moment after it.
    pub expires_at: StoreMs,
}

/// What a genuine token for this attempt says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// What it is for.
    pub sku: SkuId,
    /// How many units.
    pub qty: u32,
    /// Whether this was on offer when the token was issued; if not, it may only look a win up.
    pub on_offer: bool,
    /// Whether it counts now.
    pub timing: Timing,
    /// Whether the caller's device is the one it was issued to. On another it may look its win up, but not win.
    pub own_device: bool,
}

/// How a token's span stands to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// Now is within it.
    Valid,
    /// It surely begins later.
    NotYet,
    /// It is over.
    Expired,
}

/// Issues and verifies sale tokens.
pub struct Tokens {
    header: Header,
    signing: EncodingKey,
    verifying: HashMap<String, DecodingKey>,
    validation: Validation,
    ttl: Duration,
}

impl Tokens {
    /// The first key signs, all of them verify: a new key is put last on every gate, then first, then the old one goes.
    ///
    /// # Errors
    /// If there is no key, or one is shorter than 32 bytes or named twice.
    pub fn new(keys: &[TokenKey], ttl: Duration) -> Result<Tokens, BadTokenKeys> {
        let mut verifying = HashMap::new();
        for TokenKey { kid, key } in keys {
            let bad = |reason: &str| BadTokenKeys::Key { kid: kid.clone(), reason: reason.into() };
            if key.len() < 32 {
                return Err(bad("shorter than 32 bytes"));
            }
            let decoding = DecodingKey::from_secret(key).map_err(|e| bad(&e.to_string()))?;
            if verifying.insert(kid.clone(), decoding).is_some() {
                return Err(bad("named twice"));
            }
        }
        let first = keys.first().ok_or(BadTokenKeys::None)?;
        let signing = EncodingKey::from_secret(&first.key)
            .map_err(|e| BadTokenKeys::Key { kid: first.kid.clone(), reason: e.to_string() })?;
        // Times are ours: milliseconds of the store's clock, judged in `verify`.
        let mut validation = Validation::new(Algorithm::HS256);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let header = Header { kid: Some(first.kid.clone()), ..Header::new(Algorithm::HS256) };
        Ok(Tokens { header, signing, verifying, validation, ttl })
    }

    /// A token for one attempt, good for the configured span from the start of the sale, or from now if that is past.
    /// `None` if it cannot be signed.
    pub fn issue(
        &self,
        activity: &ActivityId,
        id: RequestId,
        wanted: Wanted<'_>,
        device: Option<&DeviceId>,
        starts_at: StoreMs,
        now: StoreMs,
    ) -> Option<Issued> {
        // A token issued during the sale begins with the sale: two gates' clocks differ by milliseconds, and neither may
        // find the other's token too early.
        let not_before = starts_at;
        let expires_at = starts_at.max(now).after(self.ttl);
        let claims = Claims {
            act: activity.clone(),
            rid: id,
            sku: wanted.sku.clone(),
            qty: wanted.qty,
            dev: device.cloned(),
            look: !wanted.on_offer,
            nbf_ms: not_before.0,
            exp_ms: expires_at.0,
        };
        let token = jsonwebtoken::encode(&self.header, &claims, &self.signing).ok()?;
        Some(Issued { token, not_before, expires_at })
    }

    /// What the token says, if it is genuine and for this attempt; `None` otherwise. A token that was issued to a
    /// caller without a device is any device's own.
    pub fn verify(
        &self,
        token: &str,
        activity: &ActivityId,
        id: RequestId,
        device: Option<&DeviceId>,
        now: Now,
    ) -> Option<Verified> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        let key = self.verifying.get(header.kid.as_deref()?)?;
        let claims = jsonwebtoken::decode::<Claims>(token, key, &self.validation).ok()?.claims;
        let for_this = claims.act == *activity && claims.rid == id && claims.qty > 0;
        if !for_this {
            return None;
        }
        let own_device = claims.dev.is_none() || claims.dev.as_ref() == device;
        let timing = if now.store_at_most.0 < claims.nbf_ms {
            Timing::NotYet
        } else if now.store.0 >= claims.exp_ms {
            Timing::Expired
        } else {
            Timing::Valid
        };
        Some(Verified { sku: claims.sku, qty: claims.qty, on_offer: !claims.look, timing, own_device })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: StoreMs = StoreMs(1_000_000);

    fn at(store: StoreMs) -> Now {
        Now::exactly(crate::platform::clock::monotonic(), store)
    }

    fn key(kid: &str, byte: u8) -> TokenKey {
        TokenKey { kid: kid.into(), key: vec![byte; 32] }
    }

    fn tokens(keys: &[TokenKey]) -> Tokens {
        Tokens::new(keys, Duration::from_secs(10)).unwrap()
    }

    fn rid(key: &str) -> RequestId {
        RequestId::derive(&act("a"), &"u1".parse().unwrap(), &key.parse().unwrap())
    }

    fn act(name: &str) -> ActivityId {
        name.parse().unwrap()
    }

    #[test]
    fn a_token_counts_only_for_its_own_attempt() {
        let tokens = tokens(&[key("k1", 1)]);
        let device: DeviceId = "phone".parse().unwrap();
        let sku: SkuId = "s".parse().unwrap();
        let wanted = Wanted { sku: &sku, qty: 2, on_offer: true };
        let bound = tokens.issue(&act("a"), rid("k"), wanted, Some(&device), START, StoreMs(0)).unwrap();
        let free = tokens.issue(&act("a"), rid("k"), wanted, None, START, StoreMs(0)).unwrap();
        let other: DeviceId = "tablet".parse().unwrap();
        let mut forged = bound.token.clone();
        forged.replace_range(forged.len() - 3.., "AAA");
        let rows = [
            ("its own", &bound.token, act("a"), rid("k"), Some(&device), Some(true)),
            ("another activity", &bound.token, act("b"), rid("k"), Some(&device), None),
            ("another key or user", &bound.token, act("a"), rid("k2"), Some(&device), None),
            ("another device", &bound.token, act("a"), rid("k"), Some(&other), Some(false)),
            ("no device", &bound.token, act("a"), rid("k"), None, Some(false)),
            ("not bound to a device", &free.token, act("a"), rid("k"), Some(&other), Some(true)),
            ("forged", &forged, act("a"), rid("k"), Some(&device), None),
        ];
        for (name, token, activity, id, device, good) in rows {
            let verified = tokens.verify(token, &activity, id, device, at(START));
            let expected =
                |own_device| Verified { sku: sku.clone(), qty: 2, on_offer: true, timing: Timing::Valid, own_device };
            assert_eq!(verified, good.map(expected), "{name}");
        }
        let beyond = Wanted { on_offer: false, ..wanted };
        let beyond = tokens.issue(&act("a"), rid("k"), beyond, None, START, StoreMs(0)).unwrap().token;
        assert!(!tokens.verify(&beyond, &act("a"), rid("k"), None, at(START)).unwrap().on_offer);
    }

    #[test]
    fn a_token_has_its_span_on_the_stores_clock() {
        let tokens = tokens(&[key("k1", 1)]);
        let wanted = Wanted { sku: &"s".parse().unwrap(), qty: 1, on_offer: true };
        let issue = |now| tokens.issue(&act("a"), rid("k"), wanted, None, START, now).unwrap();
        let early = issue(StoreMs(400_000));
        assert_eq!((early.not_before, early.expires_at), (START, StoreMs(1_010_000)));
        let late = issue(StoreMs(1_500_000));
        assert_eq!((late.not_before, late.expires_at), (START, StoreMs(1_510_000)));
        let rows = [
            (999_999, Timing::NotYet),
            (1_000_000, Timing::Valid),
            (1_009_999, Timing::Valid),
            (1_010_000, Timing::Expired),
        ];
        for (now, timing) in rows {
            let verified = tokens.verify(&early.token, &act("a"), rid("k"), None, at(StoreMs(now))).unwrap();
            assert_eq!(verified.timing, timing, "{now}");
        }
        let lagging = Now { store_at_most: START, ..at(StoreMs(999_000)) };
        let verified = tokens.verify(&early.token, &act("a"), rid("k"), None, lagging).unwrap();
        assert_eq!(verified.timing, Timing::Valid, "the store judges the start");
    }

    #[test]
    fn keys_rotate_without_losing_live_tokens() {
        let sku: SkuId = "s".parse().unwrap();
        let wanted = Wanted { sku: &sku, qty: 1, on_offer: true };
        let issue = |tokens: &Tokens| tokens.issue(&act("a"), rid("k"), wanted, None, START, START).unwrap().token;
        let good = |tokens: &Tokens, token: &str| tokens.verify(token, &act("a"), rid("k"), None, at(START)).is_some();
        let before = tokens(&[key("old", 1), key("new", 2)]);
        let after = tokens(&[key("new", 2), key("old", 1)]);
        let gone = tokens(&[key("new", 2)]);
        assert!(good(&after, &issue(&before)) && good(&before, &issue(&after)));
        assert!(!good(&gone, &issue(&before)), "a key that is gone verifies nothing");
        assert!(!good(&tokens(&[key("new", 3)]), &issue(&after)), "a name is not a key");
        assert!(Tokens::new(&[], Duration::ZERO).is_err());
        assert!(Tokens::new(&[key("a", 1), key("a", 2)], Duration::ZERO).is_err());
        assert!(Tokens::new(&[TokenKey { kid: "a".into(), key: vec![1; 31] }], Duration::ZERO).is_err());
    }
}
