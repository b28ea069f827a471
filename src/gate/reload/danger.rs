//! Edits that a reload may not make: what was preheated is the truth, no activity goes with unfinished wins, and whoever
//! has won stays the same user. Each refusal says what to do instead.

use crate::config::compare::Edit;
use crate::config::scalars::Moment;
use crate::config::schema::Activity;
use crate::config::terms;
use crate::domain::admission::ActivityState;
use crate::domain::{ActivityId, StoreMs};

/// How an activity stands in the store.
#[derive(Debug, Clone)]
pub enum Standing {
    /// It was never preheated, as far as store and gate know.
    NotPreheated,
    /// It is there.
    Stored {
        /// As it is there.
        state: Box<ActivityState>,
        /// The store's clock.
        now: StoreMs,
    },
    /// It was there and is there no more, or not wholly.
    Lost {
        /// When the gate last saw it end.
        ends_at: StoreMs,
        /// The store's clock.
        now: StoreMs,
    },
    /// The store does not answer; why.
    Unknown(String),
}

/// What speaks against an edit of a key below `activities.ID`, `new` being the activity as the file has it now; `None` if
/// nothing does.
pub fn objection(id: &ActivityId, edit: &Edit, new: &Activity, standing: &Standing) -> Option<String> {
    let state = match standing {
        Standing::NotPreheated => return None,
        Standing::Stored { state, .. } => state,
        Standing::Lost { .. } => {
            return Some(
                "the store has lost the activity, and it may come back only as it was preheated; undo the edit".into(),
            );
        }
        Standing::Unknown(why) => return Some(unknown(why)),
    };
    let new = terms(new, state.terms.epoch);
    let rest = edit.key.strip_prefix(&format!("activities.{id}.")).unwrap_or_default();
    let stored = &state.terms;
    let as_preheated = match rest {
        "starts_at" => new.starts_at == stored.starts_at,
        "ends_at" => new.ends_at == stored.ends_at,
        "per_user_limit" => new.per_user_limit == stored.per_user_limit,
        "rebuy_after_release" => new.rebuy_after_release == stored.rebuy_after_release,
        "retention" => new.retention == stored.retention,
        "payment_deadline" => false,
        _ => {
            let sku = rest.strip_prefix("skus.").unwrap_or_default().split('.').next().unwrap_or_default();
            let total = stored.skus.iter().find(|(name, _)| name.as_str() == sku).map(|(_, units)| *units);
            let wanted = new.skus.iter().find(|(name, _)| name.as_str() == sku).map(|(_, units)| *units);
            return match (total, wanted) {
                (total, wanted) if total == wanted => None,
                (Some(total), Some(wanted)) => Some(format!(
                    "run `seckill-gate totals {id} {sku} --from {total} --to {wanted}`, after which the file may say {wanted}"
                )),
                _ => Some(
                    "SKUs neither join nor leave a preheated activity; undo the edit, or offer a new activity".into(),
                ),
            };
        }
    };
    let why = "what was preheated is the truth; undo the edit, or offer a new activity under another name";
    (!as_preheated).then(|| why.to_owned())
}

/// What speaks against taking an activity out of the file, `old` being what the file had.
pub fn objection_to_removal(old: &Activity, standing: &Standing) -> Option<String> {
    match keeping(old, standing) {
        Keeping::Nothing => None,
        Keeping::Unsettled(wins) => {
            Some(format!("{wins} of its wins wait for the order service; keep it in the file until they are settled"))
        }
        Keeping::Until(until) => {
            Some(format!("its wins are kept, and may be asked for, until {until}; keep it in the file until then"))
        }
        Keeping::Unknown(why) => Some(unknown(why)),
    }
}

/// What speaks, with this activity, against telling users by another claim. A win is recorded under its user's name, and its
/// request id is made of it: under another name everybody could win once more, and would not find the wins they have.
pub fn objection_to_other_users(id: &ActivityId, activity: &Activity, standing: &Standing) -> Option<String> {
    let until = match keeping(activity, standing) {
        Keeping::Nothing => return None,
        Keeping::Unsettled(_) => "its last win is settled and its retention over".to_owned(),
        Keeping::Until(until) => until.to_string(),
        Keeping::Unknown(why) => return Some(format!("`{id}`: {}", unknown(why))),
    };
    Some(format!(
        "users of `{id}` are known by the claim as it was: by another one each could win again, and would not find the own \
         wins. Undo the edit, before any restart too, until {until}"
    ))
}

/// What is still kept of an activity.
enum Keeping<'a> {
    /// It was never preheated, or all of it is settled and its retention over.
    Nothing,
    /// So many wins wait for the order service.
    Unsettled(u64),
    /// Its wins, until then.
    Until(Moment),
    /// Not known; why.
    Unknown(&'a str),
}

fn keeping<'a>(activity: &Activity, standing: &'a Standing) -> Keeping<'a> {
    let (until, now, unsettled) = match standing {
        Standing::NotPreheated => return Keeping::Nothing,
        Standing::Stored { state, now } => (state.terms.ends_at.after(state.terms.retention), *now, state.unsettled),
        Standing::Lost { ends_at, now } => (ends_at.after(activity.retention.0), *now, 0),
        Standing::Unknown(why) => return Keeping::Unknown(why),
    };
    match unsettled {
        0 if now >= until => Keeping::Nothing,
        0 => Keeping::Until(Moment(until)),
        _ => Keeping::Unsettled(unsettled),
    }
}

fn unknown(why: &str) -> String {
    format!("whether it is preheated is not known, since the store does not answer ({why}); reload again when it does")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::load::{Depth, read};
    use crate::domain::admission::{Epoch, JournalCursor};
    use crate::domain::stock::Stock;

    fn activity() -> (ActivityId, Activity) {
        let source = include_str!("../../../conf/minimal.yaml");
        let loaded = read(std::path::Path::new("file.yaml"), source, None, Depth::File).unwrap();
        loaded.config.activities.into_iter().next().unwrap()
    }

    fn stored(activity: &Activity, total: i64, unsettled: u64, now: StoreMs) -> Standing {
        let mut terms = terms(activity, Epoch(1));
        terms.skus[0].1 = total;
        let state = ActivityState {
            stock: vec![(terms.skus[0].0.clone(), Stock::new(total))],
            terms,
            barred: None,
            paused: false,
            unsettled,
            dead: 0,
            entries: Vec::new(),
            cursor: JournalCursor::start(),
            at_end: true,
        };
        Standing::Stored { state: Box::new(state), now }
    }

    fn edit(key: &str) -> Edit {
        Edit { key: format!("activities.first-sale.{key}"), from: None, to: None, hidden: false }
    }

    #[test]
    fn an_edit_is_taken_before_preheating_and_afterwards_if_it_says_what_is_stored() {
        let (id, old) = activity();
        let mut new = old.clone();
        new.skus.values_mut().for_each(|sku| sku.stock = 600);
        let object = |key: &str, new: &Activity, standing: &Standing| objection(&id, &edit(key), new, standing);
        let now = StoreMs(0);
        assert_eq!(object("skus.phone.stock", &new, &Standing::NotPreheated), None);
        assert_eq!(object("skus.phone.stock", &new, &stored(&old, 600, 0, now)), None, "the file follows `totals`");
        let told = object("skus.phone.stock", &new, &stored(&old, 500, 0, now)).unwrap();
        assert!(told.contains("seckill-gate totals first-sale phone --from 500 --to 600"), "{told}");
        let told = object("skus.phone.stock", &new, &Standing::Unknown("timeout".into())).unwrap();
        assert!(told.contains("timeout"), "{told}");
        assert!(object("skus.phone.stock", &new, &Standing::Lost { ends_at: now, now }).is_some());

        let later = Activity { ends_at: "2026-12-13T00:00:00Z".parse().unwrap(), per_user_limit: 2, ..old.clone() };
        for key in ["ends_at", "per_user_limit"] {
            let told = object(key, &later, &stored(&old, 500, 0, now)).unwrap();
            assert!(told.contains("new activity"), "{told}");
            assert_eq!(object(key, &later, &stored(&later, 500, 0, now)), None);
        }
        assert_eq!(object("starts_at", &later, &stored(&old, 500, 0, now)), None);
        assert!(object("skus.tablet", &old, &stored(&old, 500, 0, now)).is_none(), "neither here nor there");
        new.skus.insert("tablet".parse().unwrap(), new.skus.values().next().unwrap().clone());
        assert!(object("skus.tablet", &new, &stored(&old, 500, 0, now)).is_some());
        assert!(object("payment_deadline", &old, &stored(&old, 500, 0, now)).is_some());
    }

    #[test]
    fn users_stay_the_same_while_a_sale_is_kept() {
        let (id, activity) = activity();
        let kept_until = activity.ends_at.store_ms().after(activity.retention.0);
        let before = StoreMs(kept_until.0 - 1);
        let object = |standing: &Standing| objection_to_other_users(&id, &activity, standing);
        assert_eq!(object(&Standing::NotPreheated), None);
        let told = object(&stored(&activity, 500, 0, before)).unwrap();
        assert!(told.contains("`first-sale`") && told.ends_with("until 2026-12-19T14:00:00Z"), "{told}");
        assert_eq!(object(&stored(&activity, 500, 0, kept_until)), None);
        assert!(object(&stored(&activity, 500, 2, kept_until)).unwrap().contains("last win is settled"));
        assert!(object(&Standing::Lost { ends_at: activity.ends_at.store_ms(), now: before }).is_some());
        assert!(object(&Standing::Unknown("timeout".into())).unwrap().contains("timeout"));
    }

    #[test]
    fn an_activity_goes_when_its_wins_are_settled_and_no_longer_kept() {
        let (_, old) = activity();
        let kept_until = old.ends_at.store_ms().after(old.retention.0);
        let before = StoreMs(kept_until.0 - 1);
        let object = |standing: &Standing| objection_to_removal(&old, standing);
        assert_eq!(object(&Standing::NotPreheated), None);
        assert_eq!(object(&stored(&old, 500, 0, kept_until)), None);
        assert!(object(&stored(&old, 500, 0, before)).unwrap().contains("until 2026-12-19T14:00:00Z"));
        assert!(
            object(&stored(&old, 500, 3, kept_until.after(Duration::from_secs(1))))
                .unwrap()
                .starts_with("3 of its wins")
        );
        assert!(object(&Standing::Lost { ends_at: old.ends_at.store_ms(), now: before }).is_some());
        assert_eq!(object(&Standing::Lost { ends_at: old.ends_at.store_ms(), now: kept_until }), None);
        assert!(object(&Standing::Unknown("timeout".into())).is_some());
    }
}
