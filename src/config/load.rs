//! From a file to checked types.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::fault::Faults;
use super::problem::Problem;
use super::scalars::SecretSource;
use super::schema::{Activity, Config, Deployment, Gate, Identity, Limits, Logs, OrderService, Orders, Store, Tokens};
use super::secret::{Secret, SecretError};
use super::shape::{self, Shaped};
use super::yaml::{self, Node};
use super::{outside, sense};
use crate::domain::admission::{Epoch, Terms};
use crate::domain::{ActivityId, GateId};

/// A configuration without faults of shape or sense, and where it lies.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file it was read from.
    pub path: PathBuf,
    /// The file's folder: relative paths in the configuration begin here.
    pub base: PathBuf,
}

impl Loaded {
    /// Reads a secret.
    pub fn secret(&self, source: &SecretSource) -> Result<Secret, SecretError> {
        source.resolve(&self.base)
    }

    /// A path of the configuration, resolved against its folder.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.base.join(path)
    }
}

/// Loads a file; every fault of shape and sense is in the error. Secrets and pages are not looked at.
pub fn load(path: &Path) -> Result<Loaded, Faults> {
    load_as(path, None)
}

/// Like [`load`], for the gate of this name in place of `gate.id` (flag `--gate`).
pub fn load_as(path: &Path, gate: Option<&str>) -> Result<Loaded, Faults> {
    read(path, &text_of(path)?, gate, Depth::File)
}

/// Like [`load_as`], and also resolves the secrets, keys, pages and directories that the file names, as far as `scope`
/// needs them: what a process should call at its start, and `check` for a person.
pub fn check(path: &Path, gate: Option<&str>, scope: Scope) -> Result<Loaded, Faults> {
    read(path, &text_of(path)?, gate, Depth::Outside(scope))
}

/// For whom the things outside the file must be there. Each process may hold only its own secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    Everything,
    /// What the gate needs.
    Gate,
    /// What our order service needs.
    OrderService,
}

/// How far a check goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only what stands in the file: a pure function of its text.
    File,
    /// Also what the file points at.
    Outside(Scope),
}

/// What an activity is to the store, under this epoch.
pub fn terms(activity: &Activity, epoch: Epoch) -> Terms {
    Terms {
        epoch,
        starts_at: activity.starts_at.store_ms(),
        ends_at: activity.ends_at.store_ms(),
        per_user_limit: activity.per_user_limit,
        rebuy_after_release: activity.rebuy_after_release,
        retention: activity.retention.0,
        skus: activity.skus.iter().map(|(name, sku)| (name.clone(), i64::from(sku.stock))).collect(),
    }
}

fn text_of(path: &Path) -> Result<String, Faults> {
    let refuse = |problem| {
        let mut faults = Faults::of(path, "");
        faults.at(0..0, problem);
        Err(faults)
    };
    // Bounded before it is read: the path may name anything, a device included.
    let read = || -> std::io::Result<Vec<u8>> {
        use std::io::Read;
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(yaml::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read().map(String::from_utf8) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => refuse(Problem::NotUtf8),
        Err(error) => refuse(Problem::Unreadable(error)),
    }
}

/// Judges the text of a file that lies at `path`.
pub fn read(path: &Path, source: &str, gate: Option<&str>, depth: Depth) -> Result<Loaded, Faults> {
    let base = path.parent().map(Path::to_owned).unwrap_or_default();
    let mut faults = Faults::of(path, source);
    let tree = match yaml::parse(source, &mut faults) {
        Ok(tree) => tree,
        Err(fault) => {
            faults.push(fault);
            faults.into_result()?;
            return Err(Faults::of(path, source));
        }
    };
    let shaped = shape::check(&tree, &mut faults);
    let mut parts = Parts::of(&shaped, &tree, &mut faults);
    let mut report = Report { tree: &tree, faults: &mut faults };
    sense::check(&parts, gate, &mut report);
    if let Depth::Outside(scope) = depth {
        outside::check(&parts, &base, scope, &mut report);
    }
    faults.into_result()?;
    if let (Some(gate), Some(own)) = (gate.and_then(|name| GateId::new(name).ok()), parts.gate.as_mut()) {
        own.id = gate;
    }
    match parts.whole() {
        Some(config) => Ok(Loaded { config, path: path.to_owned(), base }),
        // Unreachable: a part that is missing has left a fault.
        None => Err(Faults::of(path, source)),
    }
}

/// Where checks put their findings.
pub struct Report<'a> {
    tree: &'a Node,
    faults: &'a mut Faults,
}

impl Report<'_> {
    /// A fault at the value of a JSON pointer.
    pub fn at(&mut self, pointer: &str, problem: Problem) {
        self.faults.at(self.tree.locate(pointer), problem);
    }

    /// The value of a JSON pointer may be a secret from a byte on, which `from` finds in the value as the file spells it.
    pub fn hide(&mut self, pointer: &str, from: impl Fn(&str) -> Option<usize>) {
        self.faults.hide_from(self.tree.locate(pointer), from);
    }
}

/// The sections whose shape is right; they can be judged even if others cannot.
#[allow(missing_docs)] // named as in `Config`
pub struct Parts {
    pub gate: Option<Gate>,
    pub deployment: Option<Deployment>,
    pub store: Option<Store>,
    pub identity: Option<Identity>,
    pub tokens: Option<Tokens>,
    pub limits: Option<Limits>,
    pub orders: Option<Orders>,
    /// `Some(None)`: the file has none.
    pub order_service: Option<Option<OrderService>>,
    pub logs: Option<Logs>,
    pub activities: BTreeMap<ActivityId, Activity>,
    /// Whether `activities` holds all that the file lists.
    all_activities: bool,
}

/// Judges once more the sense of a configuration that was put together from two: what a reload applies and what it leaves
/// to a restart. Its faults have no places in the file.
pub fn recheck(config: &Config, path: &Path) -> Result<(), Faults> {
    let mut faults = Faults::of(path, "");
    let tree = Node { range: 0..0, data: yaml::Data::Mapping(Vec::new()) };
    sense::check(&Parts::from(config.clone()), None, &mut Report { tree: &tree, faults: &mut faults });
    faults.into_result()
}

impl From<Config> for Parts {
    fn from(config: Config) -> Parts {
        Parts {
            gate: Some(config.gate),
            deployment: Some(config.deployment),
            store: Some(config.store),
            identity: Some(config.identity),
            tokens: Some(config.tokens),
            limits: Some(config.limits),
            orders: Some(config.orders),
            order_service: Some(config.order_service),
            logs: Some(config.logs),
            activities: config.activities,
            all_activities: true,
        }
    }
}

impl Parts {
    fn of(shaped: &Shaped, tree: &Node, faults: &mut Faults) -> Parts {
        let mut reader = Reader { shaped, tree, faults };
        let listed = shaped.value.get("activities").and_then(|all| all.as_object());
        let mut activities = BTreeMap::new();
        for name in listed.into_iter().flat_map(|all| all.keys()) {
            let pointer = format!("/activities/{}", name.replace('~', "~0").replace('/', "~1"));
            if let (Ok(id), Some(activity)) = (ActivityId::new(name), reader.section(&pointer)) {
                activities.insert(id, activity);
            }
        }
        Parts {
            gate: reader.section("/gate"),
            deployment: reader.section_or("/deployment", Deployment::default),
            store: reader.section("/store"),
            identity: reader.section("/identity"),
            tokens: reader.section("/tokens"),
            limits: reader.section_or("/limits", Limits::default),
            orders: reader.section("/orders"),
            order_service: reader.section_or("/order_service", || None),
            logs: reader.section_or("/logs", Logs::default),
            all_activities: listed.is_some_and(|all| all.len() == activities.len()),
            activities,
        }
    }

    fn whole(self) -> Option<Config> {
        Some(Config {
            gate: self.gate?,
            deployment: self.deployment?,
            store: self.store?,
            identity: self.identity?,
            tokens: self.tokens?,
            limits: self.limits?,
            orders: self.orders?,
            order_service: self.order_service?,
            logs: self.logs?,
            activities: self.all_activities.then_some(self.activities)?,
        })
    }
}

struct Reader<'a> {
    shaped: &'a Shaped,
    tree: &'a Node,
    faults: &'a mut Faults,
}

impl Reader<'_> {
    fn section<T: DeserializeOwned>(&mut self, pointer: &str) -> Option<T> {
        let value = self.shaped.value.pointer(pointer)?;
        if !self.shaped.is_sound(pointer) {
            return None;
        }
        match T::deserialize(value) {
            Ok(section) => Some(section),
            // The schema should have said it already.
            Err(error) => {
                self.faults.at(self.tree.locate(pointer), Problem::Other(error.to_string()));
                None
            }
        }
    }

    fn section_or<T: DeserializeOwned>(&mut self, pointer: &str, absent: impl FnOnce() -> T) -> Option<T> {
        if self.shaped.value.is_object() && self.shaped.value.pointer(pointer).is_none() {
            return Some(absent());
        }
        self.section(pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::StoreMs;

    #[test]
    fn the_store_is_told_the_terms_of_the_file() {
        let source = include_str!("../../conf/minimal.yaml");
        let loaded = read(Path::new("conf/minimal.yaml"), source, Some("gate-7"), Depth::File).unwrap();
        assert_eq!(loaded.config.gate.id.as_str(), "gate-7");
        assert_eq!(loaded.resolve(Path::new("store.db")), Path::new("conf/store.db"));
        let (id, activity) = loaded.config.activities.first_key_value().unwrap();
        let terms = terms(activity, Epoch(3));
        assert_eq!((id.as_str(), terms.epoch), ("first-sale", Epoch(3)));
        assert_eq!((terms.starts_at, terms.ends_at), (StoreMs(1_797_076_800_000), StoreMs(1_797_084_000_000)));
        assert_eq!(terms.skus, [("phone".parse().unwrap(), 500)]);
        assert_eq!((terms.per_user_limit, terms.retention.as_secs()), (1, 7 * 86_400));
    }
}
