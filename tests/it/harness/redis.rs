//! A Redis of the test's own.

use std::process::Command;

use tempfile::TempDir;

use super::process::{Process, free_port, listens};

/// A running server.
pub struct Redis {
    pub port: u16,
    process: Process,
    _folder: TempDir,
}

impl Redis {
    /// Starts one as production would: nothing evicted, nothing lost on a clean stop.
    pub fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// Starts one with more arguments, e.g. `["--cluster-enabled", "yes"]`.
    pub fn start_with(arguments: &[&str]) -> Redis {
        let folder = TempDir::new().unwrap();
        let port = free_port();
        let mut process = Process::start(
            "redis-server",
            Command::new("redis-server")
                .current_dir(folder.path())
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .args(["--maxmemory-policy", "noeviction", "--daemonize", "no"])
                .args(arguments),
        );
        process.wait_until("listened", || listens(port));
        Redis { port, process, _folder: folder }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Its process id, for signals.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}
