//! Stage 9, time and state: refuse, go on, or go on without the right to win.

use std::time::Duration;

use crate::domain::StoreMs;
use crate::domain::refusal::Code;
use crate::gate::activity::Phase;
use crate::gate::answer::Refusal;
use crate::gate::tokens::Timing;
use crate::platform::clock::Now;

/// How an attempt goes on to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leave {
    /// It may win.
    MayWin,
    /// It is only looked up; an unknown id hears this refusal.
    LookUpOnly(Code),
}

/// The facts of time and state.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The store's clock.
    pub now: Now,
    /// First moment of the sale.
    pub starts_at: StoreMs,
    /// How the activity stands.
    pub phase: Phase,
    /// How the token's span stands to now.
    pub token: Timing,
    /// Whether the token was issued to the caller's device.
    pub own_device: bool,
    /// Whether what the token is for was on offer when it was issued.
    pub on_offer: bool,
    /// Whether the SKU is stopped.
    pub sku_stopped: bool,
    /// Whether the journal names the key as a winner's: then it won, even if the store's clock was set back since.
    pub won_before: bool,
}

/// Judges time and state. Nobody can have won before the start, so what surely comes before it is refused here. Everything
/// else is looked up, the repetition of a win from the user's other device too: of two gates one may think that the sale has
/// not started when the other has sold already, so around the start the store judges.
///
/// # Errors
/// NOT_STARTED, with the time left; TOKEN_INVALID for another device's token then.
pub fn leave(moment: Moment) -> Result<Leave, Refusal> {
    if moment.now.store_at_most < moment.starts_at && !moment.won_before {
        return Err(match moment.own_device {
            true => not_started(moment.now.store, moment.starts_at),
            false => Code::TokenInvalid.into(),
        });
    }
    let held_back = match (moment.phase, moment.token) {
        _ if !moment.own_device => Some(Code::TokenInvalid),
        (_, Timing::NotYet) => Some(Code::NotStarted),
        (Phase::Ended, _) => Some(Code::Ended),
        (Phase::Paused, _) => Some(Code::Paused),
        // Before the token's end, since a fresh one would be of no more use.
        _ if !moment.on_offer => Some(Code::BadRequest),
        (_, Timing::Expired) => Some(Code::TokenExpired),
        _ if moment.sku_stopped => Some(Code::Paused),
        _ => None,
    };
    Ok(held_back.map_or(Leave::MayWin, Leave::LookUpOnly))
}

/// NOT_STARTED with the time left. By this gate's clock there may be none, where the store's is a little behind.
pub fn not_started(now: StoreMs, starts_at: StoreMs) -> Refusal {
    Refusal::from(Code::NotStarted).retry_after(now.until(starts_at).max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_refuses_only_what_surely_comes_before_the_start() {
        use Code::{Ended, NotStarted, Paused, TokenExpired, TokenInvalid};
        use Leave::{LookUpOnly, MayWin};
        // This gate's clock, and what the store's shows at most.
        let (exact, near) = ((99, 99), (99, 100));
        let rows = [
            (exact, Phase::Before, Timing::Valid, false, Err(NotStarted)),
            (exact, Phase::Paused, Timing::Expired, true, Err(NotStarted)),
            // Another gate may have sold already: the store judges.
            (near, Phase::Before, Timing::Valid, false, Ok(MayWin)),
            (near, Phase::Before, Timing::NotYet, false, Ok(LookUpOnly(NotStarted))),
            ((100, 100), Phase::Open, Timing::NotYet, false, Ok(LookUpOnly(NotStarted))),
            ((100, 100), Phase::Open, Timing::Valid, false, Ok(MayWin)),
            // The poll may lag behind the clock.
            ((100, 100), Phase::Before, Timing::Valid, false, Ok(MayWin)),
            ((100, 101), Phase::SoldOut, Timing::Valid, false, Ok(MayWin)),
            ((100, 101), Phase::Open, Timing::Expired, false, Ok(LookUpOnly(TokenExpired))),
            ((100, 101), Phase::Open, Timing::Valid, true, Ok(LookUpOnly(Paused))),
            ((100, 101), Phase::Paused, Timing::Valid, false, Ok(LookUpOnly(Paused))),
            ((100, 101), Phase::Paused, Timing::Expired, false, Ok(LookUpOnly(Paused))),
            ((100, 101), Phase::Ended, Timing::Expired, true, Ok(LookUpOnly(Ended))),
        ];
        for ((store, at_most), phase, token, sku_stopped, expected) in rows {
            let exactly = Now::exactly(crate::platform::clock::monotonic(), StoreMs(store));
            let now = Now { store_at_most: StoreMs(at_most), ..exactly };
            let (starts_at, own_device, on_offer) = (StoreMs(100), true, true);
            let moment = Moment { now, starts_at, phase, token, own_device, on_offer, sku_stopped, won_before: false };
            assert_eq!(leave(moment).map_err(|refusal| refusal.code), expected, "{moment:?}");
            // Another device's token never wins, whatever the time; after the start a win is looked up.
            let other = Moment { own_device: false, ..moment };
            let expected = if at_most < 100 { Err(TokenInvalid) } else { Ok(LookUpOnly(TokenInvalid)) };
            assert_eq!(leave(other).map_err(|refusal| refusal.code), expected, "{other:?}");
            for named in [moment, other].map(|moment| Moment { won_before: true, ..moment }) {
                assert!(leave(named).is_ok(), "{named:?}");
            }
            // What was not on offer is never won.
            let beyond = leave(Moment { on_offer: false, ..moment });
            assert_ne!(beyond.map_err(|refusal| refusal.code), Ok(MayWin), "{moment:?}");
        }
    }

    #[test]
    fn there_is_always_something_to_wait_for() {
        for (now, starts_at, left) in [(90, 100, 10), (100, 100, 1), (105, 100, 1)] {
            let refusal = not_started(StoreMs(now), StoreMs(starts_at));
            assert_eq!(refusal.retry_after, Some(Duration::from_millis(left)));
        }
    }
}
