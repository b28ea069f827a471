//! A gate that reads its file again while it sells: whole processes, real stores.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::deployment::{Deployment, OTHER_SALE, SALE, SKU, Wish, seckill_gate};
use crate::harness::process::{Process, listens, signal};

/// Edits the configuration file; fails if that changes nothing.
fn edit(deployment: &Deployment, change: impl Fn(&str) -> String) {
    let text = fs::read_to_string(&deployment.config).unwrap();
    let edited = change(&text);
    assert_ne!(text, edited, "the edit changes nothing");
    fs::write(&deployment.config, edited).unwrap();
}

fn replace(deployment: &Deployment, from: &str, to: &str) {
    edit(deployment, |text| text.replacen(from, to, 1));
}

/// The secret's file.
fn secret(deployment: &Deployment, name: &str) -> PathBuf {
    deployment.config.parent().unwrap().join("secrets").join(name)
}

/// `seckill-gate reload`: exit code, standard output, standard error, without the line that names gate and file.
fn reload(deployment: &Deployment, arguments: &[&str]) -> (i32, String, String) {
    let output = deployment.command(0, &["reload"]).args(arguments).output().unwrap();
    let reader = format!("gate-1 read {}\n", deployment.config.display());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replacen(&reader, "", 1);
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Starts gate 0 anew, its log going to a file.
pub fn with_log(deployment: &mut Deployment) -> PathBuf {
    deployment.kill_gate(0);
    let log = deployment.config.with_file_name("gate.log");
    let gate = &mut deployment.gates[0];
    let at = |port: u16| format!("127.0.0.1:{port}");
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", r#"log="$1"; shift; exec "$@" 2>"$log""#, "sh"])
        .arg(&log)
        .arg(seckill_gate().get_program())
        .args(["serve", "--gate", "gate-1", "-c"])
        .arg(&deployment.config)
        .args(["--listen", &at(gate.public), "--admin", &at(gate.admin), "--metrics", &at(gate.metrics)]);
    let mut process = Process::start("gate", &mut command);
    process.wait_until("listened", || listens(gate.public));
    gate.process = Some(process);
    log
}

fn hang_up(deployment: &Deployment) {
    signal(deployment.gates[0].process.as_ref().unwrap().id(), "HUP");
}

fn sale(name: &str, stock: u32, config: &Path) -> String {
    // As long as the others.
    let text = fs::read_to_string(config).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("  {SALE}:"))).unwrap();
    let (head, _) = line.split_once(&format!("{SKU}: {{")).unwrap();
    format!("{}{SKU}: {{ stock: {stock} }} }} }}\n", head.replace(SALE, name))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_activity_sells_without_a_restart_and_a_broken_file_changes_nothing() {
    let mut deployment = Deployment::start(1, 5).await;
    let log = with_log(&mut deployment);
    deployment.until_open(0).await;
    let pid = deployment.gates[0].process.as_ref().unwrap().id();
    let token = deployment.token(0, "ann", "k1").await;
    deployment.until_metric(0, r#"seckill_config_reloads_total{result="ok"} 0"#).await;

    let added = sale("fresh", 2, &deployment.config);
    edit(&deployment, |text| format!("{text}{added}"));
    hang_up(&deployment);
    deployment.until_metric(0, r#"seckill_config_reloads_total{result="ok"} 1"#).await;
    deployment.until_metric(0, r#"seckill_stock_units{activity="fresh",kind="total",sku="phone"} 2"#).await;
    let preheated = deployment.command(0, &["preheat", "fresh"]).output().unwrap();
    assert!(preheated.status.success(), "{preheated:?}");
    deployment.until_phase("fresh", 0, "open").await;
    let fresh = deployment.token_for("fresh", 0, "bob", "k1").await;
    let told = deployment.attempt_at("fresh", 0, "bob", "k1", &fresh).await;
    assert!(told.outcome == "WON" || told.outcome == "QUEUED", "{told:?}");
    // Its relay runs, and so does its watch: the win is settled, and a long poll hears of it.
    let result = deployment.result("fresh", 0, "bob", "k1").await;
    assert_eq!(result["state"], "accepted", "{result}");
    // A token from before is as good as ever.
    let told = deployment.attempt(0, "ann", "k1", &token).await;
    assert!(told.outcome == "WON" || told.outcome == "QUEUED", "{told:?}");

    edit(&deployment, |text| {
        text.replacen("ttl: 60000ms", "ttl: soon", 1).replacen("  id: gate-1", "  idd: gate-1", 1)
    });
    hang_up(&deployment);
    deployment.until_metric(0, r#"seckill_config_reloads_total{result="refused"} 1"#).await;
    deployment.until_metric(0, "seckill_config_last_reload_successful 0").await;
    let said = fs::read_to_string(&log).unwrap();
    for word in ["did you mean `id`", "`soon` is not a length of time", "configuration reload refused"] {
        assert!(said.contains(word), "{word} is not in the log:\n{said}");
    }
    let token = deployment.token(0, "cat", "k1").await;
    let told = deployment.attempt(0, "cat", "k1", &token).await;
    assert!(told.outcome == "WON" || told.outcome == "QUEUED", "{told:?}");
    assert_eq!(deployment.gates[0].process.as_ref().unwrap().id(), pid);

    // The order service says that it does not reload, and goes on.
    signal(deployment.orders.as_ref().unwrap().id(), "HUP");
    assert_eq!(deployment.result(SALE, 0, "cat", "k1").await["state"], "accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn limiters_keep_their_state_unless_their_limit_changes() {
    let deployment = Deployment::start(1, 5).await;
    let attempts = "attempts: { address: { rate: 100000/s }, user: { rate: 100000/s }";
    replace(&deployment, attempts, "attempts: { address: { rate: 100000/s }, user: { rate: 2/h }");
    let (code, told, _) = reload(&deployment, &[]);
    assert_eq!((code, told.as_str()), (0, "applied:\n  limits.attempts.user.rate: 100000/s → 2/h\n"));
    let token = deployment.token(0, "ann", "k1").await;
    let outcome = async |user: &str| deployment.attempt(0, user, "k1", &token).await.outcome;
    // The token is ann's: what bob hears shows whether he was let through to it.
    let mut heard = Vec::new();
    for _ in 0..3 {
        heard.push(outcome("bob").await);
    }
    assert_eq!(heard, ["TOKEN_INVALID", "TOKEN_INVALID", "RATE_LIMITED"]);

    replace(&deployment, "  drain_delay: 100ms", "  drain_delay: 100ms\n  access_log_sample: 7");
    assert_eq!(reload(&deployment, &[]).0, 0);
    assert_eq!(outcome("bob").await, "RATE_LIMITED", "another edit gave bob a fresh start");
    assert_eq!(outcome("cat").await, "TOKEN_INVALID");
    replace(
        &deployment,
        "reads: { address: { rate: 100000/s } }",
        "reads: { address: { rate: 100000/s } }, max_keys: 600000",
    );
    let (code, told, _) = reload(&deployment, &[]);
    assert_eq!((code, told.as_str()), (0, "applied:\n  limits.max_keys: 500000 → 600000\n"));
    assert_eq!(outcome("bob").await, "RATE_LIMITED", "room for more keys gave bob a fresh start");
    deployment.until_metric(0, r#"seckill_limiter_keys{policy="user",route="attempts"} 2"#).await;

    replace(&deployment, "user: { rate: 2/h }", "user: { rate: 100000/s }");
    assert_eq!(reload(&deployment, &[]).0, 0);
    assert_eq!(outcome("bob").await, "TOKEN_INVALID", "the new limit is not in effect");
    assert_eq!(reload(&deployment, &[]), (0, "nothing changed\n".into(), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_preheated_is_the_truth_and_each_edit_against_it_is_told_its_command() {
    let deployment = Deployment::start(1, 5).await;
    let launch = format!("{SKU}: {{ stock: 5 }}");
    // One dangerous edit refuses the harmless ones beside it.
    replace(&deployment, &launch, &format!("{SKU}: {{ stock: 8 }}"));
    edit(&deployment, |text| text.replacen("  launch: {", "  launch: { title: Renamed, per_user_limit: 3,", 1));
    replace(&deployment, "  audience: seckill\n", "  audience: seckill\n  user_claim: email\n");
    let encore = fs::read_to_string(&deployment.config).unwrap();
    let encore = encore.lines().find(|line| line.starts_with("  encore:")).unwrap().to_owned() + "\n";
    replace(&deployment, &encore, "");
    let (code, out, said) = reload(&deployment, &[]);
    assert_eq!((code, out.as_str()), (1, ""), "{said}");
    for word in [
        "activities.launch.skus.phone.stock: 5 → 8: run `seckill-gate totals launch phone --from 5 --to 8`",
        "activities.launch.per_user_limit: 1 → 3: what was preheated is the truth",
        "activities.encore: removed: its wins are kept",
        "identity.user_claim: sub → email: users of `encore` are known by the claim as it was",
        "EDIT_REFUSED",
    ] {
        assert!(said.contains(word), "{word} is not in\n{said}");
    }
    let page = |text: String| text.contains("Renamed");
    let url = format!("http://127.0.0.1:{}/seckill/{SALE}", deployment.gates[0].public);
    let index = async || reqwest::get(&url).await.unwrap().text().await.unwrap();
    assert!(!page(index().await), "a part of a refused reload is in effect");
    assert_eq!(deployment.json(0, &format!("/seckill/{OTHER_SALE}/state"), "ann").await["phase"], "open");

    // The way that was told: the command first, then the file.
    replace(&deployment, " per_user_limit: 3,", "");
    replace(&deployment, "  user_claim: email\n", "");
    edit(&deployment, |text| format!("{text}{encore}"));
    let totals = deployment.command(0, &["totals", SALE, SKU, "--from", "5", "--to", "8"]).output().unwrap();
    assert!(totals.status.success(), "{totals:?}");
    deployment.until_metric(0, r#"seckill_activity_file_differs{activity="launch"} 1"#).await;
    deployment.until_metric(0, r#"seckill_activity_file_differs{activity="encore"} 0"#).await;
    let status = deployment.command(0, &["status", SALE]).output().unwrap();
    let told = String::from_utf8(status.stdout).unwrap();
    assert!(told.contains("differs from what was preheated, which counts: skus.phone.stock"), "{told}");
    let (code, told, said) = reload(&deployment, &["--dry-run"]);
    assert_eq!(code, 0, "{said}");
    assert!(told.starts_with("would apply:\n"), "{told}");
    assert!(!page(index().await), "a dry run changed the page");
    let (code, told, said) = reload(&deployment, &[]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        told,
        "applied:\n  activities.launch.skus.phone.stock: 5 → 8\n  activities.launch.title: none → Renamed\n"
    );
    assert!(page(index().await));
    deployment.until_metric(0, r#"seckill_activity_file_differs{activity="launch"} 0"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_rotated_in_three_steps_and_what_needs_a_restart_is_named_and_left() {
    let deployment = Deployment::start(1, 5).await;
    let keys = |list: &str| {
        edit(&deployment, |text| {
            let (before, rest) = text.split_once("tokens:\n  keys: ").unwrap();
            format!("{before}tokens:\n  keys: {list}\n{}", rest.split_once('\n').unwrap().1)
        })
    };
    let key = |kid: &str, file: &str| format!("{{ kid: {kid}, key: {{ file: secrets/{file} }} }}");
    let (one, two) = (key("one", "token-key"), key("two", "token-key-2"));
    fs::write(secret(&deployment, "token-key-2"), "another-secret-of-more-than-32-bytes").unwrap();
    let old = deployment.token(0, "ann", "k1").await;
    let judged = async |user: &str, token: &str| deployment.attempt(0, user, "k1", token).await.outcome;

    keys(&format!("[{one}, {two}]"));
    let (code, told, _) = reload(&deployment, &[]);
    assert_eq!((code, told.as_str()), (0, "applied:\n  tokens.keys: [\"one\"] → [\"one\",\"two\"]\n"));
    keys(&format!("[{two}, {one}]"));
    assert_eq!(reload(&deployment, &[]).0, 0);
    let new = deployment.token(0, "bob", "k1").await;
    let won = judged("ann", &old).await;
    assert!(won == "WON" || won == "QUEUED", "a token of the old key is worth {won}");
    keys(&format!("[{two}]"));
    assert_eq!(reload(&deployment, &[]).0, 0);
    let won = judged("bob", &new).await;
    assert!(won == "WON" || won == "QUEUED", "a token of the new key is worth {won}");
    assert_eq!(judged("ann", &old).await, "TOKEN_INVALID");

    // The contents of a secret's file change; beside it an edit that waits for a restart.
    fs::write(secret(&deployment, "token-key-2"), "a-third-secret-that-is-longer-than-32-bytes").unwrap();
    fs::write(secret(&deployment, "orders-api-token"), "a-fourth-secret-that-is-longer-than-32-bytes").unwrap();
    replace(&deployment, "  drain_delay: 100ms", "  drain_delay: 100ms\n  threads: 3");
    let (code, told, said) = reload(&deployment, &["--json"]);
    assert_eq!(code, 0, "{said}");
    assert!(!told.contains("secret-that"), "{told}");
    let told: Value = serde_json::from_str(&told).unwrap();
    let changes: Vec<(&str, &str)> = told["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| (change["key"].as_str().unwrap(), change["effect"].as_str().unwrap()))
        .collect();
    let expected = [
        ("gate.threads", "needs_restart"),
        ("order_service.api_token", "order_service"),
        ("orders.api_token", "needs_restart"),
        ("tokens.keys[two].key", "applied"),
    ];
    assert_eq!(changes, expected);
    assert_eq!(judged("bob", &new).await, "TOKEN_INVALID", "the key's new contents are not in effect");
    deployment.until_metric(0, "seckill_config_restart_pending_keys 2").await;
    // Until the restart it is told again.
    let (code, told, _) = reload(&deployment, &[]);
    assert_eq!(code, 0);
    assert!(told.starts_with("nothing to apply without a restart\n"), "{told}");
    assert!(told.contains("  gate.threads: 0 → 3\n  orders.api_token: changed\n"), "{told}");

    // The admin token itself is changed by the last request that the old one may make.
    let token = secret(&deployment, "admin-token");
    let before = fs::read_to_string(&token).unwrap();
    fs::write(&token, "a-new-admin-token-of-more-than-32-bytes").unwrap();
    let (code, told, said) = reload(&deployment, &["--token", before.trim()]);
    assert_eq!(code, 0, "{said}");
    assert!(told.contains("gate.admin_token: changed"), "{told}");
    assert_eq!(reload(&deployment, &["--token", before.trim()]).0, 1);
    assert_eq!(reload(&deployment, &[]).0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_that_was_never_preheated_is_edited_and_goes_freely() {
    let deployment = Deployment::as_wished(Wish { sales: vec![SALE.into()], ..Wish::default() }).await;
    let draft = sale("draft", 2, &deployment.config);
    edit(&deployment, |text| format!("{text}{draft}"));
    assert_eq!(reload(&deployment, &[]).0, 0);
    let total = |units: u32| format!(r#"seckill_stock_units{{activity="draft",kind="total",sku="phone"}} {units}"#);
    deployment.until_metric(0, &total(2)).await;
    replace(&deployment, "stock: 2 }", "stock: 7 }");
    let (code, told, said) = reload(&deployment, &[]);
    assert_eq!((code, told.as_str()), (0, "applied:\n  activities.draft.skus.phone.stock: 2 → 7\n"), "{said}");
    deployment.until_metric(0, &total(7)).await;
    let preheated = deployment.command(0, &["preheat", "draft"]).output().unwrap();
    assert!(preheated.status.success(), "{preheated:?}");
    deployment.until_phase("draft", 0, "open").await;
    deployment.until_metric(0, r#"seckill_activity_file_differs{activity="draft"} 0"#).await;

    let other = sale("sketch", 2, &deployment.config);
    edit(&deployment, |text| format!("{text}{other}"));
    assert_eq!(reload(&deployment, &[]).0, 0);
    assert_eq!(deployment.look(0, "/seckill/sketch").await, 200);
    let of_sketch = async || {
        let metrics = deployment.metrics(0).await;
        let series = metrics.lines().filter(|line| line.contains(r#"activity="sketch""#));
        series.map(str::to_owned).collect::<Vec<_>>()
    };
    let shown = of_sketch().await;
    for series in ["seckill_activity_barred{", "seckill_breaker_open{", "seckill_page_hits_total{"] {
        assert!(shown.iter().any(|line| line.starts_with(series)), "{series} is not in {shown:#?}");
    }
    edit(&deployment, |text| text.replace(&other, ""));
    let (code, told, said) = reload(&deployment, &[]);
    assert_eq!((code, told.as_str()), (0, "applied:\n  activities.sketch: removed\n"), "{said}");
    assert_eq!(of_sketch().await, Vec::<String>::new());
    let gone = deployment.json(0, "/seckill/sketch/state", "ann").await;
    assert_eq!(gone["code"], "NO_SUCH_ACTIVITY");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_a_file_that_leaves_a_sale_out_is_alarmed() {
    let mut deployment = Deployment::start(1, 5).await;
    deployment.until_open(0).await;
    deployment.kill_orders();
    let token = deployment.token(0, "ann", "k1").await;
    assert_eq!(deployment.attempt(0, "ann", "k1", &token).await.outcome, "QUEUED");
    // A reload would refuse such a file.
    let whole = fs::read_to_string(&deployment.config).unwrap();
    edit(&deployment, |text| {
        let others = text.lines().filter(|line| !line.starts_with(&format!("  {SALE}:")));
        others.map(|line| format!("{line}\n")).collect()
    });
    let log = with_log(&mut deployment);
    deployment.until_metric(0, "seckill_activities_left_out 1").await;
    let said = fs::read_to_string(&log).unwrap();
    let alarm = said.lines().find(|line| line.contains("LEFT OUT")).unwrap_or_else(|| panic!("{said}"));
    assert!(alarm.contains("ERROR") && alarm.contains(SALE) && alarm.contains("unsettled=1"), "{alarm}");
    // Back in the file, the win goes on to its end.
    fs::write(&deployment.config, whole).unwrap();
    deployment.kill_gate(0);
    deployment.start_gate(0);
    deployment.start_orders();
    deployment.until_metric(0, "seckill_activities_left_out 0").await;
    assert_eq!(deployment.result(SALE, 0, "ann", "k1").await["state"], "accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_nobody_can_read_to_its_end_is_told_and_blocks_no_later_reload() {
    let deployment = Deployment::as_wished(Wish { sales: vec![SALE.into()], ..Wish::default() }).await;
    let assets = deployment.config.with_file_name("page").join("assets");
    fs::create_dir_all(&assets).unwrap();
    fs::write(assets.with_file_name("index.html"), "<h1>Ours</h1>").unwrap();
    let pipe = assets.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    replace(&deployment, &format!("  {SALE}: {{"), &format!("  {SALE}: {{ page: page,"));
    let (code, _, said) = reload(&deployment, &[]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("RELOAD_FAILED") && said.contains("assets/pipe: not a regular file"), "{said}");
    fs::remove_file(&pipe).unwrap();
    let (code, told, said) = reload(&deployment, &[]);
    assert_eq!((code, told.as_str()), (0, "applied:\n  activities.launch.page: none → page\n"), "{said}");
    assert_eq!(deployment.look(0, &format!("/seckill/{SALE}")).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reload_leaves_an_audit_line_that_says_who_asked_and_a_dry_run_is_no_error() {
    let mut deployment = Deployment::start(1, 5).await;
    replace(&deployment, "logs: { filter: warn }", "logs: { filter: info, format: json }");
    let log = with_log(&mut deployment);
    deployment.until_metric(0, r#"seckill_config_reloads_total{result="ok"} 0"#).await;
    let lines = || -> Vec<Value> {
        fs::read_to_string(&log).unwrap().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let audited = || -> Vec<(String, bool, String)> {
        let word = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
        let of_reloads = |line: &&Value| line["target"] == "audit" && line["action"] == "reload";
        let shown = |line: &Value| (word(line, "peer"), line["dry_run"] == true, word(line, "outcome"));
        lines().iter().filter(of_reloads).map(shown).collect()
    };
    let errors = || lines().iter().filter(|line| line["level"] == "ERROR").count();

    hang_up(&deployment);
    deployment.until_metric(0, r#"seckill_config_reloads_total{result="ok"} 1"#).await;
    for _ in 0..100 {
        if !audited().is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(audited(), [("SIGHUP".to_owned(), false, "unchanged".to_owned())]);

    // The command reads the file, too: what it must still understand stays whole.
    replace(&deployment, &format!("{SKU}: {{ stock: 5 }}"), &format!("{SKU}: {{ stock: 8 }}"));
    let (code, _, said) = reload(&deployment, &["--dry-run"]);
    assert!(code == 1 && said.contains("EDIT_REFUSED"), "{code} {said}");
    assert_eq!(errors(), 0, "a dry run is logged as an error: {:#?}", lines());
    let asked = lines().iter().filter(|line| line["code"] == "EDIT_REFUSED" && line["dry_run"] == true).count();
    assert_eq!(asked, 1, "{:#?}", lines());
    assert_eq!(reload(&deployment, &[]).0, 1);
    assert_eq!(errors(), 2, "{:#?}", lines());
    let audited = audited();
    assert_eq!(audited.len(), 3, "{audited:?}");
    for ((peer, dry_run, outcome), dry) in audited[1..].iter().zip([true, false]) {
        assert!(peer.starts_with("127.0.0.1:") && *dry_run == dry && outcome == "EDIT_REFUSED", "{audited:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_names_gate_and_file_and_the_command_warns_if_another_was_meant() {
    let deployment = Deployment::start(1, 5).await;
    let file = deployment.config.display().to_string();
    let (code, told, said) = reload(&deployment, &["--json"]);
    assert_eq!((code, said.as_str()), (0, ""));
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((told["file"].as_str(), told["gate"].as_str()), (Some(file.as_str()), Some("gate-1")), "{told}");

    // Edited and named is a copy; the gate goes on with its own.
    let copy = deployment.config.with_file_name("copy.yaml");
    fs::copy(&deployment.config, &copy).unwrap();
    let admin = format!("http://127.0.0.1:{}", deployment.gates[0].admin);
    let run = |config: &Path| {
        let output = seckill_gate().args(["reload", "--admin", &admin, "-c"]).arg(config).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let own = (Some(0), format!("gate-1 read {file}\nnothing changed\n"), String::new());
    assert_eq!(run(&deployment.config), own);
    let (code, told, said) = run(&copy);
    assert_eq!((code, told), (own.0, own.1));
    assert!(said.contains("warning") && said.contains(&file) && said.contains("copy.yaml"), "{said}");
    // A refusal names both, too.
    replace(&deployment, &format!("{SKU}: {{ stock: 5 }}"), &format!("{SKU}: {{ stock: 8 }}"));
    let (code, told, said) = run(&deployment.config);
    assert_eq!((code, told.as_str()), (Some(1), ""));
    assert!(said.starts_with(&format!("gate-1 read {file}\n")) && !said.contains("warning"), "{said}");
}
