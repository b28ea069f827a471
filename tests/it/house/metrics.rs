//! Metrics go by the same names in the source, in the docs and in the alert rules: a rule about a series that nobody shows
//! never rings, and nobody notices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const DOCS: &str = "docs/operations.md";

/// Words that begin as metrics do and are none: cookies, and the crate.
const NO_METRICS: [&str; 3] = ["seckill_device", "seckill_gate", "seckill_pass"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Words that begin as metrics do, and what follows each.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices("seckill_").filter(|(at, _)| !text[..*at].ends_with(is_word)).map(|(at, _)| {
        let rest = &text[at..];
        rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()))
    })
}

/// Metrics that the source registers, with the text of the file that does: names that are the first argument of a call.
fn registered() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for source in super::sources().iter().filter(|source| source.within("src")) {
        for (name, rest) in words(&source.text) {
            let before = source.text[..name.as_ptr() as usize - source.text.as_ptr() as usize].strip_suffix('"');
            if rest.starts_with('"') && before.is_some_and(|before| before.trim_end().ends_with('(')) {
                found.insert(name.to_owned(), source.text.clone());
            }
        }
    }
    assert!(found.len() >= 40, "only {:?} were found", found.keys());
    found
}

/// The docs' table: names, and the labels of each.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let docs = text(DOCS);
    let section = docs.split("\n## Metrics\n").nth(1).expect("a section on metrics").split("\n## ").next().unwrap();
    let mut found = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `seckill_")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, labels, meaning] = cells[..] else { panic!("{row}") };
        assert!(!meaning.is_empty(), "{row}");
        let labels = labels.split(", ").filter(|label| *label != "–").map(|label| label.trim_matches('`').to_owned());
        assert!(found.insert(name.trim_matches('`').to_owned(), labels.collect()).is_none(), "{name} stands twice");
    }
    found
}

#[test]
fn the_docs_name_every_metric_with_its_labels_and_no_other() {
    let (registered, documented) = (registered(), documented());
    let names = |of: Vec<&String>| of.into_iter().cloned().collect::<BTreeSet<String>>();
    let (in_source, in_docs) = (names(registered.keys().collect()), names(documented.keys().collect()));
    assert_eq!(in_source, in_docs, "the source on the left, the table in {DOCS} on the right");
    for (name, labels) in &documented {
        for label in labels {
            assert!(registered[name].contains(&format!("\"{label}\"")), "{name} has no label `{label}`");
        }
    }
    let mut files = vec!["README.md".to_owned()];
    files.extend(fs::read_dir(root().join("docs")).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.ends_with(".md").then(|| format!("docs/{name}"))
    }));
    for file in files {
        for (word, _) in words(&text(&file)).filter(|(word, _)| !NO_METRICS.contains(word)) {
            // `seckill_orders_…` stands for a family.
            let known = registered.contains_key(word)
                || word.ends_with('_') && registered.keys().any(|name| name.starts_with(word));
            assert!(known, "{file} speaks of {word}, which nobody shows");
        }
    }
}
