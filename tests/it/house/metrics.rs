//! Metrics go by the same names in the source, in the docs and in the alert rules: a rule about a series that nobody shows
//! never rings, and nobody notices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use seckill_gate::config::{Faults, yaml};
use serde_json::Value;

const DOCS: &str = "docs/operations.md";
const ALERTS: &str = "conf/alerts.yaml";

/// Words that begin as metrics do and are none: cookies, and the crate.
const NO_METRICS: [&str; 3] = ["seckill_device", "seckill_gate", "seckill_pass"];

/// Labels that Prometheus itself gives.
const OF_PROMETHEUS: [&str; 1] = ["instance"];

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

/// A metric in an expression, with the values that are asked of its labels.
type Selector<'a> = (&'a str, Vec<(&'a str, Vec<&'a str>)>);

fn selectors(expression: &str) -> Vec<Selector<'_>> {
    words(expression)
        .map(|(name, rest)| {
            let inside = rest.strip_prefix('{').map_or("", |rest| rest.split_once('}').unwrap().0);
            let matchers = inside.split(',').filter(|matcher| !matcher.is_empty()).map(|matcher| {
                let (label, rest) = matcher.trim().split_once(['=', '!']).unwrap();
                let value = rest.split('"').nth(1).unwrap_or_else(|| panic!("{matcher} in {expression}"));
                (label, value.split('|').collect())
            });
            (name, matchers.collect())
        })
        .collect()
}

fn rules() -> Vec<Value> {
    let alerts = yaml::parse(&text(ALERTS), &mut Faults::default()).unwrap().to_json();
    let groups = alerts["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

#[test]
fn the_alert_rules_ask_for_what_is_shown_and_cover_every_alarm_of_the_docs() {
    let (registered, documented) = (registered(), documented());
    let codes = text("src/domain/refusal.rs");
    let mut used = BTreeSet::new();
    for rule in rules() {
        let (alert, expression) = (&rule["alert"], rule["expr"].as_str().unwrap());
        let mut labels: BTreeSet<&str> = OF_PROMETHEUS.into();
        let selectors = selectors(expression);
        assert!(!selectors.is_empty(), "{alert}");
        for (name, matchers) in selectors {
            let file = registered.get(name).unwrap_or_else(|| panic!("{alert}: nobody shows {name}"));
            used.insert(name.to_owned());
            let own = documented.get(name).unwrap_or_else(|| panic!("{alert}: {DOCS} does not name {name}"));
            labels.extend(own.iter().map(String::as_str));
            for (label, values) in matchers {
                assert!(own.contains(label), "{alert}: {name} has no label `{label}`");
                for value in values {
                    let literal = format!("\"{value}\"");
                    assert!(
                        file.contains(&literal) || codes.contains(&literal),
                        "{alert}: {name} is never {label}={value}"
                    );
                }
            }
        }
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("page" | "warn")), "{alert}");
        for told in rule["annotations"].as_object().unwrap().values() {
            for label in told.as_str().unwrap().split("$labels.").skip(1) {
                let label = label.split(|c| !is_word(c)).next().unwrap();
                assert!(labels.contains(label), "{alert} tells of `{label}`, which its series do not have");
            }
        }
    }
    let docs = text(DOCS);
    let alarms =
        docs.split("\n## What to alarm on\n").nth(1).expect("a section on alarms").split("\n## ").next().unwrap();
    for (name, _) in words(alarms) {
        assert!(used.contains(name), "{DOCS} would have {name} raise an alarm, and no rule does");
    }
}

#[test]
fn promtool_takes_the_alert_rules_and_they_ring_when_they_should() {
    for arguments in [["check", "rules", ALERTS], ["test", "rules", "tests/it/fixtures/alerts_test.yaml"]] {
        let output = Command::new("promtool").args(arguments).current_dir(root()).output();
        let output = output.expect("promtool is missing; `make test` installs it");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
}

#[test]
fn selectors_are_read_with_their_labels() {
    let read = selectors(r#"rate(seckill_a{x="1", y=~"2|3"}[1m]) > 0 and seckill_b > my_seckill_c"#);
    assert_eq!(read, [("seckill_a", vec![("x", vec!["1"]), ("y", vec!["2", "3"])]), ("seckill_b", vec![])]);
}
