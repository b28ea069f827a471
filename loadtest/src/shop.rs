//! A shop just big enough to stand behind the gate: it signs people in and links to the sale.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::signer::Signer;

/// How long a sign-in lasts.
const SESSION: Duration = Duration::from_secs(3_600);

/// The shop and what it needs to know.
#[derive(Clone)]
pub struct Shop {
    /// Signs people in.
    pub signer: Arc<Signer>,
    /// Name of the cookie that carries the user's JWT; the gate's `identity.cookie`.
    pub cookie: String,
    /// Path prefix of the sale's routes, e.g. `/seckill`.
    pub prefix: String,
    /// The sales to link to, newest first; asked for each page.
    pub sales: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
}

#[derive(Deserialize)]
struct SignIn {
    user: Option<String>,
}

/// Serves the shop until `shutdown` resolves. Fails if the listener does.
pub async fn serve(
    listener: TcpListener,
    shop: Shop,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let routes = Router::new()
        .route("/", get(products))
        .route("/login", get(login))
        .route("/healthz", get(async || "ok\n"))
        .with_state(shop);
    axum::serve(listener, routes).with_graceful_shutdown(shutdown).await.context("the shop's listener failed")
}

async fn products(State(shop): State<Shop>, headers: HeaderMap) -> Response {
    let signed_in = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .any(|pair| pair.trim().split_once('=').is_some_and(|(name, _)| name == shop.cookie));
    let greeting = if signed_in {
        "<p>You are signed in. <a href=\"/login\">Be somebody else</a></p>"
    } else {
        "<p><a href=\"/login\">Sign in</a> before the sale opens.</p>"
    };
    let link = |sale: &String| format!("<li><a href=\"{}/{sale}\">Flash sale {sale}</a></li>", shop.prefix);
    let links: String = (shop.sales)().iter().filter(|sale| is_plain(sale)).map(link).collect();
    page("A small shop", &format!("{greeting}<ul>{links}</ul>"))
}

async fn login(State(shop): State<Shop>, Query(form): Query<SignIn>) -> Response {
    let Some(user) = form.user else {
        let form = "<form action=\"/login\"><label>Name <input name=\"user\" required pattern=\"[A-Za-z0-9._-]{1,64}\" \
                    autofocus></label> <button>Sign in</button></form>";
        return page("Sign in", form);
    };
    if !is_plain(&user) {
        return (StatusCode::BAD_REQUEST, "a name has 1-64 of A-Z a-z 0-9 . _ -\n").into_response();
    }
    match shop.signer.sign(&user, SESSION) {
        Ok(jwt) => {
            let cookie =
                format!("{}={jwt}; Path=/; HttpOnly; SameSite=Lax; Max-Age={}", shop.cookie, SESSION.as_secs());
            let fields = [(header::SET_COOKIE, cookie.as_str()), (header::LOCATION, "/")];
            (StatusCode::SEE_OTHER, fields, "").into_response()
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "cannot sign you in\n").into_response(),
    }
}

fn page(title: &str, body: &str) -> Response {
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><h1>{title}</h1>{body}</html>"
    ))
    .into_response()
}

/// Only such names are put into pages and cookies: nothing in them needs escaping.
fn is_plain(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}
