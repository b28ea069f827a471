//! Pure decisions: what an attempt, a win and a stock count *are*, and every rule about them.
//!
//! Nothing in here is async, does I/O, reads a clock, draws randomness or logs, and nothing here imports another module
//! of ours. Time arrives as an argument ([`StoreMs`]), so every rule can be tested as a table.

pub mod admission;
pub mod backoff;
pub mod dead_letters;
pub mod ids;
pub mod model;
pub mod refusal;
pub mod stock;
pub mod time;
pub mod win;

pub use ids::{ActivityId, DeviceId, Fingerprint, GateId, IdempotencyKey, InvalidId, RequestId, SkuId, UserId};
pub use time::StoreMs;
