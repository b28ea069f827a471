//! The life of a win: `held → accepted → released`, or `held → released`.
//!
//! [`transition`] is the whole table. Anything it does not list changes nothing and returns what is recorded; an event
//! that contradicts the record is a [`Step::Conflict`], which alarms.

use std::fmt;

use super::ids::InvalidId;

/// Where a win stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WinState {
    /// Units taken; the order service has not booked an order yet.
    Held,
    /// The order stands.
    Accepted,
    /// The units went back, for good.
    Released(Release),
}

/// Why a win ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Which of the order service's words ended it.
    pub cause: Cause,
    /// A short machine-readable reason, e.g. `no_stock`, `expired`.
    pub reason: Reason,
}

impl Release {
    /// The reason with which an order service refuses an order that its ledger has no stock for.
    pub const NO_STOCK: &'static str = "no_stock";

    /// Whether the ledger had no stock for this win: store and ledger disagree.
    pub fn ledger_was_short(&self) -> bool {
        self.cause == Cause::Refused && self.reason.as_str() == Release::NO_STOCK
    }
}

/// The remembered words of the order service that give units back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The order service never took the order.
    Refused,
    /// No order exists and none ever will.
    Void,
    /// There was an order; it expired or was cancelled.
    Ended,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 3] = [Cause::Refused, Cause::Void, Cause::Ended];

    /// The name used in stores and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Refused => "refused",
            Cause::Void => "void",
            Cause::Ended => "ended",
        }
    }

    /// Reads [`Cause::as_str`] back.
    pub fn parse(name: &str) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.as_str() == name)
    }
}

/// A short reason: 1–64 of `a-z 0-9 _ -`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reason(Box<str>);

impl Reason {
    /// Checks a reason.
    pub fn new(text: &str) -> Result<Reason, InvalidId> {
        let valid = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'));
        if valid { Ok(Reason(text.into())) } else { Err(InvalidId { kind: "reason", rule: "1-64 of a-z 0-9 _ -" }) }
    }

    /// Turns whatever the order service said into a valid reason: lower case, other characters become `_`.
    pub fn lossy(text: &str) -> Reason {
        let cleaned: String = text
            .chars()
            .take(64)
            .map(|c| match c.to_ascii_lowercase() {
                c if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-' => c,
                _ => '_',
            })
            .collect();
        Reason(if cleaned.is_empty() { "unspecified".into() } else { cleaned.into() })
    }

    /// The reason as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the order service said (or failed to say) about a win.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WinEvent {
    /// Taken into its queue: ask again.
    Queued,
    /// Booked.
    Booked,
    /// No definite word; try again later.
    Unknown,
    /// Its remembered word that gives the units back.
    Ended(Cause),
}

/// What an event does to a win.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Keep the reply if it is the first, and deliver again later.
    KeepReplyAndRetry,
    /// Deliver again later.
    Retry,
    /// The order stands: keep the reply that will be told for ever, and leave the outbox.
    Accept,
    /// Give the units back, once.
    Release,
    /// Nothing changes; the record is the answer.
    Recorded,
    /// Nothing changes; the event contradicts the record. Alarm.
    Conflict,
}

/// The transition table.
pub fn transition(state: &WinState, event: WinEvent) -> Step {
    use Cause::{Ended, Refused, Void};
    match (state, event) {
        (WinState::Held, WinEvent::Queued) => Step::KeepReplyAndRetry,
        (WinState::Held, WinEvent::Unknown) => Step::Retry,
        (WinState::Held, WinEvent::Booked) => Step::Accept,
        (WinState::Held, WinEvent::Ended(_)) => Step::Release,

        (WinState::Accepted, WinEvent::Ended(Refused)) => Step::Conflict,
        (WinState::Accepted, WinEvent::Ended(Void | Ended)) => Step::Release,
        (WinState::Accepted, WinEvent::Queued | WinEvent::Booked | WinEvent::Unknown) => Step::Recorded,

        (WinState::Released(release), WinEvent::Booked) => match release.cause {
            // The order service said that no order would ever exist, and now shows one.
            Refused | Void => Step::Conflict,
            Ended => Step::Recorded,
        },
        (WinState::Released(_), _) => Step::Recorded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(cause: Cause) -> WinState {
        WinState::Released(Release { cause, reason: Reason::lossy("x") })
    }

    #[test]
    fn every_state_and_event_has_its_step() {
        use Cause::*;
        use Step::*;
        let columns = [
            WinEvent::Queued,
            WinEvent::Booked,
            WinEvent::Unknown,
            WinEvent::Ended(Cause::Refused),
            WinEvent::Ended(Cause::Ended),
            WinEvent::Ended(Cause::Void),
        ];
        let rows = [
            (WinState::Held, [KeepReplyAndRetry, Accept, Retry, Release, Release, Release]),
            (WinState::Accepted, [Recorded, Recorded, Recorded, Conflict, Release, Release]),
            (released(Refused), [Recorded, Conflict, Recorded, Recorded, Recorded, Recorded]),
            (released(Void), [Recorded, Conflict, Recorded, Recorded, Recorded, Recorded]),
            (released(Ended), [Recorded, Recorded, Recorded, Recorded, Recorded, Recorded]),
        ];
        for (state, expected) in rows {
            for (event, step) in columns.into_iter().zip(expected) {
                assert_eq!(transition(&state, event), step, "{state:?} on {event:?}");
            }
        }
    }

    #[test]
    fn whatever_the_order_service_says_becomes_a_valid_reason() {
        for said in ["", "Address Invalid!", "no_stock", &"ü".repeat(99)] {
            assert!(Reason::new(Reason::lossy(said).as_str()).is_ok(), "{said:?}");
        }
        assert_eq!(Reason::lossy("Address Invalid").as_str(), "address_invalid");
    }
}
