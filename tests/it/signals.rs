//! Signals and panics of a real process: this test binary, started again with the child's part to play.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt;
use seckill_gate::config::schema::{LogFormat, Logs};
use seckill_gate::platform::shutdown::{self, Stage};
use seckill_gate::platform::telemetry;

const CHILD: &str = "SECKILL_TEST_SIGNALS_CHILD";
const DRAIN: Duration = Duration::from_millis(300);

fn child() -> ! {
    let say = |word: &str| println!("child: {word}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        telemetry::init(&Logs { format: LogFormat::Json, filter: "info".into() }).unwrap();
        let (trigger, shutdown) = shutdown::channel();
        let mut reloads = shutdown::reload_signals().unwrap();
        shutdown::on_signals(trigger, DRAIN).unwrap();
        let _ = tokio::spawn(async { panic!("on purpose, {}", "formatted") }).await;
        say("running");
        reloads.next().await.unwrap();
        say("reload");
        shutdown.reached(Stage::Draining).await;
        say("draining");
        shutdown.reached(Stage::Closing).await;
        say("closing");
        // What is in flight never finishes: only a second signal ends this.
        std::future::pending::<()>().await;
    });
    unreachable!()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_process_reloads_at_hup_drains_at_term_ends_at_the_second_and_logs_panics() {
    if std::env::var_os(CHILD).is_some() {
        child();
    }
    let name = "signals::a_process_reloads_at_hup_drains_at_term_ends_at_the_second_and_logs_panics";
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = || lines.find(|line| line.contains("child: ")).expect("the child ended early");
    assert!(next().ends_with("running"));
    signal(&process, "-HUP");
    assert!(next().ends_with("reload"));
    signal(&process, "-TERM");
    assert!(next().ends_with("draining"));
    let drained = Instant::now();
    assert!(next().ends_with("closing"));
    assert!(drained.elapsed() > DRAIN / 2, "closed after {:?}", drained.elapsed());
    signal(&process, "-INT");
    assert_eq!(process.wait().unwrap().code(), Some(1));
    let mut log = String::new();
    process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let line = log.lines().find(|line| line.contains("on purpose")).expect("the panic was not logged");
    let line: serde_json::Value = serde_json::from_str(line).expect("not one line of JSON");
    assert_eq!((line["level"].as_str(), line["panic"].as_str()), (Some("ERROR"), Some("on purpose, formatted")));
    assert!(line["place"].as_str().unwrap().contains("signals.rs"));
}
