//! Faults with their place in the file, as plain lines, drawn for people, or as JSON for machines.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use serde_json::{Value, json};

use super::problem::Problem;

/// Faults that are drawn; nobody reads more at once.
const MAX_DRAWN: usize = 200;

/// One fault at its place.
#[derive(Debug)]
pub struct Fault {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong, and what to write instead.
    pub problem: Problem,
    range: Range<usize>,
}

impl Fault {
    /// A fault at these bytes of `source`.
    pub(super) fn new(source: &str, range: Range<usize>, problem: Problem) -> Fault {
        let (line, column) = place(source, &line_starts(source), range.start);
        Fault { line, column, problem, range }
    }
}

fn line_starts(source: &str) -> Vec<usize> {
    std::iter::once(0).chain(source.match_indices('\n').map(|(newline, _)| newline + 1)).collect()
}

/// Line and column of a byte, both from 1.
fn place(source: &str, line_starts: &[usize], byte: usize) -> (usize, usize) {
    let line = line_starts.partition_point(|start| *start <= byte).max(1);
    let before = line_starts.get(line - 1).and_then(|start| source.get(*start..byte)).unwrap_or_default();
    // A byte order mark takes no column.
    (line, before.trim_start_matches('\u{feff}').chars().count() + 1)
}

impl fmt::Display for Fault {
    /// `line:column: what is wrong; what to write instead`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.problem)
    }
}

/// All faults of one file, in the order of the file.
#[derive(Debug, Default)]
pub struct Faults {
    file: PathBuf,
    source: String,
    line_starts: Vec<usize>,
    faults: Vec<Fault>,
    /// Bytes of the source that may be secrets, and are never drawn.
    hidden: Vec<Range<usize>>,
}

impl Faults {
    /// No faults yet of this file.
    pub(super) fn of(file: &Path, source: &str) -> Faults {
        Faults {
            file: file.to_owned(),
            source: source.to_owned(),
            line_starts: line_starts(source),
            faults: Vec::new(),
            hidden: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Adds a fault at these bytes.
    pub(super) fn at(&mut self, range: Range<usize>, problem: Problem) {
        let (line, column) = self.place(range.start);
        self.faults.push(Fault { line, column, problem, range });
    }

    /// Line and column of a byte, both from 1.
    pub(super) fn place(&self, byte: usize) -> (usize, usize) {
        place(&self.source, &self.line_starts, byte)
    }

    /// These bytes may be a secret.
    pub(super) fn hide(&mut self, range: Range<usize>) {
        self.hidden.push(range);
    }

    /// These bytes may be a secret from where `from` says.
    pub(super) fn hide_from(&mut self, range: Range<usize>, from: impl Fn(&str) -> Option<usize>) {
        if let Some(at) = self.source.get(range.clone()).and_then(from) {
            self.hide(range.start + at..range.end);
        }
    }

    /// Orders by place and drops repetitions; an error if any fault is left.
    pub(super) fn into_result(mut self) -> Result<(), Faults> {
        if self.faults.is_empty() {
            return Ok(());
        }
        let mut keyed: Vec<(String, Fault)> = self.faults.drain(..).map(|fault| (fault.to_string(), fault)).collect();
        keyed.sort_by(|(a_text, a), (b_text, b)| (a.line, a.column, a_text).cmp(&(b.line, b.column, b_text)));
        keyed.dedup_by(|(a, _), (b, _)| a == b);
        self.faults = keyed.into_iter().map(|(_, fault)| fault).collect();
        Err(self)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.faults.len()
    }

    /// Each fault, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter()
    }

    /// Drawn into the lines of the file, for people. Secrets that were written into the file are starred out.
    pub fn draw(&self, colours: bool) -> String {
        let renderer = if colours { Renderer::styled() } else { Renderer::plain() };
        let file = self.file.display().to_string();
        let source = self.masked_source();
        let mut drawn = String::new();
        for fault in self.faults.iter().take(MAX_DRAWN) {
            let message = fault.problem.to_string();
            let title = Level::ERROR.primary_title(message.as_str());
            let report = if source.is_empty() {
                title.element(Origin::path(&file))
            } else {
                // Only the lines concerned, so that drawing many faults stays linear.
                let start = source[..fault.range.start].rfind('\n').map_or(0, |newline| newline + 1);
                let end = source[fault.range.end..].find('\n').map_or(source.len(), |length| fault.range.end + length);
                let mark = AnnotationKind::Primary.span(fault.range.start - start..fault.range.end - start);
                title.element(Snippet::source(&source[start..end]).line_start(fault.line).path(&file).annotation(mark))
            };
            drawn.push_str(&renderer.render(&[report]));
            drawn.push_str("\n\n");
        }
        if self.len() > MAX_DRAWN {
            drawn.push_str(&format!("… and {} more (`--json` lists all)\n", self.len() - MAX_DRAWN));
        }
        let plural = if self.len() == 1 { "fault" } else { "faults" };
        drawn.push_str(&format!("{file}: {} {plural}\n", self.len()));
        drawn
    }

    /// `{"file", "faults": [{"line", "column", "message"}]}`
    pub fn to_json(&self) -> Value {
        let faults: Vec<Value> = self
            .faults
            .iter()
            .map(|f| json!({ "line": f.line, "column": f.column, "message": f.problem.to_string() }))
            .collect();
        json!({ "file": self.file.display().to_string(), "faults": faults })
    }

    /// The source with every byte of a misplaced secret starred out; all other bytes keep their place.
    fn masked_source(&self) -> String {
        let mut bytes = self.source.clone().into_bytes();
        // Not only where a fault is: it may be in another value of the same line, or of another kind of url.
        let in_urls = self.source.match_indices("://").flat_map(|(at, separator)| {
            let start = at + separator.len();
            let word = self.source[start..].split(|c: char| c.is_whitespace()).next().unwrap_or("");
            let user = word.rfind('@').map(|length| start..start + length);
            let query = word.find(['?', '#']).map(|length| start + length + 1..start + word.len());
            user.into_iter().chain(query)
        });
        for range in self.hidden.iter().cloned().chain(in_urls) {
            if let Some(secret) = bytes.get_mut(range) {
                secret.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b'*');
            }
        }
        String::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Display for Faults {
    /// One `line:column: message` per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.faults.iter().try_for_each(|fault| writeln!(f, "{fault}"))
    }
}

impl std::error::Error for Faults {}
