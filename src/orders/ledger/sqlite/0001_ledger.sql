CREATE TABLE activities (
    activity            TEXT NOT NULL PRIMARY KEY,
    epoch               INTEGER NOT NULL,
    base_epoch          INTEGER NOT NULL,
    per_user_limit      INTEGER NOT NULL,
    rebuy               INTEGER NOT NULL,
    payment_deadline_ms INTEGER NOT NULL,
    created_at_ms       INTEGER NOT NULL
) STRICT;

CREATE TABLE stock (
    activity TEXT NOT NULL,
    sku      TEXT NOT NULL,
    total    INTEGER NOT NULL,
    sold     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (activity, sku),
    CONSTRAINT never_oversell CHECK (sold >= 0 AND sold <= total)
) STRICT;

CREATE TABLE orders (
    request_id    TEXT NOT NULL PRIMARY KEY,
    order_id      TEXT NOT NULL,
    activity      TEXT NOT NULL,
    sku           TEXT NOT NULL,
    qty           INTEGER NOT NULL,
    user          BLOB NOT NULL,
    state         TEXT NOT NULL,
    reason        TEXT NOT NULL DEFAULT '',
    epoch         INTEGER NOT NULL,
    payload       BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX orders_by_activity ON orders (activity, request_id);
CREATE INDEX orders_by_state ON orders (activity, state);
CREATE INDEX orders_by_user ON orders (activity, user);

CREATE TABLE purchases (
    activity TEXT NOT NULL,
    user     BLOB NOT NULL,
    units    INTEGER NOT NULL,
    PRIMARY KEY (activity, user)
) STRICT;

CREATE TABLE journal (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL DEFAULT '',
    activity   TEXT NOT NULL,
    sku        TEXT NOT NULL,
    kind       TEXT NOT NULL,
    delta      INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL
) STRICT;
CREATE INDEX journal_by_activity ON journal (activity, id);

CREATE TABLE set_aside (
    activity TEXT NOT NULL,
    entry    TEXT NOT NULL,
    content  BLOB NOT NULL,
    error    TEXT NOT NULL,
    at_ms    INTEGER NOT NULL,
    PRIMARY KEY (activity, entry)
) STRICT;
