//! Real servers for the tests: each on a free port and in a temporary folder, stopped when dropped.

pub mod deployment;
pub mod log;
pub mod mariadb;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod store;
pub mod wish;
