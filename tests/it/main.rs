//! Black-box tests on real servers: one binary, one harness. A missing server is a failure, never a skip.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod admin;
mod admin_dead_letters;
mod admin_rig;
mod admin_trouble;
mod admission;
mod commands;
mod config;
mod dead_letters;
mod delivery;
mod drain;
mod drills;
mod edge;
mod external;
mod fake_activity;
mod fake_store;
mod guard;
mod harness;
mod hostile;
mod house;
mod isolation;
mod leases;
mod operate;
mod orders;
mod releases;
mod reload;
mod retries;
mod sale;
mod sick_orders;
mod signals;
mod store_agreement;

#[test]
fn a_redis_of_the_tests_own_starts() {
    let redis = harness::redis::Redis::start();
    assert!(harness::process::listens(redis.port), "{} (pid {}) does not listen", redis.url(), redis.pid());
}
