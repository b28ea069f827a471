//! The outbox: what the order service says of a win, and what is delivered again when.

use super::super::admission::{
    ClaimDue, Claimed, DueWin, JournalOp, MAX_MARKS, Recorded, ReleaseWin, Settle, Settlement,
};
use super::super::dead_letters::{DeadCursor, LastWord, Retried};
use super::super::ids::RequestId;
use super::super::time::StoreMs;
use super::super::win::{Step, WinEvent, WinState, transition};
use super::Stored;

impl Stored {
    fn undue(&mut self, id: &RequestId) {
        let member = id.to_string();
        self.due.retain(|(_, other)| *other != member);
    }

    /// A win with its final word carries no dead mark.
    fn revive(&mut self, id: &RequestId) {
        self.dead.retain(|cursor| cursor.id != *id);
    }

    pub(super) fn settle(&mut self, now: StoreMs, settle: &Settle) -> Recorded {
        let id = settle.request_id;
        let Some(win) = self.wins.get_mut(&id) else { return Recorded::UnknownWin };
        let event = match settle.settlement {
            Settlement::Queued { .. } => WinEvent::Queued,
            Settlement::Booked { .. } => WinEvent::Booked,
            Settlement::Unknown => WinEvent::Unknown,
        };
        let step = transition(&win.state, event);
        match (&settle.settlement, step) {
            (Settlement::Booked { reply }, Step::Accept) => {
                win.state = WinState::Accepted;
                win.reply = Some(reply.clone());
                win.payload = None;
                win.dead_since = None;
                let known = win.known();
                self.undue(&id);
                self.revive(&id);
                self.note(now, JournalOp::Booked { request_id: id });
                Recorded::Applied(known)
            }
            (settlement, Step::KeepReplyAndRetry | Step::Retry) => {
                if let Settlement::Queued { reply } = settlement {
                    win.reply.get_or_insert_with(|| reply.clone());
                }
                let first = *win.first_delivery_at.get_or_insert(now);
                let marked = win.dead_since.is_some();
                let judged = settle.dead_letters.not_final(now, first, marked, settle.backoff, win.tries);
                win.tries += 1;
                win.last_word = Some(if event == WinEvent::Queued { LastWord::Queued } else { LastWord::Unknown });
                if judged.mark {
                    win.dead_since = Some(now);
                    self.dead.insert(DeadCursor { since: now, id });
                }
                let (known, tries) = (win.known(), win.tries);
                self.undue(&id);
                self.due.insert((judged.due, id.to_string()));
                match judged.mark {
                    true => Recorded::MarkedDead { known, tries, age: first.until(now) },
                    false => Recorded::Applied(known),
                }
            }
            (_, Step::Conflict) => Recorded::Conflict(win.known()),
            _ => Recorded::Already(win.known()),
        }
    }

    pub(super) fn release(&mut self, now: StoreMs, release: &ReleaseWin) -> Recorded {
        let id = release.request_id;
        let Some(win) = self.wins.get_mut(&id) else { return Recorded::UnknownWin };
        match transition(&win.state, WinEvent::Ended(release.release.cause)) {
            Step::Release => {}
            Step::Conflict => return Recorded::Conflict(win.known()),
            _ => return Recorded::Already(win.known()),
        }
        win.state = WinState::Released(release.release.clone());
        win.payload = None;
        win.dead_since = None;
        let (known, user, sku, qty) = (win.known(), win.user.clone(), win.sku.clone(), win.qty);
        let units = i64::from(qty);
        self.undue(&id);
        self.revive(&id);
        if self.terms.rebuy_after_release
            && let Some(buyer) = self.buyers.get_mut(&user)
        {
            buyer.units = buyer.units.saturating_sub(qty);
        }
        self.note(now, JournalOp::Released { request_id: id, sku: sku.clone(), qty });
        if release.ledger_short {
            self.keep_back(now, &sku, units);
        } else {
            self.give_back(now.after(release.returning_delay), &sku, units);
        }
        Recorded::Applied(known)
    }

    pub(super) fn claim_due(&mut self, now: StoreMs, claim: &ClaimDue) -> Claimed {
        let mut claimed = Claimed::default();
        let back: Vec<_> = self.returning.iter().take_while(|(at, ..)| *at <= now).cloned().collect();
        for entry in back {
            self.returning.remove(&entry);
            let (_, _, sku, qty) = entry;
            if let Some(stock) = self.stock.get_mut(&sku) {
                stock.returning -= qty;
                stock.left += qty;
            }
            self.note(now, JournalOp::OnSale { sku: sku.clone(), qty });
            claimed.on_sale.push((sku, qty));
        }
        let due: Vec<_> = self.due.iter().take_while(|(at, _)| *at <= now).take(claim.limit).cloned().collect();
        for entry in due {
            self.due.remove(&entry);
            let (_, member) = entry;
            let Ok(request_id) = member.parse::<RequestId>() else { continue };
            self.due.insert((now.after(claim.lease), member));
            let Some(win) = self.wins.get_mut(&request_id) else { continue };
            win.first_delivery_at.get_or_insert(now);
            claimed.wins.push(DueWin {
                request_id,
                user: win.user.clone(),
                sku: win.sku.clone(),
                qty: win.qty,
                won_at: win.won_at,
                tries: win.tries,
                payload: win.payload.clone().unwrap_or_default(),
            });
        }
        let Some(policy) = claim.mark_dead else { return claimed };
        let waited = self.due.iter().take_while(|(at, _)| at.after(policy.after) <= now).take(MAX_MARKS);
        for entry in waited.cloned().collect::<Vec<_>>() {
            self.due.remove(&entry);
            let (_, member) = entry;
            let Ok(id) = member.parse::<RequestId>() else { continue };
            self.due.insert((now.after(policy.retry_every), member));
            let Some(win) = self.wins.get_mut(&id).filter(|win| win.dead_since.is_none()) else { continue };
            win.dead_since = Some(now);
            self.dead.insert(DeadCursor { since: now, id });
            claimed.marked_dead.push(id);
        }
        claimed
    }

    /// Ids that still wait are due now.
    pub(super) fn retry(&mut self, now: StoreMs, ids: &[RequestId]) -> Vec<Retried> {
        let retry_one = |id: &RequestId| match self.wins.get(id).map(|win| &win.state) {
            None => Retried::UnknownWin,
            Some(WinState::Held) => {
                self.undue(id);
                self.due.insert((now, id.to_string()));
                Retried::Due
            }
            Some(state) => Retried::Final(state.clone()),
        };
        ids.iter().map(retry_one).collect()
    }
}
