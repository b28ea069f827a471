//! The gate: judges attempts, takes stock, delivers winners. It talks to the order service over HTTP only.

pub mod activity;
pub mod admin;
pub mod combiner;
pub mod delivery;
pub mod ledger;
pub mod store;
pub mod view;
pub mod view_metrics;
pub mod waiters;
pub mod watch;
