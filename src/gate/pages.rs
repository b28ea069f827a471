//! Activity pages, kept in memory as finished bytes: ETag, gzip, 304 and cache rules fit for a CDN.
//!
//! A page never sets a cookie and never depends on who asks, so any cache may keep it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue};

use crate::gate::answer::Answer;

/// The built-in page.
const DEFAULT_PAGE: &str = include_str!("../../conf/pages/default/index.html");

/// Fresh for a few seconds; a cache may serve the old page while it asks for the new one.
const PAGE_CACHE: &str = "public, max-age=5, stale-while-revalidate=30";
const ASSET_CACHE: &str = "public, max-age=300";

/// All pages of one activity may take this much memory.
const MAX_BYTES: u64 = 64 << 20;

/// Directories within one another below `assets/`. A link may lead back up, and must not be followed for ever.
const MAX_NESTING: usize = 16;

/// Smaller documents are not worth compressing.
const MIN_GZIP: usize = 256;

/// A document as finished bytes.
#[derive(Debug)]
struct Document {
    content_type: &'static str,
    cache: &'static str,
    plain: (Bytes, HeaderValue),
    gzip: Option<(Bytes, HeaderValue)>,
}

/// The page of one activity.
#[derive(Debug)]
pub struct Page {
    index: Document,
    assets: HashMap<String, Document>,
}

/// What the built-in page shows.
#[derive(Debug, Clone)]
pub struct PageText<'a> {
    /// Path prefix of the sale's routes.
    pub prefix: &'a str,
    /// The activity's name.
    pub activity: &'a str,
    /// The heading.
    pub title: &'a str,
    /// Per SKU: name, title, price.
    pub skus: Vec<(&'a str, &'a str, &'a str)>,
}

impl Page {
    /// The built-in page.
    pub fn built_in(text: &PageText<'_>) -> Page {
        let skus: Vec<_> = text
            .skus
            .iter()
            .map(|(sku, title, price)| serde_json::json!({ "sku": sku, "title": title, "price": price }))
            .collect();
        let sale = serde_json::json!({ "base": format!("{}/{}", text.prefix, text.activity), "skus": skus });
        // `<` would end the script element that holds the JSON.
        let sale = sale.to_string().replace('<', "\\u003c");
        let html = DEFAULT_PAGE.replace("{{title}}", &escape(text.title)).replace("{{sale}}", &sale);
        Page { index: Document::new("text/html; charset=utf-8", PAGE_CACHE, html.into()), assets: HashMap::new() }
    }

    /// Reads `index.html` and everything below `assets/` from a directory. Links are followed; names that begin with `..`
    /// are left out, since they are Kubernetes' own: a mounted volume keeps its files once more under such a name.
    ///
    /// # Errors
    /// If the page or an asset cannot be read or is no regular file, or all of them are larger than 64 MiB.
    pub fn load(directory: &Path) -> std::io::Result<Page> {
        let mut budget = MAX_BYTES;
        let index = read(&directory.join("index.html"), &mut budget)?;
        let mut assets = HashMap::new();
        let root = directory.join("assets");
        if root.is_dir() {
            collect(&root, "", MAX_NESTING, &mut assets, &mut budget)?;
        }
        Ok(Page { index: Document::new("text/html; charset=utf-8", PAGE_CACHE, index.into()), assets })
    }

    /// Of everything that is served, so that a changed page can be told.
    pub fn fingerprint(&self) -> crate::config::compare::Fingerprint {
        let mut assets: Vec<_> = self.assets.iter().map(|(path, asset)| (path.as_str(), &asset.plain.1)).collect();
        assets.sort_unstable();
        let mut all = self.index.plain.1.as_bytes().to_vec();
        for (path, etag) in assets {
            all.extend_from_slice(path.as_bytes());
            all.extend_from_slice(etag.as_bytes());
        }
        crate::config::compare::fingerprint(&all)
    }

    /// The page.
    pub fn index(&self, headers: &HeaderMap) -> Answer {
        self.index.answer(headers)
    }

    /// An asset, by its path below `assets/`; `None` if there is none of this name.
    pub fn asset(&self, path: &str, headers: &HeaderMap) -> Option<Answer> {
        self.assets.get(path).map(|document| document.answer(headers))
    }
}

fn read(path: &Path, budget: &mut u64) -> std::io::Result<Vec<u8>> {
    let explain = |e: std::io::Error| std::io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    // To open a pipe would wait for somebody who writes to it.
    if !std::fs::metadata(path).map_err(explain)?.is_file() {
        return Err(explain(std::io::Error::other("not a regular file")));
    }
    let mut content = Vec::new();
    // What is read counts, not what the file system says: the file may be growing.
    File::open(path).and_then(|file| file.take(*budget + 1).read_to_end(&mut content)).map_err(explain)?;
    *budget = budget
        .checked_sub(content.len() as u64)
        .ok_or_else(|| explain(std::io::Error::other("the page and its assets are larger than 64 MiB")))?;
    Ok(content)
}

fn collect(
    directory: &Path,
    below: &str,
    deeper: usize,
    assets: &mut HashMap<String, Document>,
    budget: &mut u64,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with("..") {
            continue;
        }
        let path = format!("{below}{name}");
        // Where a link leads counts.
        if entry.path().is_dir() {
            let deeper = deeper.checked_sub(1).ok_or_else(|| {
                std::io::Error::other(format!("{}: nested too deep, or a link that leads back", entry.path().display()))
            })?;
            collect(&entry.path(), &format!("{path}/"), deeper, assets, budget)?;
        } else {
            let content = read(&entry.path(), budget)?;
            assets.insert(path, Document::new(content_type(&name), ASSET_CACHE, content.into()));
        }
    }
    Ok(())
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "gif" => "image/gif",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Formats that gain nothing from gzip.
fn is_compressed(content_type: &str) -> bool {
    content_type.starts_with("font/") || (content_type.starts_with("image/") && content_type != "image/svg+xml")
}

impl Document {
    fn new(content_type: &'static str, cache: &'static str, plain: Bytes) -> Document {
        let mut hash = String::with_capacity(32);
        for byte in &digest(&SHA256, &plain).as_ref()[..16] {
            hash.push_str(&format!("{byte:02x}"));
        }
        // Two representations are two entities: a strong ETag names exactly one.
        let etag = |suffix: &str| HeaderValue::from_str(&format!("\"{hash}{suffix}\"")).ok();
        let none = || HeaderValue::from_static("\"\"");
        let gzip = (plain.len() >= MIN_GZIP && !is_compressed(content_type))
            .then(|| gzip(&plain))
            .flatten()
            .filter(|packed| packed.len() < plain.len())
            .map(|packed| (Bytes::from(packed), etag("-gz").unwrap_or_else(none)));
        Document { content_type, cache, plain: (plain, etag("").unwrap_or_else(none)), gzip }
    }

    fn answer(&self, headers: &HeaderMap) -> Answer {
        let gzip = self.gzip.as_ref().filter(|_| accepts_gzip(headers));
        let (body, etag) = gzip.unwrap_or(&self.plain);
        let mut answer = if matches(headers, etag) {
            let mut answer = Answer::new(304, self.content_type, self.cache, Bytes::new());
            answer.headers.retain(|(name, _)| name != http::header::CONTENT_TYPE);
            answer
        } else {
            let mut answer = Answer::new(200, self.content_type, self.cache, body.clone());
            if gzip.is_some() {
                answer.headers.push((CONTENT_ENCODING, HeaderValue::from_static("gzip")));
            }
            answer
        };
        answer.headers.push((ETAG, etag.clone()));
        answer.headers.push((VARY, HeaderValue::from_static("Accept-Encoding")));
        answer
    }
}

fn gzip(plain: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 2), Compression::best());
    encoder.write_all(plain).ok()?;
    encoder.finish().ok()
}

/// Whether If-None-Match names this entity (weak comparison, as RFC 9110 asks) or any.
fn matches(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let strong = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == etag.as_bytes();
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || strong(tag))
}

/// Whether gzip is wanted: named (or covered by `*`) with a weight above zero.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let mut any = None;
    for item in
        headers.get_all(ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','))
    {
        let mut parts = item.split(';').map(str::trim);
        let coding = parts.next().unwrap_or_default();
        let weight = parts
            .find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")))
            .map_or(1.0, |q| q.trim().parse::<f32>().unwrap_or(0.0));
        if coding.eq_ignore_ascii_case("gzip") || coding.eq_ignore_ascii_case("x-gzip") {
            return weight > 0.0;
        }
        if coding == "*" {
            any = Some(weight > 0.0);
        }
    }
    any.unwrap_or(false)
}

/// The page behind a problem's `type`.
pub fn problem_page(name: &str) -> Option<Answer> {
    let mut codes = crate::domain::refusal::Code::named(name).filter(|code| code.name() == name).peekable();
    let name = codes.peek()?.name();
    let mut html = format!(
        "<!doctype html><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>{name}</title>\
         <style>body{{font:1rem/1.5 system-ui;max-width:40rem;margin:3rem auto;padding:0 1rem}}</style><h1>{name}</h1>"
    );
    for code in codes {
        let meaning = code.meaning();
        let retry = if meaning.retryable { "A retry may succeed." } else { "A retry will not help." };
        html.push_str(&format!(
            "<h2>{} {}</h2><p>{} {retry}</p>",
            meaning.status,
            escape(meaning.title),
            escape(meaning.explanation)
        ));
    }
    Some(Answer::new(200, "text/html; charset=utf-8", ASSET_CACHE, html))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn page() -> Page {
        let skus = vec![("s1", "Phone </script>", "¥1")];
        Page::built_in(&PageText { prefix: "/seckill", activity: "a", title: "Sale & <more>", skus })
    }

    #[test]
    fn gzip_is_sent_to_those_who_want_it() {
        let rows = [
            ("gzip", true),
            ("br, gzip", true),
            ("GZIP;q=0.1", true),
            ("*", true),
            ("gzip;q=0", false),
            ("gzip;q=0.000, *", false),
            ("*;q=0", false),
            ("br", false),
            ("gzip;q=x", false),
            ("", false),
        ];
        for (value, wanted) in rows {
            let answer = page().index(&headers(&[("accept-encoding", value)]));
            assert_eq!(answer.header("content-encoding") == Some("gzip"), wanted, "{value:?}");
            assert_eq!(answer.header("vary"), Some("Accept-Encoding"));
        }
    }

    #[test]
    fn an_unchanged_page_is_not_sent_again() {
        let page = page();
        let first = page.index(&headers(&[("accept-encoding", "gzip")]));
        let etag = first.header("etag").unwrap().to_owned();
        assert!(etag.ends_with("-gz\""));
        for tag in [etag.clone(), format!("W/{etag}"), format!("\"x\", {etag}"), "*".into()] {
            let again = page.index(&headers(&[("accept-encoding", "gzip"), ("if-none-match", &tag)]));
            assert_eq!((again.status, again.body.len()), (304, 0), "{tag}");
            assert_eq!(again.header("etag"), Some(etag.as_str()));
        }
        assert_eq!(page.index(&headers(&[("if-none-match", &etag)])).status, 200, "another representation");
        assert!(first.header("set-cookie").is_none());
        assert!(first.header("cache-control").unwrap().starts_with("public"));
    }

    #[test]
    fn texts_cannot_break_out_of_the_page() {
        let answer = page().index(&HeaderMap::new());
        let html = std::str::from_utf8(&answer.body).unwrap();
        assert!(html.contains("Sale &amp; &lt;more&gt;"));
        assert!(!html.contains("Phone </script>"));
        assert!(!html.contains("{{"));
    }

    #[test]
    fn a_directory_is_served_from_memory() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("assets/img")).unwrap();
        std::fs::write(folder.path().join("index.html"), "<h1>hi</h1>").unwrap();
        std::fs::write(folder.path().join("assets/app.js"), "x".repeat(1_000)).unwrap();
        std::fs::write(folder.path().join("assets/img/a.png"), "png").unwrap();
        let page = Page::load(folder.path()).unwrap();
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert_eq!(&page.index(&HeaderMap::new()).body[..], b"<h1>hi</h1>");
        let js = page.asset("app.js", &headers(&[("accept-encoding", "gzip")])).unwrap();
        assert_eq!(js.header("content-type"), Some("text/javascript; charset=utf-8"));
        assert_eq!(js.header("content-encoding"), Some("gzip"));
        assert_eq!(page.asset("img/a.png", &HeaderMap::new()).unwrap().header("content-type"), Some("image/png"));
        assert!(page.asset("../index.html", &HeaderMap::new()).is_none());
        assert!(Page::load(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn a_directory_as_kubernetes_mounts_it_is_served_once() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let assets = folder.path().join("assets");
        std::fs::create_dir_all(assets.join("..2026_12_01/img")).unwrap();
        std::fs::write(folder.path().join("index.html"), "<h1>hi</h1>").unwrap();
        std::fs::write(assets.join("..2026_12_01/app.js"), "1").unwrap();
        std::fs::write(assets.join("..2026_12_01/img/a.png"), "png").unwrap();
        symlink("..2026_12_01", assets.join("..data")).unwrap();
        symlink("..data/app.js", assets.join("app.js")).unwrap();
        symlink("..data/img", assets.join("img")).unwrap();
        let page = Page::load(folder.path()).unwrap();
        let mut paths: Vec<&str> = page.assets.keys().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["app.js", "img/a.png"]);

        symlink(".", assets.join("again")).unwrap();
        let why = Page::load(folder.path()).unwrap_err().to_string();
        assert!(why.contains("a link that leads back"), "{why}");
    }

    #[test]
    fn what_is_no_regular_file_is_named_and_never_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("assets")).unwrap();
        std::fs::write(folder.path().join("index.html"), "<h1>hi</h1>").unwrap();
        let pipe = folder.path().join("assets/pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (told, tells) = std::sync::mpsc::channel();
        let place = folder.path().to_owned();
        std::thread::spawn(move || told.send(Page::load(&place).map(|_| ())));
        let loaded = tells.recv_timeout(std::time::Duration::from_secs(10)).expect("it does not wait for a writer");
        let why = loaded.unwrap_err().to_string();
        assert!(why.contains("assets/pipe: not a regular file"), "{why}");
    }

    #[test]
    fn every_problem_has_its_page() {
        for code in crate::domain::refusal::Code::ALL {
            assert!(problem_page(code.name()).is_some());
        }
        assert!(problem_page("sold_out").is_none() && problem_page("X").is_none());
    }
}
