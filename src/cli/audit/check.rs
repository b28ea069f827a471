//! The named invariants, checked on facts from both sides. Pure.
//!
//! A sale may go on while the facts are gathered, so each rule compares only what cannot have changed in between: wins
//! are read before the orders and again after them. What was accepted *before* must have an order; an order must have a
//! win *after*.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::domain::{RequestId, SkuId, UserId};

/// The store's picture of one activity, from one atomic snapshot.
#[derive(Debug, Clone, Deserialize)]
pub struct StoreFacts {
    /// Units per user.
    pub per_user_limit: i64,
    /// Stock and units in wins.
    pub skus: Vec<StoreSku>,
}

/// One SKU in the store.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs)]
pub struct StoreSku {
    pub sku: SkuId,
    pub total: i64,
    pub left: i64,
    pub returning: i64,
    pub withheld: i64,
    pub held: i64,
    pub accepted: i64,
    pub released: i64,
}

/// One win.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs)]
pub struct WinFacts {
    pub request_id: RequestId,
    pub user: UserId,
    pub sku: SkuId,
    pub qty: i64,
    /// `held`, `accepted` or `released`.
    pub state: String,
}

impl WinFacts {
    /// Whether it holds units.
    fn stands(&self) -> bool {
        matches!(self.state.as_str(), "held" | "accepted")
    }
}

/// The ledger's picture.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct LedgerFacts {
    pub skus: BTreeMap<SkuId, LedgerSku>,
    pub orders: Vec<OrderFacts>,
}

/// One SKU in the ledger.
#[derive(Debug, Clone, Copy, Deserialize)]
#[allow(missing_docs)]
pub struct LedgerSku {
    pub total: i64,
    pub sold: i64,
}

/// One order row. A void id has neither user nor SKU.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs)]
pub struct OrderFacts {
    pub request_id: RequestId,
    pub user: String,
    pub sku: String,
    pub qty: i64,
    pub state: String,
}

impl OrderFacts {
    /// Whether it holds units now.
    pub fn stands(&self) -> bool {
        matches!(self.state.as_str(), "pending" | "paid")
    }
    /// Whether it ever was an order.
    fn was_booked(&self) -> bool {
        !matches!(self.state.as_str(), "refused" | "void")
    }
}

/// All facts, in the order in which they were read.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Facts {
    pub wins_before: Vec<WinFacts>,
    /// `None` for a shop's own order service, whose orders cannot be read.
    pub ledger: Option<LedgerFacts>,
    pub wins_after: Vec<WinFacts>,
    pub store: StoreFacts,
    /// Whether nothing was won or ended while `wins_after` was read: only then can its sums be compared.
    pub quiet: bool,
}

/// What came of one invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its number.
    pub invariant: &'static str,
    /// In words.
    pub rule: &'static str,
    /// How many things were looked at; `null` if it could not be checked.
    pub checked: Option<usize>,
    /// What breaks it.
    pub violations: Vec<String>,
}

/// Checks everything that can be checked.
pub fn check(facts: &Facts) -> Vec<Check> {
    let ledger = facts.ledger.as_ref();
    vec![
        row("INV-1", "ledger: neither sold nor the units in orders exceed the total", ledger.map(inv_1)),
        row("INV-2", "store: total = left + returning + withheld + held + accepted", Some(inv_2(&facts.store))),
        row("INV-2", "store: its sums are those of its wins (if none moves)", facts.quiet.then(|| recount(facts))),
        row("INV-3", "store: no user above the limit", Some(inv_3_store(facts))),
        row("INV-3", "ledger: no user above the limit", ledger.map(|l| inv_3_ledger(l, facts.store.per_user_limit))),
        row("INV-4", "every order has its one win", ledger.map(|l| every_order_has_its_win(l, &facts.wins_after))),
        row(
            "INV-4",
            "every accepted win has its one order",
            ledger.map(|l| every_win_has_its_order(l, &facts.wins_before)),
        ),
    ]
}

/// The ledger remembers a sale that the store does not hold.
pub fn store_is_lost() -> Check {
    let violation = "the ledger remembers the sale, and its store is empty: it has lost it; do not preheat it";
    row("INV-4", "what the ledger remembers, the store holds", Some((1, vec![violation.to_owned()])))
}

/// How many things were looked at, and what is wrong with them.
type Found = (usize, Vec<String>);

fn row(invariant: &'static str, rule: &'static str, found: Option<Found>) -> Check {
    let (checked, violations) = found.map_or((None, Vec::new()), |(checked, violations)| (Some(checked), violations));
    Check { invariant, rule, checked, violations }
}

fn inv_1(ledger: &LedgerFacts) -> Found {
    let mut in_orders: BTreeMap<&str, i64> = BTreeMap::new();
    for order in ledger.orders.iter().filter(|order| order.stands()) {
        *in_orders.entry(&order.sku).or_default() += order.qty;
    }
    let mut violations = Vec::new();
    for (sku, stock) in &ledger.skus {
        if stock.sold > stock.total {
            violations.push(format!("{sku}: {} sold of {}", stock.sold, stock.total));
        }
        let standing = in_orders.remove(sku.as_str()).unwrap_or(0);
        if standing > stock.total {
            violations.push(format!("{sku}: {standing} units in orders of {}", stock.total));
        }
    }
    violations.extend(in_orders.keys().map(|sku| format!("{sku}: ordered, but not registered")));
    (ledger.skus.len(), violations)
}

fn inv_2(store: &StoreFacts) -> Found {
    let wrong = store.skus.iter().filter_map(|sku| {
        let sum = sku.left + sku.returning + sku.withheld + sku.held + sku.accepted;
        (sum != sku.total).then(|| format!("{}: total {} but the parts make {sum}", sku.sku, sku.total))
    });
    (store.skus.len(), wrong.collect())
}

/// The store keeps its wins as running sums; here they are counted.
fn recount(facts: &Facts) -> Found {
    let mut counted: BTreeMap<(&SkuId, &str), i64> = BTreeMap::new();
    for win in &facts.wins_after {
        *counted.entry((&win.sku, &win.state)).or_default() += win.qty;
    }
    let mut violations = Vec::new();
    for sku in &facts.store.skus {
        for (state, sum) in [("held", sku.held), ("accepted", sku.accepted), ("released", sku.released)] {
            let counted = counted.get(&(&sku.sku, state)).copied().unwrap_or(0);
            if counted != sum {
                violations.push(format!("{}: {sum} units {state} by the sums, {counted} in wins", sku.sku));
            }
        }
    }
    (facts.store.skus.len(), violations)
}

/// A win that was there at the first reading and still stands at the second stood at the moment between them. Those are
/// counted: pages of one reading show different moments, between which a user may give a unit back and win another.
fn inv_3_store(facts: &Facts) -> Found {
    let limit = facts.store.per_user_limit;
    let before: BTreeSet<RequestId> = facts.wins_before.iter().map(|win| win.request_id).collect();
    let mut units: BTreeMap<&UserId, i64> = BTreeMap::new();
    for win in facts.wins_after.iter().filter(|win| win.stands() && before.contains(&win.request_id)) {
        *units.entry(&win.user).or_default() += win.qty;
    }
    let wrong = units.iter().filter(|(_, units)| **units > limit);
    (units.len(), wrong.map(|(user, units)| format!("{user} holds {units} of {limit}")).collect())
}

fn inv_3_ledger(ledger: &LedgerFacts, limit: i64) -> Found {
    let mut units: BTreeMap<&str, i64> = BTreeMap::new();
    for order in ledger.orders.iter().filter(|order| order.stands()) {
        *units.entry(&order.user).or_default() += order.qty;
    }
    let wrong = units.iter().filter(|(_, units)| **units > limit);
    (units.len(), wrong.map(|(user, units)| format!("{user} ordered {units} of {limit}")).collect())
}

fn every_order_has_its_win(ledger: &LedgerFacts, wins: &[WinFacts]) -> Found {
    let wins: BTreeMap<RequestId, &WinFacts> = wins.iter().map(|win| (win.request_id, win)).collect();
    let mut seen = BTreeSet::new();
    let mut violations = Vec::new();
    let booked = || ledger.orders.iter().filter(|order| order.was_booked());
    for order in booked() {
        if !seen.insert(order.request_id) {
            violations.push(format!("{}: two orders", order.request_id));
        }
        match wins.get(&order.request_id) {
            None => violations.push(format!("{}: an order without a win", order.request_id)),
            Some(win) if (win.user.as_str(), win.sku.as_str(), win.qty) != (&order.user, &order.sku, order.qty) => {
                violations.push(format!("{}: order and win name different things", order.request_id));
            }
            Some(_) => {}
        }
    }
    (booked().count(), violations)
}

fn every_win_has_its_order(ledger: &LedgerFacts, wins: &[WinFacts]) -> Found {
    let orders: BTreeMap<RequestId, &OrderFacts> =
        ledger.orders.iter().map(|order| (order.request_id, order)).collect();
    let mut seen = BTreeSet::new();
    let mut violations = Vec::new();
    for win in wins {
        let id = win.request_id;
        if !seen.insert(id) {
            violations.push(format!("{id}: two wins"));
        }
        let order = orders.get(&id);
        match win.state.as_str() {
            "accepted" if !order.is_some_and(|order| order.was_booked()) => {
                violations.push(format!("{id}: accepted, but without an order"));
            }
            // Released is final, so an order read later cannot stand.
            "released" if order.is_some_and(|order| order.stands()) => {
                violations.push(format!("{id}: released, but its order stands"));
            }
            _ => {}
        }
    }
    (wins.len(), violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    const C: &str = "cccccccccccccccccccccccccccccccc";

    fn win(id: &str, user: &str, state: &str) -> WinFacts {
        let (request_id, user) = (id.parse().unwrap(), user.parse().unwrap());
        WinFacts { request_id, user, sku: "phone".parse().unwrap(), qty: 1, state: state.into() }
    }

    fn order(id: &str, user: &str, state: &str) -> OrderFacts {
        let request_id = id.parse().unwrap();
        OrderFacts { request_id, user: user.into(), sku: "phone".into(), qty: 1, state: state.into() }
    }

    fn sound() -> Facts {
        let wins = vec![win(A, "u1", "accepted"), win(B, "u2", "held")];
        let sku = "phone".parse().unwrap();
        Facts {
            wins_before: wins.clone(),
            ledger: Some(LedgerFacts {
                skus: [(sku, LedgerSku { total: 2, sold: 1 })].into(),
                orders: vec![order(A, "u1", "pending")],
            }),
            wins_after: wins,
            store: StoreFacts {
                per_user_limit: 1,
                skus: vec![StoreSku {
                    sku: "phone".parse().unwrap(),
                    total: 2,
                    left: 0,
                    returning: 0,
                    withheld: 0,
                    held: 1,
                    accepted: 1,
                    released: 0,
                }],
            },
            quiet: true,
        }
    }

    fn broken(change: impl FnOnce(&mut Facts)) -> Vec<String> {
        // Most changes are of wins alone, whose sums then differ.
        let mut facts = Facts { quiet: false, ..sound() };
        change(&mut facts);
        check(&facts)
            .into_iter()
            .flat_map(|row| row.violations.into_iter().map(move |what| format!("{} {what}", row.invariant)))
            .collect()
    }

    #[test]
    fn a_sound_sale_breaks_nothing_and_everything_was_checked() {
        assert_eq!(broken(|_| {}), [""; 0]);
        assert!(check(&sound()).iter().all(|row| row.checked.is_some_and(|checked| checked > 0)));
    }

    #[test]
    fn each_fault_breaks_its_invariant() {
        let ledger = |facts: &mut Facts, change: fn(&mut LedgerFacts)| change(facts.ledger.as_mut().unwrap());
        assert_eq!(
            broken(|f| ledger(f, |l| l.skus.values_mut().for_each(|stock| stock.sold = 3))),
            ["INV-1 phone: 3 sold of 2"]
        );
        assert_eq!(broken(|f| f.store.skus[0].left = 1), ["INV-2 phone: total 2 but the parts make 3"]);
        let moved = |quiet| {
            broken(move |f| {
                (f.store.skus[0].held, f.store.skus[0].accepted, f.quiet) = (0, 2, quiet);
            })
        };
        let counted = ["0 units held by the sums, 1 in wins", "2 units accepted by the sums, 1 in wins"];
        assert_eq!(moved(true), counted.map(|found| format!("INV-2 phone: {found}")));
        assert_eq!(moved(false), [""; 0]);
        assert_eq!(
            broken(|f| {
                f.wins_before.push(win(C, "u2", "held"));
                f.wins_after.push(win(C, "u2", "accepted"));
            }),
            ["INV-3 u2 holds 2 of 1"]
        );
        assert_eq!(
            broken(|f| ledger(f, |l| l.orders.push(order(B, "u1", "paid")))),
            ["INV-3 u1 ordered 2 of 1".to_owned(), format!("INV-4 {B}: order and win name different things")]
        );
        assert_eq!(broken(|f| ledger(f, |l| l.orders.clear())), [format!("INV-4 {A}: accepted, but without an order")]);
        assert_eq!(broken(|f| f.wins_after.clear()), [format!("INV-4 {A}: an order without a win")]);
        assert_eq!(
            broken(|f| f.wins_before[0].state = "released".into()),
            [format!("INV-4 {A}: released, but its order stands")]
        );
        assert_eq!(broken(|f| f.wins_before.push(win(B, "u2", "held"))), [format!("INV-4 {B}: two wins")]);
    }

    #[test]
    fn a_unit_given_back_and_won_again_between_two_pages_is_no_second_unit() {
        let second = |before: &[&str], after: &str| {
            broken(|f| {
                f.wins_before.extend(before.iter().map(|state| win(C, "u2", state)));
                f.wins_after.push(win(C, "u2", after));
            })
        };
        assert_eq!(second(&[], "held"), [""; 0], "won after the first reading");
        assert_eq!(second(&["held"], "released"), [""; 0], "given back before the second");
        assert_eq!(second(&["held"], "held"), ["INV-3 u2 holds 2 of 1"]);
    }

    #[test]
    fn without_a_ledger_its_checks_are_open_and_not_passed() {
        let mut facts = sound();
        facts.ledger = None;
        let open: Vec<_> = check(&facts).iter().filter(|row| row.checked.is_none()).map(|row| row.invariant).collect();
        assert_eq!(open, ["INV-1", "INV-3", "INV-4", "INV-4"]);
    }
}
