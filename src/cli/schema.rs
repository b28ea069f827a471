//! `schema`: the JSON Schema of the configuration file, as committed in `conf/schema.json`.

use super::{Outcome, exit, print};

/// Flags of `schema`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Prints the schema.
pub fn run(_: Args) -> Outcome {
    print(serde_json::to_string_pretty(crate::config::json_schema())?)?;
    Ok(exit::DONE)
}
