//! What a url of the configuration may hold.

use url::Url;

use super::super::load::Report;
use super::super::problem::Problem;

/// An address of an HTTP service.
pub(super) struct Http {
    pub example: &'static str,
    /// Whether a path may follow the host.
    pub path: bool,
}

/// Reads the url, or reports why not. A password is never repeated.
fn parse(text: &str, schemes: &[&str], example: &'static str, pointer: &str, report: &mut Report<'_>) -> Option<Url> {
    let refuse = |reason: String| Problem::BadUrl { reason, example };
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => {
            // Whatever it is, it may hold a password.
            let problem = if text.contains('@') {
                Problem::PasswordInUrl { instead: example }
            } else {
                refuse(error.to_string())
            };
            report.at(pointer, problem);
            return None;
        }
    };
    if !schemes.contains(&url.scheme()) {
        report.at(pointer, refuse(format!("its scheme is not {}", schemes.join(" or "))));
        return None;
    }
    if url.host_str().is_none_or(str::is_empty) {
        report.at(pointer, refuse("it names no host".into()));
        return None;
    }
    Some(url)
}

/// Where the part begins that such a url must not have, which is as likely as not a secret.
fn rest_at(url: &str, path: bool) -> Option<usize> {
    let host = url.find("://").filter(|_| !path).map(|at| at + "://".len());
    let after_host = host.and_then(|host| Some(host + url.get(host..)?.find(['/', '\\'])?));
    after_host.into_iter().chain(url.find(['?', '#'])).min()
}

/// `http://` or `https://`, without user, query or fragment.
pub(super) fn http(text: &str, kind: &Http, pointer: &str, report: &mut Report<'_>) {
    report.hide(pointer, |spelt| {
        rest_at(text, kind.path).map(|_| match rest_at(spelt, kind.path) {
            Some(at) if !spelt.contains('\\') => at + 1,
            // Spelt with escapes: all of it, rather than read them.
            _ => 0,
        })
    });
    let Some(url) = parse(text, &["http", "https"], kind.example, pointer, report) else { return };
    if !url.username().is_empty() || url.password().is_some() {
        report.at(pointer, Problem::PasswordInUrl { instead: kind.example });
    }
    let rest = match (url.query(), url.fragment()) {
        (Some(_), _) => Some("query"),
        (None, Some(_)) => Some("fragment"),
        (None, None) if !kind.path && url.path() != "/" => Some("path"),
        (None, None) => None,
    };
    match rest {
        Some(rest) if kind.path => report.at(pointer, Problem::UrlWithQuery { rest }),
        Some(rest) => report.at(pointer, Problem::UrlWithRest { rest }),
        // `/{request_id}/void` is put behind it.
        None if kind.path && text.ends_with('/') => report.at(pointer, Problem::UrlEndsWithSlash),
        None => {}
    }
}

/// `redis://` or `rediss://`, with host, port and database only.
pub(super) fn redis(text: &str, pointer: &str, report: &mut Report<'_>) {
    let example = "redis://127.0.0.1:6379/0";
    let Some(url) = parse(text, &["redis", "rediss"], example, pointer, report) else { return };
    if url.password().is_some() {
        report.at(pointer, Problem::PasswordInUrl { instead: "password: { env: NAME }" });
    } else if !url.username().is_empty() {
        report.at(pointer, Problem::UserInUrl { instead: "write it as `username: NAME`" });
    }
    let database = url.path().trim_start_matches('/');
    if !database.is_empty() && database.parse::<u16>().is_err() {
        report.at(pointer, Problem::BadUrl { reason: "the database is not a number".into(), example });
    }
}

/// `mysql://user@host:port/database`.
pub(super) fn mysql(text: &str, pointer: &str, report: &mut Report<'_>) {
    let example = "mysql://seckill@127.0.0.1:3306/seckill";
    let Some(url) = parse(text, &["mysql", "mariadb"], example, pointer, report) else { return };
    if url.password().is_some() {
        report.at(pointer, Problem::PasswordInUrl { instead: "password: { env: NAME }" });
    } else if url.username().is_empty() {
        report.at(pointer, Problem::BadUrl { reason: "it names no user".into(), example });
    }
    if url.path().trim_start_matches('/').is_empty() {
        report.at(pointer, Problem::DatabaseMissing);
    }
}
