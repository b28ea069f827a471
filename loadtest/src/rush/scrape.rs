//! What the gates' metrics tell that a client cannot see: which SOLD_OUT came from the store.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use loadtest::http::Line;

/// SOLD_OUT answers to attempts that the store gave, all gates together; `None` if a gate does not tell.
pub async fn sold_out_by_store(metrics: &[SocketAddr], activity: &str) -> Option<u64> {
    let mut total = 0;
    for &address in metrics {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let reply = Line::new(None, address).call(request.as_bytes(), Instant::now() + Duration::from_secs(5)).await;
        let reply = reply.ok().filter(|reply| reply.status == 200)?;
        total += read(std::str::from_utf8(&reply.body).ok()?, activity)?;
    }
    Some(total)
}

/// The value of `seckill_refusals_total` for this activity, stage `store` and code `SOLD_OUT`; 0 if the store refused
/// nothing, `None` if there is no such family.
fn read(text: &str, activity: &str) -> Option<u64> {
    let mut found = None;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("seckill_refusals_total{") else { continue };
        found.get_or_insert(0);
        let (labels, value) = rest.rsplit_once("} ")?;
        let wanted = [format!("activity=\"{activity}\""), "stage=\"store\"".into(), "code=\"SOLD_OUT\"".into()];
        // Label values of this family hold no commas.
        if wanted.iter().all(|label| labels.split(',').any(|told| told == label)) {
            // Counters are told as floats.
            found = Some(found.unwrap_or(0) + value.trim().parse::<f64>().ok()? as u64);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_store_refused_in_this_sale_counts() {
        let text = "# TYPE seckill_refusals_total counter\n\
            seckill_refusals_total{activity=\"a\",code=\"SOLD_OUT\",stage=\"store\"} 17\n\
            seckill_refusals_total{activity=\"a\",code=\"SOLD_OUT\",stage=\"sold_out\"} 900\n\
            seckill_refusals_total{activity=\"a\",code=\"ALREADY_BOUGHT\",stage=\"store\"} 3\n\
            seckill_refusals_total{activity=\"ab\",code=\"SOLD_OUT\",stage=\"store\"} 5\n";
        assert_eq!(read(text, "a"), Some(17));
        assert_eq!(read(text, "c"), Some(0));
        assert_eq!(read("other 1\n", "a"), None);
    }
}
