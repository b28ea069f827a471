//! seckill-gate: a flash-sale admission gateway. The map of the tree stands in ARCHITECTURE.md.

pub mod cli;
pub mod config;
pub mod domain;
pub mod gate;
pub mod orders;
pub mod platform;
