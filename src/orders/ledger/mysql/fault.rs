//! What can stop a transaction, told apart by what to do next.

use sqlx::mysql::MySqlDatabaseError;

use crate::orders::ledger::LedgerError;
use crate::orders::order::Refusal;

/// Why a transaction was rolled back.
#[derive(Debug)]
pub(super) enum Fault {
    /// Deadlock, lock wait, changed snapshot: the same again may well succeed.
    Again(String),
    /// A key exists already.
    Duplicate(String),
    /// A guard of ours said no.
    Guard(Refusal),
    /// These very rows are at fault.
    Rejected(String),
    /// Anything else: never the fault of the rows.
    Unavailable(String),
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Fault {
        let text = error.to_string();
        let number = error
            .as_database_error()
            .and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>())
            .map(MySqlDatabaseError::number);
        match number {
            Some(number) => classify(number, text),
            None => Fault::Unavailable(text),
        }
    }
}

fn classify(number: u16, text: String) -> Fault {
    match number {
        // ER_LOCK_DEADLOCK, ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT
        1213 | 1020 | 1205 => Fault::Again(text),
        // ER_DUP_ENTRY
        1062 => Fault::Duplicate(text),
        // Null, range, truncation, wrong value, foreign key, check (MySQL and MariaDB), packet size, raised by a trigger.
        1048 | 1153 | 1264 | 1265 | 1292 | 1366 | 1406 | 1452 | 1644 | 1690 | 3819 | 4025 => Fault::Rejected(text),
        _ => Fault::Unavailable(text),
    }
}

impl From<LedgerError> for Fault {
    fn from(error: LedgerError) -> Fault {
        match error {
            LedgerError::Unavailable(text) => Fault::Unavailable(text),
            LedgerError::Rejected(text) => Fault::Rejected(text),
        }
    }
}

impl From<Fault> for LedgerError {
    fn from(fault: Fault) -> LedgerError {
        match fault {
            Fault::Again(text) | Fault::Unavailable(text) | Fault::Duplicate(text) => LedgerError::Unavailable(text),
            Fault::Rejected(text) => LedgerError::Rejected(text),
            Fault::Guard(refusal) => LedgerError::Unavailable(format!("guard: {}", refusal.as_str())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_of_the_rows_are_blamed_on_them() {
        let kind = |number| match classify(number, String::new()) {
            Fault::Again(_) => "again",
            Fault::Duplicate(_) => "duplicate",
            Fault::Rejected(_) => "rejected",
            _ => "unavailable",
        };
        for (number, expected) in [
            (1213, "again"),
            (1205, "again"),
            (1020, "again"),
            (1062, "duplicate"),
            (1406, "rejected"),
            (4025, "rejected"),
            (1644, "rejected"),
            (1040, "unavailable"), // too many connections
            (1114, "unavailable"), // table full
            (1021, "unavailable"), // disk full
            (1290, "unavailable"), // read only
            (1053, "unavailable"), // shutdown
            (1146, "unavailable"), // no such table: a migration is missing, no order's fault
        ] {
            assert_eq!(kind(number), expected, "{number}");
        }
    }
}
