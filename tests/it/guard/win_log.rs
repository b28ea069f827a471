//! Logged before it leaves, by every road.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seckill_gate::domain::admission::{Epoch, Verdict};
use seckill_gate::domain::{ActivityId, RequestId};
use seckill_gate::gate::activity::Admitted;
use seckill_gate::gate::win_log::{Appended, LogFirst, LoggedWin, NotLogged, WinLog};

use super::{Bench, admit, attempt, eventually, won};
use crate::harness::redis::Redis;

/// A win, and its payload if it came with one.
type Noted = (RequestId, Option<String>);

/// Notes what it is given; fails when told to.
#[derive(Clone, Default)]
struct TestLog {
    appended: Arc<Mutex<Vec<Noted>>>,
    fails: Arc<AtomicBool>,
}

impl WinLog for TestLog {
    fn append(&self, _: &ActivityId, epoch: Epoch, wins: &mut dyn Iterator<Item = LoggedWin<'_>>) -> Appended {
        assert_eq!(epoch, Epoch(1));
        let payload = |win: &LoggedWin<'_>| win.payload.map(|payload| String::from_utf8(payload.to_vec()).unwrap());
        let wins: Vec<_> = wins.map(|win| (win.request_id, payload(&win))).collect();
        let kept = match self.fails.load(Ordering::SeqCst) && !wins.is_empty() {
            true => Err(NotLogged("the disk is full".into())),
            false => {
                self.appended.lock().unwrap().extend(wins);
                Ok(())
            }
        };
        Appended::Soon(Box::pin(std::future::ready(kept)))
    }
}

impl TestLog {
    fn take(&self) -> Vec<(RequestId, Option<String>)> {
        std::mem::take(&mut self.appended.lock().unwrap())
    }
}

#[tokio::test]
async fn a_win_is_kept_before_it_is_told_or_delivered_by_every_road() {
    let (redis, log) = (Redis::start(), TestLog::default());
    let mut bench = Bench::with_log(&redis.url(), Duration::from_secs(5), LogFirst::new(log.clone()));
    bench.world.first_delivery_lease = Duration::ZERO;
    let activity = bench.sale("sale").await;
    let ann = attempt(&activity.id, "ann");
    let kept = vec![(ann.request_id, Some("{}".to_owned()))];
    assert!(won(&admit(&activity, "ann").await));
    assert_eq!(log.take(), kept, "a first reply");
    assert!(matches!(admit(&activity, "ann").await, Admitted::Judged(Verdict::Known(_), _)));
    assert_eq!(log.take(), kept, "a replay");
    activity.find(ann.request_id).await.unwrap().unwrap().unwrap();
    assert_eq!(log.take().len(), 1, "a result");
    assert_eq!(activity.wins_of(&ann.user).await.unwrap().unwrap().len(), 1);
    assert_eq!(log.take().len(), 1, "the user's results");
    let claimed = activity.claim_due(10, Duration::from_secs(1), false).await.unwrap().unwrap();
    assert_eq!(claimed.wins.len(), 1);
    assert_eq!(log.take(), kept, "a relay delivery");
}

#[tokio::test]
async fn a_gate_whose_log_fails_tells_nobody_delivers_nothing_and_admits_nobody_any_more() {
    let (redis, log) = (Redis::start(), TestLog::default());
    let mut bench = Bench::with_log(&redis.url(), Duration::from_secs(5), LogFirst::new(log.clone()));
    bench.world.first_delivery_lease = Duration::ZERO;
    let activity = bench.sale("sale").await;
    let ann = attempt(&activity.id, "ann");
    assert!(bench.shows(r#"seckill_activity_barred{activity="sale",reason="win_log"} 0"#));
    log.fails.store(true, Ordering::SeqCst);
    assert_eq!(admit(&activity, "ann").await, Admitted::Unknown);
    let left = async || activity.snapshot().await.unwrap().unwrap().skus[0].1.left;
    assert_eq!(left().await, 49, "the win stands in the store");
    assert_eq!(admit(&activity, "ann").await, Admitted::Unknown, "nor does its repetition hear of it");
    activity.find(ann.request_id).await.expect_err("nor does its result");
    activity.wins_of(&ann.user).await.expect_err("nor does the list of results");
    activity.claim_due(10, Duration::ZERO, false).await.expect_err("nor is it delivered from here");
    // Nobody else wins.
    let bob = admit(&activity, "bob").await;
    assert!(matches!(bob, Admitted::Judged(Verdict::NotKnown, _)), "{bob:?}");
    assert_eq!(left().await, 49);
    eventually("it is shown as paused", || activity.view().paused).await;
    assert!(bench.shows(r#"seckill_activity_barred{activity="sale",reason="win_log"} 1"#));
    // What can be kept again is told; the gate itself has to be started again.
    log.fails.store(false, Ordering::SeqCst);
    assert!(matches!(admit(&activity, "ann").await, Admitted::Judged(Verdict::Known(_), _)));
    assert!(matches!(admit(&activity, "bob").await, Admitted::Judged(Verdict::NotKnown, _)));
}
