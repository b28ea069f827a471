//! The house rules: which part of the tree may know which. Each says why, so that whoever breaks one learns what it is
//! for; and each is shown to be able to fail.

mod code;
mod metrics;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use code::{Source, crates_named, modules_reached};

/// Files above [`MAX_LINES`], each with the reason why it is still one idea.
const LONG_FILES: &[(&str, &str)] = &[
    ("src/config/schema.rs", "one type per mapping of the configuration file, in the file's order; nothing else"),
    ("src/domain/admission.rs", "the vocabulary of the admission store, read together with its order of precedence"),
];
const MAX_LINES: usize = 500;

/// A rule: the lines that break it.
struct Rule {
    reason: &'static str,
    broken_at: fn(&Source) -> Vec<usize>,
}

const RULES: &[Rule] = &[
    Rule {
        reason: "`domain` imports nothing of ours: it is decisions alone, tested without a world and simulated later",
        broken_at: |source| {
            lines_where(source.within("src/domain"), || modules_reached(source).filter(|(_, top)| top != "domain"))
        },
    },
    Rule {
        reason: "`gate` does not import `orders`: a shop may run the gate with an order service of its own, over HTTP",
        broken_at: |source| {
            lines_where(source.within("src/gate"), || modules_reached(source).filter(|(_, top)| top == "orders"))
        },
    },
    Rule {
        reason: "`orders` does not import `gate`: the order service talks to gates over HTTP, as a shop's own would",
        broken_at: |source| {
            lines_where(source.within("src/orders"), || modules_reached(source).filter(|(_, top)| top == "gate"))
        },
    },
    Rule {
        reason: "drivers (redis, sqlx, rusqlite) are named only in `platform` and in the store, queue and ledger \
                 implementations, so that everything above runs on any of them, and under simulation on none",
        broken_at: |source| {
            const HOMES: &[&str] = &["src/platform", "src/gate/store", "src/orders/queue", "src/orders/ledger"];
            const DRIVERS: &[&str] = &["redis", "sqlx", "sqlx_core", "sqlx_mysql", "rusqlite"];
            let bound = source.within("src") && !HOMES.iter().any(|home| source.within(home));
            lines_where(bound, || crates_named(source).filter(|(_, name)| DRIVERS.contains(&name.as_str())))
        },
    },
    Rule {
        reason: "pingora stays in the gate's adapter: stages and pipeline are plain functions, tested without a proxy",
        broken_at: |source| {
            let bound = source.within("src") && !source.within("src/gate/adapter");
            lines_where(bound, || crates_named(source).filter(|(_, name)| name.starts_with("pingora")))
        },
    },
    Rule {
        reason: "only src/platform/clock.rs reads a clock: time comes in from the edge, so that tests can set it",
        broken_at: |source| {
            const READINGS: &[&str] = &["Instant::now", "SystemTime::now", "Utc::now"];
            let bound = source.within("src") && source.path != "src/platform/clock.rs" && !source.is_test();
            let lines = source.code.lines().enumerate();
            let reading = lines.filter(|(_, line)| READINGS.iter().any(|reading| line.contains(reading)));
            lines_where(bound, || reading.map(|(index, _)| (index + 1, String::new())))
        },
    },
    Rule {
        reason: "every script begins with `#!lua`: Redis then refuses undeclared slots in cluster mode, and says OOM or \
                 READONLY before the script has written anything",
        broken_at: |source| {
            let first = source.text.lines().next().unwrap_or_default();
            let wrong = source.path.ends_with(".lua")
                && source.within("lua")
                && first.strip_prefix("#!lua").is_none_or(|rest| !rest.is_empty() && !rest.starts_with(' '));
            if wrong { vec![1] } else { Vec::new() }
        },
    },
    Rule {
        reason: "no file above 500 lines without a reason in LONG_FILES: a file is one idea",
        broken_at: |source| {
            let listed = LONG_FILES.iter().any(|(path, _)| *path == source.path);
            let lines = source.text.lines().count();
            if lines > MAX_LINES && !listed { vec![lines] } else { Vec::new() }
        },
    },
    Rule {
        reason: "a file in LONG_FILES is above 500 lines: one that was cut shorter leaves the list",
        broken_at: |source| {
            let listed = LONG_FILES.iter().any(|(path, _)| *path == source.path);
            let lines = source.text.lines().count();
            if lines <= MAX_LINES && listed { vec![lines] } else { Vec::new() }
        },
    },
    Rule {
        reason: "the load generator knows nothing of the gate's code: a crowd that shares its mistakes finds none",
        broken_at: |source| {
            lines_where(source.within("loadtest"), || crates_named(source).filter(|(_, name)| name == "seckill_gate"))
        },
    },
    Rule {
        reason: "OpenSSL is the system's, so that the distribution patches it: OPENSSL_NO_VENDOR stays set",
        broken_at: |source| {
            let kept = source.text.lines().any(|line| line.trim() == "OPENSSL_NO_VENDOR = \"1\"");
            if source.path == ".cargo/config.toml" && !kept { vec![1] } else { Vec::new() }
        },
    },
];

#[test]
fn the_house_rules_hold() {
    let sources = sources();
    assert!(sources.iter().any(|source| source.path == "src/lib.rs"), "the tree was not found");
    for (path, _) in LONG_FILES {
        assert!(sources.iter().any(|source| source.path == *path), "{path} in LONG_FILES does not exist");
    }
    let mut broken = BTreeMap::<&str, Vec<String>>::new();
    for rule in RULES {
        for source in &sources {
            let places = (rule.broken_at)(source).into_iter().map(|line| format!("    {}:{line}", source.path));
            broken.entry(rule.reason).or_default().extend(places);
        }
    }
    broken.retain(|_, places| !places.is_empty());
    let report: Vec<_> = broken.iter().map(|(reason, places)| format!("{reason}\n{}", places.join("\n"))).collect();
    assert!(report.is_empty(), "house rules are broken:\n\n{}\n", report.join("\n\n"));
}

/// Every rule, with a file that breaks it and one that does not.
#[test]
fn each_rule_can_be_broken_and_kept() {
    let long = "line\n".repeat(MAX_LINES + 1);
    /// A path, and what stands there.
    type File<'a> = (&'a str, &'a str);
    let cases: &[(&str, File, File)] = &[
        (
            "`domain` imports nothing",
            ("src/domain/a.rs", "use crate::platform::clock;"),
            ("src/domain/a.rs", "use crate::domain::ids;"),
        ),
        (
            "`domain` imports nothing",
            ("src/domain/a.rs", "use crate::{domain::ids, gate};"),
            ("src/domain/a.rs", "// crate::gate\nconst A: &str = \"crate::gate\";"),
        ),
        (
            "`domain` imports nothing",
            ("src/domain/a.rs", "use super::super::gate;"),
            ("src/domain/a/b.rs", "use super::super::ids;"),
        ),
        ("`domain` imports nothing", ("src/domain/mod.rs", "use super::gate;"), ("src/domain/a.rs", "use super::ids;")),
        (
            "`gate` does not import",
            ("src/gate/a.rs", "fn f() { crate::orders::g() }"),
            ("src/gate/a.rs", "use crate::config::schema::Orders;"),
        ),
        (
            "`gate` does not import",
            ("src/gate/mod.rs", "use super::orders::g;"),
            ("src/gate/a.rs", "use super::orders::g;"),
        ),
        (
            "`orders` does not import",
            ("src/orders/a/b.rs", "use crate::{\n  domain::{self, gate},\n  gate::Gate,\n};"),
            ("src/orders/a/b.rs", "use crate::domain::{self, gate};"),
        ),
        ("drivers", ("src/orders/intake.rs", "use sqlx::Row;"), ("src/orders/ledger/mysql.rs", "use sqlx::Row;")),
        (
            "drivers",
            ("src/gate/relay.rs", "let c: ::redis::Client;"),
            ("src/gate/mod.rs", "use self::store::redis::S;"),
        ),
        ("drivers", ("src/cli/a.rs", "use {redis::Client};"), ("src/platform/redis.rs", "use redis::Client;")),
        ("drivers", ("src/cli/a.rs", "use redis as r;"), ("src/cli/a.rs", "let redis = 1; redis.close();")),
        (
            "pingora stays",
            ("src/gate/stages/a.rs", "use pingora_http::X;"),
            ("src/gate/adapter/a.rs", "use pingora::X;"),
        ),
        (
            "reads a clock",
            ("src/gate/a.rs", "let now = tokio::time::Instant::now();"),
            ("src/gate/a.rs", "#[cfg(test)]\nmod tests { fn f() { Instant::now(); } }"),
        ),
        (
            "reads a clock",
            ("src/gate/a.rs", "#[cfg(test)]\nmod tests { fn f() {} }\nfn g() { SystemTime::now(); }"),
            ("src/platform/clock.rs", "SystemTime::now();"),
        ),
        ("every script begins", ("lua/a.lua", "-- no\n#!lua"), ("lua/a.lua", "#!lua flags=no-writes\n")),
        ("no file above", ("src/a.rs", &long), ("src/config/schema.rs", &long)),
        ("a file in LONG_FILES", ("src/config/schema.rs", "short"), ("src/config/schema.rs", &long)),
        (
            "the load generator",
            ("loadtest/src/a.rs", "use seckill_gate::x;"),
            ("tests/it/a.rs", "use seckill_gate::x;"),
        ),
        (
            "OpenSSL is the system's",
            (".cargo/config.toml", "# OPENSSL_NO_VENDOR = \"1\""),
            (".cargo/config.toml", "OPENSSL_NO_VENDOR = \"1\""),
        ),
    ];
    for (name, (bad_path, bad), (good_path, good)) in cases {
        let rule = RULES.iter().find(|rule| rule.reason.contains(name)).unwrap_or_else(|| panic!("no rule {name}"));
        assert_ne!((rule.broken_at)(&Source::new(bad_path, bad)), [0; 0], "{name}: {bad:?} in {bad_path} passes");
        assert_eq!((rule.broken_at)(&Source::new(good_path, good)), [0; 0], "{name}: {good:?} in {good_path} fails");
    }
    for rule in RULES {
        assert!(cases.iter().any(|(name, ..)| rule.reason.contains(name)), "never shown to fail: {}", rule.reason);
    }
}

fn lines_where<I: Iterator<Item = (usize, String)>>(bound: bool, found: impl FnOnce() -> I) -> Vec<usize> {
    if bound { found().map(|(line, _)| line).collect() } else { Vec::new() }
}

/// Every file that a rule may be about.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![root.join(".cargo/config.toml")];
    for folder in ["src", "lua", "tests", "loadtest", "scripts"] {
        collect(&root.join(folder), &mut paths);
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        Source::new(path.strip_prefix(root).unwrap().to_str().unwrap(), &text)
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|kind| ["rs", "lua", "sh"].iter().any(|wanted| kind == *wanted)) {
            paths.push(path);
        }
    }
}
