//! Winners to the order service: first try and relay are one code path.
//!
//! [`client`] makes one delivery, [`word`] judges the reply, [`courier`] records the outcome and says what may be told,
//! [`relay`] repeats deliveries that are due, [`lanes`] says how many may be under way. What the store keeps of a reply is in [`reply`].

pub mod backlog;
pub mod client;
pub mod conflicts;
pub mod courier;
pub mod lanes;
pub mod metrics;
pub mod outbox;
pub mod pacer;
pub mod relay;
pub mod reply;
pub mod ticket;
pub mod told;
pub mod word;
