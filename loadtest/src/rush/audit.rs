//! What store and ledger say after the sale, read straight from Redis and MariaDB, and whether it is right.

use std::collections::{HashMap, HashSet};
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use loadtest::funnel::Funnel;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions as _, Row as _};
use tokio::time::timeout;

/// Deadline of one reading.
const DEADLINE: Duration = Duration::from_secs(10);

/// What is audited.
pub struct Place {
    pub activity: String,
    pub sku: String,
}

/// An order, as the ledger holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub request_id: String,
    pub user: String,
    pub sku: String,
    pub qty: i64,
    pub state: String,
}

/// What the ledger says.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    pub orders: Vec<Order>,
    pub total: i64,
    pub sold: i64,
}

/// What the store says.
#[derive(Debug, Clone, Default)]
pub struct Store {
    pub total: i64,
    pub left: i64,
    pub returning: i64,
    pub withheld: i64,
    pub stopped: bool,
    pub wins: HashSet<String>,
    /// Entries of the outbox.
    pub due: u64,
}

/// Both books.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub ledger: Ledger,
    pub store: Store,
}

/// What the rush was meant to be.
pub struct Expected {
    pub stock: u32,
    pub users: u32,
    pub attempts: u64,
}

impl Ledger {
    /// The orders that hold units.
    pub fn standing(&self) -> impl Iterator<Item = &Order> {
        self.orders.iter().filter(|order| matches!(order.state.as_str(), "pending" | "paid"))
    }

    /// Buyers with a standing order.
    pub fn distinct_users(&self) -> usize {
        self.standing().map(|order| order.user.as_str()).collect::<HashSet<_>>().len()
    }
}

/// Connections to both books.
pub struct Books {
    redis: redis::aio::MultiplexedConnection,
    mysql: MySqlConnection,
    place: Place,
}

impl Books {
    /// Connects. Fails with the address, never with the password.
    pub async fn open(
        redis_url: &str,
        redis_password: Option<&str>,
        mysql_url: &str,
        mysql_password: Option<&str>,
        place: Place,
    ) -> anyhow::Result<Books> {
        let client = redis::Client::open(redis_url).with_context(|| format!("no Redis address: {redis_url}"))?;
        let connect = client.get_multiplexed_async_connection();
        let mut redis = timeout(DEADLINE, connect).await?.with_context(|| format!("cannot connect to {redis_url}"))?;
        if let Some(password) = redis_password {
            let auth: redis::RedisResult<()> = redis::cmd("AUTH").arg(password).query_async(&mut redis).await;
            auth.with_context(|| format!("{redis_url} does not take the password"))?;
        }
        let mut options =
            MySqlConnectOptions::from_str(mysql_url).with_context(|| format!("no MySQL address: {mysql_url}"))?;
        if let Some(password) = mysql_password {
            options = options.password(password);
        }
        let mysql =
            timeout(DEADLINE, options.connect()).await?.with_context(|| format!("cannot connect to {mysql_url}"))?;
        Ok(Books { redis, mysql, place })
    }

    /// Reads both books once: the ledger first, so that an order that the store does not know is a finding and not a
    /// matter of timing.
    pub async fn read(&mut self) -> anyhow::Result<Facts> {
        let ledger = timeout(DEADLINE, self.read_ledger()).await.context("MySQL does not answer")??;
        let store = timeout(DEADLINE, self.read_store()).await.context("Redis does not answer")??;
        Ok(Facts { ledger, store })
    }

    /// Reads until every win is an order and the outbox is empty, or until `within` has passed.
    pub async fn settled(&mut self, within: Duration) -> anyhow::Result<Facts> {
        let begun = Instant::now();
        loop {
            let facts = self.read().await?;
            let settled = facts.store.due == 0 && facts.ledger.orders.len() >= facts.store.wins.len();
            if settled || begun.elapsed() >= within {
                return Ok(facts);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn read_ledger(&mut self) -> anyhow::Result<Ledger> {
        let rows = sqlx::query("SELECT request_id, `user`, sku, qty, state FROM orders WHERE activity = ?")
            .bind(&self.place.activity)
            .fetch_all(&mut self.mysql)
            .await
            .context("cannot read the orders")?;
        let orders = rows.iter().map(|row| {
            let text = |column: usize| {
                row.try_get::<Vec<u8>, _>(column).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            };
            Ok(Order { request_id: text(0)?, user: text(1)?, sku: text(2)?, qty: row.try_get(3)?, state: text(4)? })
        });
        let orders = orders.collect::<Result<Vec<_>, sqlx::Error>>().context("cannot read an order")?;
        let stock = sqlx::query("SELECT total, sold FROM stock WHERE activity = ? AND sku = ?")
            .bind(&self.place.activity)
            .bind(&self.place.sku)
            .fetch_optional(&mut self.mysql)
            .await
            .context("cannot read the ledger's stock")?
            .with_context(|| format!("the ledger does not know {} {}", self.place.activity, self.place.sku))?;
        Ok(Ledger { orders, total: stock.try_get(0)?, sold: stock.try_get(1)? })
    }

    async fn read_store(&mut self) -> anyhow::Result<Store> {
        let key = |name: &str| format!("sk:{{{}.0}}:{name}", self.place.activity);
        // One transaction, so that the sum of the stock and the wins belong together.
        let (stock, wins, due): (HashMap<String, i64>, HashSet<String>, u64) = redis::pipe()
            .atomic()
            .hgetall(key("stock"))
            .hkeys(key("wins"))
            // A sentinel keeps the key alive; its score is +inf.
            .zcount(key("due"), "-inf", "(+inf")
            .query_async(&mut self.redis)
            .await
            .context("cannot read the store")?;
        let field = |name: &str| stock.get(&format!("{}:{name}", self.place.sku)).copied();
        Ok(Store {
            total: field("total").with_context(|| format!("the store does not know {}", self.place.activity))?,
            left: field("left").context("the store tells no `left`")?,
            returning: field("returning").unwrap_or(0),
            withheld: field("withheld").unwrap_or(0),
            stopped: field("stopped").unwrap_or(0) != 0,
            // As above: the empty name is a sentinel.
            wins: wins.into_iter().filter(|id| !id.is_empty()).collect(),
            due,
        })
    }
}

/// What is wrong, in words; empty if nothing is.
pub fn judge(facts: &Facts, funnel: &Funnel, expected: &Expected) -> Vec<String> {
    let Facts { ledger, store } = facts;
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let stock = i64::from(expected.stock);
    let units: i64 = ledger.standing().map(|order| order.qty).sum();
    // A crowd smaller than the stock cannot sell it out.
    let sold = stock.min(i64::from(expected.users));
    must(ledger.total == stock, format!("the ledger offers {} units, not {stock}", ledger.total));
    must(ledger.sold <= ledger.total, format!("INV-1: sold {} of {}", ledger.sold, ledger.total));
    must(ledger.sold == sold, format!("the ledger sold {} units, not {sold}", ledger.sold));
    must(units == ledger.sold, format!("the standing orders hold {units} units, the ledger sold {}", ledger.sold));
    let (orders, users) = (ledger.standing().count(), ledger.distinct_users());
    must(orders == users, format!("INV-3: {orders} standing orders of {users} users"));
    must(orders == ledger.orders.len(), format!("{} orders do not stand", ledger.orders.len() - orders));

    must(store.total == stock, format!("the store offers {} units, not {stock}", store.total));
    must(store.left == stock - sold, format!("the store has {} left, not {}", store.left, stock - sold));
    must(
        store.returning == 0 && store.withheld == 0,
        format!("{} returning, {} withheld", store.returning, store.withheld),
    );
    must(!store.stopped, "the store has stopped the SKU".into());
    must(
        store.total == store.left + store.returning + store.withheld + store.wins.len() as i64,
        format!("INV-2: total {} but {} wins and {} left", store.total, store.wins.len(), store.left),
    );
    must(store.due == 0, format!("INV-6: {} wins still wait in the outbox", store.due));

    let by_id: HashMap<_, _> = ledger.orders.iter().map(|order| (order.request_id.as_str(), order)).collect();
    let lost = store.wins.iter().filter(|id| !by_id.contains_key(id.as_str())).count();
    must(lost == 0, format!("INV-6: {lost} wins of the store are no order"));
    let unwon = by_id.keys().filter(|&&id| !store.wins.contains(id)).count();
    must(unwon == 0, format!("INV-4: {unwon} orders have no win in the store"));
    let told_in_vain =
        funnel.wins.iter().filter(|win| by_id.get(win.request_id.as_str()).is_none_or(|order| order.user != win.user));
    let told_in_vain = told_in_vain.count();
    must(told_in_vain == 0, format!("{told_in_vain} buyers were told of a win that is no order of theirs"));

    must(funnel.adds_up(), "the funnel does not add up to the attempts sent".into());
    must(
        funnel.attempts.sent >= expected.attempts,
        format!("only {} of {} attempts were sent", funnel.attempts.sent, expected.attempts),
    );
    must(
        funnel.broken_count == 0,
        format!("{} promises were broken, e.g. {}", funnel.broken_count, funnel.broken.first().map_or("", |b| b)),
    );
    wrong
}

/// Both books as a table.
pub fn table(facts: &Facts, settle_seconds: f64) -> String {
    let Facts { ledger, store } = facts;
    format!(
        "ledger   total {} · sold {} · standing orders {} · of users {} · ended {}\n\
         store    total {} · left {} · returning {} · withheld {} · wins {} · outbox {}\n\
         settled  {settle_seconds:.1} s after the crowd had left",
        ledger.total,
        ledger.sold,
        ledger.standing().count(),
        ledger.distinct_users(),
        ledger.orders.len() - ledger.standing().count(),
        store.total,
        store.left,
        store.returning,
        store.withheld,
        store.wins.len(),
        store.due,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadtest::funnel::{ToldWin, outcome};

    const EXPECTED: Expected = Expected { stock: 2, users: 5, attempts: 2 };

    fn sound() -> (Facts, Funnel) {
        let order = |n: u32| Order {
            request_id: format!("r{n}"),
            user: format!("u{n}"),
            sku: "phone".into(),
            qty: 1,
            state: "pending".into(),
        };
        let ledger = Ledger { orders: vec![order(1), order(2)], total: 2, sold: 2 };
        let store = Store { total: 2, wins: ["r1".into(), "r2".into()].into(), ..Store::default() };
        let mut funnel = Funnel::default();
        for n in [1, 2] {
            funnel.attempts.sent += 1;
            funnel.attempts.answer(outcome::WON, Duration::from_millis(1));
            funnel.wins.push(ToldWin { user: format!("u{n}"), request_id: format!("r{n}"), accepted: true });
        }
        (Facts { ledger, store }, funnel)
    }

    #[test]
    fn a_sound_sale_is_found_sound() {
        let (facts, funnel) = sound();
        assert_eq!(judge(&facts, &funnel, &EXPECTED), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        type Fault = (&'static str, fn(&mut Facts, &mut Funnel));
        let faults: &[Fault] = &[
            ("INV-1", |facts, _| facts.ledger.sold = 3),
            ("sold 1 units", |facts, _| facts.ledger.sold = 1),
            ("hold 3 units", |facts, _| facts.ledger.orders[0].qty = 2),
            ("INV-3", |facts, _| facts.ledger.orders[0].user = "u2".into()),
            ("do not stand", |facts, _| facts.ledger.orders[0].state = "refused".into()),
            ("has 1 left", |facts, _| facts.store.left = 1),
            ("1 withheld", |facts, _| facts.store.withheld = 1),
            ("stopped", |facts, _| facts.store.stopped = true),
            ("INV-2", |facts, _| facts.store.left = 1),
            ("INV-6: 1 wins still wait", |facts, _| facts.store.due = 1),
            ("INV-6: 1 wins of the store", |facts, _| _ = facts.ledger.orders.pop()),
            ("INV-4", |facts, _| _ = facts.store.wins.remove("r1")),
            ("no order of theirs", |_, funnel| funnel.wins[0].user = "u9".into()),
            ("does not add up", |_, funnel| funnel.attempts.sent += 1),
            ("attempts were sent", |_, funnel| funnel.attempts.sent = 1),
            ("promises were broken", |_, funnel| funnel.broke("x".into())),
        ];
        for (words, break_it) in faults {
            let (mut facts, mut funnel) = sound();
            break_it(&mut facts, &mut funnel);
            let found = judge(&facts, &funnel, &EXPECTED);
            assert!(found.iter().any(|fault| fault.contains(words)), "{words} is not in {found:?}");
        }
    }
}
