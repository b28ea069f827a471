//! The ledger's database stands still for twenty seconds in a rush.

use std::time::{Duration, Instant};

use loadtest::funnel::outcome;

use super::measured::{Heard, Ready};
use super::{STOCK, audited, leave, moment, rush, say, until_whole, until_wins};
use crate::harness::deployment::{Deployment, OTHER_SALE, SALE, Wish, run};

/// So long it stands still: this is the time of the test.
const AWAY: Duration = Duration::from_secs(20);
const SEED: u64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn with_the_ledger_away_for_twenty_seconds_winners_hear_202_and_all_are_booked_afterwards() {
    const DRILL: &str = "ledger away";
    let deployment = Deployment::as_wished(Wish { stock: STOCK, own_database: true, ..Wish::default() }).await;
    let database = deployment.database.as_ref().unwrap();
    let mut waves = Vec::new();
    for wave in ["first", "second", "third"] {
        waves.push(Ready::users(&deployment, OTHER_SALE, &[0], wave, 10).await);
    }
    let crowd = rush(&deployment, SALE, &[0], SEED);
    until_wins(&deployment, SALE, moment(SEED)).await;
    database.signal("STOP");
    let stopped = Instant::now();
    // The crowd takes what is left; at another sale somebody wins at the start, in the middle and near the end.
    for wave in &waves {
        for Heard { told, took } in Ready::attempt_all(wave, &deployment).await {
            assert_eq!((told.status, told.outcome.as_str()), (202, "QUEUED"), "{told:?}");
            // `orders.answer_within` is 2 s; the rest is for a busy machine.
            assert!(took < Duration::from_secs(4), "{told:?} after {took:?}");
        }
        say(DRILL, format_args!("winners heard 202 {:.1} s into the fault", stopped.elapsed().as_secs_f64()));
        tokio::time::sleep(AWAY / 3).await;
    }
    tokio::time::sleep(AWAY.saturating_sub(stopped.elapsed())).await;
    database.signal("CONT");
    let back = Instant::now();
    until_whole(&deployment, SALE, STOCK, back, DRILL).await;
    for ready in waves.iter().flatten() {
        assert_eq!(deployment.result(OTHER_SALE, 0, &ready.user, "key").await["state"], "accepted", "{}", ready.user);
    }
    let funnel = leave(crowd, DRILL).await;
    let told = funnel.attempts.count(outcome::WON) + funnel.attempts.count(outcome::QUEUED);
    assert_eq!(told, u64::from(STOCK), "{}", funnel.table(None));
    assert!(funnel.attempts.count(outcome::QUEUED) > 0, "{}", funnel.table(None));
    audited(&deployment, SALE, &funnel).await;
    run(&mut deployment.command(0, &["audit", OTHER_SALE]));
    assert_eq!(deployment.count("SELECT COUNT(*) FROM set_aside").await, 0);
    assert_eq!(deployment.count("SELECT COUNT(*) FROM orders WHERE state <> 'pending'").await, 0);
}
