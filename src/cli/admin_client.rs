//! The admin listener as the operating commands see it, and how they end.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use http::StatusCode;
use reqwest::{Client, Method, RequestBuilder, Url, redirect};
use serde_json::Value;

use super::listeners::{self, Listeners};
use super::{Outcome, Usage, exit};
use crate::gate::ledger::client::LedgerClient;

/// Deadline of one call: an operator waits for it.
const DEADLINE: Duration = Duration::from_secs(20);

/// Which gate to talk to.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// Configuration file; tells the admin listener's address and token.
    #[arg(short, long, env = "SECKILL_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the admin listener, e.g. http://127.0.0.1:8081. Overrides the file.
    #[arg(long, env = "SECKILL_ADMIN", value_name = "URL")]
    pub admin: Option<Url>,
    /// The admin listener's token. Overrides the file. An argument is visible to other users of the machine: prefer the
    /// environment.
    #[arg(long, env = "SECKILL_ADMIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
}

/// Which order service to ask.
#[derive(Debug, Args)]
pub struct OrdersArgs {
    /// Where winners are posted, e.g. http://127.0.0.1:8090/orders; the API beside it is asked. Overrides the file.
    #[arg(long, env = "SECKILL_ORDERS", value_name = "URL")]
    orders: Option<Url>,
    /// Token of the order service's API. Overrides the file.
    #[arg(long, env = "SECKILL_ORDERS_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    orders_token: Option<String>,
}

/// Why a command ended badly, and the exit code that says so.
#[derive(Debug)]
pub struct Failure {
    /// One of [`exit`].
    pub code: u8,
    /// What happened, and what to do.
    pub error: anyhow::Error,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure { code: exit::FAILED, error }
    }
}

/// Bad usage or configuration.
pub fn usage(error: anyhow::Error) -> Failure {
    Failure { code: exit::USAGE, error }
}

/// Runs a command on a runtime of its own.
pub fn run(command: impl Future<Output = Result<u8, Failure>>) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(command).map_err(|Failure { code, error }| match code {
        exit::USAGE => Usage(format!("{error:#}")).into(),
        _ => error,
    })
}

impl AdminArgs {
    /// What the configuration file says, if one is named.
    pub fn listeners(&self) -> Result<Option<Listeners>, Failure> {
        self.config.as_deref().map(listeners::read).transpose().map_err(usage)
    }

    /// A client for the gate that is meant.
    pub fn client(&self) -> Result<AdminClient, Failure> {
        let listeners = self.listeners()?;
        let file = self.config.as_deref().map(|file| file.display().to_string());
        let from_file = FromFile {
            address: file.clone().filter(|_| self.admin.is_none()),
            token: file.filter(|_| self.token.is_none()),
        };
        let base = match (&self.admin, &listeners) {
            (Some(url), _) => url.clone(),
            (None, Some(listeners)) => listeners.admin.parse().context("the admin address").map_err(usage)?,
            (None, None) => {
                return Err(usage(anyhow!("which gate? Name its configuration with -c FILE, or --admin URL")));
            }
        };
        let token = match (&self.token, listeners) {
            (Some(token), _) => token.clone(),
            (None, Some(listeners)) => listeners.admin_token.map_err(usage)?,
            (None, None) => {
                return Err(usage(anyhow!("the token is missing: set SECKILL_ADMIN_TOKEN, or use -c FILE")));
            }
        };
        Ok(AdminClient { from_file, ..AdminClient::new(base, token)? })
    }
}

/// Which configuration file told address and token, if one did. The gate may not have read it since.
#[derive(Debug, Default)]
struct FromFile {
    address: Option<String>,
    token: Option<String>,
}

/// What [`OrdersArgs`] lead to.
pub enum Ledger {
    /// A client of our order service.
    Ours(Box<LedgerClient>),
    /// The order service is the shop's own, and has no API of ours.
    ShopsOwn,
    /// Nothing says where it is.
    NotNamed,
}

impl OrdersArgs {
    /// The order service that is meant.
    pub fn ledger(&self, gate: &AdminArgs) -> Result<Ledger, Failure> {
        let listeners = gate.listeners()?;
        let is_file = listeners.is_some();
        let configured = listeners.and_then(|listeners| listeners.orders);
        let (url, token) = match (&self.orders, &self.orders_token, configured) {
            (Some(url), Some(token), _) => (url.clone(), token.clone()),
            (Some(url), None, Some((_, token))) => (url.clone(), token.map_err(usage)?),
            (None, given, Some((url, token))) => {
                let url = url.parse().with_context(|| format!("orders.url `{url}`")).map_err(usage)?;
                (url, given.clone().map_or(token, Ok).map_err(usage)?)
            }
            (Some(_), None, None) => return Err(usage(anyhow!("--orders needs SECKILL_ORDERS_TOKEN"))),
            (None, _, None) if is_file => return Ok(Ledger::ShopsOwn),
            (None, _, None) => return Ok(Ledger::NotNamed),
        };
        let client = LedgerClient::new(&url, token, DEADLINE).map_err(anyhow::Error::from)?;
        Ok(Ledger::Ours(Box::new(client)))
    }
}

/// What a look-up in an activity's store came to.
pub enum LookedUp {
    /// It is there.
    Found(Value),
    /// It is not.
    None,
    /// The store has lost something, perhaps this.
    Lost,
}

/// A client of one admin listener.
pub struct AdminClient {
    http: Client,
    base: Url,
    token: String,
    from_file: FromFile,
}

impl AdminClient {
    /// A client; fails only if TLS cannot be set up.
    pub fn new(base: Url, token: String) -> Result<AdminClient, Failure> {
        let http = Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(Duration::from_secs(3))
            .timeout(DEADLINE)
            .build()
            .context("cannot set up HTTP")?;
        Ok(AdminClient { http, base, token, from_file: FromFile::default() })
    }

    /// Reads `/admin/…`.
    pub async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Value, Failure> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.send(self.http.request(Method::GET, url)).await
    }

    /// Reads one thing of an activity.
    pub async fn find(&self, path: &[&str]) -> Result<LookedUp, Failure> {
        let (status, body) = self.exchange(self.http.request(Method::GET, self.url(path)?)).await?;
        match (status, body["code"].as_str()) {
            (status, _) if status.is_success() => Ok(LookedUp::Found(body)),
            (StatusCode::NOT_FOUND, Some("UNKNOWN_WIN")) | (StatusCode::CONFLICT, Some("NOT_PREHEATED")) => {
                Ok(LookedUp::None)
            }
            (StatusCode::CONFLICT, Some("FENCED")) => Ok(LookedUp::Lost),
            _ => Err(self.refused(status, &body)),
        }
    }

    /// Changes `/admin/…`.
    pub async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.send(self.http.request(Method::POST, self.url(path)?).json(body)).await
    }

    /// Asks for a change whose refusal says more than a code and a detail.
    pub async fn ask(&self, path: &[&str], body: &Value) -> Result<(StatusCode, Value), Failure> {
        self.exchange(self.http.request(Method::POST, self.url(path)?).json(body)).await
    }

    fn url(&self, path: &[&str]) -> Result<Url, Failure> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| usage(anyhow!("{} is no address of an admin listener", self.base)))?
            .pop_if_empty()
            .push("admin")
            .extend(path);
        Ok(url)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value, Failure> {
        let (status, body) = self.exchange(request).await?;
        if status.is_success() { Ok(body) } else { Err(self.refused(status, &body)) }
    }

    async fn exchange(&self, request: RequestBuilder) -> Result<(StatusCode, Value), Failure> {
        let response = request.bearer_auth(&self.token).send().await.map_err(|error| {
            let unreachable = error.is_connect();
            let error = anyhow::Error::new(error.without_url());
            let error = match unreachable {
                true => error.context(format!(
                    "nothing answers at {}; does the gate run?{}",
                    self.base,
                    self.address_hint()
                )),
                false => error.context(format!("no answer from {}; whether it had its effect is not known", self.base)),
            };
            Failure::from(error)
        })?;
        let status = response.status();
        let body = response.text().await.map_err(|error| anyhow!("half an answer from {}: {error}", self.base))?;
        match serde_json::from_str::<Value>(&body) {
            Ok(body) if status.is_success() || body["code"].is_string() => Ok((status, body)),
            _ => {
                let (base, hint) = (&self.base, self.is_it());
                Err(anyhow!("{base} answers {status}, and not in the words of an admin listener{hint}").into())
            }
        }
    }

    /// The words of a refusal, and what may be behind it on this side.
    pub fn refused(&self, status: StatusCode, body: &Value) -> Failure {
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (code, mut detail) = (text("code"), text("detail"));
        match (code.as_str(), &self.from_file.token) {
            ("UNAUTHENTICATED", Some(file)) => {
                detail += &format!(
                    ". It is `gate.admin_token` of {file}: if that was changed, the gate does not know it yet. Send the gate \
                     SIGHUP, or run `reload` with SECKILL_ADMIN_TOKEN set to the former one"
                );
            }
            // What other listeners say of `/admin/…`: the public one asks the shop, the order service knows no such route.
            ("NOT_FOUND" | "UPSTREAM_UNAVAILABLE", _) => {
                detail += &format!(", says {}{}", self.base, self.is_it());
            }
            _ => {}
        }
        Failure::from(anyhow::Error::new(Refusal { status, code, detail }))
    }

    fn is_it(&self) -> String {
        format!("; is it the admin listener of a gate? That has port 8081 by default.{}", self.address_hint())
    }

    /// Where the address came from, if that may be the fault.
    fn address_hint(&self) -> String {
        let hint = |file: &String| {
            format!(
                " The address is `gate.admin` in {file}: if it was changed there, the gate listens at the former one until it \
                 is restarted; name that with --admin"
            )
        };
        self.from_file.address.as_ref().map(hint).unwrap_or_default()
    }
}

/// What an admin listener said instead of doing what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Refusal {
    /// HTTP status.
    pub status: StatusCode,
    /// The code of the refusal.
    pub code: String,
    detail: String,
}
