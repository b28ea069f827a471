//! The reference of every key, written from the schema, as committed in `docs/configuration.md`.

use std::fmt::Write;

use serde_json::Value;

use super::shape::{followed, json_schema};

const HEAD: &str = "\
# Configuration reference

<!-- Written by `seckill-gate schema --markdown`; a test keeps it so. Change the doc comments in src/config/schema.rs. -->

One YAML file holds everything; each command reads the sections it needs. `seckill-gate check -c FILE` reports every
fault in one run, with line, column and what to write instead. `conf/minimal.yaml` is the least that works,
`conf/production.yaml` shows every key with notes for production. Editors complete and check the file when its first
line is `# yaml-language-server: $schema=schema.json`.

- Unknown keys, and keys that stand twice, are faults. Nothing is ignored.
- **length of time**: a whole number and `ms`, `s`, `m`, `h` or `d`: `500ms`, `10m`, `7d`.
- **rate**: so many per second, minute or hour: `20/s`, `30/m`, `100/h`.
- **size**: `512B`, `2KiB`, `1MiB`.
- **moment**: RFC 3339 with offset: `2026-12-12T20:00:00+08:00`.
- **secret**: `{ env: NAME }` or `{ file: PATH }`, never the secret itself. `env` names an environment
  variable, `file` a file, of which one newline at the end is dropped.
- **name**: 1-64 of `a-z 0-9 -`, not starting with `-`.
- Relative paths, of secrets too, begin at the folder of the configuration file.
- A *required* key must be written; for the others the default is given.
";

/// The reference as Markdown.
pub fn markdown() -> String {
    let mut writer = Writer { text: HEAD.to_owned(), told: Vec::new() };
    writer.section("", json_schema());
    writer.text
}

struct Writer {
    text: String,
    /// Mappings that have a table, and under which path.
    told: Vec<(&'static Value, String)>,
}

impl Writer {
    /// One mapping: its table, then the mappings below it.
    fn section(&mut self, path: &str, schema: &'static Value) {
        if let Some(kinds) = schema.get("oneOf").and_then(Value::as_array) {
            for kind in kinds {
                let tag = kind.pointer("/properties/kind/const").and_then(Value::as_str).unwrap_or_default();
                self.table(&format!("`{path}`, `kind: {tag}`"), path, kind);
            }
        } else {
            let heading = if path.is_empty() { "The file".to_owned() } else { format!("`{path}`") };
            self.table(&heading, path, schema);
        }
    }

    fn table(&mut self, heading: &str, path: &str, schema: &'static Value) {
        let Some(keys) = schema.get("properties").and_then(Value::as_object) else { return };
        let said = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let _ = write!(self.text, "\n## {heading}\n\n{said}\n\n| key | value | default | |\n|---|---|---|---|\n");
        let required = schema.get("required").and_then(Value::as_array);
        let mut below = Vec::new();
        for (key, property) in keys {
            let said = property.get("description").or_else(|| followed(property).get("description"));
            let said = said.and_then(Value::as_str).unwrap_or_default().replace('\n', " ").replace('|', "\\|");
            let is_required = required.is_some_and(|list| list.iter().any(|name| name == key));
            let default = if is_required { "*required*".to_owned() } else { shown(property.get("default")) };
            let child = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let mut kind = kind_of(property);
            if let Some((child, schema)) = nested(child, property) {
                match self.told.iter().find(|(told, _)| std::ptr::eq(*told, schema)) {
                    Some((_, path)) => kind = format!("like `{path}`"),
                    None => {
                        self.told.push((schema, child.clone()));
                        below.push((child, schema));
                    }
                }
            }
            let _ = writeln!(self.text, "| `{key}` | {kind} | {default} | {said} |");
        }
        for (path, schema) in below {
            self.section(&path, schema);
        }
    }
}

/// A default as one would write it.
fn shown(default: Option<&Value>) -> String {
    match default {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => format!("`{text}`"),
        Some(Value::Object(keys)) if keys.values().any(|value| value.is_object() || value.is_array()) => {
            "see below".into()
        }
        Some(Value::Object(keys)) => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{key}: {}", text(value))).collect();
            format!("`{{ {} }}`", pairs.join(", "))
        }
        Some(other) => format!("`{other}`"),
    }
}

/// The schema that counts: behind a reference, and without `null`.
fn meant(property: &'static Value) -> &'static Value {
    let branches = property.get("anyOf").and_then(Value::as_array);
    let branch =
        branches.and_then(|all| all.iter().find(|one| one.get("type").and_then(Value::as_str) != Some("null")));
    followed(branch.unwrap_or(property))
}

fn is_secret(schema: &Value) -> bool {
    schema.pointer("/properties/env").is_some()
}

/// The mapping that a key holds, by itself, under names, or in a list.
fn nested(path: String, property: &'static Value) -> Option<(String, &'static Value)> {
    let schema = meant(property);
    if let Some(named) = schema.get("additionalProperties").filter(|value| value.is_object()) {
        return nested(format!("{path}.NAME"), named);
    }
    if let Some(items) = schema.get("items") {
        return nested(format!("{path}[]"), items);
    }
    let mapping = schema.get("properties").is_some() || schema.pointer("/oneOf/0/properties").is_some();
    (mapping && !is_secret(schema)).then_some((path, schema))
}

fn kind_of(property: &'static Value) -> String {
    let schema = meant(property);
    if let Some(tag) = schema.get("const") {
        return format!("`{}`", tag.as_str().unwrap_or_default());
    }
    if let Some(choices) = schema.get("enum").and_then(Value::as_array) {
        return choices.iter().filter_map(Value::as_str).map(|c| format!("`{c}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(choices) = schema.get("oneOf").and_then(Value::as_array) {
        let all: Vec<String> =
            choices.iter().filter_map(|one| one["const"].as_str()).map(|choice| format!("`{choice}`")).collect();
        return if all.is_empty() { "by `kind`, below".into() } else { all.join(", ") };
    }
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().find_map(|kind| kind.as_str().filter(|name| *name != "null")),
        kind => kind.and_then(Value::as_str),
    };
    match (kind.unwrap_or_default(), schema.get("format").and_then(Value::as_str)) {
        ("string", Some("span")) => "length of time".into(),
        ("string", Some("rate")) => "rate".into(),
        ("string", Some("byte-size")) => "size".into(),
        ("string", Some("date-time")) => "moment".into(),
        ("string", Some("socket-address")) => "address and port".into(),
        ("string", Some("cidr")) => "CIDR block".into(),
        ("string", _) if schema.get("pattern").is_some() => "name".into(),
        ("string", _) => "text".into(),
        ("integer", _) => match (schema.get("minimum"), schema.get("maximum")) {
            (Some(least), Some(most)) if *most != u32::MAX => format!("number, {least} to {most}"),
            (Some(least), _) if *least != 0 => format!("number, at least {least}"),
            _ => "number".into(),
        },
        ("boolean", _) => "`true`, `false`".into(),
        ("array", _) => match schema.get("items").map(kind_of).as_deref() {
            Some("below") | None => "list, below".into(),
            Some(one) => format!("list: {one}"),
        },
        ("object", _) if is_secret(schema) => "secret".into(),
        ("object", _) if schema.get("additionalProperties").is_some_and(Value::is_object) => "by name, below".into(),
        _ => "below".into(),
    }
}
