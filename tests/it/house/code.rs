//! Just enough of Rust's grammar to see which modules and crates a file names.

/// A file: its path from the root, and what it says.
pub struct Source {
    pub path: String,
    pub text: String,
    /// The text without comments, literals and unit tests, line by line the same.
    pub code: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let code = if path.ends_with(".rs") { without_tests(&without_text(text)) } else { String::new() };
        Source { path: path.into(), text: text.into(), code }
    }

    pub fn within(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
    }

    pub fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }

    /// How many modules deep in the crate: 1 for `src/gate/mod.rs`, 2 for `src/gate/a.rs`.
    pub fn depth(&self) -> usize {
        let parts = self.path.split('/').count() - 1;
        if self.path.ends_with("/mod.rs") { parts - 1 } else { parts }
    }
}

/// Top-level modules of the crate that a file names, with the line: by `crate::x`, `crate::{x, y}` or as many `super::`
/// as lead to the root.
pub fn modules_reached(source: &Source) -> impl Iterator<Item = (usize, String)> {
    let code = &source.code;
    let mut found = Vec::new();
    let mut reach = |at: usize| {
        let line = line_of(code, at);
        let rest = code[at..].trim_start();
        match rest.strip_prefix('{') {
            Some(group) => found.extend(heads(group).map(|name| (line, name))),
            None => found.extend(Some((line, word(rest))).filter(|(_, name)| !name.is_empty())),
        }
    };
    for (at, name) in words(code) {
        let after = at + name.len();
        if name == "crate" && code[after..].starts_with("::") {
            reach(after + 2);
        }
        // The first of a chain of `super`s.
        if name == "super" && !code[..at].ends_with("super::") {
            let chain = code[at..].split("::").take_while(|part| *part == "super").count();
            if chain >= source.depth() {
                reach(at + chain * "super::".len());
            }
        }
    }
    found.into_iter()
}

/// Crates that a file may name, with the line: words that begin a path, or stand alone in a `use`.
pub fn crates_named(source: &Source) -> impl Iterator<Item = (usize, String)> {
    let code = &source.code;
    let begins_path = |at: usize| match code[..at].trim_end().strip_suffix("::") {
        // `::redis` is the crate; `store::redis` is not.
        Some(before) => !before.ends_with(|c: char| is_word(c) || c == '>'),
        None => !code[..at].ends_with('.'),
    };
    let found = words(code).filter(move |(at, name)| {
        let after = code[at + name.len()..].trim_start();
        let used = code[..*at].trim_end().ends_with("use") || code[..*at].trim_end().ends_with("extern crate");
        begins_path(*at) && (after.starts_with("::") || used)
    });
    found.map(|(at, name)| (line_of(code, at), name.to_owned()))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn word(text: &str) -> String {
    text.chars().take_while(|&c| is_word(c)).collect()
}

fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let start = code.as_ptr() as usize;
    code.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(move |word| (word.as_ptr() as usize - start, word))
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// The first words of the items of a group, whose opening brace has been read.
fn heads(group: &str) -> impl Iterator<Item = String> {
    let mut depth = 0;
    let end = group.find(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        depth < 0
    });
    let mut depth = 0;
    let items = group[..end.unwrap_or(group.len())].split(move |c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    items.map(|item| word(item.trim_start())).filter(|name| !name.is_empty())
}

/// Blanks comments and literals, so that only code is left, line by line the same.
fn without_text(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if c == '"' {
            quoted(rest, 1)
        } else if let Some(length) = raw_string(rest).filter(|_| !code.ends_with(is_word)) {
            length
        } else if c == '\'' {
            character(rest)
        } else {
            0
        };
        if length == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a literal that ends with an unescaped `"`; its first `opening` bytes are read.
fn quoted(text: &str, opening: usize) -> usize {
    let mut escaped = false;
    for (at, c) in text[opening..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return opening + at + 1,
            _ => {}
        }
    }
    text.len()
}

fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = body.find(&close).map_or(text.len(), |at| text.len() - body.len() + at + close.len());
    Some(end)
}

/// The length of a character literal, or 0 for a lifetime.
fn character(text: &str) -> usize {
    let body = &text[1..];
    if let Some(escaped) = body.strip_prefix('\\') {
        // The escaped character itself may be a quote.
        let skipped = 2 + escaped.chars().next().map_or(0, char::len_utf8);
        return text[skipped..].find('\'').map_or(0, |at| skipped + at + 1);
    }
    let length = body.chars().next().map_or(0, char::len_utf8);
    if body[length..].starts_with('\'') { length + 2 } else { 0 }
}

/// Blanks modules that are compiled for tests only.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        let item = rest[at + MARK.len()..].trim_start();
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = if item.starts_with("mod ") { end_of_block(rest) } else { MARK.len() };
        kept.extend(rest[..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[end..];
    }
    kept + rest
}

/// Where the first block of `code` ends, or its first statement if that comes earlier.
fn end_of_block(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            ';' if depth == 0 => return at + 1,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

#[test]
fn comments_literals_and_tests_are_no_code() {
    let text =
        "a /* b /* c */ \" */ d // \"e\n'x' '\"' 'life f r#\"g\"h\"# i b\"j\\\"k\" l\n#[cfg(test)]\nmod t { m }\nn";
    let code = Source::new("src/a.rs", text).code;
    let words: Vec<_> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "d", "'life", "f", "i", "b", "l", "n"]);
    assert_eq!(code.lines().count(), text.lines().count());
}
