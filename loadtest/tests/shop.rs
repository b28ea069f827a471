//! The stand-in shop, asked over the wire.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use loadtest::http::{Line, Reply};
use loadtest::shop::{Shop, serve};
use loadtest::signer::Signer;
use tokio::net::TcpListener;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

async fn start() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let signer = Arc::new(Signer::hs256(SECRET, "shop", "https://shop.test", "seckill").unwrap());
    let sales = Arc::new(|| vec!["new".to_owned(), "<script>".to_owned()]);
    let shop = Shop { signer, cookie: "shop_session".into(), prefix: "/seckill".into(), sales };
    tokio::spawn(serve(listener, shop, std::future::pending()));
    address
}

async fn get(address: SocketAddr, path: &str, fields: &str) -> Reply {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n");
    Line::new(None, address).call(request.as_bytes(), Instant::now() + Duration::from_secs(5)).await.unwrap()
}

#[tokio::test]
async fn a_sign_in_gives_a_cookie_with_the_users_jwt() {
    let address = start().await;
    let reply = get(address, "/login?user=alice", "").await;
    assert_eq!((reply.status, reply.header("location")), (303, Some("/")));
    let cookie = reply.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly"), "a script could read it: {cookie}");
    let jwt = cookie.strip_prefix("shop_session=").unwrap().split(';').next().unwrap();
    let mut rules = Validation::new(Algorithm::HS256);
    rules.set_audience(&["seckill"]);
    rules.set_issuer(&["https://shop.test"]);
    rules.set_required_spec_claims(&["exp", "nbf", "iss", "aud", "sub"]);
    let key = DecodingKey::from_secret(SECRET).unwrap();
    let claims = jsonwebtoken::decode::<serde_json::Value>(jwt, &key, &rules).unwrap().claims;
    assert_eq!(claims["sub"], "alice");
}

#[tokio::test]
async fn the_shop_links_to_its_sales_and_to_nothing_that_is_no_name() {
    let address = start().await;
    let page = String::from_utf8(get(address, "/", "").await.body).unwrap();
    assert!(page.contains("href=\"/seckill/new\""), "{page}");
    assert!(!page.contains("<script>"), "{page}");
    assert!(page.contains("Sign in"), "{page}");
    let page = String::from_utf8(get(address, "/", "Cookie: a=b; shop_session=x\r\n").await.body).unwrap();
    assert!(page.contains("You are signed in"), "{page}");
}

#[tokio::test]
async fn a_name_that_would_need_escaping_is_refused() {
    let address = start().await;
    for name in ["", "a%0d%0ab", "%3Cb%3E", "a%3Bb", &"x".repeat(65)] {
        let reply = get(address, &format!("/login?user={name}"), "").await;
        assert_eq!((reply.status, reply.header("set-cookie")), (400, None), "{name:?}");
    }
}
