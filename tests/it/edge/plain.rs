//! Requests that could be read in two ways.

use super::world::start;

#[tokio::test]
async fn ambiguous_requests_never_reach_the_shop() {
    let world = start().await;
    for target in [
        "//seckill/sale",
        "/seckill//sale",
        "/%73eckill/sale",
        "/a/%2e%2e/seckill/sale",
        "/a/../b",
        "/a\\b",
        "/seckill;x/sale",
        "/;/seckill/sale",
        "/Seckill/sale",
        "/seckill%2fsale",
        "/a%00",
        "http://shop/seckill/sale",
        "*",
    ] {
        let mut client = world.connect().await;
        let reply = client.send(&format!("GET {target} HTTP/1.1\r\nHost: shop\r\n\r\n")).await;
        assert_eq!(reply.status, 400, "{target}");
    }
    for request in [
        "POST /cart HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /seckill/sale HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /seckill/sale HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "POST /seckill/sale HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        "POST /seckill/sale HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}",
        "GET /seckill/sale HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        "GET /seckill/sale HTTP/1.1\r\nHost : x\r\n\r\n",
        "GET /seckill/sale HTTP/1.1\nHost: x\n\n",
        "GET /cart HTTP/1.1\r\nHost: x\nX: y\r\n\r\n",
        "POST /cart HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "POST /cart HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n{}",
        "POST /cart HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST /cart HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /cart HTTP/1.1 HTTP/1.1\r\nHost: x\r\n\r\n",
        "CONNECT shop:80 HTTP/1.1\r\nHost: shop:80\r\n\r\n",
        "nonsense\r\n\r\n",
    ] {
        let mut client = world.connect().await;
        let reply = client.send(request).await;
        assert_eq!((reply.status, reply.code()), (400, "BAD_REQUEST".into()), "{request}");
        assert_eq!(reply.reads, 1, "{request}");
        assert!(client.is_closed().await, "{request}");
    }
    assert_eq!(world.shop_requests(), 0);
}
