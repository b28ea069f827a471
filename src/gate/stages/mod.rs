//! The stages of the funnel as plain functions: no server types, no I/O. Their order stands in
//! [`crate::gate::pipeline`].

pub mod outcome;
pub mod path;
pub mod shape;
pub mod time;
