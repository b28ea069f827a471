//! One YAML file, one schema, one set of checked types.
//!
//! [`schema`] holds the types as a person writes them; the JSON Schema is derived from them. Loading reports every fault
//! of shape and of sense in one run, each with its place in the file: [`yaml`] reads the file into a tree that knows
//! places, `shape` compares the tree with the schema, `sense` compares values with each other, `outside` looks at the
//! secrets and pages that the file points at, [`compare`] finds what another reading of the file changed. What can be
//! wrong, and what to write instead, stands in [`problem`].

pub mod compare;
pub mod fault;
pub mod load;
mod outside;
pub mod problem;
pub mod reference;
pub mod scalars;
pub mod schema;
pub mod secret;
mod sense;
mod shape;
pub mod yaml;

pub use fault::{Fault, Faults};
pub use load::{Loaded, Scope, check, load, load_as, terms};
pub use schema::Config;
pub use secret::{Secret, SecretError};
pub use shape::json_schema;
