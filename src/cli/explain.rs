//! `explain`: what a refusal code means and what to do about it.

use serde_json::{Value, json};

use super::{Outcome, Usage, exit, print};
use crate::domain::refusal::Code;

/// Flags of `explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The code, e.g. SOLD_OUT; all codes without one
    code: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints one code, or all; exit 2 for a code that does not exist.
pub fn run(args: Args) -> Outcome {
    let codes: Vec<Code> = match &args.code {
        Some(name) => Code::named(name).collect(),
        None => Code::ALL.to_vec(),
    };
    if codes.is_empty() {
        let name = args.code.unwrap_or_default().to_uppercase();
        let close = Code::ALL
            .iter()
            .map(|code| code.name())
            .max_by(|a, b| strsim::jaro_winkler(a, &name).total_cmp(&strsim::jaro_winkler(b, &name)));
        let close = close.unwrap_or_default();
        return Err(Usage(format!("no code `{name}`; did you mean {close}? `explain` lists all")).into());
    }
    if args.json {
        print(Value::Array(codes.iter().map(|&code| as_json(code)).collect()))?;
    } else if args.code.is_none() {
        for code in codes {
            let meaning = code.meaning();
            print(format!("{} {:<22} {}", meaning.status, meaning.name, meaning.title))?;
        }
    } else {
        let pages: Vec<String> = codes.into_iter().map(page).collect();
        print(pages.join("\n\n"))?;
    }
    Ok(exit::DONE)
}

fn page(code: Code) -> String {
    let meaning = code.meaning();
    let retry = if meaning.retryable { "may succeed when repeated" } else { "repeating it will not help" };
    format!("{} ({}): {}; {retry}\n\n{}", meaning.name, meaning.status, meaning.title, meaning.explanation)
}

fn as_json(code: Code) -> Value {
    let meaning = code.meaning();
    json!({
        "code": meaning.name,
        "status": meaning.status,
        "title": meaning.title,
        "retryable": meaning.retryable,
        "explanation": meaning.explanation,
    })
}
