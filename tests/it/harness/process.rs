//! Child processes that end with the test that started them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
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

    /// `kill -9`, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for an end that is near; fails after 30 s. The exit code, if it was no signal.
    pub fn ended(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < Duration::from_secs(30), "{} never ended", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
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

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port on loopback that is free, and given to nobody else of this process. It lies below those that the kernel gives to
/// outgoing connections: one of them would take it before the server that it is meant for starts.
pub fn free_port() -> u16 {
    const PORTS: std::ops::Range<u32> = 10_000..32_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Test binaries that run side by side begin at different places.
    let begin = std::process::id().wrapping_mul(7_919);
    for _ in 0..PORTS.len() {
        let next = begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = (PORTS.start + next % (PORTS.end - PORTS.start)) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port of {PORTS:?} is free");
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
