//! The store stands still for five seconds with a batch in its socket, and goes on.

use std::time::{Duration, Instant};

use super::measured::Ready;
use super::{STOCK, audited, leave, moment, rush, sale_of, say, seeds, strings, until_whole, until_wins, wish};
use crate::harness::deployment::{Deployment, Wish};
use crate::harness::process::signal;

const STALL: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_lay_in_the_socket_of_a_stalled_store_changes_nothing() {
    const DRILL: &str = "store stalled";
    let deadline = Duration::from_millis(500);
    let deployment = Deployment::as_wished(Wish { gates: 2, store_deadline: deadline, ..wish() }).await;
    for seed in seeds() {
        let sale = sale_of(seed);
        // The crowd comes by one gate. By the other come users who ask just once: if one of them wins, it was by the
        // batch that lay in the socket.
        let once = Ready::users(&deployment, &sale, &[1], "once", 20).await;
        let crowd = rush(&deployment, &sale, &[0], seed);
        until_wins(&deployment, &sale, moment(seed)).await;
        signal(deployment.store.pid(), "STOP");
        let stopped = Instant::now();
        let heard = Ready::attempt_all(&once, &deployment).await;
        tokio::time::sleep(STALL.saturating_sub(stopped.elapsed())).await;
        signal(deployment.store.pid(), "CONT");
        let goes_on = Instant::now();

        let count = |outcome: &str| heard.iter().filter(|heard| heard.told.outcome == outcome).count();
        let (unknown, unavailable) = (count("OUTCOME_UNKNOWN"), count("STORE_UNAVAILABLE"));
        say(DRILL, format_args!("{sale}: {unknown} outcomes unknown, {unavailable} not sent"));
        assert!(unknown > 0, "no batch lay in the socket: the drill is none");
        assert_eq!(unknown + unavailable, once.len(), "{heard:#?}");

        until_whole(&deployment, &sale, STOCK, goes_on, DRILL).await;
        let funnel = leave(crowd, DRILL).await;
        assert!(funnel.attempts.count("OUTCOME_UNKNOWN") > 0, "{}", funnel.table(None));
        for strange in ["BUSY", "PAUSED", "ALREADY_BOUGHT", "REQUEST_ID_CONFLICT"] {
            assert_eq!(funnel.attempts.count(strange), 0, "{}", funnel.table(None));
        }
        let winners = format!("SELECT CAST(user AS CHAR) FROM orders WHERE activity = '{sale}'");
        let winners = strings(&deployment, &winners).await;
        for user in once.iter().map(|ready| &ready.user) {
            assert!(!winners.contains(user), "{user} asked once, heard of no win, and won by a late batch");
        }
        audited(&deployment, &sale, &funnel).await;
    }
}
