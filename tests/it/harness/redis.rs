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
        let (folder, port) = (TempDir::new().unwrap(), free_port());
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.into()).collect();
        let process = launch(&folder, port, &arguments);
        Redis { port, process, arguments, folder }
    }

    /// `kill -9`, and waits for the end.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Removes what a server that is down wrote to its disk.
    pub fn forget_everything(&mut self) {
        std::fs::remove_dir_all(self.folder.path()).unwrap();
        std::fs::create_dir(self.folder.path()).unwrap();
    }

    /// Starts it on the same port with what is on its disk.
    pub fn start_again(&mut self) {
        self.process = launch(&self.folder, self.port, &self.arguments);
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

fn launch(folder: &TempDir, port: u16, arguments: &[String]) -> Process {
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
