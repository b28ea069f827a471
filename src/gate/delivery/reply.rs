//! The order service's reply, as the store keeps it and as it is told.

use bytes::Bytes;

/// A reply worth keeping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReply {
    /// HTTP status.
    pub status: u16,
    /// `Content-Type`, if it was valid.
    pub content_type: Option<String>,
    /// `Location`, if it was valid.
    pub location: Option<String>,
    /// The body, byte for byte.
    pub body: Bytes,
}

impl StoredReply {
    /// Four lines of head, then the body. Header values hold no line breaks, so the form is unambiguous.
    pub fn encode(&self) -> Bytes {
        let mut encoded = format!(
            "{}\n{}\n{}\n",
            self.status,
            self.content_type.as_deref().unwrap_or(""),
            self.location.as_deref().unwrap_or("")
        )
        .into_bytes();
        encoded.extend_from_slice(&self.body);
        Bytes::from(encoded)
    }

    /// Reads [`StoredReply::encode`] back; `None` if it is something else.
    pub fn decode(encoded: &Bytes) -> Option<StoredReply> {
        let mut rest = encoded.clone();
        let mut line = || {
            let end = rest.iter().position(|&byte| byte == b'\n')?;
            let line = std::str::from_utf8(&rest[..end]).ok()?.to_owned();
            rest = rest.slice(end + 1..);
            Some(line)
        };
        let status = line()?.parse().ok()?;
        let content_type = Some(line()?).filter(|text| !text.is_empty());
        let location = Some(line()?).filter(|text| !text.is_empty());
        Some(StoredReply { status, content_type, location, body: rest })
    }
}
