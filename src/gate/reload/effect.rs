//! What an edit of each key does at a reload: the one place that decides.
//!
//! A key that stands nowhere here needs a restart. A test demands that every key of the schema stands here, so that none
//! is decided by forgetting.

/// What an edit does at a reload, from the mildest to the most far-reaching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It takes effect at once.
    Live,
    /// It takes effect until the activity is preheated; then what was preheated is the truth.
    Preheated,
    /// It takes effect while no activity is preheated: wins of all of them are found by it.
    BetweenSales,
    /// Not the gate's: the order service reads it at its start.
    OrderService,
    /// It takes effect at the gate's next start.
    Restart,
}

use Effect::{BetweenSales, Live, OrderService, Preheated, Restart};

/// Keys with `*` for names and `[]` for entries of lists; a last `**` stands for everything below.
const EFFECTS: &[(&str, Effect)] = &[
    // Sockets, threads and the limits of connections are made once. The prefix is in URLs that clients hold.
    ("gate.id", Restart),
    ("gate.listen", Restart),
    ("gate.admin", Restart),
    ("gate.metrics", Restart),
    ("gate.prefix", Restart),
    ("gate.requests_per_connection", Restart),
    ("gate.idle_timeout", Restart),
    ("gate.max_connections", Restart),
    ("gate.threads", Restart),
    ("gate.drain_delay", Restart),
    // Connections to the shop are pooled under its address.
    ("gate.shop.**", Restart),
    ("gate.admin_token", Live),
    ("gate.admin_read_token", Live),
    ("gate.admin_hosts", Live),
    ("gate.trusted_proxies", Live),
    ("gate.max_body", Live),
    ("gate.body_deadline", Live),
    ("gate.access_log_sample", Live),
    // Rates are divided anew; a gate is added by reloading the others and starting it.
    ("deployment.gates", Live),
    // Another store is another sale: its wins would be unknown here.
    ("store.**", Restart),
    // Whom a token names hangs on one key alone, the claim. The others decide which tokens are believed: whose are not is
    // UNAUTHENTICATED until there is a new one, and a key that leaked must go at once.
    ("identity.keys[].kid", Live),
    ("identity.keys[].algorithm", Live),
    ("identity.keys[].key", Live),
    ("identity.issuer", Live),
    ("identity.audience", Live),
    ("identity.user_claim", BetweenSales),
    ("identity.cookie", Live),
    ("identity.leeway", Live),
    ("identity.secure_cookies", Live),
    ("identity.device_secret", Live),
    ("identity.signing_key", Live),
    // Likewise: a sale token of a key that is gone is TOKEN_INVALID, and wins nobody anything twice.
    ("tokens.keys[].kid", Live),
    ("tokens.keys[].key", Live),
    ("tokens.ttl", Live),
    ("tokens.open_before", Live),
    ("limits.attempts.*.rate", Live),
    ("limits.attempts.*.burst", Live),
    ("limits.tokens.*.rate", Live),
    ("limits.tokens.*.burst", Live),
    ("limits.reads.*.rate", Live),
    ("limits.reads.*.burst", Live),
    ("limits.ipv6_prefix", Live),
    ("limits.max_keys", Live),
    // Deliveries are under way with them.
    ("orders.**", Restart),
    ("order_service.**", OrderService),
    ("logs.**", Restart),
    ("activities.*.starts_at", Preheated),
    ("activities.*.ends_at", Preheated),
    ("activities.*.per_user_limit", Preheated),
    ("activities.*.rebuy_after_release", Preheated),
    ("activities.*.retention", Preheated),
    ("activities.*.payment_deadline", Preheated),
    ("activities.*.skus.*.stock", Preheated),
    ("activities.*.skus.*.max_qty", Live),
    ("activities.*.skus.*.title", Live),
    ("activities.*.skus.*.price", Live),
    ("activities.*.page", Live),
    ("activities.*.title", Live),
    ("activities.*.stock_display", Live),
];

/// What an edit of this key does, as [`crate::config::compare::pattern`] writes it. An edit of a whole section does what
/// the most far-reaching of its keys does.
pub fn effect_of(pattern: &str) -> Effect {
    rows_of(pattern).max().unwrap_or(Restart)
}

fn rows_of(pattern: &str) -> impl Iterator<Item = Effect> + '_ {
    EFFECTS.iter().filter(|(row, _)| stands_for(row, pattern)).map(|(_, effect)| *effect)
}

/// Whether the row is about this key, about everything around it, or about something below it.
fn stands_for(row: &str, pattern: &str) -> bool {
    let mut rows = row.split('.');
    for part in pattern.split('.') {
        match rows.next() {
            Some("**") => return true,
            Some(name) if name == "*" || name == part || name.strip_suffix("[]") == Some(part) => {}
            Some(_) | None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::config::json_schema;

    /// Every key that can be written, by the schema.
    fn keys(path: &str, schema: &Value, found: &mut Vec<String>) {
        let schema = match schema.get("$ref").and_then(Value::as_str) {
            Some(reference) => json_schema().pointer(reference.trim_start_matches('#')).unwrap(),
            None => schema,
        };
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let before = found.len();
        for branches in ["anyOf", "oneOf"] {
            for branch in schema.get(branches).and_then(Value::as_array).into_iter().flatten() {
                keys_below(path, branch, found);
            }
        }
        for branch in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            keys(path, branch, found);
        }
        let secret = schema.pointer("/properties/env").is_some();
        if let Some(properties) = schema.get("properties").and_then(Value::as_object).filter(|_| !secret) {
            properties.iter().for_each(|(name, property)| keys(&below(name), property, found));
        } else if let Some(named) = schema.get("additionalProperties").filter(|named| named.is_object()) {
            keys(&below("*"), named, found);
        } else if let Some(items) = schema.get("items") {
            keys_below(&format!("{path}[]"), items, found);
        }
        if found.len() == before {
            found.push(path.to_owned());
        }
    }

    /// Only what is below: a branch or entry that holds no keys is the key around it.
    fn keys_below(path: &str, schema: &Value, found: &mut Vec<String>) {
        let mut more = Vec::new();
        keys(path, schema, &mut more);
        found.extend(more.into_iter().filter(|key| key != path));
    }

    #[test]
    fn every_key_is_decided_on_purpose_and_once() {
        let mut all = Vec::new();
        keys("", json_schema(), &mut all);
        all.sort();
        all.dedup();
        for known in [
            "activities.*.skus.*.stock",
            "tokens.keys[].key",
            "store.password",
            "deployment.gates",
            "limits.reads.address.burst",
        ] {
            assert!(all.iter().any(|key| key == known), "the walk misses {known}: {all:#?}");
        }
        for key in &all {
            let rows: Vec<_> = EFFECTS.iter().filter(|(row, _)| stands_for(row, key)).collect();
            assert_eq!(rows.len(), 1, "{key} needs exactly one row in EFFECTS, not {rows:?}");
        }
        for (row, _) in EFFECTS {
            assert!(all.iter().any(|key| stands_for(row, key)), "{row} stands for no key");
        }
    }

    #[test]
    fn a_section_is_as_far_reaching_as_its_keys_and_the_unknown_needs_a_restart() {
        assert_eq!(effect_of("limits.attempts.user"), Live);
        assert_eq!(effect_of("tokens.keys"), Live);
        assert_eq!(effect_of("identity"), BetweenSales);
        assert_eq!(effect_of("activities.*.skus.*"), Preheated);
        assert_eq!(effect_of("order_service"), OrderService);
        assert_eq!(effect_of("gate.shop.url"), Restart);
        assert_eq!(effect_of("gate.invented_tomorrow"), Restart);
    }
}
