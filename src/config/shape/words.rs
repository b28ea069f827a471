//! Puts a difference from the schema into words.

use jsonschema::error::TypeKind;
use serde_json::Value;

use super::super::problem::Problem;
use super::{followed, is_secret};

pub(super) fn unknown_key(key: &str, known: &[String]) -> Problem {
    if key == "<<" {
        return Problem::MergeKey;
    }
    let close = |candidate: &&String| strsim::jaro_winkler(key, candidate) > 0.8;
    let score = |name: &String| strsim::jaro_winkler(key, name);
    match known.iter().filter(close).max_by(|a, b| score(a).total_cmp(&score(b))) {
        Some(guess) => Problem::Misspelt { key: key.into(), guess: guess.clone() },
        None => Problem::UnknownKey { key: key.into(), known: known.join(", ") },
    }
}

/// What to add for a missing key, by its schema.
pub(super) fn hint(key: &str, schema: Option<&'static Value>) -> String {
    let schema = schema.map(followed);
    let Some(schema) = schema else { return format!("`{key}: ...`") };
    if is_secret(Some(schema)) {
        return format!("`{key}: {{ env: NAME }}` or `{key}: {{ file: PATH }}`");
    }
    if let Some(example) = schema.pointer("/examples/0").and_then(Value::as_str) {
        return format!("`{key}: {example}`");
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => format!("`{key}:` with its keys below"),
        Some("array") => format!("`{key}:` with `- item` lines below"),
        Some("integer") => format!("`{key}: NUMBER`"),
        _ if schema.get("oneOf").is_some() => format!("`{key}:` with `kind: ...` and its keys below"),
        _ => format!("`{key}: TEXT`"),
    }
}

pub(super) fn wrong_type(kind: &TypeKind, instance: &Value, schema: Option<&Value>) -> Problem {
    let wanted: Vec<String> = match kind {
        TypeKind::Single(one) => vec![one.to_string()],
        TypeKind::Multiple(set) => set.iter().map(|one| one.to_string()).filter(|name| name != "null").collect(),
    };
    let name = wanted.first().map(String::as_str).unwrap_or_default();
    let example = schema.and_then(|s| s.pointer("/examples/0")).and_then(Value::as_str);
    let (expected, instead) = match (name, instance) {
        ("string", _) if example.is_some() => ("text", format!("one like `{}`", example.unwrap_or_default())),
        ("string", Value::Number(_) | Value::Bool(_)) => ("text", format!("it in quotes: \"{instance}\"")),
        ("string", _) => ("text", "`key: text`".to_owned()),
        ("integer", _) => ("a whole number", "digits without quotes, like `5`".to_owned()),
        ("boolean", _) => ("yes or no", "`true` or `false`".to_owned()),
        ("array", _) => ("a list", "`- item` lines, or `[item, item]`".to_owned()),
        ("object", _) => ("a mapping", "`key: value` lines below it".to_owned()),
        ("null", _) => ("nothing", "`null`".to_owned()),
        (other, _) => (other, format!("a {other}")),
    };
    let found = match instance {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    };
    Problem::WrongType { expected: expected.into(), found, instead }
}

pub(super) fn list<'v>(values: impl IntoIterator<Item = &'v Value>) -> String {
    values.into_iter().map(|value| format!("`{}`", shown(value))).collect::<Vec<_>>().join(" or ")
}

pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.chars().take(80).collect(),
        other => other.to_string().chars().take(80).collect(),
    }
}

/// Whether the value of a misspelt key may be a secret, so that it is not drawn.
pub(super) fn names_a_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["secret", "token", "pass", "pwd", "key"]
        .iter()
        .any(|part| key.contains(part) || strsim::jaro_winkler(&key, part) > 0.8)
}
