//! Every answer that is not a win, once: code, HTTP status, title, whether a retry may help, and what it means.

/// A refusal by name. The names are part of the public contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// Malformed path, header, body, key or content type.
    BadRequest,
    /// No valid user.
    Unauthenticated,
    /// Token missing, forged or for another attempt.
    TokenInvalid,
    /// Token past its time.
    TokenExpired,
    /// Refused by a rule.
    Blocked,
    /// Unknown activity.
    NoSuchActivity,
    /// The activity does not offer this SKU.
    NoSuchSku,
    /// No such route under the prefix.
    NotFound,
    /// No win of this user is known under this key (yet).
    NoSuchResult,
    /// The route does not take this method.
    MethodNotAllowed,
    /// The request did not arrive in time.
    Timeout,
    /// The sale has not begun.
    NotStarted,
    /// The user is at the limit.
    AlreadyBought,
    /// The order service refused the order.
    OrderRefused,
    /// The order was cancelled or expired.
    Released,
    /// Nothing left.
    SoldOut,
    /// The sale is over.
    Ended,
    /// Body, path or headers too large: 413, 414 and 431.
    TooLarge,
    /// See [`Code::TooLarge`].
    UriTooLarge,
    /// See [`Code::TooLarge`].
    HeadersTooLarge,
    /// This user used the key with another SKU, quantity or body.
    RequestIdConflict,
    /// A challenge must be passed first.
    ChallengeRequired,
    /// Too many requests.
    RateLimited,
    /// Shed.
    Busy,
    /// Paused, suspect, fenced, not preheated, or SKU stopped.
    Paused,
    /// The store is down; this request did nothing.
    StoreUnavailable,
    /// The shop behind the gate does not answer: 502.
    UpstreamUnavailable,
    /// The shop behind the gate does not answer in time: 504.
    UpstreamTimeout,
    /// The store did not answer in time; the attempt may have won.
    OutcomeUnknown,
}

/// What is fixed about a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// The name on the wire.
    pub name: &'static str,
    /// HTTP status.
    pub status: u16,
    /// Short, the same for every occurrence.
    pub title: &'static str,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// For `explain` and the page behind `type`: what happened, and what to do.
    pub explanation: &'static str,
}

macro_rules! codes {
    ($($code:ident $name:literal $status:literal $retryable:literal $title:literal $explanation:literal;)*) => {
        impl Code {
            /// Every code, in the order of the HTTP reference.
            pub const ALL: &'static [Code] = &[$(Code::$code),*];

            /// The fixed part of the answer.
            pub const fn meaning(self) -> Meaning {
                match self {
                    $(Code::$code => Meaning {
                        name: $name, status: $status, title: $title, retryable: $retryable, explanation: $explanation,
                    },)*
                }
            }
        }
    };
}

codes! {
    BadRequest "BAD_REQUEST" 400 false "Malformed request"
        "The path, a header, the body, the key or the content type does not have the form the gate asks for. \
         Nothing was tried; mend the request before sending it again.";
    Unauthenticated "UNAUTHENTICATED" 401 false "Not signed in"
        "The request carries no valid user token, in the Authorization header or the configured cookie. Sign in at the \
         shop and repeat the request with the same key.";
    TokenInvalid "TOKEN_INVALID" 403 false "Sale token not valid for this attempt"
        "The Seckill-Token header is missing, was not issued by this deployment, or was issued for another user, key, \
         SKU, quantity, device or activity. Fetch a token for exactly this attempt.";
    TokenExpired "TOKEN_EXPIRED" 403 true "Sale token expired"
        "The token's few seconds are over. Fetch a new one for the same key and repeat the attempt.";
    Blocked "BLOCKED" 403 false "Refused by a rule"
        "A rule of the shop keeps this request out.";
    NoSuchActivity "NO_SUCH_ACTIVITY" 404 false "No such sale"
        "No activity of this name is configured on this gate.";
    NoSuchSku "NO_SUCH_SKU" 404 false "Not part of this sale"
        "The activity does not offer this SKU.";
    NotFound "NOT_FOUND" 404 false "No such route"
        "The sale prefix has no route of this name.";
    NoSuchResult "NO_SUCH_RESULT" 404 true "No result known"
        "No win of this user is known under this key. It may still become known; only repeating the attempt with the \
         same key gives a definite answer.";
    MethodNotAllowed "METHOD_NOT_ALLOWED" 405 false "Method not allowed"
        "The route exists but does not take this method; `Allow` lists those it takes.";
    Timeout "TIMEOUT" 408 true "Request did not arrive in time"
        "The headers or the body took too long to arrive. Nothing was tried.";
    NotStarted "NOT_STARTED" 409 true "Sale has not started"
        "The sale opens later, by the store's clock; `retry_after_ms` says when.";
    AlreadyBought "ALREADY_BOUGHT" 409 false "Limit per user reached"
        "This user holds as many units as the sale allows to one user. `result_url` shows them.";
    OrderRefused "ORDER_REFUSED" 409 false "Order refused"
        "The attempt won, but the order service refused the order. The units went back on sale.";
    Released "RELEASED" 409 false "Order cancelled or expired"
        "The attempt won and was booked; the order was later cancelled or expired. The units went back on sale.";
    SoldOut "SOLD_OUT" 410 true "Sold out"
        "Nothing is left now. Units may come back while the sale runs, when orders are refused, cancelled or expire.";
    Ended "ENDED" 410 false "Sale is over"
        "The sale's window has closed.";
    TooLarge "TOO_LARGE" 413 false "Body too large"
        "The body is longer than the gate takes on this route.";
    UriTooLarge "TOO_LARGE" 414 false "Path too long"
        "The path is longer than the gate takes.";
    HeadersTooLarge "TOO_LARGE" 431 false "Headers too large"
        "The headers are larger than the gate takes.";
    RequestIdConflict "REQUEST_ID_CONFLICT" 422 false "Key used for another order"
        "This user won under this key with another SKU, quantity or body. Use a new key for a new order, or repeat the \
         old request exactly.";
    ChallengeRequired "CHALLENGE_REQUIRED" 428 true "Challenge required"
        "Pass the challenge in the answer, then ask for the token again.";
    RateLimited "RATE_LIMITED" 429 true "Too many requests"
        "The limit named in RateLimit-Policy is used up; `retry_after_ms` says when to come back.";
    Busy "BUSY" 503 true "Too busy"
        "The gate shed this request before it was tried. Repeat it with the same key.";
    Paused "PAUSED" 503 true "Sale paused"
        "The sale, or this SKU, takes no new wins at present. Wins told before stand.";
    StoreUnavailable "STORE_UNAVAILABLE" 503 true "Store unavailable"
        "The admission store cannot be reached. This request did nothing; an earlier try with the same key may have won.";
    UpstreamUnavailable "UPSTREAM_UNAVAILABLE" 502 true "Shop unavailable"
        "The shop behind the gate cannot be reached.";
    UpstreamTimeout "UPSTREAM_UNAVAILABLE" 504 true "Shop does not answer"
        "The shop behind the gate did not answer in time.";
    OutcomeUnknown "OUTCOME_UNKNOWN" 503 true "Outcome unknown"
        "The store did not answer in time, so the attempt may or may not have won. Repeat it with the same key to learn \
         the outcome; it cannot win twice.";
}

impl Code {
    /// The name on the wire. Codes that differ in status only share one.
    pub const fn name(self) -> &'static str {
        self.meaning().name
    }

    /// All codes of this name.
    pub fn named(name: &str) -> impl Iterator<Item = Code> + '_ {
        Code::ALL.iter().copied().filter(move |code| code.name().eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_listed_once_and_says_what_to_do() {
        let mut seen = std::collections::HashSet::new();
        for &code in Code::ALL {
            let meaning = code.meaning();
            assert!(seen.insert((meaning.name, meaning.status)), "{code:?} twice");
            assert!((400..600).contains(&meaning.status));
            assert!(meaning.explanation.ends_with('.'), "{code:?}");
        }
        assert_eq!(Code::named("too_large").count(), 3);
    }
}
