//! What a user is told of their own wins, by whichever road.

use std::time::Duration;

use seckill_gate::domain::StoreMs;
use seckill_gate::domain::admission::Verdict;
use seckill_gate::domain::win::{Cause, Reason, Release, WinState};
use seckill_gate::gate::activity::Admitted;
use seckill_gate::platform::clock::monotonic;
use serde_json::json;

use super::world::{booked, start};

fn released(cause: Cause) -> WinState {
    WinState::Released(Release { cause, reason: Reason::lossy("because") })
}

#[tokio::test]
async fn who_has_bought_already_is_led_to_the_own_win_and_nobody_elses() {
    let world = start().await;
    let mut client = world.connect().await;
    world.port.holds("first", WinState::Accepted, Some(booked()));
    world.port.holds_for("u2", "other", WinState::Accepted, Some(booked()));
    let token = world.token(&mut client, "second").await;
    world.port.answers(Admitted::Judged(Verdict::AtLimit, world.now()));
    let refused = client.send(&world.attempt("second", &token, "{}")).await;
    assert_eq!((refused.status, refused.code()), (409, "ALREADY_BOUGHT".into()));
    let url = refused.json()["result_url"].as_str().expect("a result_url").to_owned();
    let followed = client.send(&world.get(&url)).await;
    assert_eq!(followed.status, 200);
    let results = followed.json()["results"].as_array().unwrap().clone();
    assert_eq!(results.len(), 1, "{results:?}");
    assert_eq!((&results[0]["key"], &results[0]["state"]), (&json!("first"), &json!("accepted")));
    assert_eq!(results[0]["order"], json!({ "order_id": "o1" }));
}

#[tokio::test]
async fn results_and_repetitions_say_the_same_of_every_state() {
    let world = start().await;
    let mut client = world.connect().await;
    let rows = [
        ("held", WinState::Held, None, "queued", None, (202, "QUEUED")),
        ("dead", WinState::Held, None, "queued", None, (202, "QUEUED")),
        ("booked", WinState::Accepted, Some(booked()), "accepted", None, (201, "WON")),
        ("refused", released(Cause::Refused), None, "refused", Some("because"), (409, "ORDER_REFUSED")),
        ("void", released(Cause::Void), None, "refused", Some("because"), (409, "ORDER_REFUSED")),
        ("ended", released(Cause::Ended), None, "released", Some("because"), (409, "RELEASED")),
    ];
    for (key, state, reply, shown, reason, (status, word)) in rows {
        world.port.holds(key, state.clone(), reply.clone());
        if key == "dead" {
            world.port.mark_dead(key);
        }
        let result = client.send(&world.get(&format!("/seckill/sale/results/{key}"))).await.json();
        assert_eq!((&result["state"], result["reason"].as_str()), (&json!(shown), reason), "{key}");
        let token = world.token(&mut client, key).await;
        world.port.answers(super::world::known(state, reply, world.now()));
        let told = client.send(&world.attempt(key, &token, "{}")).await;
        let heard = told.header("seckill-outcome").map_or_else(|| told.code(), Into::into);
        assert_eq!((told.status, heard.as_str()), (status, word), "{key}");
    }
}

#[tokio::test]
async fn a_copy_that_seems_too_early_is_looked_up_unless_it_surely_is() {
    let world = start().await;
    let mut client = world.connect().await;
    let token = world.token(&mut client, "k").await;
    world.port.starts_in(Duration::from_secs(20));
    let early = client.send(&world.attempt("k", &token, "{}")).await;
    assert_eq!((early.code().as_str(), world.port.attempts()), ("NOT_STARTED", 0));
    // The store's last answer took a minute, so its clock may be half a minute on: at other gates the sale may be open.
    let ago = |seconds| Duration::from_secs(seconds);
    world.clock.observe(StoreMs(world.now().0 - 30_000), monotonic() - ago(60));
    world.port.answers(super::world::known(WinState::Accepted, Some(booked()), world.now()));
    let copy = client.send(&world.attempt("k", &token, "{}")).await;
    assert_eq!((copy.status, copy.header("seckill-outcome")), (201, Some("WON")));
    assert!(world.port.last_attempt().may_win, "whether it has started, the store judges");
    world.port.answers(Admitted::Judged(Verdict::NotStarted, world.now()));
    let early = client.send(&world.attempt("k", &token, "{}")).await;
    assert_eq!((early.status, early.code()), (409, "NOT_STARTED".into()));
    assert!(early.json()["retry_after_ms"].as_u64().unwrap() > 10_000, "{:?}", early.json());
}

#[tokio::test]
async fn who_won_more_than_is_offered_now_hears_of_it_and_nobody_else_wins_so_much() {
    let world = start().await;
    let mut client = world.connect().await;
    // Two of the phone are on offer, and no tablet; when the key won there was more.
    let beyond = [(r#"{"sku":"phone","qty":3}"#, "BAD_REQUEST"), (r#"{"sku":"tablet"}"#, "NO_SUCH_SKU")];
    for (body, code) in beyond {
        assert_eq!(client.send(&world.token_request("other", body)).await.code(), code);
    }
    world.port.may_be_winner("k");
    for (body, _) in beyond {
        let reply = client.send(&world.token_request("k", body)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let token = reply.json()["token"].as_str().unwrap().to_owned();
        world.port.answers(super::world::known(WinState::Accepted, Some(booked()), world.now()));
        let told = client.send(&world.attempt("k", &token, "{}")).await;
        assert_eq!((told.status, told.header("seckill-outcome")), (201, Some("WON")), "{body}");
        // Whoever happens to use a winner's key has the token, but it wins nothing.
        assert!(!world.port.last_attempt().may_win, "{body}");
        world.port.answers(Admitted::Judged(Verdict::NotKnown, world.now()));
        let told = client.send(&world.attempt("k", &token, "{}")).await;
        assert_eq!((told.status, told.code()), (400, "BAD_REQUEST".into()), "{body}");
    }
}
