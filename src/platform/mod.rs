//! What touches the machine: clock, drivers, telemetry, shutdown. No decision about a sale is made here.

pub mod breaker;
pub mod clock;
pub mod http_server;
pub mod listen;
pub mod metrics;
pub mod redis;
pub mod redis_server;
pub mod shutdown;
pub mod sqlite;
pub mod telemetry;
