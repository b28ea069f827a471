//! Our order service: intake, queue, consumer, ledger.
//!
//! It knows no catalogue, price or payment provider, but its bookkeeping is complete: a shop can run on it or copy it.
//! It talks to the gate over HTTP only.

pub mod ledger;
pub mod order;
