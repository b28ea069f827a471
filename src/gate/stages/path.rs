//! Stage 1, the path: sale or shop, or too ambiguous to say.
//!
//! The path that is judged is the path that is forwarded, byte for byte. Nothing is normalised, so a path that a server
//! behind the gate might read as another one is refused instead of guessed.

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// Under the prefix; the rest of the path, without the prefix.
    Sale(&'a str),
    /// To the shop, as it stands.
    Shop,
}

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ambiguous {
    /// The request target is not a path (`*`, an absolute URI, an authority).
    NotOrigin,
    /// A byte that no path may hold as it stands: control, space, non-ASCII, backslash.
    ForbiddenByte,
    /// A percent sign without two hex digits, or one that hides a control character or a backslash.
    BadEscape,
    /// A segment `.` or `..`, plain or escaped.
    DotSegment,
    /// Some server may read it as a path under the prefix.
    LooksLikeSale,
}

impl Ambiguous {
    /// In words, for the client.
    pub const fn detail(self) -> &'static str {
        match self {
            Ambiguous::NotOrigin => "The request target must be a path that begins with /.",
            Ambiguous::ForbiddenByte => "The path holds a control character, a backslash or a byte beyond ASCII.",
            Ambiguous::BadEscape => "The path holds a percent escape that is malformed or hides a control character.",
            Ambiguous::DotSegment => "The path holds a segment . or .. and is not resolved here.",
            Ambiguous::LooksLikeSale => "The path may be read as one under the sale's prefix; write it plainly.",
        }
    }
}

/// Judges a path (without its query) against the prefix (`/seckill`).
///
/// # Errors
/// If servers might read the path in different ways that matter.
pub fn place<'a>(path: &'a [u8], prefix: &str) -> Result<Place<'a>, Ambiguous> {
    if path.first() != Some(&b'/') {
        return Err(Ambiguous::NotOrigin);
    }
    let mut plain = true;
    for &byte in path {
        match byte {
            0..=b' ' | b'\\' | 0x7f.. => return Err(Ambiguous::ForbiddenByte),
            b'%' | b';' => plain = false,
            _ => {}
        }
    }
    // Only ASCII was let through.
    let path = std::str::from_utf8(path).map_err(|_| Ambiguous::ForbiddenByte)?;
    if plain && has_dot_segment(path) {
        return Err(Ambiguous::DotSegment);
    }
    if let Some(rest) = path.strip_prefix(prefix)
        && (rest.is_empty() || rest.starts_with('/'))
    {
        // No route under the prefix needs an escape, a parameter or an empty segment.
        return if plain && !rest.contains("//") { Ok(Place::Sale(rest)) } else { Err(sale_fault(path)) };
    }
    if plain && !path.contains("//") && !starts_with_ignoring_case(path, prefix) {
        return Ok(Place::Shop);
    }
    suspicious_shop_path(path, prefix)
}

fn sale_fault(path: &str) -> Ambiguous {
    match decode(path, true) {
        None => Ambiguous::BadEscape,
        Some(decoded) if has_dot_segment(&decoded) => Ambiguous::DotSegment,
        Some(_) => Ambiguous::LooksLikeSale,
    }
}

/// A path outside the prefix that is not plain: it passes unless its most generous reading is dangerous.
fn suspicious_shop_path(path: &str, prefix: &str) -> Result<Place<'static>, Ambiguous> {
    // The most generous reader decodes until nothing changes, takes a backslash for a slash, drops parameters (or does
    // not), joins empty segments and ignores case.
    let mut read = path.to_owned();
    for round in 0..4 {
        let decoded = decode(&read, round == 0).ok_or(Ambiguous::BadEscape)?;
        if has_dot_segment(&decoded) {
            return Err(Ambiguous::DotSegment);
        }
        if decoded == read {
            break;
        }
        read = decoded;
    }
    let without_parameters: String = {
        let mut in_parameter = false;
        read.chars()
            .filter(|&c| {
                in_parameter = match c {
                    ';' => true,
                    '/' => false,
                    _ => in_parameter,
                };
                !in_parameter
            })
            .collect()
    };
    let dangerous = |text: &str| {
        let joined = join_slashes(text);
        has_dot_segment(&joined) || is_under_ignoring_case(&joined, prefix)
    };
    if dangerous(&read) || dangerous(&without_parameters) {
        return Err(if has_dot_segment(&without_parameters) {
            Ambiguous::DotSegment
        } else {
            Ambiguous::LooksLikeSale
        });
    }
    Ok(Place::Shop)
}

/// One round of percent decoding; `None` if an escape hides a control character or a backslash, or (in the first round)
/// is malformed: in a later round, a percent sign may stand for itself. Bytes beyond ASCII become a placeholder: no
/// prefix holds one.
fn decode(text: &str, first_round: bool) -> Option<String> {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let digits = rest.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            None if first_round => return None,
            None => decoded.push('%'),
            Some(0..=0x1f | 0x7f | b'\\') => return None,
            Some(byte) => {
                decoded.push(if byte.is_ascii() { char::from(byte) } else { '~' });
                rest = &rest[2..];
            }
        }
    }
    decoded.push_str(rest);
    Some(decoded)
}

fn has_dot_segment(path: &str) -> bool {
    // A parameter does not make a dot segment harmless: `/..;x/`.
    path.contains('.')
        && path.split('/').any(|segment| {
            let name = segment.split(';').next().unwrap_or_default();
            name == "." || name == ".."
        })
}

fn join_slashes(path: &str) -> String {
    let mut joined = String::with_capacity(path.len());
    for c in path.chars() {
        if c != '/' || !joined.ends_with('/') {
            joined.push(c);
        }
    }
    joined
}

fn starts_with_ignoring_case(path: &str, prefix: &str) -> bool {
    path.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn is_under_ignoring_case(path: &str, prefix: &str) -> bool {
    starts_with_ignoring_case(path, prefix) && matches!(path.as_bytes().get(prefix.len()), None | Some(b'/' | b';'))
}

#[cfg(test)]
mod tests {
    use super::Ambiguous::*;
    use super::*;

    #[test]
    fn every_path_has_one_reading_or_is_refused() {
        let shop = Ok(Place::Shop);
        let rows: &[(&str, Result<Place<'_>, Ambiguous>)] = &[
            // Plainly the sale's.
            ("/seckill", Ok(Place::Sale(""))),
            ("/seckill/", Ok(Place::Sale("/"))),
            ("/seckill/a", Ok(Place::Sale("/a"))),
            ("/seckill/a/state", Ok(Place::Sale("/a/state"))),
            ("/seckill/a/assets/x.min.js", Ok(Place::Sale("/a/assets/x.min.js"))),
            // Plainly the shop's.
            ("/", shop),
            ("/index.html", shop),
            ("/seckills", shop),
            ("/seckill-2/a", shop),
            ("/SeckillShop", shop),
            ("/shop/seckill/a", shop),
            ("/a.b/..c/d..", shop),
            ("/.well-known/x", shop),
            // Odd, but the shop's in every reading.
            ("/p/%E4%B8%AD%E6%96%87", shop),
            ("/p/a%2Fb", shop),
            ("/p//q", shop),
            ("/p;v=1/q", shop),
            ("/p/100%25", shop),
            ("/p/100%25zz", shop),
            ("/p/a%20b", shop),
            ("//cdn/x", shop),
            ("/~user/;x", shop),
            // Not a path.
            ("", Err(NotOrigin)),
            ("*", Err(NotOrigin)),
            ("seckill/a", Err(NotOrigin)),
            ("http://shop/seckill/a", Err(NotOrigin)),
            // Bytes.
            ("/a\\b", Err(ForbiddenByte)),
            ("/seckill\\a", Err(ForbiddenByte)),
            ("/a\tb", Err(ForbiddenByte)),
            ("/a\0", Err(ForbiddenByte)),
            ("/a b", Err(ForbiddenByte)),
            ("/a\u{7f}", Err(ForbiddenByte)),
            ("/中文", Err(ForbiddenByte)),
            // Escapes.
            ("/a%", Err(BadEscape)),
            ("/a%2", Err(BadEscape)),
            ("/a%zz", Err(BadEscape)),
            ("/a%00b", Err(BadEscape)),
            ("/a%0d%0ab", Err(BadEscape)),
            ("/a%5cb", Err(BadEscape)),
            ("/a%255Cb", Err(BadEscape)),
            ("/seckill%5Ca", Err(BadEscape)),
            // Dot segments.
            ("/.", Err(DotSegment)),
            ("/..", Err(DotSegment)),
            ("/a/../seckill/x", Err(DotSegment)),
            ("/seckill/../admin", Err(DotSegment)),
            ("/seckill/a/./state", Err(DotSegment)),
            ("/a/%2e%2e/seckill", Err(DotSegment)),
            ("/a/.%2E/b", Err(DotSegment)),
            ("/a/%252e%252e/b", Err(DotSegment)),
            ("/a%2f..%2fseckill", Err(DotSegment)),
            ("/a/..;x=1/seckill", Err(DotSegment)),
            ("/a/;/../b", Err(DotSegment)),
            ("/seckill/%2e%2e/x", Err(DotSegment)),
            // Under the prefix, for somebody.
            ("//seckill/a", Err(LooksLikeSale)),
            ("/seckill//a", Err(LooksLikeSale)),
            ("/seckill/a//state", Err(LooksLikeSale)),
            ("/Seckill/a", Err(LooksLikeSale)),
            ("/SECKILL", Err(LooksLikeSale)),
            ("/seckill;x/a", Err(LooksLikeSale)),
            ("/seckill/a;x", Err(LooksLikeSale)),
            ("/;/seckill/a", Err(LooksLikeSale)),
            ("/;x/seckill", Err(LooksLikeSale)),
            ("/%73eckill/a", Err(LooksLikeSale)),
            ("/%2573eckill/a", Err(LooksLikeSale)),
            ("/seckill%2fa", Err(LooksLikeSale)),
            ("/%2fseckill/a", Err(LooksLikeSale)),
            ("/seckill%3bx/a", Err(LooksLikeSale)),
            ("/seckill/%61", Err(LooksLikeSale)),
            ("/seckill/a%2fstate", Err(LooksLikeSale)),
            ("///SECKILL//a", Err(LooksLikeSale)),
        ];
        for (path, expected) in rows {
            assert_eq!(place(path.as_bytes(), "/seckill"), *expected, "{path:?}");
        }
    }
}
