//! Black-box tests on real servers: one binary, one harness. A missing server is a failure, never a skip.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod admission;
mod config;
mod delivery;
mod fake_activity;
mod harness;
mod house;
mod store_agreement;
