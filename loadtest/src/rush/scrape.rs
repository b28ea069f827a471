//! What the gates' metrics tell that a client cannot see: which SOLD_OUT came from the store, and how many attempts
//! arrived.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use loadtest::http::Line;

/// What all gates together counted in this sale.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    /// SOLD_OUT answers to attempts that the store gave.
    pub sold_out_by_store: u64,
    /// Attempts, whatever they were told.
    pub attempts: u64,
}

/// Asks all gates; `None` if one of them does not tell.
pub async fn scrape(metrics: &[SocketAddr], activity: &str) -> Option<Seen> {
    let mut total = Seen::default();
    for &address in metrics {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let reply = Line::new(None, address).call(request.as_bytes(), Instant::now() + Duration::from_secs(5)).await;
        let reply = reply.ok().filter(|reply| reply.status == 200)?;
        let seen = read(std::str::from_utf8(&reply.body).ok()?, activity)?;
        total.sold_out_by_store += seen.sold_out_by_store;
        total.attempts += seen.attempts;
    }
    Some(total)
}

/// Reads one gate's metrics. A family that is not there yet counted nothing; without a single one this is no gate.
fn read(text: &str, activity: &str) -> Option<Seen> {
    let of_activity = format!("activity=\"{activity}\"");
    let store = [of_activity.as_str(), "stage=\"store\"", "code=\"SOLD_OUT\""];
    text.contains("# TYPE seckill_").then(|| Seen {
        sold_out_by_store: sum(text, "seckill_refusals_total{", &store),
        attempts: sum(text, "seckill_attempts_total{", &store[..1]),
    })
}

/// The sum of a family's counters that carry all of these labels.
fn sum(text: &str, family: &str, labels: &[&str]) -> u64 {
    let samples = text.lines().filter_map(|line| line.strip_prefix(family)?.rsplit_once("} "));
    // Label values of these families hold no commas.
    let wanted = samples.filter(|(told, _)| labels.iter().all(|label| told.split(',').any(|told| told == *label)));
    // Counters are told as floats.
    wanted.filter_map(|(_, value)| value.trim().parse::<f64>().ok()).map(|value| value as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_sale_counts() {
        let text = "# TYPE seckill_refusals_total counter\n\
            seckill_refusals_total{activity=\"a\",code=\"SOLD_OUT\",stage=\"store\"} 17\n\
            seckill_refusals_total{activity=\"a\",code=\"SOLD_OUT\",stage=\"sold_out\"} 900\n\
            seckill_refusals_total{activity=\"a\",code=\"ALREADY_BOUGHT\",stage=\"store\"} 3\n\
            seckill_refusals_total{activity=\"ab\",code=\"SOLD_OUT\",stage=\"store\"} 5\n\
            seckill_attempts_total{activity=\"a\",outcome=\"SOLD_OUT\"} 917\n\
            seckill_attempts_total{activity=\"a\",outcome=\"WON\"} 2\n\
            seckill_attempts_total{activity=\"ab\",outcome=\"WON\"} 4\n";
        assert_eq!(read(text, "a"), Some(Seen { sold_out_by_store: 17, attempts: 919 }));
        assert_eq!(read(text, "c"), Some(Seen::default()));
        assert_eq!(read("other 1\n", "a"), None);
    }
}
