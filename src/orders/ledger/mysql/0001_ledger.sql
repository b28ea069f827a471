-- Names are ascii and compared byte by byte; users are bytes, since two users may differ in case or in trailing blanks.
CREATE TABLE activities (
    activity            VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    epoch               BIGINT NOT NULL,
    base_epoch          BIGINT NOT NULL,
    per_user_limit      BIGINT NOT NULL,
    rebuy               BIGINT NOT NULL,
    payment_deadline_ms BIGINT NOT NULL,
    created_at_ms       BIGINT NOT NULL
) ENGINE = InnoDB;

CREATE TABLE stock (
    activity VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sku      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    total    BIGINT NOT NULL,
    sold     BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (activity, sku),
    CONSTRAINT never_oversell CHECK (sold >= 0 AND sold <= total)
) ENGINE = InnoDB;

CREATE TABLE orders (
    request_id    CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    order_id      CHAR(33) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    activity      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sku           VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    qty           BIGINT NOT NULL,
    user          VARBINARY(128) NOT NULL,
    state         VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    epoch         BIGINT NOT NULL,
    payload       MEDIUMBLOB NOT NULL,
    created_at_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    KEY by_activity (activity, request_id),
    KEY by_state (activity, state),
    KEY by_user (activity, user)
) ENGINE = InnoDB;

CREATE TABLE purchases (
    activity VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    user     VARBINARY(128) NOT NULL,
    units    BIGINT NOT NULL,
    PRIMARY KEY (activity, user)
) ENGINE = InnoDB;

CREATE TABLE journal (
    id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    request_id VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    activity   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sku        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    delta      BIGINT NOT NULL,
    at_ms      BIGINT NOT NULL,
    KEY by_activity (activity, id)
) ENGINE = InnoDB;

CREATE TABLE set_aside (
    activity VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    entry    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    content  MEDIUMBLOB NOT NULL,
    error    TEXT NOT NULL,
    at_ms    BIGINT NOT NULL,
    PRIMARY KEY (activity, entry)
) ENGINE = InnoDB;
