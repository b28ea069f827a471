//! Stage 9, time and state: refuse, go on, or go on without the right to win.

use crate::domain::StoreMs;
use crate::domain::refusal::Code;
use crate::gate::activity::Phase;
use crate::gate::answer::Refusal;
use crate::gate::tokens::Timing;

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
    pub now: StoreMs,
    /// First moment of the sale.
    pub starts_at: StoreMs,
    /// How the activity stands.
    pub phase: Phase,
    /// How the token's span stands to now.
    pub token: Timing,
    /// Whether the token was issued to the caller's device.
    pub own_device: bool,
    /// Whether the SKU is stopped.
    pub sku_stopped: bool,
}

/// Judges time and state. Nobody can have won before the start, so that is refused here; everything else is looked up,
/// the repetition of a win from the user's other device too.
///
/// # Errors
/// NOT_STARTED, with the time left; TOKEN_INVALID for another device's token then.
pub fn leave(moment: Moment) -> Result<Leave, Refusal> {
    if !moment.own_device {
        let invalid = Code::TokenInvalid;
        return if moment.now < moment.starts_at { Err(invalid.into()) } else { Ok(Leave::LookUpOnly(invalid)) };
    }
    if moment.now < moment.starts_at {
        return Err(not_started(moment.now, moment.starts_at));
    }
    if let Timing::NotYet(wait) = moment.token {
        return Err(Refusal::from(Code::NotStarted).retry_after(wait));
    }
    let held_back = match (moment.phase, moment.token) {
        (Phase::Ended, _) => Some(Code::Ended),
        (Phase::Paused, _) => Some(Code::Paused),
        (_, Timing::Expired) => Some(Code::TokenExpired),
        _ if moment.sku_stopped => Some(Code::Paused),
        _ => None,
    };
    Ok(held_back.map_or(Leave::MayWin, Leave::LookUpOnly))
}

/// NOT_STARTED with the time left.
pub fn not_started(now: StoreMs, starts_at: StoreMs) -> Refusal {
    Refusal::from(Code::NotStarted).retry_after(now.until(starts_at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_refuses_only_before_the_start() {
        use Code::{Ended, NotStarted, Paused, TokenExpired, TokenInvalid};
        use Leave::{LookUpOnly, MayWin};
        let not_yet = Timing::NotYet(Duration::from_millis(5));
        let rows = [
            (99, Phase::Before, Timing::Valid, false, Err(NotStarted)),
            (99, Phase::Paused, Timing::Expired, true, Err(NotStarted)),
            (100, Phase::Open, not_yet, false, Err(NotStarted)),
            (100, Phase::Open, Timing::Valid, false, Ok(MayWin)),
            // The poll may lag behind the clock.
            (100, Phase::Before, Timing::Valid, false, Ok(MayWin)),
            (100, Phase::SoldOut, Timing::Valid, false, Ok(MayWin)),
            (100, Phase::Open, Timing::Expired, false, Ok(LookUpOnly(TokenExpired))),
            (100, Phase::Open, Timing::Valid, true, Ok(LookUpOnly(Paused))),
            (100, Phase::Paused, Timing::Valid, false, Ok(LookUpOnly(Paused))),
            (100, Phase::Paused, Timing::Expired, false, Ok(LookUpOnly(Paused))),
            (100, Phase::Ended, Timing::Expired, true, Ok(LookUpOnly(Ended))),
        ];
        for (now, phase, token, sku_stopped, expected) in rows {
            let own_device = true;
            let moment = Moment { now: StoreMs(now), starts_at: StoreMs(100), phase, token, own_device, sku_stopped };
            assert_eq!(leave(moment).map_err(|refusal| refusal.code), expected, "{moment:?}");
            // Another device's token never wins, whatever the time; after the start a win is looked up.
            let other = Moment { own_device: false, ..moment };
            let expected = if now < 100 { Err(TokenInvalid) } else { Ok(LookUpOnly(TokenInvalid)) };
            assert_eq!(leave(other).map_err(|refusal| refusal.code), expected, "{other:?}");
        }
    }
}
