//! The Lua scripts, compiled in, and the keys they work on.

use redis::{Cmd, Script};

use crate::domain::ActivityId;

/// A script as the server gets it, and its SHA-1.
pub struct LuaScript {
    source: String,
    sha: String,
}

impl LuaScript {
    /// Puts `common` after the script's own first line, which must be a `#!lua` line: it makes the server refuse
    /// undeclared slots and raise OOM, READONLY and NOREPLICAS before anything ran.
    pub fn assemble(script: &str, common: &str) -> LuaScript {
        let (shebang, body) = script.split_once('\n').unwrap_or((script, ""));
        let (_, common) = common.split_once('\n').unwrap_or(("", common));
        let source = format!("{shebang}\n{common}\n{body}");
        let sha = Script::new(&source).get_hash().to_owned();
        LuaScript { source, sha }
    }

    /// `EVALSHA`, which the server may not know yet.
    pub fn by_sha(&self, keys: &Keys) -> Cmd {
        Self::command("EVALSHA", &self.sha, keys)
    }

    /// `EVAL`, which also makes the server know it.
    pub fn by_source(&self, keys: &Keys) -> Cmd {
        Self::command("EVAL", &self.source, keys)
    }

    fn command(name: &str, script: &str, keys: &Keys) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(keys.0.len());
        for key in &keys.0 {
            command.arg(key);
        }
        command
    }
}

/// The keys of one activity's bucket, in the order in which every script names them. They share a hash tag, so they live
/// in one cluster slot.
#[derive(Debug, Clone)]
pub struct Keys([String; 10]);

impl Keys {
    /// The keys of `activity`. There is one bucket in this release; its number keeps the place for more.
    pub fn of(activity: &ActivityId) -> Keys {
        const BUCKET: u32 = 0;
        let roles = ["meta", "stock", "buyers", "wins", "bodies", "due", "returning", "journal", "gates", "dead"];
        Keys(roles.map(|role| format!("sk:{{{activity}.{BUCKET}}}:{role}")))
    }

    /// Matches the key of `meta` of every activity.
    pub const PATTERN: &str = "sk:{*.0}:meta";

    /// The activity of a key that [`Keys::PATTERN`] matches.
    pub fn activity_of(meta: &str) -> Option<ActivityId> {
        meta.strip_prefix("sk:{")?.strip_suffix(".0}:meta")?.parse().ok()
    }

    /// The hash of buyers.
    pub fn buyers(&self) -> &str {
        &self.0[2]
    }
}

/// Every script, by operation.
pub struct Scripts {
    /// See the file of the same name in `lua/`, as for all of these.
    pub preheat: LuaScript,
    #[allow(missing_docs)]
    pub admit: LuaScript,
    #[allow(missing_docs)]
    pub settle: LuaScript,
    #[allow(missing_docs)]
    pub release: LuaScript,
    #[allow(missing_docs)]
    pub claim_due: LuaScript,
    #[allow(missing_docs)]
    pub retry: LuaScript,
    #[allow(missing_docs)]
    pub dead_letters: LuaScript,
    #[allow(missing_docs)]
    pub set_total: LuaScript,
    #[allow(missing_docs)]
    pub set_paused: LuaScript,
    #[allow(missing_docs)]
    pub set_stopped: LuaScript,
    #[allow(missing_docs)]
    pub poll: LuaScript,
    #[allow(missing_docs)]
    pub find: LuaScript,
    #[allow(missing_docs)]
    pub snapshot: LuaScript,
}

impl Scripts {
    /// The scripts of this build.
    pub fn built_in() -> Scripts {
        macro_rules! lua {
            ($name:literal) => {
                LuaScript::assemble(
                    include_str!(concat!("../../../../lua/", $name, ".lua")),
                    include_str!("../../../../lua/common.lua"),
                )
            };
        }
        Scripts {
            preheat: lua!("preheat"),
            admit: lua!("admit"),
            settle: lua!("settle"),
            release: lua!("release"),
            claim_due: lua!("claim_due"),
            retry: lua!("retry"),
            dead_letters: lua!("dead_letters"),
            set_total: lua!("set_total"),
            set_paused: lua!("set_paused"),
            set_stopped: lua!("set_stopped"),
            poll: lua!("poll"),
            find: lua!("find"),
            snapshot: lua!("snapshot"),
        }
    }
}
