//! Names of things, each its own type, each valid by construction.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest::{self, SHA256};

/// A name that breaks the rule of its kind; says which rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} must be {rule}")]
pub struct InvalidId {
    /// What was being named, e.g. `"user"`.
    pub kind: &'static str,
    /// The rule in words.
    pub rule: &'static str,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $valid:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` against the rule of this kind of name.
            pub fn new(text: &str) -> Result<Self, InvalidId> {
                if $valid(text) {
                    Ok($name(text.into()))
                } else {
                    Err(InvalidId { kind: $kind, rule: $rule })
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                $name::new(text)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                $name::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id!(
    /// One sale: `[a-z0-9][a-z0-9-]{0,63}`.
    ActivityId, "activity", "1-64 of a-z 0-9 -, not starting with -", is_slug
);
text_id!(
    /// One kind of thing on sale within an activity: `[a-z0-9][a-z0-9-]{0,63}`.
    SkuId, "sku", "1-64 of a-z 0-9 -, not starting with -", is_slug
);
text_id!(
    /// One gate of the deployment, as named in `deployment.gates`.
    GateId, "gate id", "1-64 of a-z 0-9 -, not starting with -", is_slug
);
text_id!(
    /// A buyer, as the shop's JWT names them: 1–128 visible ASCII characters.
    UserId, "user", "1-128 visible ASCII characters", is_user
);
text_id!(
    /// The client's own name for one attempt, unique to the user within the activity; without the optional quotes.
    IdempotencyKey, "idempotency key", "1-64 of A-Z a-z 0-9 . _ -", is_key
);
text_id!(
    /// The device an attempt comes from, as its header or signed cookie says.
    DeviceId, "device", "1-64 of A-Z a-z 0-9 . _ -", is_key
);

impl IdempotencyKey {
    /// Reads the header form: bare, or in one pair of double quotes (the same key).
    pub fn from_header(value: &str) -> Result<Self, InvalidId> {
        let bare = match value.strip_prefix('"') {
            Some(rest) => rest.strip_suffix('"').unwrap_or(""),
            None => value,
        };
        IdempotencyKey::new(bare)
    }
}

fn is_slug(text: &str) -> bool {
    let slug_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    matches!(text.as_bytes(), [first, rest @ ..]
        if slug_byte(*first) && rest.len() < 64 && rest.iter().all(|&byte| slug_byte(byte) || byte == b'-'))
}

fn is_user(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_key(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

macro_rules! digest_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The 32 lower-case hex digits.
            pub fn hex(&self) -> Hex {
                Hex::of(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                parse_hex(text).map($name).ok_or(InvalidId { kind: $kind, rule: "32 lower-case hex digits" })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.hex().as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.hex().as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

digest_id!(
    /// The one identity of an attempt: the first 128 bits of SHA-256 over activity, user and key, each after its length
    /// as u32 big-endian. It names the attempt in store, outbox, order service, ledger, results and dead letters.
    RequestId, "request id"
);
digest_id!(
    /// The first 128 bits of SHA-256 of an attempt's body: tells a repeated request from another one under the same key.
    Fingerprint, "fingerprint"
);

impl RequestId {
    /// Derives the id. The lengths in front keep `("ab","c")` and `("a","bc")` apart.
    pub fn derive(activity: &ActivityId, user: &UserId, key: &IdempotencyKey) -> RequestId {
        let mut context = digest::Context::new(&SHA256);
        for part in [activity.as_str(), user.as_str(), key.as_str()] {
            // Names are at most 128 bytes long, so the cast cannot truncate.
            context.update(&(part.len() as u32).to_be_bytes());
            context.update(part.as_bytes());
        }
        RequestId(first_half(&context.finish()))
    }
}

impl Fingerprint {
    /// The fingerprint of `body`.
    pub fn of(body: &[u8]) -> Fingerprint {
        Fingerprint(first_half(&digest::digest(&SHA256, body)))
    }
}

fn first_half(digest: &digest::Digest) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest.as_ref()[..16]);
    half
}

/// 32 hex digits on the stack: formatting an id allocates nothing.
#[derive(Clone, Copy)]
pub struct Hex([u8; 32]);

impl Hex {
    fn of(bytes: &[u8; 16]) -> Hex {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(bytes) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        Hex(hex)
    }

    /// The digits as text.
    pub fn as_str(&self) -> &str {
        // Only ASCII digits were written.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

fn parse_hex(text: &str) -> Option<[u8; 16]> {
    let digits = <&[u8; 32]>::try_from(text.as_bytes()).ok()?;
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (hex_value(pair[0])? << 4) | hex_value(pair[1])?;
    }
    Some(bytes)
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(activity: &str, user: &str, key: &str) -> RequestId {
        RequestId::derive(&activity.parse().unwrap(), &user.parse().unwrap(), &key.parse().unwrap())
    }

    #[test]
    fn a_request_id_is_the_documented_digest() {
        // printf '\0\0\0\4sale\0\0\0\2u1\0\0\0\2k1' | sha256sum | cut -c1-32
        assert_eq!(id("sale", "u1", "k1").to_string(), "eef43c5759fe9038687e0cf204b6a00f");
    }

    #[test]
    fn moving_a_letter_between_the_parts_makes_another_id() {
        assert_ne!(id("sale", "ab", "c"), id("sale", "a", "bc"));
        assert_ne!(id("salea", "b", "c"), id("sale", "ab", "c"));
    }

    #[test]
    fn a_quoted_key_is_the_same_key() {
        let bare = IdempotencyKey::from_header("k-1").unwrap();
        assert_eq!(IdempotencyKey::from_header("\"k-1\"").unwrap(), bare);
        for bad in ["", "\"\"", "\"k", "k\"", "\"\"k\"\"", "a b", "é", &"x".repeat(65)] {
            assert!(IdempotencyKey::from_header(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn names_keep_their_rules() {
        for good in ["a", "0", "sale-2026", &"x".repeat(64)] {
            assert!(ActivityId::new(good).is_ok(), "{good:?} was refused");
        }
        for bad in ["", "-a", "A", "a.b", "jwks.json", "a/b", &"x".repeat(65)] {
            assert!(ActivityId::new(bad).is_err(), "{bad:?} was taken");
        }
        for bad in ["", "a b", "a\u{7f}", "ü", &"x".repeat(129)] {
            assert!(UserId::new(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn hex_is_read_back_and_only_in_lower_case() {
        let rid = id("sale", "u1", "k1");
        assert_eq!(rid.to_string().parse(), Ok(rid));
        assert!(
            rid.to_string().to_uppercase().parse::<RequestId>().is_err()
                || !rid.to_string().contains(char::is_alphabetic)
        );
        assert!("12".parse::<RequestId>().is_err());
    }
}
