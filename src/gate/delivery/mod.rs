//! Winners to the order service: first try and relay are one code path.

pub mod reply;
pub mod told;
