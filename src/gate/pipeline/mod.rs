//! The order in which a request is judged: one short function per route.
//!
//! Each step either passes the request on or stops it with one named refusal. Nothing in here knows the server.

mod attempt;
mod page;
mod results;
mod state;
mod token;

use http::Method;

use crate::domain::ActivityId;
use crate::domain::refusal::Code;
use crate::gate::answer::{Answer, Refusal};
use crate::gate::delivery::told::FirstDelivery;
use crate::gate::edge::{Edge, Entry, Sale};
use crate::gate::metrics::Stage;
use crate::gate::port::AttemptPort;
use crate::gate::request::{Inbound, Route};

/// A refusal and where in the funnel it happened.
#[derive(Debug)]
struct Stop {
    stage: Stage,
    refusal: Refusal,
}

/// Names the stage of a step that may refuse.
trait At<T> {
    fn at(self, stage: Stage) -> Result<T, Stop>;
}

impl<T, R: Into<Refusal>> At<T> for Result<T, R> {
    fn at(self, stage: Stage) -> Result<T, Stop> {
        self.map_err(|refusal| Stop { stage, refusal: refusal.into() })
    }
}

/// Whether the route exists and takes the method; judged before a body is read.
///
/// # Errors
/// NOT_FOUND or METHOD_NOT_ALLOWED.
pub fn check_route(route: &Route<'_>, method: &Method) -> Result<(), Refusal> {
    let allowed = route.allows().ok_or(Code::NotFound)?;
    if allowed.split(", ").any(|name| name == method.as_str()) {
        Ok(())
    } else {
        Err(Refusal::method_not_allowed(allowed))
    }
}

/// Answers a request whose route exists and takes its method.
pub async fn serve<A, D>(edge: &Edge<A, D>, sale: &Sale<A>, route: &Route<'_>, request: &Inbound<'_>) -> Answer
where
    A: AttemptPort,
    D: FirstDelivery<A>,
{
    let answer = match route {
        Route::Activity(id) if request.method == Method::POST => match activity(edge, sale, id) {
            Ok(entry) => Ok(attempt::attempt(edge, sale, entry, request).await),
            Err(refusal) => Err(refusal),
        },
        Route::Tokens(id) => activity(edge, sale, id).map(|entry| token::token(edge, sale, entry, request)),
        Route::Activity(id) => activity(edge, sale, id).map(|entry| page::index(entry, request)),
        Route::Asset(id, path) => activity(edge, sale, id).and_then(|entry| page::asset(entry, path, request)),
        Route::State(id) => activity(edge, sale, id).and_then(|entry| state::state(sale, entry, request)),
        Route::Result(id, key) => match activity(edge, sale, id) {
            Ok(entry) => results::one(edge, sale, entry, key, request).await,
            Err(refusal) => Err(refusal),
        },
        Route::Results(id) => match activity(edge, sale, id) {
            Ok(entry) => results::all(edge, sale, entry, request).await,
            Err(refusal) => Err(refusal),
        },
        Route::Jwks => Ok(page::jwks(sale)),
        Route::Problem(name) => page::problem(name),
        Route::Unknown => Err(Code::NotFound.into()),
    };
    answer.unwrap_or_else(|refusal| sale.problems.render(&refusal))
}

/// Stage 2: the activity.
fn activity<'a, A, D>(edge: &Edge<A, D>, sale: &'a Sale<A>, id: &ActivityId) -> Result<&'a Entry<A>, Refusal> {
    sale.activities.get(id).ok_or_else(|| {
        edge.unknown.refused(Stage::Activity, Code::NoSuchActivity);
        Code::NoSuchActivity.into()
    })
}
