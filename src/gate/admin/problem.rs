//! How the admin listener says no: `application/problem+json` with a named code.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};

use crate::domain::ActivityId;
use crate::domain::admission::Barred;
use crate::gate::ledger::LedgerError;
use crate::gate::store::StoreError;

/// An error as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// HTTP status.
    pub status: StatusCode,
    /// Its name.
    pub code: &'static str,
    /// What happened, and what to do.
    pub detail: String,
}

impl Problem {
    /// An error.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, code, detail: detail.into() }
    }

    /// 400.
    pub fn bad_request(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "BAD_REQUEST", detail)
    }

    /// 404.
    pub fn not_found(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, code, detail)
    }

    /// 405.
    pub fn method_not_allowed() -> Problem {
        let detail = "changes are made by POST, everything else is read by GET";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", detail)
    }

    /// 409.
    pub fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, detail)
    }

    /// An activity that is not configured here.
    pub fn no_such_activity(name: &str) -> Problem {
        Problem::not_found("NO_SUCH_ACTIVITY", format!("no activity `{name}` is configured on this gate"))
    }

    /// A request id that never won, as far as the store knows.
    pub fn unknown_win() -> Problem {
        Problem::not_found("UNKNOWN_WIN", "no win is recorded under this request id")
    }

    /// An activity whose store is not there.
    pub fn not_preheated(activity: &ActivityId) -> Problem {
        Problem::conflict(
            "NOT_PREHEATED",
            format!("`{activity}` is not preheated; run `seckill-gate preheat {activity}`"),
        )
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let code = match error {
            StoreError::Unavailable(_) => "STORE_UNAVAILABLE",
            StoreError::Unknown(_) => "OUTCOME_UNKNOWN",
        };
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, format!("{error}; the same request may be repeated"))
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Problem {
        let detail = format!("{error}; the same request may be repeated");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "LEDGER_UNAVAILABLE", detail)
    }
}

impl From<Barred> for Problem {
    fn from(barred: Barred) -> Problem {
        match barred {
            Barred::NotPreheated => Problem::conflict("NOT_PREHEATED", "the activity's store is not there"),
            Barred::Fenced => Problem::conflict(
                "FENCED",
                "the store is incomplete or of another epoch: it has lost writes. This release cannot mend it",
            ),
            Barred::Suspect => Problem::conflict(
                "SUSPECT",
                "the store's server restarted and may have lost writes; this release does not reopen the sale",
            ),
            Barred::Late => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "LATE", "the call reached the store too late; repeat it")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let retryable = self.status == StatusCode::SERVICE_UNAVAILABLE;
        let mut response = crate::platform::http_server::problem(self.status, self.code, &self.detail, retryable);
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = http::HeaderValue::from_static("Bearer realm=\"seckill-gate admin\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}
