//! What this process logs, for tests of what must be said.

use std::sync::{Arc, Mutex, OnceLock};

use tracing::Dispatch;

/// Log lines of this test's thread.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Captures them until the guard is dropped; a server in the same single-threaded runtime is heard, too.
    pub fn start() -> (Log, tracing::subscriber::DefaultGuard) {
        // With one subscriber in the process, tracing asks the thread that first meets a log line, and only it, whether
        // anybody wants it: a test beside this one, which listens to nothing, would switch the line off for good.
        static BESIDE: OnceLock<Dispatch> = OnceLock::new();
        BESIDE.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub fn lines(&self, with: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
    }
}
