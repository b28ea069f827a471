//! The stock of one SKU, as a sum that always adds up (INV-2).

use serde::{Deserialize, Serialize};

use super::win::WinState;

/// The wins of one SKU, summed up: the other half of INV-2. Each sum is (number of wins, their units).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WinUnits {
    /// Held.
    pub held: (u64, i64),
    /// Accepted.
    pub accepted: (u64, i64),
    /// Released.
    pub released: (u64, i64),
}

impl WinUnits {
    /// A win of so many units is recorded in `state`, coming from `from`; a fresh one from nowhere.
    pub fn record(&mut self, from: Option<&WinState>, state: &WinState, units: i64) {
        if let Some(from) = from {
            let sum = self.of(from);
            *sum = (sum.0.saturating_sub(1), sum.1 - units);
        }
        let sum = self.of(state);
        *sum = (sum.0 + 1, sum.1 + units);
    }

    fn of(&mut self, state: &WinState) -> &mut (u64, i64) {
        match state {
            WinState::Held => &mut self.held,
            WinState::Accepted => &mut self.accepted,
            WinState::Released(_) => &mut self.released,
        }
    }
}

/// Units of one SKU. `total = left + returning + withheld + units of held and accepted wins`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stock {
    /// Units offered.
    pub total: i64,
    /// Units on sale now. Below zero only after a lost store was rebuilt without one of the gates.
    pub left: i64,
    /// Units that come back on sale after the returning delay.
    pub returning: i64,
    /// Units kept back by an operator or a disagreement with the ledger.
    pub withheld: i64,
    /// No more wins of this SKU until it is started again.
    pub stopped: bool,
    /// Its wins, kept as sums in the same writes that change them.
    pub wins: WinUnits,
}

impl Stock {
    /// A fresh stock with everything on sale.
    pub fn new(total: i64) -> Stock {
        Stock { total, left: total, ..Stock::default() }
    }

    /// Units that the store must find in held and accepted wins for INV-2 to hold.
    pub fn units_in_wins(&self) -> i64 {
        self.total - self.left - self.returning - self.withheld
    }

    /// INV-2.
    pub fn adds_up(&self) -> bool {
        self.units_in_wins() == self.wins.held.1 + self.wins.accepted.1
    }

    /// Whether nothing is on sale and nothing is about to be.
    pub fn is_exhausted(&self) -> bool {
        self.left <= 0 && self.returning == 0
    }
}
