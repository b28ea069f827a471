//! The gate and its deployment.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;

use super::super::load::{Parts, Report};
use super::super::problem::Problem;
use super::super::scalars::{ByteSize, Span};
use super::super::schema::{Deployment, Gate, Store};
use super::urls::{self, Http};
use super::{above_zero, at_most};

/// A body is kept for a second try at the shop; above 64 KiB Pingora would lose it in silence.
const MAX_BODY: ByteSize = ByteSize(32 << 10);

pub(super) fn check(parts: &Parts, override_id: Option<&str>, report: &mut Report<'_>) {
    if let Some(gate) = &parts.gate {
        of_gate(gate, report);
        listeners(gate, parts, report);
        if let Some(deployment) = &parts.deployment {
            membership(gate, deployment, override_id, report);
        }
    }
    if let Some(deployment) = &parts.deployment {
        let mut seen = HashSet::new();
        for (index, name) in deployment.gates.iter().enumerate() {
            if !seen.insert(name) {
                report.at(&format!("/deployment/gates/{index}"), Problem::ListedTwice(name.to_string()));
            }
        }
        if let Some(Store::Sqlite { .. }) = &parts.store
            && seen.len() > 1
        {
            report.at("/store/kind", Problem::EmbeddedWithManyGates { gates: seen.len() });
        }
    }
}

fn of_gate(gate: &Gate, report: &mut Report<'_>) {
    if !is_prefix(&gate.prefix) {
        report.at("/gate/prefix", Problem::BadPrefix(gate.prefix.clone()));
    }
    urls::http(&gate.shop.url, &Http { example: "http://127.0.0.1:8070", path: false }, "/gate/shop/url", report);
    above_zero(gate.shop.connect_timeout, "/gate/shop/connect_timeout", "`1s`", report);
    above_zero(gate.shop.timeout, "/gate/shop/timeout", "`30s`", report);
    above_zero(gate.shop.idle_timeout, "/gate/shop/idle_timeout", "`30s`", report);
    if let Some(most) = gate.shop.max_in_flight.filter(|most| *most >= gate.max_connections && *most > 1) {
        let limit = format!("`{}` (one below `gate.max_connections`)", gate.max_connections.saturating_sub(1));
        report.at("/gate/shop/max_in_flight", Problem::TooLarge { value: most.to_string(), limit });
    }
    above_zero(gate.body_deadline, "/gate/body_deadline", "`5s`", report);
    above_zero(gate.idle_timeout, "/gate/idle_timeout", "`60s`", report);
    at_most(
        gate.body_deadline,
        Span::seconds(60),
        "60s",
        "slow bodies would hold connections during the rush",
        "/gate/body_deadline",
        report,
    );
    if gate.max_body.0 == 0 {
        report.at("/gate/max_body", Problem::TooSmall { value: "0".into(), limit: "`1B`".into() });
    } else if gate.max_body > MAX_BODY {
        let value = format!("{} bytes", gate.max_body.0);
        report.at("/gate/max_body", Problem::TooLarge { value, limit: "`32KiB`".into() });
    }
    for (index, host) in gate.admin_hosts.iter().enumerate() {
        if !is_host(host) {
            report.at(&format!("/gate/admin_hosts/{index}"), Problem::BadHost(host.clone()));
        }
    }
    if gate.admin_read_token.as_ref() == Some(&gate.admin_token) {
        report.at("/gate/admin_read_token", Problem::SameAdminTokens);
    }
}

fn listeners(gate: &Gate, parts: &Parts, report: &mut Report<'_>) {
    let mut all = vec![
        ("gate.listen", "/gate/listen", gate.listen),
        ("gate.admin", "/gate/admin", gate.admin),
        ("gate.metrics", "/gate/metrics", gate.metrics),
    ];
    if let Some(Some(service)) = &parts.order_service {
        all.push(("order_service.listen", "/order_service/listen", service.listen));
    }
    for (index, (own, pointer, address)) in all.iter().enumerate() {
        if let Some((other, ..)) = all[..index].iter().find(|(_, _, other)| collide(*address, *other)) {
            report.at(pointer, Problem::ListenersCollide { own, address: *address, other });
        }
    }
}

/// Port 0 is any free port, and never collides.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

fn membership(gate: &Gate, deployment: &Deployment, override_id: Option<&str>, report: &mut Report<'_>) {
    let named = |id: &str| deployment.gates.is_empty() || deployment.gates.iter().any(|name| name.as_str() == id);
    let gates = || {
        let names: BTreeSet<_> = deployment.gates.iter().map(|name| format!("`{name}`")).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    match override_id {
        Some(id) if crate::domain::GateId::new(id).is_err() => {
            report.at("/gate/id", Problem::BadName { name: id.to_owned() });
        }
        Some(id) if !named(id) => {
            report.at("/deployment/gates", Problem::OverrideNotDeployed { gate: id.to_owned(), gates: gates() });
        }
        None if !named(gate.id.as_str()) => report.at("/gate/id", Problem::GateNotDeployed { gates: gates() }),
        _ => {}
    }
}

fn is_prefix(prefix: &str) -> bool {
    let segment = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'~'))
    };
    prefix.len() <= 128 && prefix.strip_prefix('/').is_some_and(|rest| rest.split('/').all(segment))
}

fn is_host(text: &str) -> bool {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "80"));
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'[' | b']' | b':');
    !host.is_empty() && host.bytes().all(name) && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_segments_without_a_slash_at_the_end() {
        for good in ["/seckill", "/a/b", "/flash-sale_2~"] {
            assert!(is_prefix(good), "{good}");
        }
        for bad in ["", "/", "seckill", "/a/", "//a", "/a//b", "/.", "/a/..", "/a%2f", "/a b", "/ü", "/a?b"] {
            assert!(!is_prefix(bad), "{bad}");
        }
    }

    #[test]
    fn one_port_on_all_addresses_collides_with_it_on_any() {
        let collide = |a: &str, b: &str| collide(a.parse().unwrap(), b.parse().unwrap());
        assert!(collide("0.0.0.0:80", "127.0.0.1:80"));
        assert!(collide("[::]:80", "127.0.0.1:80"));
        assert!(!collide("10.0.0.1:80", "127.0.0.1:80"));
        assert!(!collide("127.0.0.1:0", "127.0.0.1:0"));
    }
}
