CREATE TABLE queue (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    activity    TEXT NOT NULL,
    rid         TEXT NOT NULL,
    sku         TEXT NOT NULL,
    qty         TEXT NOT NULL,
    user        TEXT NOT NULL,
    epoch       TEXT NOT NULL,
    payload     BLOB NOT NULL,
    taken_at_ms INTEGER NOT NULL DEFAULT 0,
    UNIQUE (activity, rid)
) STRICT;
CREATE INDEX queue_by_taken ON queue (taken_at_ms, id);
