//! Values as people write them: `5s`, `20/s`, `2KiB`, and where a secret is kept.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::domain::StoreMs;

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

/// A moment, RFC 3339 with offset: `2026-12-12T20:00:00+08:00`. Checked against the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub StoreMs);

/// Where a secret is kept: in a file or in an environment variable, never in the configuration itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
pub struct SecretSource {
    /// Read from this file; one trailing newline is dropped. A relative path begins at the configuration's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PathBuf")]
    pub file: Option<PathBuf>,
    /// Read from this environment variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "environment-variable"))]
    pub env: Option<String>,
}

macro_rules! from_text {
    ($name:ident, $format:literal, $pattern:literal, $example:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format, "pattern": $pattern, "examples": [$example] })
            }
        }
    };
}

from_text!(Span, "span", "^[0-9]+(ms|s|m|h|d)$", "5s");
from_text!(Rate, "rate", "^[1-9][0-9]*/(s|m|h)$", "20/s");
from_text!(ByteSize, "byte-size", "^[0-9]+(B|KiB|MiB|GiB)$", "2KiB");
from_text!(
    Moment,
    "date-time",
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9:.]+([Zz]|[+-][0-9]{2}:[0-9]{2})$",
    "2026-12-12T20:00:00+08:00"
);

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

impl Moment {
    /// The moment on the store's clock.
    pub const fn store_ms(self) -> StoreMs {
        self.0
    }
}

impl fmt::Display for Moment {
    /// RFC 3339 in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = i64::try_from(self.0.0).ok().and_then(chrono::DateTime::from_timestamp_millis);
        match moment {
            Some(moment) => f.write_str(&moment.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)),
            None => self.0.fmt(f),
        }
    }
}

impl fmt::Display for Span {
    /// In the largest unit that keeps it whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
        match units.into_iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", ms / unit),
            None => write!(f, "{ms}ms"),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = match self.per.as_secs() {
            3_600 => "h",
            60 => "m",
            _ => "s",
        };
        write!(f, "{}/{per}", self.count)
    }
}

impl fmt::Display for ByteSize {
    /// In the largest unit that keeps it whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl FromStr for Moment {
    type Err = String;
    fn from_str(text: &str) -> Result<Moment, String> {
        let error =
            || format!("`{text}` is not a moment; write date, time and offset like `2026-12-12T20:00:00+08:00`");
        let moment = chrono::DateTime::parse_from_rfc3339(text).map_err(|_| error())?;
        // Before 1970 there were no flash sales.
        u64::try_from(moment.timestamp_millis()).map(|ms| Moment(StoreMs(ms))).map_err(|_| error())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_read_with_its_offset_and_only_with_one() {
        let moment: Moment = "2026-12-12T20:00:00+08:00".parse().unwrap();
        assert_eq!(moment.store_ms(), StoreMs(1_797_076_800_000));
        assert_eq!(moment.to_string(), "2026-12-12T12:00:00Z");
        for bad in ["2026-12-12T20:00:00", "2026-12-12", "2026-02-30T00:00:00Z", "1969-12-31T23:59:59Z", "soon", ""] {
            assert!(bad.parse::<Moment>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn lengths_of_time_are_written_as_they_are_read() {
        for text in ["500ms", "5s", "90s", "10m", "2h", "7d", "0ms"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("24h".parse::<Span>().unwrap().to_string(), "1d");
        for bad in ["5", "s", "-5s", "1.5s", "5 s", "99999999999999999999s", "18446744073709551615d"] {
            assert!(bad.parse::<Span>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn rates_and_sizes_keep_their_units() {
        assert_eq!("30/m".parse::<Rate>().unwrap(), Rate { count: 30, per: Duration::from_secs(60) });
        assert_eq!("2KiB".parse::<ByteSize>().unwrap(), ByteSize(2048));
        for text in ["2KiB", "1MiB", "3GiB", "1500B", "0B"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        for text in ["20/s", "30/m", "100/h"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for bad in ["0/s", "20", "20/d", "5000000000/s"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?} was taken");
        }
        for bad in ["2K", "2kb", "18446744073709551615GiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad:?} was taken");
        }
    }
}
