//! The table, what is wrong below tokens: headers, framing, lines, paths, bodies.

use super::makings::*;
use super::rows::{BAD, BAD_CLOSED, Row, row};
use crate::harness::deployment::SALE;

const METHOD: &str = "405 METHOD_NOT_ALLOWED";

pub fn headers(m: &Makings) -> Vec<Row> {
    let many = (0..300).fold(m.attempt(), |request, number| request.add(&format!("X-{number}"), "y"));
    let typed = |value: &str| m.attempt().set("Content-Type", value);
    let to = |method: &str| m.attempt().line(format!("{method} /seckill/{SALE} HTTP/1.1"));
    vec![
        row("type: missing", m.attempt().without("Content-Type"), BAD),
        row("type: text", typed("text/plain"), BAD),
        row("type: a form", typed("application/x-www-form-urlencoded"), BAD),
        row("type: parts", typed("multipart/form-data; boundary=x"), BAD),
        row("type: almost", typed("application/jsonx"), BAD),
        row("type: two in one", typed("application/json, text/plain"), BAD),
        row("type: two", m.attempt().add("Content-Type", "application/json"), BAD),
        row(
            "coding: gzip",
            m.attempt()
                .add("Content-Encoding", "gzip")
                .body(b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0\x43\xbf\xa6\xa3\x02\0\0\0"),
            BAD,
        ),
        row("host: none", m.attempt().without("Host"), BAD_CLOSED),
        row("host: two", m.attempt().add("Host", "shop.test"), BAD_CLOSED),
        row("host: two in one", m.attempt().set("Host", "shop.test, evil.test"), BAD_CLOSED),
        row("host: with a path", m.attempt().set("Host", "shop.test/seckill"), BAD_CLOSED),
        row("host: with a user", m.attempt().set("Host", "a@shop.test"), BAD_CLOSED),
        row(
            "host: none, to the shop",
            Request { line: "GET /cart HTTP/1.1".into(), headers: vec![], body: vec![] },
            BAD_CLOSED,
        ),
        row(
            "host: two, to the shop",
            Request {
                line: "GET /cart HTTP/1.1".into(),
                headers: vec![b"Host: a".to_vec(), b"Host: b".to_vec()],
                body: vec![],
            },
            BAD_CLOSED,
        ),
        row("size: 40 KiB in one header", m.attempt().add("X", "x".repeat(40_000)), "431 TOO_LARGE closed"),
        // Beyond 256 the server gives up reading: it cannot say more than that.
        row("size: 300 headers", many, BAD_CLOSED),
        row("method: PUT", to("PUT"), METHOD),
        row("method: DELETE", to("DELETE"), METHOD),
        row("method: PATCH", to("PATCH"), METHOD),
        row("method: OPTIONS", to("OPTIONS"), METHOD),
        row("method: TRACE", to("TRACE"), METHOD),
        row("method: CONNECT", to("CONNECT"), BAD_CLOSED),
        row("method: in lower case", to("post"), METHOD),
        row("method: of nobody", to("BREW"), METHOD),
        row("method: a GET that would be a POST", to("GET").add("X-HTTP-Method-Override", "POST"), "200"),
        row("method: to another host", m.attempt().line("CONNECT evil.test:443 HTTP/1.1"), BAD_CLOSED),
    ]
}

/// What is malformed below the level of headers: framing, lines, versions.
pub fn wire(m: &Makings) -> Vec<Row> {
    let framed = |line: &str| m.attempt().raw(line);
    let both = |line: &str| m.attempt().raw("Content-Length: 27").raw(line);
    let versioned = |version: &str| m.attempt().line(format!("POST /seckill/{SALE} {version}"));
    let chunked = |body: &str| framed("Transfer-Encoding: chunked").body(body);
    let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    preface.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let with_bytes = |name: &str, request: &[u8], reply| Row { name: name.into(), request: request.to_vec(), reply };
    let replaced = |from: &str, to: &str| {
        let request = String::from_utf8(m.attempt().bytes()).unwrap();
        assert!(request.contains(from), "{from:?} is not in {request}");
        request.replacen(from, to, 1).into_bytes()
    };
    vec![
        row("framing: both", both("Transfer-Encoding: chunked"), BAD_CLOSED),
        row(
            "framing: both, the other way round",
            m.attempt().raw("Transfer-Encoding: chunked").raw("Content-Length: 27"),
            BAD_CLOSED,
        ),
        row("framing: chunked", chunked("1b\r\n{\"address\":\"1 Test Road!\"}\r\n0\r\n\r\n"), BAD_CLOSED),
        row("framing: chunks of nonsense", chunked("zz\r\n{}\r\n0\r\n\r\n"), BAD_CLOSED),
        row("framing: a chunk beyond all numbers", chunked("fffffffffffffffff\r\n{}\r\n0\r\n\r\n"), BAD_CLOSED),
        row("framing: identity", both("Transfer-Encoding: identity"), BAD_CLOSED),
        row("framing: gzip, chunked", framed("Transfer-Encoding: gzip, chunked"), BAD_CLOSED),
        row("framing: hidden chunked", framed("Transfer-Encoding: \x0bchunked"), BAD_CLOSED),
        row("framing: two lengths", m.attempt().raw("Content-Length: 27").raw("Content-Length: 2"), BAD_CLOSED),
        row("framing: two lengths in one", framed("Content-Length: 27, 2"), BAD_CLOSED),
        row("framing: a length below zero", framed("Content-Length: -27"), BAD_CLOSED),
        row("framing: a length with a sign", framed("Content-Length: +27"), BAD_CLOSED),
        row("framing: a length in hex", framed("Content-Length: 0x1b"), BAD_CLOSED),
        row("framing: a length beyond all numbers", framed("Content-Length: 99999999999999999999"), BAD_CLOSED),
        row("framing: no length", framed("Content-Length:"), BAD_CLOSED),
        with_bytes("line: a space before the colon", &replaced("Host:", "Host :"), BAD_CLOSED),
        with_bytes(
            "line: a space before a colon that matters",
            &replaced("Content-Length:", "Content-Length :"),
            BAD_CLOSED,
        ),
        with_bytes("line: no colon", &replaced("Host:", "Host"), BAD_CLOSED),
        with_bytes("line: no name", &replaced("Host:", ": x\r\nHost:"), BAD_CLOSED),
        with_bytes("line: a name with a space", &replaced("Host:", "X Y: x\r\nHost:"), BAD_CLOSED),
        with_bytes("line: folded", &replaced("Host:", "X: a\r\n b\r\nHost:"), BAD_CLOSED),
        with_bytes("line: folded at once", &replaced("Host:", " X: a\r\nHost:"), BAD_CLOSED),
        with_bytes("line: NUL in a value", &replaced("Host:", "X: a\0b\r\nHost:"), BAD_CLOSED),
        with_bytes("line: NUL in a name", &replaced("Host:", "X\0: a\r\nHost:"), BAD_CLOSED),
        with_bytes("line: a bare CR", &replaced("Host:", "X: a\rb\r\nHost:"), BAD_CLOSED),
        with_bytes("line: a bare LF", &replaced("Host:", "X: a\nHost:"), BAD_CLOSED),
        with_bytes("line: bare LFs alone", &replaced("\r\n", "\n"), BAD_CLOSED),
        with_bytes("line: a tab in the first", &replaced("POST ", "POST\t"), BAD_CLOSED),
        with_bytes("line: two spaces in the first", &replaced("POST ", "POST  "), BAD),
        with_bytes("line: a word too many", &replaced(" HTTP/1.1", " x HTTP/1.1"), BAD),
        with_bytes("line: no target", &replaced(&format!(" /seckill/{SALE}"), ""), BAD_CLOSED),
        row("version: none", versioned("").without("Host"), BAD_CLOSED),
        row("version: 2.0", versioned("HTTP/2.0"), BAD_CLOSED),
        row("version: 1.2", versioned("HTTP/1.2"), BAD_CLOSED),
        row("version: 9.9", versioned("HTTP/9.9"), BAD_CLOSED),
        row("version: in lower case", versioned("http/1.1"), BAD_CLOSED),
        with_bytes("version: the preface of HTTP/2", &preface, BAD_CLOSED),
        with_bytes("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", BAD_CLOSED),
        with_bytes("nonsense", b"nonsense\r\n\r\n", BAD_CLOSED),
    ]
}

pub fn paths(m: &Makings) -> Vec<Row> {
    let no_route = "404 NOT_FOUND";
    let rows: Vec<(String, &'static str)> = vec![
        ("//seckill/launch".into(), BAD),
        ("/seckill//launch".into(), BAD),
        ("/seckill/./launch".into(), BAD),
        ("/seckill/../launch".into(), BAD),
        ("/./seckill/launch".into(), BAD),
        ("/a/../seckill/launch".into(), BAD),
        ("/seckill/launch/.".into(), BAD),
        ("/%2e/seckill/launch".into(), BAD),
        ("/a/%2e%2e/seckill/launch".into(), BAD),
        ("/a/.%2E/seckill/launch".into(), BAD),
        ("/a/%252e%252e/seckill/launch".into(), BAD),
        ("/seckill%2flaunch".into(), BAD),
        ("/seckill%2Flaunch".into(), BAD),
        ("/%2fseckill/launch".into(), BAD),
        ("/%73eckill/launch".into(), BAD),
        ("/%2573eckill/launch".into(), BAD),
        ("/seckill/l%61unch".into(), BAD),
        ("/seckill/launch%00".into(), BAD),
        ("/seckill/launch%0d%0aX:y".into(), BAD),
        ("/seckill/launch%".into(), BAD),
        ("/seckill/launch%zz".into(), BAD),
        ("/seckill;x/launch".into(), BAD),
        ("/;x/seckill/launch".into(), BAD),
        ("/seckill/launch;x".into(), BAD),
        ("/a/..;x/seckill/launch".into(), BAD),
        ("/seckill\\launch".into(), BAD),
        ("\\seckill\\launch".into(), BAD),
        ("/seckill%5claunch".into(), BAD),
        ("/SECKILL/launch".into(), BAD),
        ("/Seckill/launch".into(), BAD),
        ("/seckill/laünch".into(), BAD),
        ("/seckıll/launch".into(), BAD),
        ("/seckill/launch\u{1}".into(), BAD),
        ("/seckill/launch\u{7f}".into(), BAD),
        ("http://shop.test/seckill/launch".into(), BAD),
        ("http://evil.test/cart".into(), BAD_CLOSED),
        ("seckill/launch".into(), BAD),
        ("*".into(), BAD),
        ("/seckill".into(), no_route),
        ("/seckill/".into(), no_route),
        ("/seckill/launch/".into(), no_route),
        ("/seckill/LAUNCH".into(), no_route),
        ("/seckill/launch#x".into(), BAD_CLOSED),
        ("/cart#/../seckill/launch".into(), BAD_CLOSED),
        ("/cart?x#y".into(), BAD_CLOSED),
        ("/seckill/launch/x".into(), no_route),
        ("/seckill/launch/tokens/x".into(), no_route),
        ("/seckill/launch,encore".into(), no_route),
        ("/seckill/launch&x=y".into(), no_route),
        ("/seckill/no-such-sale".into(), "404 NO_SUCH_ACTIVITY"),
        (format!("/seckill/{}", "a".repeat(65)), no_route),
        (format!("/seckill/{}", "a".repeat(8_192)), "414 TOO_LARGE closed"),
        (format!("/seckill/launch?{}", "a".repeat(8_192)), "414 TOO_LARGE closed"),
    ];
    let mut rows: Vec<Row> = rows
        .into_iter()
        .map(|(target, reply)| row(format!("path: {target:.60}"), m.attempt().to(target), reply))
        .collect();
    rows.push(row("path: NUL", m.attempt().to("/seckill/launch\0"), BAD));
    rows.push(row("path: not even UTF-8", m.attempt().to(b"/seckill/launch\xff"), BAD_CLOSED));
    rows
}

pub fn bodies(m: &Makings) -> Vec<Row> {
    let body = |body: &[u8]| m.attempt().body(body);
    let nested = [vec![b'['; 1_000], vec![b']'; 1_000]].concat();
    let ask = |body: &str| m.attempt().to(format!("/seckill/{SALE}/tokens")).body(body);
    // A winner's key would get a token all the same, to look its win up with.
    let new = |body: &str| ask(body).set("Idempotency-Key", "k-new");
    vec![
        row("body: too long", body(&[b"\"", &[b'x'; 2_047][..], b"\""].concat()), "413 TOO_LARGE closed"),
        row("body: said to be a gigabyte", m.attempt().raw("Content-Length: 1073741824"), "413 TOO_LARGE closed"),
        row("body: cut off", m.attempt().raw("Content-Length: 100"), "408 TIMEOUT closed"),
        row("body: empty", body(b""), BAD),
        row("body: not JSON", body(b"address=1"), BAD),
        row("body: half an object", body(b"{\"address\":"), BAD),
        row("body: two values", body(b"{}{}"), BAD),
        row("body: something behind", body(b"{} x"), BAD),
        row("body: a comma behind", body(b"{\"a\":1,}"), BAD),
        row("body: a byte order mark", body(b"\xef\xbb\xbf{}"), BAD),
        row("body: UTF-16", body(b"\xff\xfe{\0}\0"), BAD),
        row("body: NaN", body(b"{\"a\":NaN}"), BAD),
        row("body: a comment", body(b"{/* */}"), BAD),
        row("body: single quotes", body(b"{'a':1}"), BAD),
        row("body: a thousand deep", body(&nested), BAD),
        row("body: 65 deep", body(&[vec![b'['; 65], vec![b']'; 65]].concat()), BAD),
        row("body: not UTF-8 in a string", body(b"{\"a\":\"\xff\"}"), BAD),
        row("body: half a character in a string", body(b"{\"a\":\"\xc3\"}"), BAD),
        row("body: an overlong slash in a string", body(b"{\"a\":\"\xc0\xaf\"}"), BAD),
        row("body: a line feed in a string", body(b"{\"a\":\"\n\"}"), BAD),
        row("body: NUL", body(b"{\"a\":\"\0\"}"), BAD),
        row("ask: no such SKU", new(r#"{"sku":"tv"}"#), "404 NO_SUCH_SKU"),
        row("ask: a SKU that is none", ask(r#"{"sku":"../phone"}"#), BAD),
        row("ask: no units", ask(r#"{"sku":"phone","qty":0}"#), BAD),
        row("ask: less than no units", ask(r#"{"sku":"phone","qty":-1}"#), BAD),
        row("ask: too many units", new(r#"{"sku":"phone","qty":2}"#), BAD),
        row("ask: too many units to count", ask(r#"{"sku":"phone","qty":4294967297}"#), BAD),
        row("ask: half a unit", ask(r#"{"sku":"phone","qty":0.5}"#), BAD),
        row("ask: units twice", ask(r#"{"sku":"phone","qty":1,"qty":1}"#), BAD),
        row("ask: a list", ask(r#"["phone",1]"#), BAD),
        row("ask: nothing", ask("null"), BAD),
    ]
}
