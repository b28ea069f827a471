//! The model, the SQLite store and the Lua scripts on a real Redis agree, reply by reply and in their final state, on
//! generated sequences of operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use seckill_gate::domain::admission::{
    ActivityState, Attempt, Barred, Batch, Change, ClaimDue, Epoch, Guard, JournalCursor, Operate, Poll, Polled,
    PolledActivity, Preheat, ReleaseWin, RunId, Settle, Settlement, Terms,
};
use seckill_gate::domain::backoff::Backoff;
use seckill_gate::domain::dead_letters::{DeadCursor, DeadLetterPolicy, DeadPage, Retry};
use seckill_gate::domain::model::Model;
use seckill_gate::domain::win::{Cause, Reason, Release};
use seckill_gate::domain::{ActivityId, Fingerprint, IdempotencyKey, RequestId, SkuId, StoreMs, UserId};
use seckill_gate::gate::store::AdmissionStore;
use seckill_gate::gate::store::redis::{LuaScript, RedisStore, Scripts};
use seckill_gate::gate::store::sqlite::SqliteStore;
use seckill_gate::platform::redis::RedisSettings;

use crate::harness::redis::Redis;
use crate::harness::store::look;

/// At least 10,000 operations in every run of CI.
const CASES: u32 = 130;
const STEPS: usize = 80;

const HOUR: Duration = Duration::from_secs(3_600);

// ------------------------------------------------------------------------------------- what is generated

#[derive(Debug, Clone)]
struct Case {
    window: Window,
    limit: u32,
    rebuy: bool,
    /// Units per SKU: one to three of them.
    totals: Vec<i64>,
    steps: Vec<(GuardKind, Step)>,
}

#[derive(Debug, Clone, Copy)]
enum Window {
    Open,
    NotStarted,
    Over,
}

/// Mostly what a healthy gate sends.
#[derive(Debug, Clone, Copy)]
enum GuardKind {
    Good,
    WrongEpoch,
    WrongRun,
    Late,
}

#[derive(Debug, Clone)]
enum Step {
    Admit { attempts: Vec<Try>, lease: Duration },
    Settle { who: Who, said: u8, pause: Duration, dead_after: Duration },
    Retry(Vec<Who>),
    DeadLetters { limit: usize },
    Release { who: Who, cause: Cause, short: bool, delay: Duration },
    Claim { limit: usize, lease: Duration, dead_after: Option<Duration> },
    Total { sku: u8, from: i64, to: i64, delay: Duration },
    Pause(bool),
    Stop(u8, bool),
    Poll,
    Find(Vec<Who>),
    WinsOf(u8),
    Snapshot,
}

/// A user and a key: few of each, so that repeats and conflicts are common.
#[derive(Debug, Clone, Copy)]
struct Who {
    user: u8,
    key: u8,
}

#[derive(Debug, Clone, Copy)]
struct Try {
    who: Who,
    /// 3 is one that no activity offers.
    sku: u8,
    qty: u32,
    body: u8,
    may_win: bool,
}

fn who() -> impl Strategy<Value = Who> {
    (0..6u8, 0..3u8).prop_map(|(user, key)| Who { user, key })
}

fn now_or_much_later() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => Just(Duration::ZERO), 1 => Just(HOUR)]
}

fn attempt() -> impl Strategy<Value = Try> {
    let sku = prop_oneof![4 => Just(0u8), 2 => Just(1), 1 => Just(2), 1 => Just(3)];
    let qty = prop_oneof![4 => Just(1u32), 2 => Just(2), 1 => Just(3)];
    let body = prop_oneof![9 => Just(0u8), 1 => Just(1)];
    (who(), sku, qty, body, prop::bool::weighted(0.85)).prop_map(|(who, sku, qty, body, may_win)| Try {
        who,
        sku,
        qty,
        body,
        may_win,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let attempts =
        prop_oneof![8 => prop::collection::vec(attempt(), 1..8), 1 => prop::collection::vec(attempt(), 60..=128)];
    let cause = prop_oneof![Just(Cause::Refused), Just(Cause::Void), Just(Cause::Ended)];
    prop_oneof![
        8 => (attempts, now_or_much_later()).prop_map(|(attempts, lease)| Step::Admit { attempts, lease }),
        5 => (who(), 0..3u8, now_or_much_later(), now_or_much_later())
            .prop_map(|(who, said, pause, dead_after)| Step::Settle { who, said, pause, dead_after }),
        1 => prop::collection::vec(who(), 1..5).prop_map(Step::Retry),
        1 => (1..4usize).prop_map(|limit| Step::DeadLetters { limit }),
        4 => (who(), cause, prop::bool::weighted(0.15), now_or_much_later())
            .prop_map(|(who, cause, short, delay)| Step::Release { who, cause, short, delay }),
        3 => (0..5usize, now_or_much_later(), prop::option::of(now_or_much_later()))
            .prop_map(|(limit, lease, dead_after)| Step::Claim { limit, lease, dead_after }),
        2 => (0..4u8, 0..9i64, 0..9i64, now_or_much_later())
            .prop_map(|(sku, from, to, delay)| Step::Total { sku, from, to, delay }),
        1 => prop::bool::weighted(0.3).prop_map(Step::Pause),
        1 => (0..4u8, prop::bool::weighted(0.3)).prop_map(|(sku, stopped)| Step::Stop(sku, stopped)),
        1 => Just(Step::Poll),
        1 => prop::collection::vec(who(), 0..5).prop_map(Step::Find),
        1 => (0..6u8).prop_map(Step::WinsOf),
        1 => Just(Step::Snapshot),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let window = prop_oneof![8 => Just(Window::Open), 1 => Just(Window::NotStarted), 1 => Just(Window::Over)];
    let guard = prop_oneof![
        30 => Just(GuardKind::Good),
        1 => Just(GuardKind::WrongEpoch),
        1 => Just(GuardKind::WrongRun),
        1 => Just(GuardKind::Late),
    ];
    (
        window,
        1..5u32,
        any::<bool>(),
        prop::collection::vec(0..9i64, 1..4),
        prop::collection::vec((guard, step()), STEPS),
    )
        .prop_map(|(window, limit, rebuy, totals, steps)| Case { window, limit, rebuy, totals, steps })
}

// ------------------------------------------------------------------------------- the three, side by side

struct Trio {
    redis: RedisStore,
    sqlite: SqliteStore,
    sqlite_clock: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
    cases: AtomicU64,
    /// So that a generator that makes no dead letters is noticed.
    dead_seen: AtomicUsize,
}

impl Trio {
    async fn new(redis: &Redis, scripts: Scripts) -> Trio {
        let settings =
            RedisSettings { url: redis.url(), username: None, password: None, deadline: Duration::from_secs(10) };
        let folder = tempfile::tempdir().unwrap();
        let sqlite_clock = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&sqlite_clock);
        let sqlite = SqliteStore::open(
            &folder.path().join("store.db"),
            Duration::from_secs(10),
            Arc::new(move || StoreMs(clock.load(Ordering::Relaxed))),
            Box::new(|why| panic!("{why}")),
        )
        .await
        .unwrap();
        let redis = RedisStore::with_scripts(&settings, scripts).unwrap();
        Trio { redis, sqlite, sqlite_clock, _folder: folder, cases: AtomicU64::new(0), dead_seen: AtomicUsize::new(0) }
    }

    /// Runs a case; `Err` tells the first difference.
    async fn run(&self, case: &Case) -> Result<(), TestCaseError> {
        let number = self.cases.fetch_add(1, Ordering::Relaxed);
        let activity: ActivityId = format!("case-{number}").parse().unwrap();
        let at = Run::start(self, activity, case).await?;
        for (guard, step) in &case.steps {
            at.step(*guard, step).await?;
        }
        // The final state, whole.
        for step in [Step::Snapshot, Step::Poll, Step::DeadLetters { limit: 2 }] {
            at.step(GuardKind::Good, &step).await?;
        }
        let everybody: Vec<Who> = (0..6).flat_map(|user| (0..3).map(move |key| Who { user, key })).collect();
        at.step(GuardKind::Good, &Step::Find(everybody)).await
    }
}

/// One case under way.
struct Run<'a> {
    trio: &'a Trio,
    activity: ActivityId,
    model: std::sync::Mutex<Model>,
    redis_run: RunId,
    sqlite_run: RunId,
}

fn sku(number: u8) -> SkuId {
    ["red", "green", "blue", "not-on-sale"][usize::from(number)].parse().unwrap()
}

fn user(number: u8) -> UserId {
    // Characters that a careless script or query would trip over.
    ["a:b", "'", "u-%1", "[x]", "0", "-"][usize::from(number)].parse().unwrap()
}

fn key(number: u8) -> IdempotencyKey {
    ["k.1", "K_2", "-3"][usize::from(number)].parse().unwrap()
}

impl<'a> Run<'a> {
    async fn start(trio: &'a Trio, activity: ActivityId, case: &Case) -> Result<Run<'a>, TestCaseError> {
        let ask = Poll { gate: Some("gate-1".parse().unwrap()), ..look() };
        let before = trio.redis.poll(&activity, &ask).await.unwrap();
        prop_assert_eq!(&before.activity, &PolledActivity::NotPreheated);
        // In none of them is it told of an activity that is not there that nobody has won.
        let page = DeadPage { after: None, limit: 1 };
        for store in [&trio.redis as &dyn AdmissionStore, &trio.sqlite] {
            prop_assert_eq!(store.find(&activity, &[]).await.unwrap(), Err(Barred::NotPreheated));
            prop_assert_eq!(store.wins_of(&activity, &user(0)).await.unwrap(), Err(Barred::NotPreheated));
            prop_assert_eq!(store.dead_letters(&activity, &page).await.unwrap(), Err(Barred::NotPreheated));
        }
        let sqlite_run = trio.sqlite.poll(&activity, &ask).await.unwrap().server_run;

        let now = before.now.0;
        let hour = HOUR.as_millis() as u64;
        let (starts, ends) = match case.window {
            Window::Open => (now - hour, now + hour),
            Window::NotStarted => (now + hour, now + 2 * hour),
            Window::Over => (now - 2 * hour, now - hour),
        };
        let totals = case.totals.iter().enumerate();
        let terms = Terms {
            epoch: Epoch(1),
            starts_at: StoreMs(starts),
            ends_at: StoreMs(ends),
            per_user_limit: case.limit,
            rebuy_after_release: case.rebuy,
            retention: HOUR * 24,
            skus: totals.map(|(number, total)| (sku(number as u8), *total)).collect(),
        };
        let run = Run {
            trio,
            activity,
            model: std::sync::Mutex::new(Model::new(before.server_run.clone())),
            redis_run: before.server_run,
            sqlite_run,
        };
        // On another run, late, once, again, on other terms, and late again.
        let other = Terms { per_user_limit: case.limit + 1, ..terms.clone() };
        for (kind, terms) in [
            (GuardKind::WrongRun, &terms),
            (GuardKind::Late, &terms),
            (GuardKind::Good, &terms),
            (GuardKind::Good, &terms),
            (GuardKind::Good, &other),
            (GuardKind::Late, &terms),
        ] {
            let ask = |of: &RunId| {
                let guard = run.guard(kind, of);
                Preheat { run_id: guard.run_id, not_after: guard.not_after, terms: terms.clone() }
            };
            let by_redis = trio.redis.preheat(&run.activity, &ask(&run.redis_run)).await.unwrap();
            run.set_clock(by_redis.now);
            let by_sqlite = trio.sqlite.preheat(&run.activity, &ask(&run.sqlite_run)).await.unwrap();
            prop_assert_eq!(&by_redis, &by_sqlite, "Redis (left) and SQLite disagree on {:?}", kind);
            let by_model = run.model.lock().unwrap().preheat(by_redis.now, &run.activity, &ask(&run.redis_run));
            prop_assert_eq!(&by_redis, &by_model, "Redis (left) and model disagree on {:?}", kind);
        }
        Ok(run)
    }

    fn set_clock(&self, now: StoreMs) {
        self.trio.sqlite_clock.store(now.0, Ordering::Relaxed);
    }

    fn guard(&self, kind: GuardKind, run: &RunId) -> Guard {
        let good = Guard { epoch: Epoch(1), run_id: run.clone(), not_after: StoreMs(1 << 50) };
        match kind {
            GuardKind::Good => good,
            GuardKind::WrongEpoch => Guard { epoch: Epoch(2), ..good },
            GuardKind::WrongRun => Guard { run_id: RunId("another".into()), ..good },
            GuardKind::Late => Guard { not_after: StoreMs(1), ..good },
        }
    }

    fn id(&self, who: Who) -> RequestId {
        RequestId::derive(&self.activity, &user(who.user), &key(who.key))
    }

    async fn step(&self, kind: GuardKind, step: &Step) -> Result<(), TestCaseError> {
        let (activity, redis, sqlite) = (&self.activity, &self.trio.redis, &self.trio.sqlite);
        let (for_redis, for_sqlite) = (self.guard(kind, &self.redis_run), self.guard(kind, &self.sqlite_run));

        // Redis answers first; its time is then everybody's.
        macro_rules! agree {
            ($operation:ident, $question:expr) => {{
                let question = $question;
                let answer = redis.$operation(activity, &question(for_redis.clone())).await.unwrap();
                self.set_clock(answer.now);
                let by_model =
                    self.model.lock().unwrap().$operation(answer.now, activity, &question(for_redis.clone()));
                prop_assert_eq!(&answer, &by_model, "Redis (left) and model disagree on {:?}", step);
                let by_sqlite = sqlite.$operation(activity, &question(for_sqlite.clone())).await.unwrap();
                prop_assert_eq!(&by_sqlite, &by_model, "SQLite (left) and model disagree on {:?}", step);
            }};
        }

        match step {
            Step::Admit { attempts, lease } => {
                let attempts: Vec<Attempt> = attempts.iter().map(|tried| self.attempt(*tried)).collect();
                agree!(admit, |guard| Batch { guard, first_delivery_lease: *lease, attempts: attempts.clone() });
            }
            Step::Settle { who, said, pause, dead_after } => {
                let reply = Bytes::from(format!("201\n\n\n{{\"by\":{}}}\0", who.user));
                let settlement = match said {
                    0 => Settlement::Queued { reply },
                    1 => Settlement::Booked { reply },
                    _ => Settlement::Unknown,
                };
                let backoff = Backoff { first: *pause, cap: HOUR };
                let dead_letters = DeadLetterPolicy { after: *dead_after, retry_every: *pause / 2 };
                agree!(settle, |guard| Settle {
                    guard,
                    request_id: self.id(*who),
                    settlement: settlement.clone(),
                    backoff,
                    dead_letters,
                });
            }
            Step::Release { who, cause, short, delay } => {
                agree!(release, |guard| ReleaseWin {
                    guard,
                    request_id: self.id(*who),
                    release: Release { cause: *cause, reason: Reason::lossy("because") },
                    ledger_short: *short,
                    returning_delay: *delay,
                });
            }
            Step::Retry(whos) => {
                let ids: Vec<RequestId> = whos.iter().map(|who| self.id(*who)).collect();
                agree!(retry, |guard| Retry { guard, ids: ids.clone() });
            }
            Step::DeadLetters { limit } => {
                // Page by page to the end, as an operator reads them.
                let mut page = DeadPage { after: None, limit: *limit };
                loop {
                    let by_model = self.model.lock().unwrap().dead_letters(activity, &page);
                    prop_assert_eq!(&redis.dead_letters(activity, &page).await.unwrap(), &by_model);
                    prop_assert_eq!(&sqlite.dead_letters(activity, &page).await.unwrap(), &by_model);
                    let by_model = by_model.unwrap();
                    let Some(last) = by_model.last() else { break };
                    self.trio.dead_seen.fetch_add(by_model.len(), Ordering::Relaxed);
                    page.after = Some(DeadCursor { since: last.record.dead_since.unwrap(), id: last.request_id });
                }
            }
            Step::Claim { limit, lease, dead_after } => {
                let mark_dead = dead_after.map(|after| DeadLetterPolicy { after, retry_every: *lease / 2 });
                agree!(claim_due, |guard| ClaimDue { guard, limit: *limit, lease: *lease, mark_dead });
            }
            Step::Total { sku: number, from, to, delay } => {
                let change = Change::SetTotal { sku: sku(*number), from: *from, to: *to, returning_delay: *delay };
                agree!(operate, |guard| Operate { guard, change: change.clone() });
            }
            Step::Pause(paused) => {
                let change = if *paused { Change::Pause } else { Change::Resume };
                agree!(operate, |guard| Operate { guard, change: change.clone() });
            }
            Step::Stop(number, stopped) => {
                let change = if *stopped { Change::StopSku(sku(*number)) } else { Change::StartSku(sku(*number)) };
                agree!(operate, |guard| Operate { guard, change: change.clone() });
            }
            Step::Poll => {
                let vouched = Some((Epoch(1), self.redis_run.clone()));
                let ask = Poll { gate: Some("gate-1".parse().unwrap()), vouched, ..look() };
                let by_redis = redis.poll(activity, &ask).await.unwrap();
                self.set_clock(by_redis.now);
                let by_sqlite = sqlite.poll(activity, &ask).await.unwrap();
                let by_model = self.model.lock().unwrap().poll(by_redis.now, activity, &ask);
                prop_assert_eq!(comparable(by_redis), comparable(by_model.clone()), "Redis (left) and model, poll");
                prop_assert_eq!(comparable(by_sqlite), comparable(by_model), "SQLite (left) and model, poll");
            }
            Step::Find(whos) => {
                let ids: Vec<RequestId> = whos.iter().map(|who| self.id(*who)).collect();
                let by_model = self.model.lock().unwrap().find(activity, &ids);
                prop_assert_eq!(&redis.find(activity, &ids).await.unwrap(), &by_model);
                prop_assert_eq!(&sqlite.find(activity, &ids).await.unwrap(), &by_model);
            }
            Step::WinsOf(number) => {
                let by_model = self.model.lock().unwrap().wins_of(activity, &user(*number));
                prop_assert_eq!(&redis.wins_of(activity, &user(*number)).await.unwrap(), &by_model);
                prop_assert_eq!(&sqlite.wins_of(activity, &user(*number)).await.unwrap(), &by_model);
            }
            Step::Snapshot => {
                let by_model = self.model.lock().unwrap().snapshot(activity).unwrap();
                for (sku, stock) in &by_model.skus {
                    prop_assert!(stock.adds_up(), "INV-2 of {} in the model: {:?}", sku, stock);
                }
                prop_assert_eq!(&redis.snapshot(activity).await.unwrap().unwrap(), &by_model);
                prop_assert_eq!(&sqlite.snapshot(activity).await.unwrap().unwrap(), &by_model);
            }
        }
        Ok(())
    }

    fn attempt(&self, tried: Try) -> Attempt {
        let payload = Bytes::from(format!("{{\"address\":\"\0 {}\n\"}}", tried.body));
        Attempt {
            request_id: self.id(tried.who),
            user: user(tried.who.user),
            key: key(tried.who.key),
            sku: sku(tried.sku),
            qty: tried.qty,
            fingerprint: Fingerprint::of(&payload),
            may_win: tried.may_win,
            payload,
        }
    }
}

/// A poll without what is each store's own: run ids and the text of the cursor.
fn comparable(polled: Polled) -> Polled {
    let run = || RunId("-".into());
    let activity = match polled.activity {
        PolledActivity::Stored(state) => {
            PolledActivity::Stored(Box::new(ActivityState { cursor: JournalCursor::start(), ..*state }))
        }
        other => other,
    };
    Polled { server_run: run(), activity, ..polled }
}

fn run_cases(redis: &Redis, scripts: Scripts, cases: u32) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let trio = runtime.block_on(Trio::new(redis, scripts));
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    runner.run(&case(), |case| runtime.block_on(trio.run(&case))).map_err(|difference| difference.to_string())?;
    assert!(trio.dead_seen.load(Ordering::Relaxed) > cases as usize / 4, "hardly any dead letters were generated");
    Ok(())
}

// ------------------------------------------------------------------------------------------------- tests

#[test]
fn model_sqlite_and_redis_agree_on_generated_sequences() {
    run_cases(&Redis::start(), Scripts::built_in(), CASES).unwrap();
}

/// The real script, changed in one place: it sells the last unit to whoever asks for two.
fn oversells() -> String {
    let (right, wrong) = include_str!("fixtures/admit_oversells.patch").split_once("=>").unwrap();
    let script = include_str!("../../lua/admit.lua");
    let changed = script.replace(right.trim(), wrong.trim());
    assert_ne!(script, changed, "the fixture no longer fits the script");
    changed
}

#[test]
fn a_script_that_oversells_is_found_out() {
    let wrong = LuaScript::assemble(&oversells(), include_str!("../../lua/common.lua"));
    let scripts = Scripts { admit: wrong, ..Scripts::built_in() };
    let difference = run_cases(&Redis::start(), scripts, CASES).unwrap_err();
    assert!(difference.contains("Redis (left) and model disagree"), "{difference}");
}

#[test]
fn the_scripts_keep_to_one_slot_of_a_cluster() {
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]);
    redis.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
    redis.wait_for("CLUSTER INFO", "cluster_state:ok");
    // The server does refuse what leaves the slot; otherwise this test would show nothing.
    let stray = redis.command(&["EVAL", "#!lua\nreturn redis.call('SET', 'elsewhere', 1)", "1", "sk:{a.0}:meta"]);
    let refusal = stray.unwrap_err();
    assert!(refusal.contains("slot") || refusal.contains("non local key"), "{refusal}");
    run_cases(&redis, Scripts::built_in(), 30).unwrap();
}
