//! Users, tokens.

use std::collections::HashSet;

use super::super::load::{Parts, Report};
use super::super::problem::Problem;
use super::super::scalars::Span;
use super::super::schema::Identity;
use super::at_most;
use crate::domain::IdempotencyKey;

pub(super) fn check(parts: &Parts, report: &mut Report<'_>) {
    if let Some(identity) = &parts.identity {
        of_identity(identity, report);
    }
    if let Some(tokens) = &parts.tokens {
        kids(tokens.keys.iter().map(|key| key.kid.as_str()), "/tokens/keys", report);
        if tokens.ttl < Span::seconds(1) {
            let problem = Problem::TooShort { limit: "1s".into(), because: "tokens would expire on their way" };
            report.at("/tokens/ttl", problem);
        }
        at_most(tokens.ttl, Span::seconds(600), "10m", "hoarded tokens would stay good", "/tokens/ttl", report);
        at_most(
            tokens.open_before,
            Span::seconds(86_400),
            "1d",
            "tokens would be handed out days ahead",
            "/tokens/open_before",
            report,
        );
    }
}

fn of_identity(identity: &Identity, report: &mut Report<'_>) {
    kids(identity.keys.iter().map(|key| key.kid.as_str()), "/identity/keys", report);
    let texts = [
        (&identity.issuer, "/identity/issuer", "the `iss` of the shop's tokens"),
        (&identity.audience, "/identity/audience", "the `aud` of the shop's tokens"),
        (&identity.user_claim, "/identity/user_claim", "the name of a claim, like `sub`"),
    ];
    for (text, pointer, wanted) in texts {
        if text.trim().is_empty() {
            report.at(pointer, Problem::EmptyText(wanted));
        }
    }
    match identity.cookie.as_deref() {
        Some(cookie) if matches!(cookie, "seckill_pass" | "seckill_device") => {
            report.at("/identity/cookie", Problem::ReservedCookie { cookie: cookie.to_owned() });
        }
        Some(cookie) if !is_cookie(cookie) => report.at("/identity/cookie", Problem::BadCookie(cookie.to_owned())),
        _ => {}
    }
    at_most(
        identity.leeway,
        Span::seconds(60),
        "60s",
        "signed-out users would stay signed in",
        "/identity/leeway",
        report,
    );
}

/// Each key has a name of its own, in the alphabet of headers.
fn kids<'a>(kids: impl Iterator<Item = &'a str>, pointer: &str, report: &mut Report<'_>) {
    let mut seen = HashSet::new();
    for (index, kid) in kids.enumerate() {
        let pointer = format!("{pointer}/{index}/kid");
        // The same alphabet as an idempotency key.
        if IdempotencyKey::new(kid).is_err() {
            report.at(&pointer, Problem::BadKid(kid.to_owned()));
        } else if !seen.insert(kid) {
            report.at(&pointer, Problem::SameKid { kid: kid.to_owned() });
        }
    }
}

fn is_cookie(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}
