//! A crowd on loopback: buyers with addresses of their own, and what became of them.
//!
//! - [`crowd`] sends many buyers at the gates of one sale and collects the [`funnel`]
//! - [`buyer`] is what one of them does: look, fetch a token, click, click again
//! - [`answer`] is how it reads what it is told
//! - [`http`] is the client they use, thin enough that the crowd does not starve what it measures
//! - [`shop`] stands in for the shop behind the gate
//!
//! Nothing here depends on the gate's code: the crowd knows only what the protocol says, as a real one would.

pub mod answer;
pub mod buyer;
pub mod crowd;
pub mod funnel;
pub mod http;
pub mod latency;
pub mod shop;
pub mod signer;
