//! A request as the pipeline sees it, free of the server's types, and which route it is for.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, Method};

use crate::domain::ActivityId;
use crate::gate::answer::Refusal;
use crate::platform::clock::Now;

/// One request under the sale's prefix.
#[derive(Debug)]
pub struct Inbound<'a> {
    /// The method.
    pub method: &'a Method,
    /// The query, without `?`.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The client's address, trusted proxies passed.
    pub client: IpAddr,
    /// The body, read to its end; empty on routes that take none.
    pub body: Bytes,
    /// When it was read, by the monotonic and the store's clock.
    pub now: Now,
    /// When it was read, by the wall clock: for JWTs that others made.
    pub wall_ms: u64,
}

impl<'a> Inbound<'a> {
    /// The value of a header that may come at most once; `Ok(None)` if it is missing.
    ///
    /// # Errors
    /// BAD_REQUEST if it comes twice or is not visible ASCII.
    pub fn single(&self, name: &'static str) -> Result<Option<&'a str>, Refusal> {
        let mut values = self.headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Refusal::from(crate::domain::refusal::Code::BadRequest)
                .detail(format!("The header {name} stands more than once.")));
        }
        match value.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Refusal::from(crate::domain::refusal::Code::BadRequest)
                .detail(format!("The header {name} holds characters other than visible ASCII."))),
        }
    }

    /// The value of the first cookie of this name.
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        self.headers
            .get_all(http::header::COOKIE)
            .iter()
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim_start().split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim_end().trim_matches('"'))
    }
}

/// The closed set of routes, for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RouteName {
    Shop,
    Page,
    Asset,
    State,
    Token,
    Attempt,
    Result,
    Results,
    Jwks,
    Problem,
    /// No route, or refused before one was found.
    None,
}

impl RouteName {
    /// Every route.
    pub const ALL: [RouteName; 11] = [
        RouteName::Shop,
        RouteName::Page,
        RouteName::Asset,
        RouteName::State,
        RouteName::Token,
        RouteName::Attempt,
        RouteName::Result,
        RouteName::Results,
        RouteName::Jwks,
        RouteName::Problem,
        RouteName::None,
    ];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            RouteName::Shop => "shop",
            RouteName::Page => "page",
            RouteName::Asset => "asset",
            RouteName::State => "state",
            RouteName::Token => "token",
            RouteName::Attempt => "attempt",
            RouteName::Result => "result",
            RouteName::Results => "results",
            RouteName::Jwks => "jwks",
            RouteName::Problem => "problem",
            RouteName::None => "none",
        }
    }
}

/// A route under the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Route<'a> {
    /// The page (GET) or an attempt (POST).
    Activity(ActivityId),
    Asset(ActivityId, &'a str),
    State(ActivityId),
    Tokens(ActivityId),
    Results(ActivityId),
    Result(ActivityId, &'a str),
    Jwks,
    Problem(&'a str),
    Unknown,
}

const READ: &str = "GET, HEAD";

impl<'a> Route<'a> {
    /// The route of a path below the prefix, given without the prefix: `""`, `"/sale-1/state"`, …
    pub fn of(rest: &'a str) -> Route<'a> {
        let Some(rest) = rest.strip_prefix('/') else { return Route::Unknown };
        let (first, tail) = match rest.split_once('/') {
            Some((first, tail)) => (first, Some(tail)),
            None => (rest, None),
        };
        match (first, tail) {
            ("jwks.json", None) => return Route::Jwks,
            ("problems", Some(code)) if code.starts_with(|c: char| c.is_ascii_uppercase()) => {
                return Route::Problem(code);
            }
            _ => {}
        }
        let Ok(activity) = ActivityId::new(first) else { return Route::Unknown };
        match tail {
            None => Route::Activity(activity),
            Some("state") => Route::State(activity),
            Some("tokens") => Route::Tokens(activity),
            Some("results") => Route::Results(activity),
            Some(tail) => match tail.split_once('/') {
                Some(("results", key)) if !key.is_empty() && !key.contains('/') => Route::Result(activity, key),
                Some(("assets", path)) if !path.is_empty() => Route::Asset(activity, path),
                _ => Route::Unknown,
            },
        }
    }

    /// The methods it takes, as in `Allow`; `None` for a path that is no route.
    pub fn allows(&self) -> Option<&'static str> {
        match self {
            Route::Unknown => None,
            Route::Activity(_) => Some("GET, HEAD, POST"),
            Route::Tokens(_) => Some("POST"),
            _ => Some(READ),
        }
    }

    /// Its name.
    pub fn name(&self, method: &Method) -> RouteName {
        match self {
            Route::Activity(_) if method == Method::POST => RouteName::Attempt,
            Route::Activity(_) => RouteName::Page,
            Route::Asset(..) => RouteName::Asset,
            Route::State(_) => RouteName::State,
            Route::Tokens(_) => RouteName::Token,
            Route::Results(_) => RouteName::Results,
            Route::Result(..) => RouteName::Result,
            Route::Jwks => RouteName::Jwks,
            Route::Problem(_) => RouteName::Problem,
            Route::Unknown => RouteName::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_its_path() {
        let sale = || ActivityId::new("s1").unwrap();
        let rows = [
            ("", Route::Unknown),
            ("/", Route::Unknown),
            ("/s1", Route::Activity(sale())),
            ("/s1/", Route::Unknown),
            ("/S1", Route::Unknown),
            ("/s1/state", Route::State(sale())),
            ("/s1/tokens", Route::Tokens(sale())),
            ("/s1/results", Route::Results(sale())),
            ("/s1/results/k", Route::Result(sale(), "k")),
            ("/s1/results/", Route::Unknown),
            ("/s1/results/k/events", Route::Unknown),
            ("/s1/assets/a/b.js", Route::Asset(sale(), "a/b.js")),
            ("/s1/assets", Route::Unknown),
            ("/s1/other", Route::Unknown),
            ("/jwks.json", Route::Jwks),
            ("/problems/SOLD_OUT", Route::Problem("SOLD_OUT")),
            ("/problems", Route::Activity(ActivityId::new("problems").unwrap())),
        ];
        for (path, route) in rows {
            assert_eq!(Route::of(path), route, "{path:?}");
        }
    }

    #[test]
    fn a_cookie_is_found_among_others_and_on_any_line() {
        let mut headers = HeaderMap::new();
        headers.append("cookie", "a=1; bb=2;c=\"3\"".parse().unwrap());
        headers.append("cookie", "d=4".parse().unwrap());
        let request = Inbound {
            method: &Method::GET,
            query: None,
            headers: &headers,
            client: [1, 2, 3, 4].into(),
            body: Bytes::new(),
            now: crate::platform::clock::StoreClock::new().now(),
            wall_ms: 0,
        };
        let found = ["a", "b", "bb", "c", "d"].map(|name| request.cookie(name));
        assert_eq!(found, [Some("1"), None, Some("2"), Some("3"), Some("4")]);
    }
}
