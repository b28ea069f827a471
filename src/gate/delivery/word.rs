//! The order service's reply, judged. One pure function, one table.
//!
//! Only three things are definite: a complete 200 or 201 (or a status listed as final), a reply that refuses or ends the
//! order *by name* (or a status listed as refusing), and 202 as "queued". A bare 404, 409 or 422 may come from anything
//! between here and there, so everything else is unknown, and the win is delivered again.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode, header};

use crate::domain::win::{Cause, Reason, Release};
use crate::gate::delivery::reply::StoredReply;

/// `refused` or `ended`, on any status.
pub const ORDER_HEADER: HeaderName = HeaderName::from_static("seckill-order");
/// The reason that goes with it.
pub const REASON_HEADER: HeaderName = HeaderName::from_static("seckill-reason");

/// Header values that are longer are not kept.
const MAX_CONTENT_TYPE: usize = 256;
const MAX_LOCATION: usize = 2_048;

/// Which statuses are definite, besides the standard ones.
#[derive(Debug, Clone, Default)]
pub struct ReplyRules {
    /// Final success (for shops whose 202 is final).
    pub final_statuses: Vec<u16>,
    /// Final refusal.
    pub refused_statuses: Vec<u16>,
}

/// What came of a reply's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyBody {
    /// All of it.
    Whole(Bytes),
    /// Read to its end, but longer than what is kept.
    TooLong,
    /// It ended before its end.
    Cut,
}

/// What the order service said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// An order stands.
    Booked(StoredReply),
    /// It stands in a queue; ask again.
    Queued(StoredReply),
    /// No order stands or ever will; the units come back.
    Ended(Release),
    /// Nothing definite.
    Unknown(Why),
}

/// Why nothing definite was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// No complete reply before the deadline.
    Deadline,
    /// No connection: the delivery cannot have arrived.
    Unreachable,
    /// The connection broke, or what came was not HTTP.
    Broken,
    /// A reply that says nothing definite.
    Status(u16),
    /// `Seckill-Order` says two things.
    Contradiction,
}

impl Word {
    /// The label in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Word::Booked(_) => "booked",
            Word::Queued(_) => "queued",
            Word::Ended(release) => release.cause.as_str(),
            Word::Unknown(Why::Deadline) => "deadline",
            Word::Unknown(Why::Unreachable) => "unreachable",
            Word::Unknown(_) => "unknown",
        }
    }

    /// Every label.
    pub const LABELS: [&str; 8] =
        ["booked", "queued", "refused", "void", "ended", "deadline", "unreachable", "unknown"];
}

/// Judges a reply.
pub fn judge_reply(status: StatusCode, headers: &HeaderMap, body: ReplyBody, rules: &ReplyRules) -> Word {
    // What is dropped has no type either.
    let (body, content_type) = match body {
        ReplyBody::Whole(body) => (body, text(headers, header::CONTENT_TYPE, MAX_CONTENT_TYPE)),
        ReplyBody::TooLong => (Bytes::new(), None),
        ReplyBody::Cut => return Word::Unknown(Why::Broken),
    };
    match ended_by_name(headers) {
        Ok(Some(release)) => return Word::Ended(release),
        Ok(None) => {}
        Err(why) => return Word::Unknown(why),
    }
    let code = status.as_u16();
    if rules.refused_statuses.contains(&code) {
        let reason = match headers.get(REASON_HEADER) {
            Some(_) => reason_named(headers),
            None => Reason::lossy(&format!("status_{code}")),
        };
        return Word::Ended(Release { cause: Cause::Refused, reason });
    }
    let location = text(headers, header::LOCATION, MAX_LOCATION);
    let reply = StoredReply { status: code, content_type, location, body };
    if matches!(code, 200 | 201) || rules.final_statuses.contains(&code) {
        return Word::Booked(reply);
    }
    if code == 202 {
        return Word::Queued(reply);
    }
    Word::Unknown(Why::Status(code))
}

/// Whether a reply refuses or ends the order by name, whatever its status.
pub fn ended_by_name(headers: &HeaderMap) -> Result<Option<Release>, Why> {
    Ok(cause_named(headers)?.map(|cause| Release { cause, reason: reason_named(headers) }))
}

fn cause_named(headers: &HeaderMap) -> Result<Option<Cause>, Why> {
    let mut named = None;
    // Proxies may join repeated headers with commas.
    let lines = headers.get_all(ORDER_HEADER).iter();
    for value in lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b',')) {
        let cause = match value.trim_ascii().to_ascii_lowercase().as_slice() {
            b"refused" => Cause::Refused,
            b"ended" => Cause::Ended,
            _ => continue,
        };
        if named.is_some_and(|earlier| earlier != cause) {
            return Err(Why::Contradiction);
        }
        named = Some(cause);
    }
    Ok(named)
}

fn reason_named(headers: &HeaderMap) -> Reason {
    Reason::lossy(headers.get(REASON_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default().trim())
}

fn text(headers: &HeaderMap, name: HeaderName, max: usize) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    (value.len() <= max).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> ReplyBody {
        ReplyBody::Whole(Bytes::from_static(b"{}"))
    }

    fn label(code: u16, order: &[&str], body: ReplyBody, rules: &ReplyRules) -> &'static str {
        let mut headers = HeaderMap::new();
        for value in order {
            headers.append(ORDER_HEADER, value.parse().unwrap());
        }
        judge_reply(StatusCode::from_u16(code).unwrap(), &headers, body, rules).label()
    }

    #[test]
    fn only_a_definite_word_is_definite() {
        let none = ReplyRules::default();
        let listed = ReplyRules { final_statuses: vec![202], refused_statuses: vec![409] };
        let table: &[(u16, &[&str], &ReplyRules, &str)] = &[
            (200, &[], &none, "booked"),
            (201, &[], &none, "booked"),
            (202, &[], &none, "queued"),
            (202, &[], &listed, "booked"),
            (204, &[], &none, "unknown"),
            (303, &[], &none, "unknown"),
            (400, &[], &none, "unknown"),
            (404, &[], &none, "unknown"),
            (409, &[], &none, "unknown"),
            (410, &[], &none, "unknown"),
            (422, &[], &none, "unknown"),
            (500, &[], &none, "unknown"),
            (503, &[], &none, "unknown"),
            (409, &[], &listed, "refused"),
            (409, &["refused"], &none, "refused"),
            (409, &["ended"], &listed, "ended"),
            (410, &["ended"], &none, "ended"),
            // By name means by name, whatever the status.
            (200, &[" Refused "], &none, "refused"),
            (500, &["refused"], &none, "refused"),
            (409, &["refused", "refused"], &none, "refused"),
            (409, &["refused", "ended"], &none, "unknown"),
            (200, &["refused,ended"], &none, "unknown"),
            (200, &["refused, refused"], &none, "refused"),
            (409, &["declined"], &none, "unknown"),
            (201, &["accepted"], &none, "booked"),
        ];
        for (code, order, rules, expected) in table {
            assert_eq!(label(*code, order, whole(), rules), *expected, "{code} {order:?} {rules:?}");
        }
    }

    #[test]
    fn half_a_body_is_no_word_and_a_long_one_counts_by_its_head() {
        let rules = ReplyRules::default();
        for (code, order) in [(200, &[][..]), (202, &[]), (409, &["refused"])] {
            assert_eq!(label(code, order, ReplyBody::Cut, &rules), "unknown", "{code} {order:?}");
        }
        let head: HeaderMap = [(header::CONTENT_TYPE, "application/json"), (header::LOCATION, "/orders/7")]
            .map(|(name, value)| (name, value.parse().unwrap()))
            .into_iter()
            .collect();
        let long = judge_reply(StatusCode::CREATED, &head, ReplyBody::TooLong, &rules);
        let location = Some("/orders/7".into());
        let empty = StoredReply { status: 201, content_type: None, location, body: Bytes::new() };
        assert_eq!(long, Word::Booked(empty));
    }

    #[test]
    fn the_reason_is_made_fit_to_keep() {
        let mut headers = HeaderMap::new();
        headers.insert(ORDER_HEADER, "refused".parse().unwrap());
        let reason = |headers: &HeaderMap, rules: &ReplyRules| match judge_reply(
            StatusCode::CONFLICT,
            headers,
            whole(),
            rules,
        ) {
            Word::Ended(release) => release.reason.as_str().to_owned(),
            other => panic!("{other:?}"),
        };
        let rules = ReplyRules { refused_statuses: vec![409], ..ReplyRules::default() };
        assert_eq!(reason(&headers, &rules), "unspecified");
        headers.insert(REASON_HEADER, "No Stock".parse().unwrap());
        assert_eq!(reason(&headers, &rules), "no_stock");
        assert_eq!(reason(&HeaderMap::new(), &rules), "status_409");
    }

    #[test]
    fn every_label_is_listed() {
        for cause in Cause::ALL {
            let release = Release { cause, reason: Reason::lossy("x") };
            assert!(Word::LABELS.contains(&Word::Ended(release).label()));
        }
        for why in [Why::Deadline, Why::Unreachable, Why::Broken, Why::Status(500), Why::Contradiction] {
            assert!(Word::LABELS.contains(&Word::Unknown(why).label()));
        }
    }
}
