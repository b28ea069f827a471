//! Dead letters: wins that waited too long for the order service's final word, counted from their first delivery.
//!
//! A dead mark ends nothing. The win keeps its units and stays in the outbox; it is delivered on, slowly, until the order
//! service says what became of it. The mark is for people: it is counted, logged once, and listed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::admission::Guard;
use super::backoff::Backoff;
use super::ids::{InvalidId, RequestId};
use super::time::StoreMs;
use super::win::WinState;

/// When a win is called dead, and how it is delivered on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetterPolicy {
    /// How long after its first delivery a win without a final word gets its mark.
    pub after: Duration,
    /// The pause between the deliveries of a win that carries one.
    pub retry_every: Duration,
}

impl Default for DeadLetterPolicy {
    fn default() -> Self {
        DeadLetterPolicy { after: Duration::from_secs(600), retry_every: Duration::from_secs(60) }
    }
}

/// What a delivery without a final word does to its win.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinal {
    /// The win gets its dead mark now.
    pub mark: bool,
    /// When to deliver again.
    pub due: StoreMs,
}

impl DeadLetterPolicy {
    /// Judges a win whose delivery ended at `now` without a final word, as did `tries` before it; `marked` tells whether it
    /// carries the mark already.
    pub fn not_final(&self, now: StoreMs, first: StoreMs, marked: bool, backoff: Backoff, tries: u32) -> NotFinal {
        let dead = marked || first.until(now) >= self.after;
        let pause = if dead { self.retry_every } else { backoff.pause(tries) };
        NotFinal { mark: dead && !marked, due: now.after(pause) }
    }
}

/// The last thing that the order service said of a win, short of a final word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastWord {
    /// It has the order in its queue.
    Queued,
    /// Nothing definite, or nothing at all.
    Unknown,
}

impl LastWord {
    /// The name that operators see.
    pub fn as_str(self) -> &'static str {
        match self {
            LastWord::Queued => "queued",
            LastWord::Unknown => "unknown",
        }
    }

    /// Reads [`LastWord::as_str`] back.
    pub fn parse(name: &str) -> Option<LastWord> {
        [LastWord::Queued, LastWord::Unknown].into_iter().find(|word| word.as_str() == name)
    }
}

/// A place in the list of dead letters, which is in the order of their marks; ties go by the id's hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadCursor {
    /// When the win was marked.
    pub since: StoreMs,
    /// Which win.
    pub id: RequestId,
}

impl fmt::Display for DeadCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.since, self.id)
    }
}

impl FromStr for DeadCursor {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let wrong = InvalidId { kind: "cursor", rule: "the `next` of an earlier page" };
        let Some((since, id)) = text.split_once('-') else { return Err(wrong) };
        let digits = !since.is_empty() && since.bytes().all(|b| b.is_ascii_digit());
        match (since.parse(), id.parse()) {
            (Ok(since), Ok(id)) if digits => Ok(DeadCursor { since: StoreMs(since), id }),
            _ => Err(wrong),
        }
    }
}

/// One page of the dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadPage {
    /// After this one; `None` from the start.
    pub after: Option<DeadCursor>,
    /// At most so many.
    pub limit: usize,
}

/// The most wins that one [`Retry`] may name: bounds how long the store is busy.
pub const MAX_RETRY: usize = 200;

/// Makes wins due for delivery now, whatever pause they are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Compared before anything is written.
    pub guard: Guard,
    /// Which; at most [`MAX_RETRY`].
    pub ids: Vec<RequestId>,
}

/// What became of one id of a [`Retry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retried {
    /// It waits for the order service, and is due now.
    Due,
    /// It has its final word already; nothing changed.
    Final(WinState),
    /// No win is recorded under this id.
    UnknownWin,
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: DeadLetterPolicy =
        DeadLetterPolicy { after: Duration::from_secs(600), retry_every: Duration::from_secs(60) };
    const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(5) };

    #[test]
    fn a_win_is_marked_once_when_its_first_delivery_is_long_ago_and_then_goes_slowly() {
        let first = StoreMs(1_000);
        let rows = [
            (1_000, false, 0, NotFinal { mark: false, due: StoreMs(2_000) }),
            (600_999, false, 99, NotFinal { mark: false, due: StoreMs(605_999) }),
            (601_000, false, 99, NotFinal { mark: true, due: StoreMs(661_000) }),
            (661_000, true, 100, NotFinal { mark: false, due: StoreMs(721_000) }),
            // Marked under a shorter rule than today's: the mark stays.
            (2_000, true, 1, NotFinal { mark: false, due: StoreMs(62_000) }),
        ];
        for (now, marked, tries, expected) in rows {
            let judged = POLICY.not_final(StoreMs(now), first, marked, BACKOFF, tries);
            assert_eq!(judged, expected, "at {now}, marked {marked}");
        }
    }

    #[test]
    fn a_cursor_is_read_back_and_nothing_else_is_one() {
        let id = "0123456789abcdef0123456789abcdef";
        let cursor: DeadCursor = format!("17-{id}").parse().unwrap();
        assert_eq!(cursor.to_string(), format!("17-{id}"));
        for wrong in
            ["", "17", "-17", "+17-0123456789abcdef0123456789abcdef", "x-0123456789abcdef0123456789abcdef", "17-x"]
        {
            assert!(wrong.parse::<DeadCursor>().is_err(), "{wrong:?}");
        }
    }
}
