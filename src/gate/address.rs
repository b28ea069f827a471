//! Who is calling, by network address: the peer, or what trusted proxies say of it.

use std::net::IpAddr;

use http::HeaderMap;
use ipnet::IpNet;

/// The proxies whose word on the client's address counts.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// From CIDR blocks.
    pub fn new(blocks: Vec<IpNet>) -> TrustedProxies {
        TrustedProxies(blocks)
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(&address))
    }

    /// The client's address. X-Forwarded-For is walked from the right, over all its lines, past trusted proxies only:
    /// the first address that is not one of theirs is the client. What stands left of it was written by the client.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        if self.0.is_empty() {
            return client;
        }
        // Lines come in order; the last entry of the last line was added by the peer.
        let mut lines = headers.get_all("x-forwarded-for").iter().collect::<Vec<_>>();
        while self.trusts(client) {
            let Some(line) = lines.pop() else { break };
            for entry in line.as_bytes().rsplit(|&byte| byte == b',') {
                if !self.trusts(client) {
                    break;
                }
                match std::str::from_utf8(entry).ok().and_then(parse) {
                    Some(address) => client = address,
                    // An unreadable entry hides everything left of it.
                    None => return client,
                }
            }
        }
        client
    }
}

/// An entry: an address, perhaps with a port, perhaps in brackets.
fn parse(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let bare = entry.parse::<IpAddr>().ok();
    let with_port = || entry.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip());
    let bracketed = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    bare.or_else(with_port).or_else(bracketed).map(|address| address.to_canonical())
}

/// The key under which an address is limited: IPv4 whole, IPv6 by prefix, IPv4-mapped IPv6 as IPv4.
pub fn limit_key(address: IpAddr, ipv6_prefix: u8) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(v4) => u128::from(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => {
            let kept = u32::from(ipv6_prefix.clamp(1, 128));
            u128::from(v6) & (u128::MAX << (128 - kept))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, lines: &[&str]) -> String {
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("x-forwarded-for", line.parse().unwrap());
        }
        proxies.client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let rows: &[(&str, &[&str], &str)] = &[
            ("9.9.9.9", &["1.1.1.1"], "9.9.9.9"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6, 1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6, 1.1.1.1, 10.2.2.2"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6", "1.1.1.1", "10.2.2.2"], "1.1.1.1"),
            ("10.0.0.1", &["10.3.3.3,10.2.2.2"], "10.3.3.3"),
            ("10.0.0.1", &["1.1.1.1, nonsense"], "10.0.0.1"),
            ("10.0.0.1", &["1.1.1.1:4711"], "1.1.1.1"),
            ("10.0.0.1", &["[2001:db8::1]:80"], "2001:db8::1"),
            ("10.0.0.1", &["[2001:db8::1]"], "2001:db8::1"),
            ("::ffff:10.0.0.1", &["::ffff:1.1.1.1"], "1.1.1.1"),
            ("fd00::1", &["2001:db8::7"], "2001:db8::7"),
        ];
        for (peer, lines, expected) in rows {
            assert_eq!(client(peer, lines), *expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn ipv6_is_keyed_by_prefix_and_ipv4_whole() {
        let key = |text: &str, prefix| limit_key(text.parse().unwrap(), prefix);
        assert_eq!(key("2001:db8::1", 64), key("2001:db8::ffff:1", 64));
        assert_ne!(key("2001:db8::1", 64), key("2001:db8:0:1::1", 64));
        assert_ne!(key("2001:db8::1", 128), key("2001:db8::2", 128));
        assert_eq!(key("1.2.3.4", 64), key("::ffff:1.2.3.4", 64));
        assert_ne!(key("1.2.3.4", 64), key("1.2.3.5", 64));
    }
}
