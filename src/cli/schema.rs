//! `schema`: the JSON Schema of the configuration file, as committed in `conf/schema.json`.

use super::{Outcome, exit, print};

/// Flags of `schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the reference of all keys instead, as committed in docs/configuration.md
    #[arg(long)]
    markdown: bool,
}

/// Prints the schema.
pub fn run(args: Args) -> Outcome {
    if args.markdown {
        print(crate::config::reference::markdown().trim_end())?;
        return Ok(exit::DONE);
    }
    print(serde_json::to_string_pretty(crate::config::json_schema())?)?;
    Ok(exit::DONE)
}
