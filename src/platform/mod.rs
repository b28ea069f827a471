//! What touches the machine: clock, drivers, telemetry, shutdown. No decision about a sale is made here.

pub mod clock;
pub mod sqlite_worker;
