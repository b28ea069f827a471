//! One YAML file, one schema, one set of checked types.
//!
//! [`schema`] holds the types as a person writes them; the JSON Schema is derived from them. Loading reports every fault
//! of shape and of sense in one run, each with its place in the file.

pub mod scalars;
pub mod schema;

pub use schema::Config;
