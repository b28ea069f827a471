//! Everything that can be wrong with a configuration, in one place: what it is, and what to write instead.

use super::secret::SecretError;

/// One kind of fault. Its text is what the person reads; it never repeats a secret.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum Problem {
    // ------------------------------------------------------------------------------------------- the file
    #[error("cannot be read: {0}; name a readable YAML file with `-c FILE`")]
    Unreadable(std::io::Error),
    #[error("is not UTF-8 text; save the file as UTF-8")]
    NotUtf8,
    #[error("the file is larger than {limit} bytes; split the sales over several deployments")]
    TooBig { limit: usize },
    #[error("not valid YAML: {0}")]
    NotYaml(String),
    #[error("a second document begins here; keep one document per file")]
    SecondDocument,
    #[error("nested deeper than {limit} levels; no key needs that")]
    TooDeep { limit: usize },
    #[error("aliases expand to more than {limit} values; write them out")]
    TooManyNodes { limit: usize },
    #[error("this alias stands for nothing that is complete above it; write the value itself")]
    UnknownAlias,
    #[error("tag `{tag}` is not used here; remove it")]
    Tagged { tag: String },
    #[error("a key must be plain text; write `key: value`")]
    KeyNotText,
    #[error("key `{key}` stands twice, first in line {first_line}; keep one")]
    DuplicateKey { key: String, first_line: usize },
    #[error("the file is empty; begin with a copy of conf/minimal.yaml")]
    Empty,

    // ---------------------------------------------------------------------------------------------- shape
    #[error("unknown key `{key}`; did you mean `{guess}`?")]
    Misspelt { key: String, guess: String },
    #[error("unknown key `{key}`; keys here are {known}")]
    UnknownKey { key: String, known: String },
    #[error("merge key `<<` is not part of YAML 1.2; write the keys out, or use an alias for the whole value")]
    MergeKey,
    #[error("key `{key}` is missing; add {hint}")]
    MissingKey { key: String, hint: String },
    #[error("expected {expected}, found {found}; write {instead}")]
    WrongType { expected: String, found: &'static str, instead: String },
    #[error("`{value}` is none of the choices; write {choices}")]
    NoSuchChoice { value: String, choices: String },
    #[error("{value} is too small; write {limit} or more")]
    TooSmall { value: String, limit: String },
    #[error("{value} is too large; write {limit} or less")]
    TooLarge { value: String, limit: String },
    #[error("{0}")]
    Malformed(String),
    #[error("a secret must not stand in this file; write `{{ env: NAME }}` or `{{ file: PATH }}`")]
    InlineSecret,
    #[error("a secret comes from exactly one place; write either `env: NAME` or `file: PATH`")]
    SecretPlaces,
    #[error("nothing is listed; write {0}")]
    EmptyCollection(&'static str),
    #[error("`{name}` is no valid name; write 1-64 of a-z 0-9 -, not starting with -")]
    BadName { name: String },
    #[error("does not fit: {0}")]
    Other(String),

    // ------------------------------------------------------------------------------- gate and deployment
    #[error("`{own}` ({address}) has the port of `{other}`; give each listener its own")]
    ListenersCollide { own: &'static str, address: std::net::SocketAddr, other: &'static str },
    #[error(
        "`{0}` is no path prefix; write one like `/seckill`: a slash, then segments of A-Z a-z 0-9 _ ~ -, no slash at the end"
    )]
    BadPrefix(String),
    #[error("`{0}` is no host name with port; write one like `admin.example.com:8081`")]
    BadHost(String),
    #[error("this gate is not named in `deployment.gates`; write one of {gates}, or add it there")]
    GateNotDeployed { gates: String },
    #[error("gate `{gate}` (from --gate) is not named in `deployment.gates`; add it there, or start one of {gates}")]
    OverrideNotDeployed { gate: String, gates: String },
    #[error("`{0}` is listed twice; keep one")]
    ListedTwice(String),
    #[error("an embedded store serves one gate, and {gates} are deployed; use `kind: redis`, or name one gate")]
    EmbeddedWithManyGates { gates: usize },
    #[error("both admin tokens come from the same place; give the reading one its own secret")]
    SameAdminTokens,
    #[error("must be longer than zero; write {0}")]
    ZeroSpan(&'static str),
    #[error("is longer than {limit}, so {because}; write {limit} or less")]
    TooLong { limit: &'static str, because: &'static str },
    #[error("is shorter than {limit}, so {because}; write {limit} or more")]
    TooShort { limit: String, because: &'static str },

    // ----------------------------------------------------------------------------------------------- urls
    #[error("is no url ({reason}); write one like `{example}`")]
    BadUrl { reason: String, example: &'static str },
    #[error("a password must not stand in a url; remove it and write `{instead}`")]
    PasswordInUrl { instead: &'static str },
    #[error("a user name does not belong into this url; {instead}")]
    UserInUrl { instead: &'static str },
    // What is too much may be a secret (`?token=…`): it is named by its kind, never repeated.
    #[error("this url must end after its host and port; remove its {rest}")]
    UrlWithRest { rest: &'static str },
    #[error("this url must end with its path; remove its {rest}")]
    UrlWithQuery { rest: &'static str },
    #[error("paths are put behind this url; remove the slash at its end")]
    UrlEndsWithSlash,

    // ----------------------------------------------------------------------------- identity and tokens
    #[error("key id `{kid}` is used twice; give each key its own `kid`")]
    SameKid { kid: String },
    #[error("`{0}` is no key id; write 1-64 of A-Z a-z 0-9 . _ -")]
    BadKid(String),
    #[error("must not be empty; write {0}")]
    EmptyText(&'static str),
    #[error("`{0}` is no cookie name; write letters, digits, - and _ only")]
    BadCookie(String),
    #[error("`{cookie}` is a cookie of the gate's own; name the shop's")]
    ReservedCookie { cookie: String },

    // -------------------------------------------------------------------------------- orders and service
    #[error("status {status} cannot mean this; write statuses from {range}")]
    BadStatus { status: u16, range: &'static str },
    #[error("status {status} also stands in `final_statuses`; keep it in one list")]
    StatusInBoth { status: u16 },
    #[error("our own order service answers 202 before it has booked; remove 202, or set `kind: external`")]
    InternalNotFinal,
    #[error(
        "the shop has its own order service (`orders.kind: external`); remove this section, or write `kind: internal`"
    )]
    ServiceNotUsed,
    #[error("our own order service wants a bearer token; add `api_token: {{ env: NAME }}` to `orders`")]
    ApiTokenMissing,
    #[error("the database must be named; write one like `mysql://seckill@127.0.0.1:3306/seckill`")]
    DatabaseMissing,
    #[error("the same file as `{other}`; give each its own")]
    SameFile { other: &'static str },
    #[error("not readable as a log filter ({0}); write one like `info` or `info,seckill_gate=debug`")]
    BadLogFilter(String),

    // ------------------------------------------------------------------------------------------ activities
    #[error("the sale ends before it starts; write a time after {starts_at}")]
    EndsBeforeStart { starts_at: String },
    #[error("one attempt could ask for {max_qty} units, but a user may hold {limit}; write {limit} or less")]
    QtyAboveLimit { max_qty: u32, limit: u32 },
    #[error("all SKUs together offer {total} units; an activity holds at most {limit}, so split it")]
    TotalTooLarge { total: u64, limit: u64 },
    #[error("the store would forget a win before its payment is due; write more than `payment_deadline` ({deadline})")]
    RetentionTooShort { deadline: String },

    // ------------------------------------------------------------------------- what the file points at
    #[error("{0}")]
    Secret(SecretError),
    #[error("the secret is {bytes} bytes long; {algorithm} needs 32 or more, e.g. from `openssl rand -hex 32`")]
    SecretTooShort { bytes: usize, algorithm: &'static str },
    #[error("not a key for {algorithm}; put {wanted} there")]
    BadKey { algorithm: &'static str, wanted: &'static str },
    #[error("this public key does not belong to `orders.ticket_key`; make it with `openssl pkey -in KEY -pubout`")]
    KeysDiffer,
    #[error("differs from `orders.api_token`; both must hold the same secret")]
    ApiTokensDiffer,
    #[error("the reading token equals `admin_token`; give it another secret")]
    AdminTokensEqual,
    #[error("`{path}` has no readable `index.html`; name a directory that holds one, or remove `page`")]
    NoPage { path: String },
    #[error("the directory `{path}` does not exist; create it, or name another")]
    NoDirectory { path: String },
}
