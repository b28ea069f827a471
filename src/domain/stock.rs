//! The stock of one SKU, as a sum that always adds up (INV-2).

use serde::{Deserialize, Serialize};

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

    /// Whether nothing is on sale and nothing is about to be.
    pub fn is_exhausted(&self) -> bool {
        self.left <= 0 && self.returning == 0
    }
}
