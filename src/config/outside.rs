//! Faults of what the file points at: secrets, keys, pages, directories.

use std::path::Path;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::DecodingKey;

use super::load::{Parts, Report, Scope};
use super::problem::Problem;
use super::scalars::SecretSource;
use super::schema::{Ledger, OrderService, Orders, Queue, Store, UserAlgorithm, UserKey};
use super::secret::Secret;

/// Shorter secrets can be guessed offline from one signature.
const MIN_SECRET_BYTES: usize = 32;

/// Reports every fault outside the file that `scope` would meet, in the sections that could be read.
pub fn check(parts: &Parts, base: &Path, scope: Scope, report: &mut Report<'_>) {
    let mut world = World { base, report };
    let mut gates_half = TicketParties::default();
    if scope != Scope::OrderService {
        world.gate(parts);
        gates_half = world.delivery(parts.orders.as_ref());
    }
    if scope != Scope::Gate
        && let Some(Some(service)) = &parts.order_service
    {
        world.order_service(service, &gates_half);
    }
}

/// What gate and order service must share.
#[derive(Default)]
struct TicketParties {
    api_token: Option<Secret>,
    ticket_public_key: Option<Vec<u8>>,
}

struct World<'a, 'r> {
    base: &'a Path,
    report: &'a mut Report<'r>,
}

impl World<'_, '_> {
    fn gate(&mut self, parts: &Parts) {
        if let Some(gate) = &parts.gate {
            let admin = self.secret(&gate.admin_token, "/gate/admin_token");
            let reading = gate.admin_read_token.as_ref().and_then(|s| self.secret(s, "/gate/admin_read_token"));
            if reading.is_some() && reading == admin && gate.admin_read_token.as_ref() != Some(&gate.admin_token) {
                self.report.at("/gate/admin_read_token", Problem::AdminTokensEqual);
            }
        }
        match &parts.store {
            Some(Store::Redis { password: Some(password), .. }) => drop(self.secret(password, "/store/password")),
            Some(Store::Sqlite { path, .. }) => self.folder_of(path, "/store/path"),
            _ => {}
        }
        if let Some(identity) = &parts.identity {
            for (index, key) in identity.keys.iter().enumerate() {
                self.user_key(key, &format!("/identity/keys/{index}/key"));
            }
            self.long_secret(&identity.device_secret, "HS256", "/identity/device_secret");
            if let Some(source) = &identity.signing_key {
                self.secret(source, "/identity/signing_key");
            }
        }
        for (index, key) in parts.tokens.iter().flat_map(|tokens| &tokens.keys).enumerate() {
            self.long_secret(&key.key, "HS256", &format!("/tokens/keys/{index}/key"));
        }
        for (id, activity) in &parts.activities {
            let Some(page) = &activity.page else { continue };
            let path = self.base.join(page);
            if std::fs::File::open(path.join("index.html")).is_err() {
                let problem = Problem::NoPage { path: path.display().to_string() };
                self.report.at(&format!("/activities/{id}/page"), problem);
            }
        }
    }

    fn secret(&mut self, source: &SecretSource, pointer: &str) -> Option<Secret> {
        source.resolve(self.base).map_err(|error| self.report.at(pointer, Problem::Secret(error))).ok()
    }

    fn long_secret(&mut self, source: &SecretSource, algorithm: &'static str, pointer: &str) {
        let Some(secret) = self.secret(source, pointer) else { return };
        let bytes = secret.expose().len();
        if bytes < MIN_SECRET_BYTES {
            self.report.at(pointer, Problem::SecretTooShort { bytes, algorithm });
        }
    }

    fn user_key(&mut self, key: &UserKey, pointer: &str) {
        let (algorithm, read): (_, fn(&[u8]) -> bool) = match key.algorithm {
            UserAlgorithm::HS256 => return self.long_secret(&key.key, "HS256", pointer),
            UserAlgorithm::RS256 => ("RS256", |pem| DecodingKey::from_rsa_pem(pem).is_ok()),
            UserAlgorithm::ES256 => ("ES256", |pem| DecodingKey::from_ec_pem(pem).is_ok()),
            UserAlgorithm::EdDSA => ("EdDSA", |pem| DecodingKey::from_ed_pem(pem).is_ok()),
        };
        let Some(secret) = self.secret(&key.key, pointer) else { return };
        let public = secret.expose_text().is_ok_and(|text| !text.contains("PRIVATE KEY"));
        if !public || !read(secret.expose()) {
            let wanted = "the public key as PEM (-----BEGIN PUBLIC KEY-----)";
            self.report.at(pointer, Problem::BadKey { algorithm, wanted });
        }
    }

    fn folder_of(&mut self, path: &Path, pointer: &str) {
        let file = self.base.join(path);
        let Some(folder) = file.parent() else { return };
        if !folder.as_os_str().is_empty() && !folder.is_dir() {
            self.report.at(pointer, Problem::NoDirectory { path: folder.display().to_string() });
        }
    }

    fn delivery(&mut self, orders: Option<&Orders>) -> TicketParties {
        let Some(orders) = orders else { return TicketParties::default() };
        TicketParties {
            api_token: orders.api_token.as_ref().and_then(|source| self.secret(source, "/orders/api_token")),
            ticket_public_key: self.ticket_key(&orders.ticket_key, "/orders/ticket_key"),
        }
    }

    fn order_service(&mut self, service: &OrderService, gates_half: &TicketParties) {
        match &service.queue {
            Queue::Redis { password: Some(password), .. } => {
                drop(self.secret(password, "/order_service/queue/password"))
            }
            Queue::Sqlite { path } => self.folder_of(path, "/order_service/queue/path"),
            _ => {}
        }
        match &service.ledger {
            Ledger::Mysql { password: Some(password), .. } => {
                drop(self.secret(password, "/order_service/ledger/password"));
            }
            Ledger::Sqlite { path } => self.folder_of(path, "/order_service/ledger/path"),
            _ => {}
        }
        let token = self.secret(&service.api_token, "/order_service/api_token");
        if let (Some(ours), Some(gates)) = (&token, &gates_half.api_token)
            && ours != gates
        {
            self.report.at("/order_service/api_token", Problem::ApiTokensDiffer);
        }
        let pointer = "/order_service/ticket_public_key";
        let Some(secret) = self.secret(&service.ticket_public_key, pointer) else { return };
        match secret.expose_text().ok().and_then(|text| der(text, "PUBLIC KEY")) {
            // An Ed25519 public key ends with its 32 bytes.
            Some(public) if DecodingKey::from_ed_pem(secret.expose()).is_ok() => {
                if gates_half.ticket_public_key.as_ref().is_some_and(|gates| !public.ends_with(gates)) {
                    self.report.at(pointer, Problem::KeysDiffer);
                }
            }
            _ => {
                let wanted = "an Ed25519 public key as PEM (-----BEGIN PUBLIC KEY-----)";
                self.report.at(pointer, Problem::BadKey { algorithm: "EdDSA", wanted });
            }
        }
    }

    /// The public half of the ticket key.
    fn ticket_key(&mut self, source: &SecretSource, pointer: &str) -> Option<Vec<u8>> {
        let secret = self.secret(source, pointer)?;
        let pkcs8 = secret.expose_text().ok().and_then(|text| der(text, "PRIVATE KEY"));
        let pair = pkcs8.and_then(|bytes| Ed25519KeyPair::from_pkcs8_maybe_unchecked(&bytes).ok());
        if pair.is_none() {
            let wanted = "a private key from `openssl genpkey -algorithm ed25519`";
            self.report.at(pointer, Problem::BadKey { algorithm: "EdDSA", wanted });
        }
        pair.map(|pair| pair.public_key().as_ref().to_vec())
    }
}

/// The bytes of the first PEM block with this label.
fn der(text: &str, label: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    STANDARD.decode(body.split_whitespace().collect::<String>()).ok()
}
