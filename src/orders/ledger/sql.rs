//! Statements that read the same on MySQL, MariaDB and SQLite.

/// Columns of [`super::rows::OrderColumns`]; binds: request id.
pub(super) const FIND: &str = "SELECT request_id, activity, sku, qty, user, state, reason, epoch, payload, created_at_ms \
     FROM orders WHERE request_id = ?";

/// Columns of [`super::rows::ListColumns`]; binds: activity, after, limit.
pub(super) const LIST: &str = "SELECT request_id, sku, qty, user, state, reason, created_at_ms FROM orders \
     WHERE activity = ? AND request_id > ? ORDER BY request_id LIMIT ?";

/// Columns of [`super::rows::JournalColumns`]; binds: activity, after, limit.
pub(super) const JOURNAL: &str = "SELECT id, request_id, sku, kind, delta, at_ms FROM journal \
     WHERE activity = ? AND id > ? ORDER BY id LIMIT ?";

/// Epoch, base epoch, limit, rebuy, payment deadline; binds: activity.
pub(super) const ACTIVITY: &str = "SELECT epoch, base_epoch, per_user_limit, rebuy, payment_deadline_ms FROM activities \
     WHERE activity = ?";

/// SKU, total, sold; binds: activity.
pub(super) const STOCK: &str = "SELECT sku, total, sold FROM stock WHERE activity = ? ORDER BY sku";

/// Total, sold; binds: activity, SKU.
pub(super) const STOCK_OF: &str = "SELECT total, sold FROM stock WHERE activity = ? AND sku = ?";

/// State, rows; binds: activity.
pub(super) const STATES: &str = "SELECT state, COUNT(*) FROM orders WHERE activity = ? GROUP BY state ORDER BY state";

/// Activity, state, rows.
pub(super) const COUNTS: &str = "SELECT activity, state, COUNT(*) FROM orders GROUP BY activity, state";

/// Binds: activity. What was booked, refused or voided since is no longer set aside.
pub(super) const COUNT_SET_ASIDE: &str = "SELECT COUNT(*) FROM set_aside s WHERE s.activity = ? \
     AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.request_id = s.entry)";

/// Activity, rows.
pub(super) const COUNTS_SET_ASIDE: &str = "SELECT s.activity, COUNT(*) FROM set_aside s \
     WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.request_id = s.entry) GROUP BY s.activity";

/// Columns of [`super::rows::AsideColumns`]; binds: activity, after, limit.
pub(super) const LIST_SET_ASIDE: &str = "SELECT s.entry, s.content, s.error, s.at_ms FROM set_aside s \
     WHERE s.activity = ? AND s.entry > ? AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.request_id = s.entry) \
     ORDER BY s.entry LIMIT ?";

/// Rows, 0 or 1; binds: activity, request id.
pub(super) const IS_SET_ASIDE: &str = "SELECT COUNT(*) FROM set_aside WHERE activity = ? AND entry = ?";

/// Binds: activity, request id.
pub(super) const PUT_BACK: &str = "DELETE FROM set_aside WHERE activity = ? AND entry = ?";

/// Binds: activity.
pub(super) const COUNT_ORDERS: &str = "SELECT COUNT(*) FROM orders WHERE activity = ?";

/// The activities.
pub(super) const ACTIVITIES: &str = "SELECT activity FROM activities ORDER BY activity";

/// The guard of the ledger; binds: units, activity, SKU, units. One row, or the units are not there.
pub(super) const SELL: &str = "UPDATE stock SET sold = sold + ? WHERE activity = ? AND sku = ? AND sold + ? <= total";

/// Binds: new total, activity, SKU, old total, new total.
pub(super) const SET_TOTAL: &str =
    "UPDATE stock SET total = ? WHERE activity = ? AND sku = ? AND total = ? AND sold <= ?";

/// Columns of [`super::rows::AuditSku`]; binds: activity.
pub(super) const AUDIT_SKUS: &str = "SELECT s.sku, s.total, s.sold, \
     CAST(COALESCE((SELECT SUM(o.qty) FROM orders o WHERE o.activity = s.activity AND o.sku = s.sku \
       AND o.state IN ('pending', 'paid')), 0) AS SIGNED), \
     CAST(COALESCE((SELECT SUM(j.delta) FROM journal j WHERE j.activity = s.activity AND j.sku = s.sku \
       AND j.kind <> 'total'), 0) AS SIGNED) \
     FROM stock s WHERE s.activity = ? ORDER BY s.sku";

/// Columns of [`super::rows::AuditUser`], only users whose sums are worth a look; binds: activity, limit.
pub(super) const AUDIT_BUYERS: &str = "SELECT o.user, CAST(SUM(o.qty) AS SIGNED) AS units, \
     CAST(COALESCE(MAX(p.units), 0) AS SIGNED) AS counted \
     FROM orders o LEFT JOIN purchases p ON p.activity = o.activity AND p.user = o.user \
     WHERE o.activity = ? AND o.state IN ('pending', 'paid') GROUP BY o.user \
     HAVING units > ? OR units <> counted LIMIT 1000";

/// The same for purchases of users without a standing order; binds: activity.
pub(super) const AUDIT_IDLE_BUYERS: &str = "SELECT p.user, CAST(0 AS SIGNED), p.units FROM purchases p \
     WHERE p.activity = ? AND p.units <> 0 AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.activity = p.activity \
     AND o.user = p.user AND o.state IN ('pending', 'paid')) LIMIT 1000";
