//! Faults of shape: the file compared with the schema, every difference at its own place.

mod formats;
mod words;

use std::sync::LazyLock;

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::{ValidationError, Validator};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::Value;

use self::formats::FORMATS;
use self::words::{hint, list, names_a_secret, shown, unknown_key, wrong_type};
use super::fault::Faults;
use super::problem::Problem;
use super::schema::Config;
use super::yaml::Node;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings = SchemaSettings::draft07().with_transform(RecursiveTransform(bound_integers));
    settings.into_generator().into_root_schema_for::<Config>().to_value()
});

/// The JSON Schema (draft 07) of the configuration file.
pub fn json_schema() -> &'static Value {
    &SCHEMA
}

/// schemars bounds only the small integer types, the typed read all of them. No count of ours needs more than 32 bits.
fn bound_integers(schema: &mut schemars::Schema) {
    let unsigned = matches!(schema.get("format").and_then(Value::as_str), Some("uint32" | "uint64" | "uint"));
    if unsigned && schema.get("maximum").is_none() {
        schema.insert("maximum".into(), u32::MAX.into());
    }
}

#[allow(clippy::expect_used)] // the schema is a constant of this program, compiled by its tests
static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let mut options = jsonschema::draft7::options().should_validate_formats(true);
    for (name, parse) in FORMATS {
        options = options.with_format(name, move |text: &str| parse(text).is_ok());
    }
    options.build(json_schema()).expect("the derived schema is valid")
});

/// What is left to read after the check of shape.
pub struct Shaped {
    /// The file's values, without unknown keys.
    pub value: Value,
    /// JSON pointers to whatever cannot be read into its type.
    faulty: Vec<String>,
}

impl Shaped {
    /// Whether everything at and below `pointer` has the right shape, so that it can be read and judged.
    pub fn is_sound(&self, pointer: &str) -> bool {
        let below =
            |fault: &str, top: &str| fault.strip_prefix(top).is_some_and(|r| r.is_empty() || r.starts_with('/'));
        !self.faulty.iter().any(|fault| below(fault, pointer) || below(pointer, fault))
    }
}

/// Reports every difference between the file and the schema.
pub fn check(tree: &Node, faults: &mut Faults) -> Shaped {
    let value = tree.to_json();
    if value.is_null() {
        faults.at(0..0, Problem::Empty);
        return Shaped { value, faulty: vec![String::new()] };
    }
    let mut walk = Walk { tree, value: &value, faults, faulty: Vec::new(), unknown: Vec::new() };
    for error in VALIDATOR.iter_errors(&value) {
        walk.report(&error);
    }
    let (faulty, unknown) = (walk.faulty, walk.unknown);
    let mut value = value;
    for (pointer, key) in unknown {
        if let Some(mapping) = value.pointer_mut(&pointer).and_then(Value::as_object_mut) {
            mapping.swap_remove(&key);
        }
    }
    Shaped { value, faulty }
}

struct Walk<'a> {
    tree: &'a Node,
    value: &'a Value,
    faults: &'a mut Faults,
    faulty: Vec<String>,
    unknown: Vec<(String, String)>,
}

impl Walk<'_> {
    fn put(&mut self, pointer: &str, problem: Problem) {
        self.faults.at(self.tree.locate(pointer), problem);
        self.faulty.push(pointer.to_owned());
    }

    fn report(&mut self, error: &ValidationError<'_>) {
        let pointer = error.instance_path().as_str();
        let schema = schema_of(error);
        let instance = self.value.pointer(pointer).unwrap_or(&Value::Null);
        match error.kind() {
            Kind::AdditionalProperties { unexpected } => {
                let known = keys_of(schema);
                for key in unexpected {
                    let problem = unknown_key(key, &known);
                    self.faults.at(self.tree.locate_key(pointer, key), problem);
                    if names_a_secret(key) {
                        self.faults.hide(self.tree.locate_value(&below(pointer, key)));
                    }
                    self.unknown.push((pointer.to_owned(), key.clone()));
                }
            }
            Kind::Required { property } => {
                let key = property.as_str().unwrap_or_default();
                let hint = hint(key, schema.and_then(|s| s.pointer(&format!("/properties/{key}"))));
                self.faults.at(self.tree.locate(pointer), Problem::MissingKey { key: key.into(), hint });
                self.faulty.push(format!("{pointer}/{key}"));
            }
            Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
                self.report_branches(pointer, instance, context)
            }
            _ if is_secret(schema) => {
                let problem = secret_problem(error);
                if matches!(problem, Problem::InlineSecret) {
                    self.faults.hide(self.tree.locate_value(pointer));
                }
                self.put(pointer, problem);
            }
            Kind::Type { kind } => {
                let problem = wrong_type(kind, instance, schema);
                self.put(pointer, problem);
            }
            Kind::Enum { options } => {
                let choices =
                    options.as_array().map(|all| list(all.iter().filter(|v| !v.is_null()))).unwrap_or_default();
                self.put(pointer, Problem::NoSuchChoice { value: shown(instance), choices });
            }
            Kind::Constant { expected_value } => {
                self.put(pointer, Problem::NoSuchChoice { value: shown(instance), choices: list([&**expected_value]) });
            }
            Kind::Minimum { limit } | Kind::ExclusiveMinimum { limit } => {
                self.put(pointer, Problem::TooSmall { value: instance.to_string(), limit: limit.to_string() });
            }
            Kind::Maximum { limit } | Kind::ExclusiveMaximum { limit } => {
                self.put(pointer, Problem::TooLarge { value: instance.to_string(), limit: limit.to_string() });
            }
            Kind::MinItems { .. } => self.put(pointer, Problem::EmptyCollection("at least one `- item`")),
            Kind::MinProperties { .. } => {
                self.put(pointer, Problem::EmptyCollection("at least one `name:` with its keys"))
            }
            Kind::Format { format } => {
                let text = instance.as_str().unwrap_or_default();
                if format == "environment-variable" {
                    self.faults.hide(self.tree.locate_value(pointer));
                }
                let said = FORMATS.iter().find(|(name, _)| name == format).and_then(|(_, parse)| parse(text).err());
                self.put(pointer, Problem::Malformed(said.unwrap_or_else(|| format!("write a {format}"))));
            }
            // The pattern is for editors; the format at its side has said it already, and better.
            Kind::Pattern { .. } if schema.is_some_and(|s| s.get("format").is_some()) => {}
            Kind::Pattern { .. } => self.put(pointer, Problem::BadName { name: shown(instance) }),
            Kind::PropertyNames { error } => {
                let key = error.instance().as_str().unwrap_or_default().to_owned();
                self.faults.at(self.tree.locate_key(pointer, &key), Problem::BadName { name: key.clone() });
                self.faulty.push(below(pointer, &key));
            }
            other => self.put(pointer, Problem::Other(other.keyword().to_owned())),
        }
    }

    /// One of several forms was wanted. Reports against the form that was meant: the one of this `kind`, or the one that
    /// is not `null`.
    fn report_branches(&mut self, pointer: &str, instance: &Value, branches: &[Vec<ValidationError<'static>>]) {
        let tag = format!("{pointer}/kind");
        let mut choices = Vec::new();
        let mut meant: Option<&Vec<ValidationError<'static>>> = None;
        for branch in branches {
            let ruled_out = branch.iter().any(|error| match error.kind() {
                Kind::Constant { expected_value } if [pointer, &tag].contains(&error.instance_path().as_str()) => {
                    choices.push(expected_value.as_ref().clone());
                    true
                }
                Kind::Enum { options } if error.instance_path().as_str() == pointer => {
                    choices.extend(options.as_array().into_iter().flatten().cloned());
                    true
                }
                Kind::Type { kind } => {
                    error.instance_path().as_str() == pointer && is_null_only(kind) && !instance.is_null()
                }
                _ => false,
            });
            if !ruled_out && meant.is_none() {
                meant = Some(branch);
            }
        }
        match meant {
            // A missing tag rules no branch out; the tag itself is what is missing.
            Some(_) if instance.is_object() && instance.get("kind").is_none() && is_tagged(branches, pointer) => {
                let hint = format!("`kind: {}`", kinds(branches, pointer).join("` or `kind: "));
                self.faults.at(self.tree.locate(pointer), Problem::MissingKey { key: "kind".into(), hint });
                self.faulty.push(tag);
            }
            Some(branch) => branch.iter().for_each(|error| self.report(error)),
            None if instance.is_object() => {
                let value = instance.get("kind").map(shown).unwrap_or_default();
                self.put(&tag, Problem::NoSuchChoice { value, choices: list(&choices) });
            }
            None => self.put(pointer, Problem::NoSuchChoice { value: shown(instance), choices: list(&choices) }),
        }
    }
}

/// Whether the branches are the kinds of one tagged thing.
fn is_tagged(branches: &[Vec<ValidationError<'static>>], pointer: &str) -> bool {
    branches.len() > 1
        && branches.iter().all(|branch| {
            branch.iter().any(|error| {
                error.instance_path().as_str() == pointer
                    && matches!(error.kind(), Kind::Required { property } if property == "kind")
            })
        })
}

/// The tags of the branches.
fn kinds(branches: &[Vec<ValidationError<'static>>], pointer: &str) -> Vec<String> {
    let of_branch = |branch: &Vec<ValidationError<'static>>| {
        let error = branch.iter().find(|error| error.instance_path().as_str() == pointer)?;
        Some(schema_of(error)?.pointer("/properties/kind/const")?.as_str()?.to_owned())
    };
    branches.iter().filter_map(of_branch).collect()
}

/// The part of the schema that an error speaks of (without its last token, the keyword).
fn schema_of(error: &ValidationError<'_>) -> Option<&'static Value> {
    let path = error.schema_path().as_str();
    let (parent, _keyword) = path.rsplit_once('/')?;
    json_schema().pointer(parent)
}

/// The pointer to a key of the mapping at `pointer`.
fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn is_secret(schema: Option<&Value>) -> bool {
    schema.is_some_and(|s| s.pointer("/properties/env").is_some() && s.pointer("/properties/file").is_some())
}

fn secret_problem(error: &ValidationError<'_>) -> Problem {
    match error.kind() {
        Kind::Type { .. } if !error.instance().is_null() => Problem::InlineSecret,
        _ => Problem::SecretPlaces,
    }
}

fn is_null_only(kind: &TypeKind) -> bool {
    matches!(kind, TypeKind::Single(jsonschema::JsonType::Null))
}

fn keys_of(schema: Option<&Value>) -> Vec<String> {
    let properties = schema.and_then(|s| s.get("properties")).and_then(Value::as_object);
    properties.map(|p| p.keys().cloned().collect()).unwrap_or_default()
}

/// The schema behind a `$ref`, alone or wrapped in `allOf` to carry a description.
pub(super) fn followed(schema: &'static Value) -> &'static Value {
    let reference = schema.get("$ref").or_else(|| schema.pointer("/allOf/0/$ref")).and_then(Value::as_str);
    reference.and_then(|r| json_schema().pointer(r.trim_start_matches('#'))).unwrap_or(schema)
}
