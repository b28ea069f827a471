//! Child processes that end with the test that started them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A started process; killed (and waited for) when dropped.
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts `command` with its output thrown away unless `SECKILL_TEST_LOG` is set.
    pub fn start(name: &str, command: &mut Command) -> Process {
        let output = || if std::env::var_os("SECKILL_TEST_LOG").is_some() { Stdio::inherit() } else { Stdio::null() };
        let child = command
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {name}: {e}. `make test` installs what is missing."));
        Process { name: name.into(), child }
    }

    /// The process id, for signals.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` says yes; fails if the process ends before, or after 30 s.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut() -> bool) {
        let started = Instant::now();
        while !ready() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("{} ended with {status} before it {what}", self.name);
            }
            assert!(started.elapsed() < Duration::from_secs(30), "{} never {what}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Process {
    /// Kills it and waits for its end.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A port on loopback that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Whether something listens there.
pub fn listens(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
}

/// Sends a signal, e.g. `signal(pid, "STOP")`, to a process that the test started.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success(), "kill -{name} {pid} failed");
}
