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
        match error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>()) {
            Some(told) => classify(told.number(), told.code().unwrap_or_default(), text),
            None => Fault::Unavailable(text),
        }
    }
}

/// By error number, and where that is not listed by the class of the SQLSTATE: 22 is data that does not fit, 23 a broken
/// constraint, 45 what a trigger raised. A row that offends in a way not listed would otherwise hold the queue up for ever.
fn classify(number: u16, sqlstate: &str, text: String) -> Fault {
    match number {
        // ER_LOCK_DEADLOCK, ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT
        1213 | 1020 | 1205 => Fault::Again(text),
        // ER_DUP_ENTRY
        1062 => Fault::Duplicate(text),
        // Null, range, truncation, wrong value, foreign key, check (MySQL and MariaDB), packet size, raised by a trigger.
        1048 | 1153 | 1264 | 1265 | 1292 | 1366 | 1406 | 1452 | 1644 | 1690 | 3819 | 4025 => Fault::Rejected(text),
        _ if ["22", "23", "45"].iter().any(|class| sqlstate.starts_with(class)) => Fault::Rejected(text),
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
        let kind = |number, sqlstate| match classify(number, sqlstate, String::new()) {
            Fault::Again(_) => "again",
            Fault::Duplicate(_) => "duplicate",
            Fault::Rejected(_) => "rejected",
            _ => "unavailable",
        };
        for (number, sqlstate, expected) in [
            (1213, "40001", "again"),
            (1205, "HY000", "again"),
            (1020, "HY000", "again"),
            (1062, "23000", "duplicate"),
            (1406, "22001", "rejected"),
            (4025, "23000", "rejected"),
            (1644, "45000", "rejected"),
            (1644, "HY000", "rejected"),
            (3140, "22032", "rejected"),    // invalid JSON, in a column that a shop added
            (1040, "08004", "unavailable"), // too many connections
            (1203, "42000", "unavailable"), // too many connections of this user
            (1226, "42000", "unavailable"), // this user's resources are used up
            (1045, "28000", "unavailable"), // access denied
            (1142, "42000", "unavailable"), // command denied
            (1114, "HY000", "unavailable"), // table full
            (1021, "HY000", "unavailable"), // disk full
            (1030, "HY000", "unavailable"), // error of the storage engine
            (1290, "HY000", "unavailable"), // read only
            (1836, "HY000", "unavailable"), // read only, MySQL
            (1792, "25006", "unavailable"), // read-only transaction
            (1053, "08S01", "unavailable"), // shutdown
            (1927, "70100", "unavailable"), // connection killed
            (1317, "70100", "unavailable"), // query killed
            (1969, "70100", "unavailable"), // statement took too long
            (1146, "42S02", "unavailable"), // no such table: a migration is missing, no order's fault
            (1054, "42S22", "unavailable"), // no such column
        ] {
            assert_eq!(kind(number, sqlstate), expected, "{number}");
        }
    }
}
