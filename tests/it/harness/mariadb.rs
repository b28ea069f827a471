//! A MariaDB of the tests' own. One is shared by the whole test binary, with a database per test, because a start costs
//! seconds; tests that break the server start their own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use super::process::{free_port, listens};

/// A running server. It ends when this is dropped, and also when the test process dies in whatever way: the shell that
/// started it reads from a pipe that only this process holds open.
pub struct MariaDb {
    pub port: u16,
    folder: PathBuf,
    watcher: Child,
}

impl MariaDb {
    /// The one that all tests share.
    pub fn shared() -> &'static MariaDb {
        static SHARED: OnceLock<MariaDb> = OnceLock::new();
        SHARED.get_or_init(MariaDb::fresh)
    }

    /// One that a test may stop and kill.
    pub fn start() -> MariaDb {
        // The template of the data lies in the shared one's folder.
        MariaDb::shared();
        MariaDb::fresh()
    }

    fn fresh() -> MariaDb {
        let folder = tempfile::Builder::new().prefix("seckill-mariadb-").tempdir().unwrap().keep();
        install(&folder.join("data"));
        MariaDb::start_in(folder, free_port())
    }

    fn start_in(folder: PathBuf, port: u16) -> MariaDb {
        let _ = fs::remove_file(folder.join("pid"));
        // A relative socket path: absolute ones may be longer than a socket address can hold.
        let script = "cd \"$1\" && mariadbd --no-defaults $3 --datadir=\"$1/data\" --port=$2 --socket=s.sock \
             --bind-address=127.0.0.1 --skip-log-bin --innodb-buffer-pool-size=64M --innodb-log-file-size=32M \
             --max-connections=300 --pid-file=\"$1/pid\" </dev/null >>\"$1/log\" 2>&1 & \
             pid=$!; cat >/dev/null; kill -CONT $pid; kill -KILL $pid; wait $pid; test -e \"$1/keep\" || rm -rf \"$1\"";
        let watcher = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&folder)
            .arg(port.to_string())
            .args(as_root().or(Some("--skip-name-resolve")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = MariaDb { port, folder, watcher };
        let started = Instant::now();
        while !(listens(port) && server.folder.join("pid").exists()) {
            let log = || fs::read_to_string(server.folder.join("log")).unwrap_or_default();
            assert!(started.elapsed() < Duration::from_secs(60), "mariadbd never listened:\n{}", log());
            std::thread::sleep(Duration::from_millis(30));
        }
        server
    }

    /// A new, empty database; its URL.
    pub async fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut connection = MySqlConnection::connect(&format!("mysql://root@127.0.0.1:{}", self.port)).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await.unwrap();
        format!("mysql://root@127.0.0.1:{}/{name}", self.port)
    }

    /// Sends a signal, e.g. `STOP` or `CONT`, to the server itself.
    pub fn signal(&self, signal: &str) {
        let pid = fs::read_to_string(self.folder.join("pid")).unwrap();
        assert!(Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status().unwrap().success());
    }

    /// Kills it without warning and starts it again on the same data and port.
    pub fn crash_and_restart(mut self, down_for: Duration) -> MariaDb {
        fs::File::create(self.folder.join("keep")).unwrap().flush().unwrap();
        self.stop();
        std::thread::sleep(down_for);
        fs::remove_file(self.folder.join("keep")).unwrap();
        MariaDb::start_in(self.folder.clone(), self.port)
    }

    fn stop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes a data folder: installed once, then copied.
fn install(data: &Path) {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    static FIRST: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = FIRST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match TEMPLATE.get() {
        Some(template) => {
            assert!(Command::new("cp").arg("-a").arg(template).arg(data).status().unwrap().success());
        }
        None => {
            let output = Command::new("mariadb-install-db")
                .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
                .args(as_root())
                .arg(format!("--datadir={}", data.display()))
                .output()
                .unwrap_or_else(|e| {
                    panic!("cannot run mariadb-install-db: {e}. `make test` installs what is missing.")
                });
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let template = data.with_file_name("template");
            assert!(Command::new("cp").arg("-a").arg(data).arg(&template).status().unwrap().success());
            TEMPLATE.set(template).unwrap();
        }
    }
}

/// MariaDB runs as root only when told to, and changes the owner of its files only when it can.
fn as_root() -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt;
    (fs::metadata("/proc/self").unwrap().uid() == 0).then_some("--user=root")
}
