//! Values as people write them: `5s`, `20/s`, `2KiB`, and where a secret is kept.

use std::borrow::Cow;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// A length of time: a whole number and a unit, `ms`, `s`, `m`, `h` or `d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A rate: so many `per` second, minute or hour: `20/s`, `5/m`, `100/h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many, at least 1.
    pub count: u32,
    /// In what time.
    pub per: Duration,
}

/// A number of bytes: `512`, `2KiB`, `1MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Where a secret is kept. Secrets never stand in the file itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretSource {
    /// Read from this file; one trailing newline is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Read from this environment variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
}

macro_rules! from_text {
    ($name:ident, $schema_name:literal, $pattern:literal, $example:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                $schema_name.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern, "examples": [$example] })
            }
        }
    };
}

from_text!(Span, "Span", "^[0-9]+(ms|s|m|h|d)$", "5s");
from_text!(Rate, "Rate", "^[1-9][0-9]*/(s|m|h)$", "20/s");
from_text!(ByteSize, "ByteSize", "^[0-9]+(B|KiB|MiB|GiB)$", "2KiB");

impl Span {
    /// A span of whole seconds.
    pub const fn seconds(seconds: u64) -> Span {
        Span(Duration::from_secs(seconds))
    }

    /// A span of whole milliseconds.
    pub const fn millis(millis: u64) -> Span {
        Span(Duration::from_millis(millis))
    }
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Span, String> {
        let error = || format!("`{text}` is not a length of time; write one like `500ms`, `5s`, `10m`, `2h` or `7d`");
        let (number, unit) = split_number(text).ok_or_else(error)?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(error()),
        };
        number.checked_mul(unit_ms).map(Span::millis).ok_or_else(error)
    }
}

impl FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Rate, String> {
        let error = || format!("`{text}` is not a rate; write one like `20/s`, `30/m` or `100/h`");
        let (number, unit) = split_number(text).ok_or_else(error)?;
        let per_seconds = match unit {
            "/s" => 1,
            "/m" => 60,
            "/h" => 3_600,
            _ => return Err(error()),
        };
        match u32::try_from(number) {
            Ok(count) if count > 0 => Ok(Rate { count, per: Duration::from_secs(per_seconds) }),
            _ => Err(error()),
        }
    }
}

impl FromStr for ByteSize {
    type Err = String;
    fn from_str(text: &str) -> Result<ByteSize, String> {
        let error = || format!("`{text}` is not a size; write one like `512B`, `2KiB` or `1MiB`");
        let (number, unit) = split_number(text).ok_or_else(error)?;
        let unit_bytes: u64 = match unit {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(error()),
        };
        number.checked_mul(unit_bytes).map(ByteSize).ok_or_else(error)
    }
}
