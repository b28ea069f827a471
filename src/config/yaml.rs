//! YAML as a tree in which every key and value knows where it stands.
//!
//! Built from parser events, so that duplicate keys survive to be reported, and so that the schema check, the typed read
//! and every fault speak of one and the same tree. Hostile files are bounded in size, depth and alias expansion.

use std::collections::HashMap;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

use super::fault::{Fault, Faults};
use super::problem::Problem;

/// Files above this are refused, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
const MAX_DEPTH: usize = 64;
/// Bounds what aliases may expand to.
const MAX_NODES: usize = 200_000;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// Bytes of the source.
    pub range: Range<usize>,
    /// The value.
    pub data: Data,
}

/// What a node holds.
#[derive(Debug, Clone)]
pub enum Data {
    /// Null, true, false, a number or text.
    Scalar(Value),
    /// A list.
    List(Vec<Node>),
    /// A mapping in the order of the file, each key once.
    Mapping(Vec<Entry>),
}

/// One key of a mapping.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key as text, whatever it looks like.
    pub key: String,
    /// Where the key stands.
    pub key_range: Range<usize>,
    /// Its value.
    pub value: Node,
}

impl Node {
    /// The tree as JSON.
    pub fn to_json(&self) -> Value {
        match &self.data {
            Data::Scalar(value) => value.clone(),
            Data::List(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            Data::Mapping(entries) => {
                Value::Object(entries.iter().map(|e| (e.key.clone(), e.value.to_json())).collect::<Map<_, _>>())
            }
        }
    }

    /// Where a JSON pointer leads: a scalar's own place, or for a list or mapping its key's. Where the path ends early
    /// (a default that was not written), the place of the last part that exists.
    pub fn locate(&self, pointer: &str) -> Range<usize> {
        let mut node = self;
        let mut place = 0..0;
        for token in tokens(pointer) {
            let found = match &node.data {
                Data::Scalar(_) => None,
                Data::List(items) => {
                    token.parse::<usize>().ok().and_then(|i| items.get(i)).map(|item| (item.range.clone(), item))
                }
                Data::Mapping(entries) => {
                    entries.iter().find(|e| e.key == token).map(|e| (e.key_range.clone(), &e.value))
                }
            };
            let Some((key_range, child)) = found else { break };
            let written_scalar = matches!(&child.data, Data::Scalar(value) if !value.is_null());
            place = if written_scalar { child.range.clone() } else { key_range };
            node = child;
        }
        place
    }

    /// Where a key of the mapping at `pointer` stands.
    pub fn locate_key(&self, pointer: &str, key: &str) -> Range<usize> {
        match self.at(pointer).map(|node| &node.data) {
            Some(Data::Mapping(entries)) => entries.iter().find(|e| e.key == key).map_or(0..0, |e| e.key_range.clone()),
            _ => 0..0,
        }
    }

    /// Where a whole value stands, lists and mappings included.
    pub fn locate_value(&self, pointer: &str) -> Range<usize> {
        self.at(pointer).map_or(0..0, |node| node.range.clone())
    }

    fn at(&self, pointer: &str) -> Option<&Node> {
        tokens(pointer).try_fold(self, |node, token| match &node.data {
            Data::Scalar(_) => None,
            Data::List(items) => items.get(token.parse::<usize>().ok()?),
            Data::Mapping(entries) => entries.iter().find(|e| e.key == token).map(|e| &e.value),
        })
    }
}

fn tokens(pointer: &str) -> impl Iterator<Item = String> + '_ {
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"))
}

/// Reads `source`. Duplicate keys are pushed to `faults` (the first one counts); what is not YAML at all is the error.
pub fn parse(source: &str, faults: &mut Faults) -> Result<Node, Fault> {
    if source.len() > MAX_BYTES {
        return Err(Fault::new(source, 0..0, Problem::TooBig { limit: MAX_BYTES }));
    }
    let mut builder = Builder {
        source,
        char_starts: source.char_indices().map(|(byte, _)| byte).chain([source.len()]).collect(),
        open: Vec::new(),
        anchors: HashMap::new(),
        nodes: 0,
        root: None,
    };
    for event in Parser::new_from_str(source) {
        let (event, span) = event.map_err(|error| {
            let start = builder.byte(error.marker().index());
            Fault::new(source, start..start, Problem::NotYaml(error.info().to_owned()))
        })?;
        builder.take(event, span, faults)?;
    }
    Ok(builder.root.unwrap_or(Node { range: 0..0, data: Data::Scalar(Value::Null) }))
}

struct Builder<'a> {
    source: &'a str,
    /// The parser counts characters; faults count bytes.
    char_starts: Vec<usize>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

/// A list or mapping whose end has not been seen.
struct Open {
    anchor: usize,
    start: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Mapping { entries: Vec<Entry>, key: Option<(String, Range<usize>)>, starts: HashMap<String, usize> },
}

impl Builder<'_> {
    fn byte(&self, char_index: usize) -> usize {
        self.char_starts.get(char_index).copied().unwrap_or(self.source.len())
    }

    fn range(&self, span: Span) -> Range<usize> {
        let (start, end) = (self.byte(span.start.index()), self.byte(span.end.index()));
        let text = self.source.get(start..end.max(start)).unwrap_or("");
        start..start + text.trim_end().len()
    }

    fn fail(&self, range: Range<usize>, problem: Problem) -> Fault {
        Fault::new(self.source, range, problem)
    }

    fn take(&mut self, event: Event<'_>, span: Span, faults: &mut Faults) -> Result<(), Fault> {
        let range = self.range(span);
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.root.is_some() => Err(self.fail(range, Problem::SecondDocument)),
            Event::DocumentStart(_) => Ok(()),
            Event::SequenceStart(anchor, tag) => self.open(range, anchor, tag.as_deref(), Content::List(Vec::new())),
            Event::MappingStart(anchor, tag) => {
                let content = Content::Mapping { entries: Vec::new(), key: None, starts: HashMap::new() };
                self.open(range, anchor, tag.as_deref(), content)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(range.end, faults),
            Event::Alias(anchor) => {
                // An alias within its own anchor finds nothing yet.
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(self.fail(range, Problem::UnknownAlias));
                };
                self.nodes += count(&node);
                self.put(Node { range, data: node.data }, None, faults)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = self.scalar(&text, style, tag.as_deref(), &range)?;
                let node = Node { range, data: Data::Scalar(value) };
                if anchor != 0 {
                    self.anchors.insert(anchor, node.clone());
                }
                self.put(node, Some(&text), faults)
            }
        }
    }

    fn open(&mut self, range: Range<usize>, anchor: usize, tag: Option<&Tag>, content: Content) -> Result<(), Fault> {
        if let Some(tag) = tag {
            return Err(self.fail(range, Problem::Tagged { tag: tag.to_string() }));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(self.fail(range, Problem::TooDeep { limit: MAX_DEPTH }));
        }
        self.open.push(Open { anchor, start: range.start, content });
        Ok(())
    }

    fn close(&mut self, end: usize, faults: &mut Faults) -> Result<(), Fault> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let data = match open.content {
            Content::List(items) => Data::List(items),
            Content::Mapping { entries, .. } => Data::Mapping(entries),
        };
        let node = Node { range: open.start..end.max(open.start), data };
        if open.anchor != 0 {
            self.anchors.insert(open.anchor, node.clone());
        }
        self.put(node, None, faults)
    }

    /// Puts a finished node into what is open; `text` is its text if it may be a key.
    fn put(&mut self, node: Node, text: Option<&str>, faults: &mut Faults) -> Result<(), Fault> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.fail(node.range, Problem::TooManyNodes { limit: MAX_NODES }));
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Mapping { entries, key, starts }) => match (key.take(), text) {
                (None, Some(text)) => *key = Some((text.to_owned(), node.range)),
                (None, None) => return Err(self.fail(node.range, Problem::KeyNotText)),
                (Some((key, key_range)), _) => {
                    if let Some(&first) = starts.get(&key) {
                        let (first_line, _) = faults.place(first);
                        faults.at(key_range, Problem::DuplicateKey { key, first_line });
                    } else {
                        starts.insert(key.clone(), key_range.start);
                        entries.push(Entry { key, key_range, value: node });
                    }
                }
            },
        }
        Ok(())
    }

    fn scalar(&self, text: &str, style: ScalarStyle, tag: Option<&Tag>, range: &Range<usize>) -> Result<Value, Fault> {
        match tag {
            None if style == ScalarStyle::Plain => Ok(plain(text)),
            None => Ok(Value::String(text.to_owned())),
            Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Ok(Value::String(text.to_owned())),
            Some(tag) => Err(self.fail(range.clone(), Problem::Tagged { tag: tag.to_string() })),
        }
    }
}

fn count(node: &Node) -> usize {
    match &node.data {
        Data::Scalar(_) => 1,
        Data::List(items) => 1 + items.iter().map(count).sum::<usize>(),
        Data::Mapping(entries) => 1 + entries.iter().map(|e| count(&e.value)).sum::<usize>(),
    }
}

/// An unquoted scalar, by YAML 1.2's core schema.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Value::String(text.to_owned());
    }
    let integer = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(hex), _) => i64::from_str_radix(hex, 16).ok(),
        (_, Some(octal)) => i64::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    };
    if let Some(integer) = integer {
        return Value::Number(integer.into());
    }
    if let Ok(integer) = text.parse::<u64>() {
        return Value::Number(integer.into());
    }
    let float_like = digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    match text.parse::<f64>() {
        // A whole number written as `1e3` or `5.0` is a whole number.
        Ok(float) if float_like && float.fract() == 0.0 && float.abs() < 9e15 => Value::Number((float as i64).into()),
        Ok(float) if float_like => Number::from_f64(float).map_or(Value::Null, Value::Number),
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(source: &str) -> (Node, Vec<String>) {
        let mut faults = Faults::of(Path::new("test.yaml"), source);
        let node = parse(source, &mut faults).unwrap_or_else(|fault| panic!("{fault}"));
        (node, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn places_are_right_behind_wide_characters_and_in_files_with_crlf() {
        let source = "title: 秒杀 ☃\r\nb: {c: \"é\", d: 12 } # ü\r\ne:\r\n- x  # y\r\n";
        let (node, faults) = read(source);
        assert!(faults.is_empty());
        assert_eq!(&source[node.locate("/title")], "秒杀 ☃");
        assert_eq!(&source[node.locate("/b/c")], "\"é\"");
        assert_eq!(&source[node.locate("/b/d")], "12");
        assert_eq!(&source[node.locate("/e/0")], "x");
        assert_eq!(&source[node.locate("/e/0/deeper/still")], "x");
        assert_eq!(&source[node.locate("/b")], "b");
        assert_eq!(&source[node.locate_key("/b", "d")], "d");
    }

    #[test]
    fn unquoted_scalars_are_what_yaml_1_2_says() {
        let (node, _) = read("[yes, true, 12, -3, 0x1F, 1e3, 1.5, 2026-12-12, 0o17, '12', ~, 10.0.0.1, 1_0]");
        let expected =
            serde_json::json!(["yes", true, 12, -3, 31, 1000, 1.5, "2026-12-12", 15, "12", null, "10.0.0.1", "1_0"]);
        assert_eq!(node.to_json(), expected);
    }

    #[test]
    fn a_repeated_key_is_reported_where_it_is_repeated() {
        let (node, faults) = read("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n");
        assert_eq!(node.to_json(), serde_json::json!({"a": 1, "b": {"c": 1}}));
        assert_eq!(faults.len(), 2);
        assert!(faults[0].starts_with("4:3: ") && faults[1].starts_with("5:1: "), "{faults:?}");
    }

    #[test]
    fn bombs_are_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let refs = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
        }
        assert!(parse(&bomb, &mut Faults::default()).is_err());
        assert!(parse(&"[".repeat(100_000), &mut Faults::default()).is_err());
        assert!(parse("a: &a [*a]", &mut Faults::default()).is_err());
    }
}
