//! What the file says of one activity, and in what it differs from what was preheated, which counts.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::domain::ActivityId;
use crate::domain::admission::Terms;

/// The file's word on one activity. A reload replaces it.
pub struct FileTerms {
    terms: ArcSwap<Terms>,
    differs: ArcSwap<Vec<String>>,
}

impl FileTerms {
    /// Before anything is known of the store.
    pub fn new(terms: Terms) -> FileTerms {
        FileTerms { terms: ArcSwap::from_pointee(terms), differs: ArcSwap::default() }
    }

    /// What the file says.
    pub fn get(&self) -> Arc<Terms> {
        self.terms.load_full()
    }

    /// The file says something else now; what it differs in is known after the next comparison.
    pub fn replace(&self, terms: Terms) {
        self.terms.store(Arc::new(terms));
    }

    /// The keys in which the file differed when last compared; empty if it agreed.
    pub fn differs(&self) -> Arc<Vec<String>> {
        self.differs.load_full()
    }

    /// Compares it with what is stored; a change of what differs leaves one log line.
    pub fn compare(&self, activity: &ActivityId, stored: &Terms) {
        let now = differences(&self.terms.load(), stored);
        if now == **self.differs.load() {
            return;
        }
        if now.is_empty() {
            tracing::info!(%activity, "the file agrees with what was preheated");
        } else {
            tracing::warn!(%activity, keys = now.join(" "), "the file differs from what was preheated, which counts");
        }
        self.differs.store(Arc::new(now));
    }
}

/// The keys in which the file says otherwise than the store.
fn differences(file: &Terms, stored: &Terms) -> Vec<String> {
    let mut keys: Vec<String> = [
        (file.starts_at != stored.starts_at, "starts_at"),
        (file.ends_at != stored.ends_at, "ends_at"),
        (file.per_user_limit != stored.per_user_limit, "per_user_limit"),
        (file.rebuy_after_release != stored.rebuy_after_release, "rebuy_after_release"),
        (file.retention != stored.retention, "retention"),
    ]
    .into_iter()
    .filter(|(differs, _)| *differs)
    .map(|(_, key)| key.to_owned())
    .collect();
    for (sku, units) in &file.skus {
        match stored.skus.iter().find(|(name, _)| name == sku) {
            None => keys.push(format!("skus.{sku}")),
            Some((_, total)) if total != units => keys.push(format!("skus.{sku}.stock")),
            Some(_) => {}
        }
    }
    let missing = stored.skus.iter().filter(|(sku, _)| !file.skus.iter().any(|(name, _)| name == sku));
    keys.extend(missing.map(|(sku, _)| format!("skus.{sku}")));
    keys
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::StoreMs;
    use crate::domain::admission::Epoch;

    #[test]
    fn each_difference_is_named_and_goes_with_the_next_file() {
        let sku = |name: &str, units| (name.parse().unwrap(), units);
        let stored = Terms {
            epoch: Epoch(3),
            starts_at: StoreMs(1),
            ends_at: StoreMs(9),
            per_user_limit: 1,
            rebuy_after_release: true,
            retention: Duration::from_secs(60),
            skus: vec![sku("a", 10), sku("b", 5)],
        };
        let file = Terms { epoch: Epoch(1), ..stored.clone() };
        let id = "sale".parse().unwrap();
        let terms = FileTerms::new(file.clone());
        terms.compare(&id, &stored);
        assert!(terms.differs().is_empty(), "the epoch is not the file's to say");
        terms.replace(Terms {
            ends_at: StoreMs(10),
            per_user_limit: 2,
            skus: vec![sku("a", 11), sku("c", 1)],
            ..file.clone()
        });
        terms.compare(&id, &stored);
        assert_eq!(*terms.differs(), ["ends_at", "per_user_limit", "skus.a.stock", "skus.c", "skus.b"]);
        terms.replace(file);
        terms.compare(&id, &stored);
        assert!(terms.differs().is_empty());
    }
}
