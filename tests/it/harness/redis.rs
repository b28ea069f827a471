//! A Redis of the test's own.

use std::process::Command;

use tempfile::TempDir;

use super::process::{Process, free_port, listens};

/// A running server.
pub struct Redis {
    pub port: u16,
    process: Process,
    arguments: Vec<String>,
    folder: TempDir,
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
        let arguments = arguments.iter().map(ToString::to_string).collect::<Vec<_>>();
        let process = Redis::run(port, &folder, &arguments);
        Redis { port, process, arguments, folder }
    }

    fn run(port: u16, folder: &TempDir, arguments: &[String]) -> Process {
        let mut process = Process::start(
            "redis-server",
            Command::new("redis-server")
                .current_dir(folder.path())
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .args(["--maxmemory-policy", "noeviction", "--daemonize", "no"])
                .args(arguments),
        );
        process.wait_until("listened", || listens(port));
        process
    }

    /// Kills it and starts it again, on the same port and folder.
    pub fn restart(&mut self) {
        self.process.end();
        self.process = Redis::run(self.port, &self.folder, &self.arguments);
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Its process id, for signals.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs one command; the server's own words if it refuses.
    pub fn command(&self, words: &[&str]) -> Result<redis::Value, String> {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let (name, arguments) = words.split_first().unwrap();
        redis::cmd(name).arg(arguments).query(&mut connection).map_err(|e| e.to_string())
    }

    /// Waits until the reply to `command` contains `text`; fails after 10 s.
    pub fn wait_for(&self, command: &str, text: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        for _ in 0..500 {
            if format!("{:?}", self.command(&words)).contains(text) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("`{command}` never said `{text}`");
    }
}
