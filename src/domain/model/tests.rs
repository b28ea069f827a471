//! The rules that every store must keep, shown on the model.

use super::*;
use crate::domain::admission::{KnownWin, Settlement};
use crate::domain::backoff::Backoff;
use crate::domain::dead_letters::DeadLetterPolicy;
use crate::domain::ids::{Fingerprint, IdempotencyKey};
use crate::domain::win::{Cause, Reason, Release};
use bytes::Bytes;
use std::time::Duration;

const NOW: StoreMs = StoreMs(1_000_000);

fn sale() -> ActivityId {
    "sale".parse().unwrap()
}

fn run() -> RunId {
    RunId("run-1".into())
}

fn guard() -> Guard {
    Guard { epoch: Epoch(1), run_id: run(), not_after: StoreMs(u64::MAX) }
}

fn preheated(total: i64, limit: u32) -> Model {
    let mut model = Model::new(run());
    let terms = Terms {
        epoch: Epoch(1),
        starts_at: StoreMs(0),
        ends_at: StoreMs(u64::MAX),
        per_user_limit: limit,
        rebuy_after_release: true,
        retention: Duration::from_secs(60),
        skus: vec![("a".parse().unwrap(), total)],
    };
    let preheat = Preheat { run_id: run(), not_after: NOW, terms };
    let elsewhere = Preheat { run_id: RunId("run-0".into()), ..preheat.clone() };
    assert_eq!(model.preheat(NOW, &sale(), &elsewhere).outcome, Err(Barred::Suspect));
    assert_eq!(model.preheat(StoreMs(NOW.0 + 1), &sale(), &preheat).outcome, Err(Barred::Late));
    assert_eq!(model.preheat(NOW, &sale(), &preheat).outcome, Ok(Preheated::Created));
    assert_eq!(model.preheat(StoreMs(NOW.0 + 1), &sale(), &elsewhere).outcome, Ok(Preheated::Already));
    model
}

fn attempt(user: &str, key: &str) -> Attempt {
    let (user, key): (UserId, IdempotencyKey) = (user.parse().unwrap(), key.parse().unwrap());
    Attempt {
        request_id: RequestId::derive(&sale(), &user, &key),
        user,
        key,
        sku: "a".parse().unwrap(),
        qty: 1,
        fingerprint: Fingerprint::of(b"{}"),
        may_win: true,
        payload: Bytes::from_static(b"{}"),
    }
}

fn admit(model: &mut Model, attempts: Vec<Attempt>) -> Vec<Verdict> {
    let batch = Batch { guard: guard(), first_delivery_lease: Duration::from_secs(5), attempts };
    model.admit(NOW, &sale(), &batch).outcome.unwrap()
}

fn held() -> Verdict {
    Verdict::Known(KnownWin { state: WinState::Held, won_at: NOW, reply: None })
}

#[test]
fn a_batch_sees_the_effects_of_its_own_beginning() {
    let mut model = preheated(1, 1);
    let verdicts = admit(&mut model, vec![attempt("u", "k"), attempt("u", "k"), attempt("u", "k2"), attempt("v", "k")]);
    assert_eq!(verdicts, [Verdict::Won, held(), Verdict::AtLimit, Verdict::SoldOut]);
}

#[test]
fn a_known_id_is_told_its_win_whatever_has_happened_since() {
    let mut model = preheated(1, 1);
    admit(&mut model, vec![attempt("u", "k")]);
    let pause = Operate { guard: guard(), change: Change::Pause };
    assert_eq!(model.operate(NOW, &sale(), &pause).outcome, Ok(Operated::Applied));
    let lookup = Attempt { may_win: false, ..attempt("u", "k") };
    assert_eq!(admit(&mut model, vec![lookup, attempt("v", "k")]), [held(), Verdict::Paused]);
    let other_body = Attempt { fingerprint: Fingerprint::of(b"[]"), ..attempt("u", "k") };
    assert_eq!(admit(&mut model, vec![other_body]), [Verdict::Conflict]);
}

#[test]
fn released_units_return_once_and_only_after_the_delay() {
    let mut model = preheated(1, 1);
    admit(&mut model, vec![attempt("u", "k")]);
    let release = ReleaseWin {
        guard: guard(),
        request_id: attempt("u", "k").request_id,
        release: Release { cause: Cause::Refused, reason: Reason::lossy("x") },
        ledger_short: false,
        returning_delay: Duration::from_secs(1),
    };
    assert!(matches!(model.release(NOW, &sale(), &release).outcome, Ok(Recorded::Applied(_))));
    assert!(matches!(model.release(NOW, &sale(), &release).outcome, Ok(Recorded::Already(_))));
    assert_eq!(admit(&mut model, vec![attempt("v", "k")]), [Verdict::SoldOut]);
    let claim = ClaimDue { guard: guard(), limit: 9, lease: Duration::from_secs(1), mark_dead: None };
    let later = NOW.after(Duration::from_secs(1));
    let claimed = model.claim_due(later, &sale(), &claim).outcome.unwrap();
    assert_eq!((claimed.wins.len(), claimed.on_sale.len()), (0, 1));
    assert_eq!(admit(&mut model, vec![attempt("v", "k"), attempt("u", "k3")]), [Verdict::Won, Verdict::SoldOut]);
}

#[test]
fn the_reply_that_was_booked_is_kept_for_ever() {
    let mut model = preheated(1, 1);
    admit(&mut model, vec![attempt("u", "k")]);
    let mut settle = Settle {
        guard: guard(),
        request_id: attempt("u", "k").request_id,
        settlement: Settlement::Booked { reply: Bytes::from_static(b"first") },
        backoff: Backoff { first: Duration::from_millis(300), cap: Duration::from_secs(5) },
        dead_letters: DeadLetterPolicy::default(),
    };
    let known = KnownWin { state: WinState::Accepted, won_at: NOW, reply: Some(Bytes::from_static(b"first")) };
    assert_eq!(model.settle(NOW, &sale(), &settle).outcome, Ok(Recorded::Applied(known.clone())));
    settle.settlement = Settlement::Booked { reply: Bytes::from_static(b"second") };
    assert_eq!(model.settle(NOW, &sale(), &settle).outcome, Ok(Recorded::Already(known)));
}

#[test]
fn a_restart_makes_the_store_suspect_and_a_late_batch_changes_nothing() {
    let mut model = preheated(1, 1);
    let late = Batch {
        guard: Guard { not_after: StoreMs(NOW.0 - 1), ..guard() },
        first_delivery_lease: Duration::ZERO,
        attempts: vec![attempt("u", "k")],
    };
    assert_eq!(model.admit(NOW, &sale(), &late).outcome, Err(Barred::Late));
    model.restart(RunId("run-2".into()));
    assert_eq!(admit(&mut model, vec![attempt("u", "k")]), [Verdict::Suspect]);
    let poll = Poll { gate: None, vouched: None, after: JournalCursor::start(), max_entries: 1 };
    model.poll(NOW, &sale(), &poll);
    model.restart(run());
    assert_eq!(
        admit(&mut model, vec![attempt("u", "k")]),
        [Verdict::Suspect],
        "its run came back, what it lost did not"
    );
}

#[test]
fn a_suspect_store_brings_its_wins_to_their_end_for_whoever_knows_its_run() {
    let mut model = preheated(1, 1);
    assert_eq!(admit(&mut model, vec![attempt("u", "k")]), [Verdict::Won]);
    model.restart(RunId("run-2".into()));
    let settle = |guard| Settle {
        guard,
        request_id: attempt("u", "k").request_id,
        settlement: Settlement::Booked { reply: Bytes::from_static(b"first") },
        backoff: Backoff { first: Duration::from_millis(300), cap: Duration::from_secs(5) },
        dead_letters: DeadLetterPolicy::default(),
    };
    assert_eq!(model.settle(NOW, &sale(), &settle(guard())).outcome, Err(Barred::Suspect), "an old connection");
    let knowing = Guard { run_id: RunId("run-2".into()), ..guard() };
    let pause = Operate { guard: knowing.clone(), change: Change::Pause };
    assert_eq!(model.operate(NOW, &sale(), &pause).outcome, Err(Barred::Suspect));
    assert!(matches!(model.settle(NOW, &sale(), &settle(knowing)).outcome, Ok(Recorded::Applied(_))));
}
