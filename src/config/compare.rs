//! What changed between two readings of the file: key by key, whatever keys there are, and without any secret's value.
//!
//! A [`Picture`] is a configuration as JSON, and beside it the fingerprints of the secrets and pages it points at. Keys are
//! written as in the file, `limits.attempts.user.rate`; list entries that have a `kid` are named by it, `tokens.keys[one]`.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Map, Value};

use super::load::Loaded;
use super::scalars::SecretSource;
use super::schema::Config;

/// SHA-256 of a secret or a page.
pub type Fingerprint = [u8; 32];

/// One edit of the file, or of what it points at.
#[derive(Debug, Clone, PartialEq)]
pub struct Edit {
    /// The key, e.g. `activities.launch.skus.phone.stock`.
    pub key: String,
    /// What it was; `None` if it was not there.
    pub from: Option<Value>,
    /// What it is to be; `None` if it is there no more.
    pub to: Option<Value>,
    /// The contents of a file or variable changed, or where a secret is kept: there is nothing to show.
    pub hidden: bool,
}

/// A configuration to be compared with another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    value: Value,
    contents: BTreeMap<String, Fingerprint>,
}

impl Picture {
    /// Takes the picture of a configuration and of the secrets that can be read here.
    ///
    /// # Errors
    /// If a type of the configuration cannot be written as JSON, which a test rules out.
    pub fn of(loaded: &Loaded) -> serde_json::Result<Picture> {
        let value = serde_json::to_value(&loaded.config)?;
        let mut contents = BTreeMap::new();
        each_secret("", &value, &mut |key, source| {
            // Each process holds its own secrets only; those of others are compared by where they are kept.
            if let Ok(secret) = loaded.secret(&source) {
                contents.insert(key.to_owned(), fingerprint(secret.expose()));
            }
        });
        Ok(Picture { value, contents })
    }

    /// Notes what lies outside of the file behind a key, apart from secrets.
    pub fn note(&mut self, key: String, contents: Fingerprint) {
        self.contents.insert(key, contents);
    }

    /// Everything that is different in `new`, in the order of the keys.
    pub fn edits(&self, new: &Picture) -> Vec<Edit> {
        let mut edits = Vec::new();
        compare(String::new(), Some(&self.value), Some(&new.value), &mut edits);
        for (key, contents) in &self.contents {
            let other = new.contents.get(key).is_some_and(|other| other != contents);
            if other && !edits.iter().any(|edit| edit.key == *key) {
                edits.push(Edit { key: key.clone(), from: None, to: None, hidden: true });
            }
        }
        edits.sort_by(|a, b| a.key.cmp(&b.key));
        edits
    }

    /// Takes one edit back: its key, and what lies behind it, become what they are in `old`.
    pub fn restore(&mut self, edit: &Edit, old: &Picture) {
        // Entries of a list go back with the list.
        let key = edit.key.split('[').next().unwrap_or_default();
        set(&mut self.value, key, get(&old.value, key).cloned());
        let below = |name: &str| {
            name.strip_prefix(key).is_some_and(|rest| matches!(rest.chars().next(), None | Some('.' | '[')))
        };
        self.contents.retain(|name, _| !below(name));
        self.contents
            .extend(old.contents.iter().filter(|(name, _)| below(name)).map(|(name, seen)| (name.clone(), *seen)));
    }

    /// The configuration itself.
    ///
    /// # Errors
    /// If what was put together by [`Picture::restore`] is no configuration.
    pub fn config(&self) -> serde_json::Result<Config> {
        serde_json::from_value(self.value.clone())
    }
}

/// The key with `*` for names and `[]` for entries of lists: `activities.*.skus.*.stock`, `tokens.keys[].key`.
pub fn pattern(key: &str) -> String {
    let mut bare = String::new();
    let mut inside = false;
    for c in key.chars() {
        inside &= c != ']';
        if !inside {
            bare.push(c);
        }
        inside |= c == '[';
    }
    let mut segments: Vec<&str> = bare.split('.').collect();
    if segments[0] == "activities" {
        if let Some(name) = segments.get_mut(1) {
            *name = "*";
        }
        if segments.get(2) == Some(&"skus")
            && let Some(name) = segments.get_mut(3)
        {
            *name = "*";
        }
    }
    segments.join(".")
}

/// SHA-256.
pub fn fingerprint(bytes: &[u8]) -> Fingerprint {
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(digest(&SHA256, bytes).as_ref());
    fingerprint
}

fn compare(key: String, old: Option<&Value>, new: Option<&Value>, edits: &mut Vec<Edit>) {
    if old == new {
        return;
    }
    let hidden = [old, new].into_iter().flatten().any(|value| secret(value).is_some());
    if !hidden && let (Some(Value::Object(was)), Some(Value::Object(is))) = (old, new) {
        let names = was.keys().chain(is.keys().filter(|name| !was.contains_key(*name)));
        for name in names {
            compare(below(&key, name), was.get(name), is.get(name), edits);
        }
        return;
    }
    if let (Some(was), Some(is)) = (old.and_then(by_kid), new.and_then(by_kid)) {
        let kids = |entries: &[(&str, &Value)]| Value::from(entries.iter().map(|(kid, _)| *kid).collect::<Vec<_>>());
        if kids(&was) != kids(&is) {
            edits.push(Edit { key: key.clone(), from: Some(kids(&was)), to: Some(kids(&is)), hidden: false });
        }
        for (kid, entry) in &was {
            // What came or went shows in the list of names.
            if let Some((_, other)) = is.iter().find(|(name, _)| name == kid) {
                compare(format!("{key}[{kid}]"), Some(entry), Some(other), edits);
            }
        }
        return;
    }
    let shown = |value: Option<&Value>| value.filter(|value| !hidden && !value.is_null()).cloned();
    edits.push(Edit { key, from: shown(old), to: shown(new), hidden });
}

fn each_secret(key: &str, value: &Value, visit: &mut impl FnMut(&str, SecretSource)) {
    if let Some(source) = secret(value) {
        visit(key, source);
    } else if let Value::Object(keys) = value {
        keys.iter().for_each(|(name, value)| each_secret(&below(key, name), value, visit));
    } else if let Some(entries) = by_kid(value) {
        entries.iter().for_each(|(kid, value)| each_secret(&format!("{key}[{kid}]"), value, visit));
    }
}

/// A place of a secret is the one mapping that holds `file` or `env` and nothing else; a test holds the schema to it.
fn secret(value: &Value) -> Option<SecretSource> {
    let keys = value.as_object().filter(|keys| keys.len() == 1)?;
    (keys.contains_key("file") || keys.contains_key("env"))
        .then(|| serde_json::from_value(value.clone()).ok())
        .flatten()
}

/// The entries of a list of keys, by name.
fn by_kid(value: &Value) -> Option<Vec<(&str, &Value)>> {
    value.as_array()?.iter().map(|entry| Some((entry.get("kid")?.as_str()?, entry))).collect()
}

fn below(key: &str, name: &str) -> String {
    if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") }
}

fn get<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(value, |value, name| value.get(name))
}

fn set(value: &mut Value, key: &str, to: Option<Value>) {
    let (parent, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut place = value;
    for part in parent.split('.').filter(|part| !part.is_empty()) {
        // A parent that is gone, or is another thing now, came into the edits itself.
        let Value::Object(keys) = place else { return };
        place = keys.entry(part).or_insert_with(|| Value::Object(Map::new()));
    }
    if let Value::Object(keys) = place {
        match to {
            Some(to) => drop(keys.insert(name.to_owned(), to)),
            None => drop(keys.remove(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::json_schema;
    use crate::config::load::{Depth, read};

    const FILE: &str = include_str!("../../conf/production.yaml");

    fn picture(folder: &Path, edit: impl Fn(&str) -> String) -> Picture {
        let text = edit(FILE);
        assert!(!text.is_empty());
        Picture::of(&read(&folder.join("file.yaml"), &text, None, Depth::File).unwrap()).unwrap()
    }

    fn keys(edits: &[Edit]) -> Vec<&str> {
        edits.iter().map(|edit| edit.key.as_str()).collect()
    }

    #[test]
    fn a_configuration_survives_being_a_picture() {
        for source in [FILE, include_str!("../../conf/minimal.yaml")] {
            let loaded = read(Path::new("file.yaml"), source, None, Depth::File).unwrap();
            assert_eq!(Picture::of(&loaded).unwrap().config().unwrap(), loaded.config);
        }
    }

    #[test]
    fn edits_are_named_by_their_keys_and_show_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| format!("{{ file: {name} }}");
        for name in ["a", "b"] {
            std::fs::write(folder.path().join(name), format!("secret-of-{name}")).unwrap();
        }
        let with_files = |text: &str| {
            text.replace("{ env: SECKILL_TOKEN_SECRET }", &file("a"))
                .replace("{ env: SECKILL_ADMIN_TOKEN }", &file("b"))
        };
        let old = picture(folder.path(), with_files);
        assert_eq!(old.edits(&old), []);
        std::fs::write(folder.path().join("a"), "another-secret").unwrap();
        let new = picture(folder.path(), |text| {
            with_files(text)
                .replace(
                    "user: { rate: 1/s, burst: 3 }\n    device: { rate: 1/s, burst: 3 }\n    # All",
                    "user: { rate: 2/s, burst: 3 }\n    device: null\n    # All",
                )
                .replace("{ env: SECKILL_STORE_PASSWORD }", "{ env: OTHER_PASSWORD }")
                .replace("  double-twelve:", "  triple-twelve:")
        });
        let edits = old.edits(&new);
        let expected = [
            "activities.double-twelve",
            "activities.triple-twelve",
            "limits.attempts.device",
            "limits.attempts.user.rate",
            "store.password",
            "tokens.keys[2026-12].key",
        ];
        assert_eq!(keys(&edits), expected);
        assert_eq!((&edits[3].from, &edits[3].to), (&Some("1/s".into()), &Some("2/s".into())));
        assert!(edits[2].to.is_none() && edits[4].hidden && edits[5].hidden);
        let told = format!("{edits:?}");
        assert!(!told.contains("secret-of") && !told.contains("another") && !told.contains("OTHER_PASSWORD"), "{told}");
        assert_eq!(pattern("tokens.keys[2026.12].key"), "tokens.keys[].key");
        assert_eq!(pattern("activities.a.skus.b.stock"), "activities.*.skus.*.stock");
    }

    #[test]
    fn the_order_of_keys_is_an_edit() {
        let old = picture(Path::new(""), str::to_owned);
        let new = picture(Path::new(""), |text| {
            text.replace("kid: \"2026-12\"", "kid: x")
                .replace("kid: \"2026-11\"", "kid: \"2026-12\"")
                .replace("kid: x", "kid: \"2026-11\"")
        });
        let edits = old.edits(&new);
        assert_eq!(edits[0].key, "tokens.keys");
        assert_eq!(edits[0].to, Some(serde_json::json!(["2026-11", "2026-12"])));
    }

    #[test]
    fn a_restored_edit_is_none() {
        let old = picture(Path::new(""), str::to_owned);
        let mut new = picture(Path::new(""), |text| {
            text.replace("url: redis://10.0.0.30:6390/0", "url: redis://10.0.0.99:6390/0")
                .replace("threads: 0", "threads: 3")
                .replace("    device: { rate: 1/s, burst: 3 }", "    device: null")
        });
        let edits = old.edits(&new);
        assert_eq!(keys(&edits), ["gate.threads", "limits.attempts.device", "limits.tokens.device", "store.url"]);
        for edit in edits.iter().filter(|edit| !edit.key.starts_with("limits.tokens")) {
            new.restore(edit, &old);
        }
        assert_eq!(keys(&old.edits(&new)), ["limits.tokens.device"]);
        assert!(new.config().unwrap().limits.tokens.device.is_none());
    }

    #[test]
    fn only_places_of_secrets_look_like_places_of_secrets() {
        let definitions = json_schema().get("$defs").or_else(|| json_schema().get("definitions")).unwrap();
        let alike: Vec<&String> = definitions
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, schema)| {
                let keys = schema.get("properties").and_then(Value::as_object);
                keys.is_some_and(|keys| keys.contains_key("file") || keys.contains_key("env"))
            })
            .map(|(name, _)| name)
            .collect();
        assert_eq!(alike, ["SecretSource"]);
    }
}
