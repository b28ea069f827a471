//! Black-box tests on real servers: one binary, one harness. A missing server is a failure, never a skip.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod admin;
mod admin_rig;
mod admission;
mod config;
mod delivery;
mod fake_activity;
mod fake_store;
mod harness;
mod house;
mod signals;
mod store_agreement;
