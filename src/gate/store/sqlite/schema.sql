-- The embedded admission store. Times are milliseconds of the store's clock.

CREATE TABLE server (
    run_id TEXT NOT NULL
);

CREATE TABLE activities (
    activity          TEXT PRIMARY KEY,
    epoch             INTEGER NOT NULL,
    run_id            TEXT NOT NULL,
    terms             TEXT NOT NULL,
    starts_at_ms      INTEGER NOT NULL,
    ends_at_ms        INTEGER NOT NULL,
    per_user_limit    INTEGER NOT NULL,
    rebuy             INTEGER NOT NULL,
    retention_ms      INTEGER NOT NULL,
    paused            INTEGER NOT NULL DEFAULT 0,
    returning_seq     INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE stock (
    activity  TEXT NOT NULL,
    position  INTEGER NOT NULL,
    sku       TEXT NOT NULL,
    total     INTEGER NOT NULL,
    available INTEGER NOT NULL,
    coming_back INTEGER NOT NULL DEFAULT 0,
    withheld  INTEGER NOT NULL DEFAULT 0,
    stopped   INTEGER NOT NULL DEFAULT 0,
    -- The SKU's wins as sums: how many, and their units.
    held_wins      INTEGER NOT NULL DEFAULT 0,
    held_units     INTEGER NOT NULL DEFAULT 0,
    accepted_wins  INTEGER NOT NULL DEFAULT 0,
    accepted_units INTEGER NOT NULL DEFAULT 0,
    released_wins  INTEGER NOT NULL DEFAULT 0,
    released_units INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (activity, sku)
) WITHOUT ROWID;

CREATE TABLE buyers (
    activity TEXT NOT NULL,
    user     TEXT NOT NULL,
    units    INTEGER NOT NULL,
    PRIMARY KEY (activity, user)
) WITHOUT ROWID;

CREATE TABLE wins (
    id          INTEGER PRIMARY KEY,
    activity    TEXT NOT NULL,
    request_id  TEXT NOT NULL,
    user        TEXT NOT NULL,
    key         TEXT NOT NULL,
    sku         TEXT NOT NULL,
    qty         INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    won_at_ms   INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('held', 'accepted', 'released')),
    cause       TEXT,
    reason      TEXT,
    tries       INTEGER NOT NULL DEFAULT 0,
    due_at_ms   INTEGER,
    first_delivery_ms INTEGER,
    last_word   TEXT,
    dead_since_ms INTEGER,
    payload     BLOB,
    reply       BLOB,
    UNIQUE (activity, request_id)
);
CREATE INDEX wins_by_user ON wins (activity, user, id);
CREATE INDEX wins_due ON wins (activity, due_at_ms, request_id) WHERE due_at_ms IS NOT NULL;
CREATE INDEX wins_dead ON wins (activity, dead_since_ms, request_id) WHERE dead_since_ms IS NOT NULL;

CREATE TABLE returning_units (
    activity   TEXT NOT NULL,
    on_sale_ms INTEGER NOT NULL,
    member     TEXT NOT NULL,
    sku        TEXT NOT NULL,
    units      INTEGER NOT NULL,
    PRIMARY KEY (activity, on_sale_ms, member)
) WITHOUT ROWID;

CREATE TABLE journal (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    activity   TEXT NOT NULL,
    at_ms      INTEGER NOT NULL,
    op         TEXT NOT NULL,
    request_id TEXT,
    key        TEXT,
    sku        TEXT,
    delta      INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX journal_by_activity ON journal (activity, id);

CREATE TABLE gates (
    activity     TEXT NOT NULL,
    gate         TEXT NOT NULL,
    last_poll_ms INTEGER NOT NULL,
    epoch        INTEGER,
    run_id       TEXT,
    PRIMARY KEY (activity, gate)
) WITHOUT ROWID;
