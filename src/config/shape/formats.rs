//! The text forms that the schema names.

use super::super::scalars::{ByteSize, Moment, Rate, Span};

/// A text form that the schema names as `format`; the error says what to write.
pub(super) type Format = (&'static str, fn(&str) -> Result<(), String>);

/// The text forms of [`super::scalars`] and of the network types. Their own parsers are the check, so that schema and
/// typed read cannot disagree.
pub(super) const FORMATS: [Format; 7] = [
    ("span", |text| text.parse::<Span>().map(drop)),
    ("rate", |text| text.parse::<Rate>().map(drop)),
    ("byte-size", |text| text.parse::<ByteSize>().map(drop)),
    ("date-time", |text| text.parse::<Moment>().map(drop)),
    ("socket-address", |text| {
        let instead =
            || format!("`{text}` is no listener; write address and port like `127.0.0.1:8080` or `[::]:8080`");
        text.parse::<std::net::SocketAddr>().map(drop).map_err(|_| instead())
    }),
    ("environment-variable", |text| {
        // Not repeated: it may be the secret itself.
        let good = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let valid = text.bytes().all(good) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if valid {
            Ok(())
        } else {
            Err("is no name of an environment variable; write one like `SECKILL_ADMIN_TOKEN`".into())
        }
    }),
    ("cidr", |text| {
        let instead =
            || format!("`{text}` is no CIDR block; write one like `10.0.0.0/8`, `192.0.2.7/32` or `fd00::/8`");
        text.parse::<ipnet::IpNet>().map(drop).map_err(|_| instead())
    }),
];
