//! The gate: judges attempts, takes stock, delivers winners. It talks to the order service over HTTP only.

pub mod activity;
pub mod adapter;
pub mod address;
pub mod admin;
pub mod answer;
pub mod combiner;
pub mod delivery;
pub mod edge;
pub mod file_terms;
pub mod identity;
pub mod ledger;
pub mod limits;
pub mod metrics;
pub mod pages;
pub mod pipeline;
pub mod port;
pub mod reload;
pub mod request;
pub mod serve;
pub mod stages;
pub mod store;
pub mod tokens;
pub mod view;
pub mod view_metrics;
pub mod waiters;
pub mod watch;
