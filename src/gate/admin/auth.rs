//! Who may come in: a bearer token that may change, another that may only read, and nobody through a browser's back door.
//!
//! `Host` is checked against DNS rebinding, `Origin` against pages of other sites: a browser on the operator's machine
//! reaches loopback listeners, and neither needs the token to be tried.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::problem::Problem;

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Everything.
    Change,
}

/// The guard of the listener. Clones share what they go by, which a reload replaces.
#[derive(Clone)]
pub struct AdminAuth {
    rules: Arc<ArcSwap<Rules>>,
}

/// The tokens and the names of the listener.
struct Rules {
    change: Fingerprint,
    read: Option<Fingerprint>,
    hosts: Vec<String>,
    /// Set when listening on every address: any address of the machine is its own then.
    any_address_with_port: Option<u16>,
}

/// Tokens are compared by their hashes: in constant time, whatever their lengths.
struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(token: &[u8]) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, token).as_ref());
        Fingerprint(bytes)
    }

    fn matches(&self, other: &Fingerprint) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl AdminAuth {
    /// The guard of a listener on `address`, also known as `hosts` (with port). An empty token matches nothing.
    pub fn new(change: &[u8], read: Option<&[u8]>, address: SocketAddr, hosts: &[String]) -> AdminAuth {
        let mut hosts: Vec<String> = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        hosts.push(address.to_string());
        let unspecified = address.ip().is_unspecified();
        if unspecified || address.ip().is_loopback() {
            hosts.push(format!("localhost:{}", address.port()));
        }
        let rules = Rules {
            change: Fingerprint::of(change),
            read: read.filter(|token| !token.is_empty()).map(Fingerprint::of),
            hosts,
            any_address_with_port: unspecified.then_some(address.port()),
        };
        AdminAuth { rules: Arc::new(ArcSwap::from_pointee(rules)) }
    }

    /// From now on this guard and its clones go by what `other` goes by.
    pub fn follow(&self, other: &AdminAuth) {
        self.rules.store(other.rules.load_full());
    }

    /// Lets a request in, or says why not.
    pub fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<Access, Problem> {
        self.rules.load().admit(method, headers)
    }
}

impl Rules {
    fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<Access, Problem> {
        let forbidden = |detail: &str| Problem::new(StatusCode::FORBIDDEN, "FORBIDDEN", detail);
        let host = single(headers, header::HOST).unwrap_or_default();
        if !self.is_own(host) {
            return Err(forbidden(
                "this Host is not the admin listener's; list it in gate.admin_hosts if it should be",
            ));
        }
        if headers.contains_key(header::ORIGIN) {
            let origin = single(headers, header::ORIGIN).unwrap_or_default();
            let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            if !site.is_some_and(|site| self.is_own(site)) {
                return Err(forbidden("this Origin may not use the admin listener"));
            }
        }
        let unauthenticated = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", detail);
        let token = single(headers, header::AUTHORIZATION)
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty())
            .map(|(_, token)| Fingerprint::of(token.trim().as_bytes()))
            .ok_or_else(|| unauthenticated("the admin token is missing: Authorization: Bearer …"))?;
        let access = if self.change.matches(&token) {
            Access::Change
        } else if self.read.as_ref().is_some_and(|read| read.matches(&token)) {
            Access::Read
        } else {
            return Err(unauthenticated("this is not the admin token"));
        };
        if access == Access::Read && !matches!(*method, Method::GET | Method::HEAD) {
            return Err(forbidden("this token may only read"));
        }
        Ok(access)
    }

    fn is_own(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        if self.hosts.contains(&host) {
            return true;
        }
        // An address, unlike a name, cannot be rebound to ours by somebody else's DNS.
        let address =
            host.parse::<SocketAddr>().ok().or_else(|| Some(SocketAddr::new(host.parse::<IpAddr>().ok()?, 80)));
        address.is_some_and(|address| Some(address.port()) == self.any_address_with_port)
    }
}

/// The value of a header that came exactly once.
fn single(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { value.to_str().ok() }
}

/// The guard before every route but the probes.
pub async fn guard(State(auth): State<Arc<AdminAuth>>, request: Request, next: Next) -> Response {
    match auth.admit(request.method(), request.headers()) {
        Ok(_) => {
            let mut response = next.run(request).await;
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(problem) => problem.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(auth: &AdminAuth, method: Method, fields: &[(header::HeaderName, &str)]) -> u16 {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        match auth.admit(&method, &headers) {
            Ok(_) => 200,
            Err(problem) => problem.status.as_u16(),
        }
    }

    #[test]
    fn who_comes_in() {
        use header::{AUTHORIZATION as TOKEN, HOST, ORIGIN};
        let hosts = ["Ops.example:8081".to_owned()];
        let auth = AdminAuth::new(b"change", Some(b"read"), "127.0.0.1:8081".parse().unwrap(), &hosts);
        let own = (HOST, "127.0.0.1:8081");
        type Row<'a> = (Method, &'a [(header::HeaderName, &'a str)], u16);
        let table: &[Row<'_>] = &[
            (Method::GET, &[own.clone(), (TOKEN, "Bearer read")], 200),
            (Method::GET, &[own.clone(), (TOKEN, "bearer change")], 200),
            (Method::POST, &[own.clone(), (TOKEN, "Bearer change")], 200),
            (Method::POST, &[own.clone(), (TOKEN, "Bearer read")], 403),
            (Method::DELETE, &[own.clone(), (TOKEN, "Bearer read")], 403),
            (Method::GET, std::slice::from_ref(&own), 401),
            (Method::GET, &[own.clone(), (TOKEN, "Bearer ")], 401),
            (Method::GET, &[own.clone(), (TOKEN, "Bearer changes")], 401),
            (Method::GET, &[own.clone(), (TOKEN, "Basic change")], 401),
            (Method::GET, &[own.clone(), (TOKEN, "Bearer read"), (TOKEN, "Bearer change")], 401),
            (Method::GET, &[(HOST, "localhost:8081"), (TOKEN, "Bearer read")], 200),
            (Method::GET, &[(HOST, "OPS.example:8081"), (TOKEN, "Bearer read")], 200),
            (Method::GET, &[(HOST, "evil.example:8081"), (TOKEN, "Bearer read")], 403),
            (Method::GET, &[(HOST, "127.0.0.2:8081"), (TOKEN, "Bearer read")], 403),
            (Method::GET, &[(HOST, "127.0.0.1"), (TOKEN, "Bearer read")], 403),
            (Method::GET, &[(TOKEN, "Bearer read")], 403),
            (Method::POST, &[own.clone(), (TOKEN, "Bearer change"), (ORIGIN, "http://127.0.0.1:8081")], 200),
            (Method::POST, &[own.clone(), (TOKEN, "Bearer change"), (ORIGIN, "https://evil.example")], 403),
            (Method::POST, &[own.clone(), (TOKEN, "Bearer change"), (ORIGIN, "null")], 403),
        ];
        for (method, fields, expected) in table {
            assert_eq!(status(&auth, method.clone(), fields), *expected, "{method} {fields:?}");
        }
    }

    #[test]
    fn a_listener_on_every_address_is_addressed_by_any_address_but_by_no_unlisted_name() {
        let auth = AdminAuth::new(b"change", None, "0.0.0.0:8081".parse().unwrap(), &[]);
        let with = |host| status(&auth, Method::GET, &[(header::HOST, host), (header::AUTHORIZATION, "Bearer change")]);
        assert_eq!((with("10.1.2.3:8081"), with("[::1]:8081"), with("localhost:8081")), (200, 200, 200));
        assert_eq!((with("10.1.2.3:80"), with("evil.example:8081")), (403, 403));
    }

    #[test]
    fn an_empty_read_token_is_no_token() {
        let auth = AdminAuth::new(b"change", Some(b""), "127.0.0.1:8081".parse().unwrap(), &[]);
        let host = (header::HOST, "127.0.0.1:8081");
        assert_eq!(status(&auth, Method::GET, &[host, (header::AUTHORIZATION, "Bearer  ")]), 401);
    }
}
