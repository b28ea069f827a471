//! Whatever happened to the first reply: every copy of a won id hears of its one win, at every gate, in every state.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;

use crate::harness::deployment::{Deployment, OTHER_SALE, SALE, SKU, Told, Wish, run};
use crate::harness::proxy::Mode;

fn is_win(told: &Told) -> bool {
    matches!(told.outcome.as_str(), "WON" | "QUEUED")
}

/// So many copies at once, at the gates in turn; `cut` of them go away before they hear anything. What the others heard.
async fn copies(
    deployment: &Arc<Deployment>,
    sale: &str,
    (user, key, token): (&str, &str, &str),
    count: usize,
    cut: f64,
    seed: u64,
) -> Vec<Told> {
    let mut random = StdRng::seed_from_u64(seed);
    let gates = deployment.gates.len();
    let sent = (0..count).map(|n| {
        let request = deployment.request(sale, n % gates, user, key, token);
        let goes_away_after = random.random_bool(cut).then(|| Duration::from_micros(random.random_range(0..30_000)));
        tokio::spawn(async move {
            let Some(patience) = goes_away_after else { return Some(Told::of(request.send().await.unwrap()).await) };
            // Dropped: its connection closes, wherever the request is by then.
            _ = tokio::time::timeout(patience, request.send()).await;
            None
        })
    });
    let sent: Vec<_> = sent.collect();
    futures::future::join_all(sent).await.into_iter().filter_map(Result::unwrap).collect()
}

/// All of them are told of one win.
fn one_win(told: &[Told]) -> String {
    let ids: HashSet<_> = told.iter().map(|told| told.request_id.clone()).collect();
    assert!(told.iter().all(is_win), "{told:#?}");
    assert_eq!(ids.len(), 1, "{ids:?}");
    told[0].request_id.clone().unwrap()
}

async fn one_order(deployment: &Deployment, request_id: &str) {
    let of_it = format!("SELECT COUNT(*) FROM orders WHERE request_id = '{request_id}' AND state = 'pending'");
    deployment.until_count(&of_it, 1).await;
}

fn wins(deployment: &Deployment, sale: &str) -> usize {
    let Ok(Value::Array(ids)) = deployment.store.command(&["HKEYS", &format!("sk:{{{sale}.0}}:wins")]) else {
        panic!("the wins cannot be read")
    };
    // One empty member shows that the key was not lost.
    ids.len() - 1
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_a_won_id_are_never_refused_whatever_happens_to_them() {
    let wish = Wish { gates: 2, stock: 3, more_skus: ", case: { stock: 1 }", ..Wish::default() };
    let deployment = Arc::new(Deployment::as_wished(wish).await);
    // A hundred at once, half of their connections cut.
    let token = deployment.token(0, "ann", "k1").await;
    let ann = ("ann", "k1", token.as_str());
    let told = copies(&deployment, SALE, ann, 100, 0.5, 1).await;
    let id = one_win(&told);
    one_order(&deployment, &id).await;
    let ann_again = async |deployment: &Arc<Deployment>, seed| {
        let told = copies(deployment, SALE, ann, 20, 0.3, seed).await;
        assert_eq!(one_win(&told), id);
        assert_eq!(wins(deployment, SALE), 1);
    };
    // The scripts are gone from the store.
    for round in 0..5 {
        deployment.store.command(&["SCRIPT", "FLUSH"]).unwrap();
        ann_again(&deployment, 10 + round).await;
    }
    // A fresh token, and one for another device.
    for device in [None, Some("phone-1"), Some("tablet-1")] {
        let token = deployment.try_token(SALE, 1, "ann", "k1", SKU, device).await.unwrap();
        let told = copies(&deployment, SALE, ("ann", "k1", &token), 20, 0.3, 20).await;
        assert_eq!(one_win(&told), id);
    }
    // The same key for something else is no copy.
    let other_sku = deployment.try_token(SALE, 0, "ann", "k1", "case", None).await.unwrap();
    assert_eq!(deployment.attempt(1, "ann", "k1", &other_sku).await.outcome, "REQUEST_ID_CONFLICT");
    let other_body = deployment.request(SALE, 0, "ann", "k1", &token).body("{}").send().await.unwrap();
    assert_eq!(Told::of(other_body).await.outcome, "REQUEST_ID_CONFLICT");

    // In a pause, told at one gate only: the other learns it from the store. A token can still be had.
    let stranger = deployment.token(1, "bob", "k1").await;
    run(&mut deployment.command(0, &["pause", SALE]));
    for gate in [0, 1] {
        deployment.until_phase(SALE, gate, "paused").await;
    }
    ann_again(&deployment, 30).await;
    let fresh = deployment.token(1, "ann", "k1").await;
    assert!(is_win(&deployment.attempt(1, "ann", "k1", &fresh).await));
    assert_eq!(deployment.attempt(1, "bob", "k1", &stranger).await.outcome, "PAUSED");
    run(&mut deployment.command(1, &["resume", SALE]));
    for gate in [0, 1] {
        deployment.until_phase(SALE, gate, "open").await;
    }
    assert_eq!(deployment.count("SELECT COUNT(*) FROM orders").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_winner_hears_of_the_win_after_the_sell_out_the_tokens_end_and_the_sales_end() {
    let wish = Wish {
        gates: 2,
        stock: 1,
        ends_in: Duration::from_secs(14),
        token_ttl: Duration::from_secs(1),
        ..Wish::default()
    };
    let deployment = Arc::new(Deployment::as_wished(wish).await);
    let token = deployment.token(0, "ann", "k1").await;
    let id = one_win(&copies(&deployment, SALE, ("ann", "k1", &token), 20, 0.5, 2).await);
    let ann_again = async |token: &str, seed| {
        let told = copies(&deployment, SALE, ("ann", "k1", token), 20, 0.3, seed).await;
        assert_eq!(one_win(&told), id);
    };
    // Sold out, as both gates know: no lease refuses the winner, a token can still be had, and nobody else gets in.
    for gate in [0, 1] {
        deployment.until_phase(SALE, gate, "sold_out").await;
        let fresh = deployment.token(gate, "ann", "k1").await;
        ann_again(&fresh, 3).await;
        let bob = deployment.try_token(SALE, gate, "bob", "k2", SKU, None).await.unwrap_err();
        assert_eq!(bob.outcome, "SOLD_OUT");
        assert_eq!(deployment.attempt(gate, "bob", "k2", "any").await.outcome, "SOLD_OUT");
    }
    // Expired, as a stranger's token shows at the sale that goes on.
    let stranger = deployment.token_for(OTHER_SALE, 1, "bob", "k1").await;
    let mut told = deployment.attempt_at(OTHER_SALE, 1, "bob", "k0", &stranger).await;
    assert_eq!(told.outcome, "TOKEN_INVALID");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    told = deployment.attempt_at(OTHER_SALE, 1, "bob", "k1", &stranger).await;
    assert_eq!(told.outcome, "TOKEN_EXPIRED");
    ann_again(&token, 4).await;
    // Over.
    for gate in [0, 1] {
        deployment.until_phase(SALE, gate, "ended").await;
    }
    ann_again(&token, 5).await;
    let fresh = deployment.token(1, "ann", "k1").await;
    ann_again(&fresh, 6).await;
    assert_eq!(deployment.attempt_at(OTHER_SALE, 1, "bob", "k1", &stranger).await.outcome, "ENDED");
    one_order(&deployment, &id).await;
    assert_eq!((wins(&deployment, SALE), wins(&deployment, OTHER_SALE)), (1, 0));
    assert_eq!(deployment.count("SELECT COUNT(*) FROM orders").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_win_whose_reply_is_lost_between_gate_and_store_is_told_to_whoever_asks_again() {
    let wish =
        Wish { gates: 2, stock: 5, store_proxy: true, store_deadline: Duration::from_millis(500), ..Wish::default() };
    let deployment = Arc::new(Deployment::as_wished(wish).await);
    let proxy = deployment.store_proxy.as_ref().unwrap();
    for round in 0..3 {
        let user = format!("user-{round}");
        let token = deployment.token(0, &user, "k1").await;
        proxy.set(Mode::DropReplies);
        // Nobody goes away: those whose batch was under way hear that nobody knows, those behind them that nothing was sent.
        let told = copies(&deployment, SALE, (&user, "k1", &token), 10, 0.0, round).await;
        let said = |word| told.iter().filter(|told| told.outcome == word).count();
        assert!(said("OUTCOME_UNKNOWN") > 0, "{told:#?}");
        assert_eq!(said("OUTCOME_UNKNOWN") + said("STORE_UNAVAILABLE") + said("BUSY"), told.len(), "{told:#?}");
        proxy.set(Mode::Pass);
        for gate in [0, 1] {
            deployment.until_phase(SALE, gate, "open").await;
        }
        let mut heard = Vec::new();
        for gate in [0, 1, 0, 1] {
            // The first calls may still be on connections that were given up.
            let mut told = deployment.attempt(gate, &user, "k1", &token).await;
            for _ in 0..50 {
                if is_win(&told) {
                    break;
                }
                assert_eq!(told.status, 503, "a won id is refused: {told:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                told = deployment.attempt(gate, &user, "k1", &token).await;
            }
            heard.push(told);
        }
        let id = one_win(&heard);
        one_order(&deployment, &id).await;
        assert_eq!(wins(&deployment, SALE), round as usize + 1);
    }
    run(&mut deployment.command(0, &["audit", SALE]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_replayed_a_thousand_times_wins_once_and_is_good_for_nothing_else() {
    let wish = Wish { gates: 2, stock: 2_000, more_skus: ", case: { stock: 9 }", ..Wish::default() };
    let deployment = Arc::new(Deployment::as_wished(wish).await);
    // For this user, key, sale, SKU and device.
    let token = deployment.try_token(SALE, 0, "ann", "k1", SKU, Some("phone-1")).await.unwrap();
    let on = |request: reqwest::RequestBuilder, device: &str| request.header("Seckill-Device", device);
    let other_device = on(deployment.request(SALE, 1, "ann", "k1", &token), "tablet-1").send().await.unwrap();
    assert_eq!(Told::of(other_device).await.outcome, "TOKEN_INVALID", "nothing is won from another device");
    let sent: Vec<_> = (0..1_000)
        .map(|n| {
            let gate = n % 2;
            let request = match n % 10 {
                0 => deployment.request(SALE, gate, "ann", &format!("key-{n}"), &token),
                1 => deployment.request(SALE, gate, &format!("user-{n}"), "k1", &token),
                2 => deployment.request(OTHER_SALE, gate, "ann", "k1", &token),
                _ => deployment.request(SALE, gate, "ann", "k1", &token),
            };
            tokio::spawn(async move { (n % 10, Told::of(on(request, "phone-1").send().await.unwrap()).await) })
        })
        .map(|task| async { task.await.unwrap() })
        .collect();
    let told = futures::future::join_all(sent).await;
    let (own, others): (Vec<_>, Vec<_>) = told.into_iter().partition(|(kind, _)| *kind > 2);
    let own: Vec<Told> = own.into_iter().map(|(_, told)| told).collect();
    let id = one_win(&own);
    for (kind, told) in others {
        assert_eq!((told.status, told.outcome.as_str()), (403, "TOKEN_INVALID"), "kind {kind}");
    }
    // Once it is won, the same user hears so on any device; the key is taken for any other SKU.
    let other_device = on(deployment.request(SALE, 1, "ann", "k1", &token), "tablet-1").send().await.unwrap();
    assert!(is_win(&Told::of(other_device).await));
    let case = deployment.try_token(SALE, 1, "ann", "k1", "case", None).await.unwrap();
    assert_eq!(deployment.attempt(0, "ann", "k1", &case).await.outcome, "REQUEST_ID_CONFLICT");
    one_order(&deployment, &id).await;
    assert_eq!((wins(&deployment, SALE), wins(&deployment, OTHER_SALE)), (1, 0));
    assert_eq!(deployment.count("SELECT COUNT(*) FROM orders").await, 1);
}
