//! An order as fields of a queue entry. What comes out of a queue is not trusted: anybody may have written it.

use bytes::Bytes;

use crate::domain::ActivityId;
use crate::orders::order::NewOrder;

/// An entry that is no order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// What it said, one field a line.
    pub content: Vec<u8>,
    /// What is wrong with it.
    pub error: String,
}

/// The fields of an order.
pub(super) fn fields(order: &NewOrder) -> [(&'static str, Vec<u8>); 6] {
    [
        ("rid", order.request_id.to_string().into_bytes()),
        ("sku", order.sku.as_str().into()),
        ("qty", order.qty.to_string().into_bytes()),
        ("user", order.user.as_str().into()),
        ("epoch", order.epoch.to_string().into_bytes()),
        ("payload", order.payload.to_vec()),
    ]
}

/// Reads fields back.
pub(super) fn parse(activity: &ActivityId, fields: Vec<(String, Vec<u8>)>) -> Result<NewOrder, Malformed> {
    order(activity, &fields).map_err(|error| {
        let mut content = vec![];
        for (name, value) in fields {
            content.extend_from_slice(name.as_bytes());
            content.push(b'=');
            content.extend_from_slice(&value);
            content.push(b'\n');
        }
        Malformed { content, error }
    })
}

fn order(activity: &ActivityId, fields: &[(String, Vec<u8>)]) -> Result<NewOrder, String> {
    let raw = |name: &str| {
        let field = fields.iter().find(|(field, _)| field == name);
        field.map(|(_, value)| value.as_slice()).ok_or_else(|| format!("no field `{name}`"))
    };
    let text = |name: &str| std::str::from_utf8(raw(name)?).map_err(|_| format!("`{name}` is not text"));
    let number = |name: &str| text(name)?.parse::<u64>().map_err(|error| format!("`{name}`: {error}"));
    let qty = u32::try_from(number("qty")?).ok().filter(|qty| *qty > 0).ok_or("`qty` is not a quantity")?;
    Ok(NewOrder {
        request_id: text("rid")?.parse().map_err(|error| format!("`rid`: {error}"))?,
        activity: activity.clone(),
        sku: text("sku")?.parse().map_err(|error| format!("`sku`: {error}"))?,
        qty,
        user: text("user")?.parse().map_err(|error| format!("`user`: {error}"))?,
        epoch: number("epoch")?,
        payload: Bytes::copy_from_slice(raw("payload")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (ActivityId, Vec<(String, Vec<u8>)>, NewOrder) {
        let order = NewOrder {
            request_id: "eef43c5759fe9038687e0cf204b6a00f".parse().unwrap(),
            activity: "sale".parse().unwrap(),
            sku: "phone".parse().unwrap(),
            qty: 2,
            user: "U=1".parse().unwrap(),
            epoch: 3,
            payload: Bytes::from_static(b"{\"a\":\"\xff\n\"}"),
        };
        let fields = fields(&order).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        (order.activity.clone(), fields, order)
    }

    #[test]
    fn an_order_comes_out_as_it_went_in() {
        let (activity, fields, order) = sample();
        assert_eq!(parse(&activity, fields), Ok(order));
    }

    #[test]
    fn whatever_else_stands_in_the_queue_is_named() {
        let (activity, good, _) = sample();
        for (field, value, error) in [
            ("rid", "x", "`rid`: request id must be 32 lower-case hex digits"),
            ("qty", "0", "`qty` is not a quantity"),
            ("qty", "4294967296", "`qty` is not a quantity"),
            ("epoch", "-1", "`epoch`: invalid digit found in string"),
            ("user", "a b", "`user`: user must be 1-128 visible ASCII characters"),
        ] {
            let mut bad = good.clone();
            bad.iter_mut().find(|(name, _)| name == field).unwrap().1 = value.into();
            assert_eq!(parse(&activity, bad).unwrap_err().error, error);
        }
        assert_eq!(parse(&activity, vec![]).unwrap_err().error, "no field `qty`");
    }
}
