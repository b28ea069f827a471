//! Everything that is served as it lies in memory: pages, assets, keys, explanations.

use bytes::Bytes;

use crate::domain::refusal::Code;
use crate::gate::answer::{Answer, Refusal};
use crate::gate::edge::{Entry, Sale};
use crate::gate::pages;
use crate::gate::request::Inbound;

/// `GET {prefix}/{activity}`.
pub(super) fn index<A>(entry: &Entry<A>, request: &Inbound<'_>) -> Answer {
    entry.meter.page_hit();
    entry.page.index(request.headers)
}

/// `GET {prefix}/{activity}/assets/…`.
pub(super) fn asset<A>(entry: &Entry<A>, path: &str, request: &Inbound<'_>) -> Result<Answer, Refusal> {
    entry.page.asset(path, request.headers).ok_or_else(|| Code::NotFound.into())
}

/// `GET {prefix}/jwks.json`.
pub(super) fn jwks<A>(sale: &Sale<A>) -> Answer {
    Answer::new(200, "application/jwk-set+json", "public, max-age=60", Bytes::clone(&sale.jwks))
}

/// `GET {prefix}/problems/{CODE}`.
pub(super) fn problem(name: &str) -> Result<Answer, Refusal> {
    pages::problem_page(name).ok_or_else(|| Code::NotFound.into())
}
