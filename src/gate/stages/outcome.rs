//! Stage 10, afterwards: what the store's word means for the client. One table.

use crate::domain::StoreMs;
use crate::domain::admission::{Barred, Verdict};
use crate::domain::refusal::Code;
use crate::gate::activity::Admitted;
use crate::gate::delivery::told::Told;
use crate::gate::stages::time::Leave;

/// What becomes of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Won just now, at this moment: deliver it, then answer.
    Deliver(StoreMs),
    /// Won before: what every copy of it is told.
    Known(Told),
    /// Refused.
    Refused(Code),
}

/// The table. Never SOLD_OUT for a fault, never a fault for sold out, and "nothing happened" only where that is known.
pub fn fate(admitted: Admitted, leave: &Leave, now: StoreMs, starts_at: StoreMs) -> Fate {
    let not_open = if now < starts_at { Code::NotStarted } else { Code::Paused };
    Fate::Refused(match admitted {
        Admitted::Judged(verdict, at) => match verdict {
            Verdict::Won => return Fate::Deliver(at),
            Verdict::Known(known) => return Fate::Known(Told::of(&known)),
            Verdict::Conflict => Code::RequestIdConflict,
            Verdict::NotKnown => match leave {
                Leave::LookUpOnly(code) => *code,
                // The store refused the right to win that we gave: its own view is newer than ours.
                Leave::MayWin => Code::Paused,
            },
            Verdict::Paused | Verdict::Suspect | Verdict::SkuStopped => Code::Paused,
            Verdict::NotStarted => Code::NotStarted,
            Verdict::Ended => Code::Ended,
            Verdict::NoSuchSku => Code::NoSuchSku,
            Verdict::AtLimit => Code::AlreadyBought,
            Verdict::SoldOut => Code::SoldOut,
        },
        Admitted::Barred(Barred::NotPreheated) => not_open,
        Admitted::Barred(Barred::Fenced | Barred::Suspect) => Code::Paused,
        Admitted::Barred(Barred::Late) | Admitted::Unavailable => Code::StoreUnavailable,
        Admitted::Busy => Code::Busy,
        Admitted::Unknown => Code::OutcomeUnknown,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::domain::admission::KnownWin;
    use crate::domain::win::{Cause, Reason, Release, WinState};
    use crate::gate::delivery::reply::StoredReply;

    #[test]
    fn every_word_of_the_store_has_its_answer() {
        let reply = StoredReply { status: 201, content_type: None, location: None, body: Bytes::from_static(b"{}") };
        let release = Release { cause: Cause::Ended, reason: Reason::lossy("expired") };
        let known = |state, reply| Verdict::Known(KnownWin { state, won_at: StoreMs(1), reply });
        let open = Leave::MayWin;
        let held_back = Leave::LookUpOnly(Code::TokenExpired);
        let judged = |verdict| Admitted::Judged(verdict, StoreMs(7));
        let refused = Fate::Refused;
        let rows = [
            (judged(Verdict::Won), &open, Fate::Deliver(StoreMs(7))),
            (judged(known(WinState::Held, None)), &open, Fate::Known(Told::Queued)),
            (judged(known(WinState::Held, Some(reply.encode()))), &held_back, Fate::Known(Told::Queued)),
            (
                judged(known(WinState::Accepted, Some(reply.encode()))),
                &held_back,
                Fate::Known(Told::Won(Some(reply.clone()))),
            ),
            (judged(known(WinState::Accepted, None)), &open, Fate::Known(Told::Won(None))),
            (judged(known(WinState::Released(release.clone()), None)), &open, Fate::Known(Told::Ended(release))),
            (judged(Verdict::Conflict), &held_back, refused(Code::RequestIdConflict)),
            (judged(Verdict::NotKnown), &held_back, refused(Code::TokenExpired)),
            (judged(Verdict::NotKnown), &open, refused(Code::Paused)),
            (judged(Verdict::Paused), &open, refused(Code::Paused)),
            (judged(Verdict::Suspect), &open, refused(Code::Paused)),
            (judged(Verdict::SkuStopped), &open, refused(Code::Paused)),
            (judged(Verdict::NotStarted), &open, refused(Code::NotStarted)),
            (judged(Verdict::Ended), &open, refused(Code::Ended)),
            (judged(Verdict::NoSuchSku), &open, refused(Code::NoSuchSku)),
            (judged(Verdict::AtLimit), &open, refused(Code::AlreadyBought)),
            (judged(Verdict::SoldOut), &open, refused(Code::SoldOut)),
            (Admitted::Barred(Barred::NotPreheated), &open, refused(Code::Paused)),
            (Admitted::Barred(Barred::Fenced), &open, refused(Code::Paused)),
            (Admitted::Barred(Barred::Suspect), &open, refused(Code::Paused)),
            (Admitted::Barred(Barred::Late), &open, refused(Code::StoreUnavailable)),
            (Admitted::Unavailable, &open, refused(Code::StoreUnavailable)),
            (Admitted::Busy, &open, refused(Code::Busy)),
            (Admitted::Unknown, &open, refused(Code::OutcomeUnknown)),
        ];
        for (admitted, leave, expected) in rows {
            let row = format!("{admitted:?} {leave:?}");
            assert_eq!(fate(admitted, leave, StoreMs(100), StoreMs(50)), expected, "{row}");
        }
        let early = fate(Admitted::Barred(Barred::NotPreheated), &open, StoreMs(10), StoreMs(50));
        assert_eq!(early, Fate::Refused(Code::NotStarted));
    }
}
