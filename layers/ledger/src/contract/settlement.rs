//! Settlements: how a call ended, what it used, and what it costs.

use std::{str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};

use super::Hold;
use crate::{
    account::{AccountId, KeyId},
    endpoint::Endpoint,
    money::MicroRub,
    number::RequestNumber,
    price::Price,
    session::SessionId,
    timeline::Timeline,
    usage::{End, StoppedBy, Usage},
};

/// The end of a call that cost something: what the call used and what it costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Settlement {
    /// The call's number.
    pub number: RequestNumber,
    /// The account that pays.
    pub account: AccountId,
    /// The key with which the call was made.
    pub key: KeyId,
    /// The amount that was first held for the call. If that hold was changed later, the later amounts are in `item`.
    pub held: MicroRub,
    /// The cost of the call, before it is limited to the money that can be charged.
    pub cost: MicroRub,
    /// Whether the first attempt to settle the call is so recent that, if it succeeded, its tombstone is still stored.
    /// If `fresh` is set and the ledger finds neither a hold nor a tombstone of the call, then the ledger has lost the
    /// hold. Only in this case may it charge a call that has no hold.
    pub fresh: bool,
    /// The lease from which the call's hold was granted, if the settling process does not own that lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<RequestNumber>,
    /// The receipt's content in addition to the money.
    pub item: Item,
}

impl Settlement {
    /// Creates the settlement of a call that has just ended and costs `cost`. The ledger granted the amount `held` for
    /// `hold`.
    #[must_use]
    pub fn new(hold: &Hold, held: MicroRub, cost: MicroRub, item: Item) -> Self {
        Self {
            number: hold.number,
            account: hold.account.clone(),
            key: hold.key.clone(),
            held,
            cost,
            fresh: true,
            lease: None,
            item,
        }
    }

    /// The amount that was held when the call ended.
    #[must_use]
    pub fn held_at_end(&self) -> MicroRub {
        self.item.held_at_end_rub.unwrap_or(self.held)
    }
}

/// A receipt's content in addition to the money: the thing sold, its price, and how the call ended.
///
/// Ledgers store items as JSON in files and Redis streams, and gateways of several versions read them. An empty field
/// is not written, a missing field has its default, and an unknown field is ignored. The fields are written in a fixed
/// order: first the fields whose values many calls share, then, from `usage` on, the fields whose values differ from
/// call to call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The model's name in the catalog, or the name of another thing that is sold.
    pub model: String,
    /// The vendor that served the call.
    pub vendor: String,
    /// The prices from which the cost was computed.
    pub price: Option<Arc<Price>>,
    /// Whether the gateway estimated or repaired the usage, because the vendor reported no usage or an implausible one.
    pub estimated: bool,
    /// Whether the vendor reported more tokens than the request allows. If so, the charged usage was reduced to the
    /// amount that the hold covers.
    #[serde(default)]
    pub bounded: bool,
    /// Whether the vendor reported tokens or units that have no price. They were charged at the highest rate that could
    /// apply to them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unpriced: bool,
    /// How the call ended.
    pub end: End,
    /// The endpoint that the caller used; `None` if it was not recorded.
    #[serde(default, deserialize_with = "if_valid")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The tokens that are charged, by rate class.
    pub usage: Usage,
    /// The vendor's price of the call in rubles, if the vendor's rates are configured: the amount that the operator
    /// pays. It is computed with the exchange rate of the caller's price. Only the operator sees this amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_cost_rub: Option<MicroRub>,
    /// The usage that the vendor reported, if the charged usage was reduced (see `bounded`). Only the operator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_usage: Option<Usage>,
    /// The vendor's price of the usage that was cut off (see `bounded`), as far as the vendor may bill it. The operator
    /// bears this amount as a loss; it is not part of the call's cost. Only the operator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounded_loss_rub: Option<MicroRub>,
    /// The largest amount that the call held at any time, if its hold was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_max_rub: Option<MicroRub>,
    /// The amount that the call held at its end, if its hold was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_at_end_rub: Option<MicroRub>,
    /// Why the gateway stopped the call before it was complete: its growing hold could not be raised. `None` if the
    /// gateway did not stop the call.
    #[serde(default, deserialize_with = "StoppedBy::stored")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<StoppedBy>,
    /// The session that the caller's request belongs to, if the request names a session.
    #[serde(default, deserialize_with = "if_valid")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The call's timing; `None` if it was not recorded.
    #[serde(rename = "times", default, deserialize_with = "if_valid")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

impl Item {
    /// Creates an item from the mandatory fields; the usage is zero and all other fields are empty. Set further fields
    /// with `..Item::new(…)`: such code still compiles when a version of this crate adds fields.
    #[must_use]
    pub fn new(model: impl Into<String>, vendor: impl Into<String>, end: End) -> Self {
        Self {
            model: model.into(),
            vendor: vendor.into(),
            usage: Usage::default(),
            price: None,
            estimated: false,
            bounded: false,
            unpriced: false,
            vendor_cost_rub: None,
            vendor_usage: None,
            bounded_loss_rub: None,
            held_max_rub: None,
            held_at_end_rub: None,
            stopped_by: None,
            end,
            session: None,
            endpoint: None,
            timeline: None,
        }
    }
}

/// Reads a value that is stored as a text. A text that only a later version of the gateway can parse becomes `None`, so
/// that the record stays readable.
pub(crate) fn if_valid<'de, T: FromStr, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// How the ledger booked a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Booked {
    /// The call was charged from its own hold.
    Held,
    /// The call was charged from the account's free money, because its hold had expired.
    Late,
    /// The call was charged from the account's free money, because the ledger had lost the call's hold.
    Forced,
    /// The call was not charged. Either it never had a hold, or it ended in the distant past and an earlier settlement
    /// may have charged it.
    Stale,
    /// The call was not charged, because its account does not exist any more.
    NoAccount,
    /// The call was not charged, because its hold had been released before.
    Released,
}

impl Booked {
    /// Returns the name of this variant in receipts and logs, for example `late`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Late => "late",
            Self::Forced => "forced",
            Self::Stale => "stale",
            Self::NoAccount => "no_account",
            Self::Released => "released",
        }
    }
}

/// The ledger's response to a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// How the first settlement of the call was booked.
    pub booked: Booked,
    /// The amount that was charged to the account.
    pub charged: MicroRub,
    /// The part of the cost that could not be charged; the operator bears it.
    pub loss: MicroRub,
    /// Whether the call had been settled before. If so, the other fields repeat the result of the first settlement.
    pub repeated: bool,
}

impl Settled {
    /// The result of an end that moved no money.
    pub(crate) const fn nothing(booked: Booked) -> Self {
        Self {
            booked,
            charged: MicroRub::ZERO,
            loss: MicroRub::ZERO,
            repeated: false,
        }
    }

    /// Returns whether this settlement moved money. A repeated settlement moves none.
    #[must_use]
    pub const fn moved(&self) -> bool {
        !self.repeated && matches!(self.booked, Booked::Held | Booked::Late | Booked::Forced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An item in the JSON of versions that had neither sessions nor endpoints.
    const PLAIN: &str = r#"{"model":"m","vendor":"v","usage":{"input":1,"cached_input":0,"cache_write":0,"output":2},"price":null,"estimated":false,"bounded":false,"end":"finished"}"#;

    fn value(json: &str) -> serde_json::Value {
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
    }

    fn plain() -> Item {
        Item {
            usage: Usage {
                input: 1,
                output: 2,
                ..Usage::default()
            },
            ..Item::new("m", "v", End::Finished)
        }
    }

    #[test]
    fn receipt_item_without_session_and_endpoint_has_the_json_of_earlier_versions() {
        assert_eq!(serde_json::to_value(plain()).unwrap(), value(PLAIN));
        assert_eq!(serde_json::from_str::<Item>(PLAIN).unwrap(), plain());
    }

    #[test]
    fn receipt_item_with_unknown_fields_and_values_is_read() {
        let with = |more: &str| {
            let json = format!("{},{more}}}", PLAIN.strip_suffix('}').unwrap());
            serde_json::from_str::<Item>(&json).unwrap_or_else(|error| panic!("{json}: {error}"))
        };
        let session = Some("s-1".parse().unwrap());
        let named = Item { session, ..plain() };
        let endpoint = Some(Endpoint::ChatCompletions);
        let placed = Item {
            endpoint,
            ..plain()
        };
        for (item, more) in [
            (&named, r#""session":"s-1""#),
            (&placed, r#""endpoint":"chat/completions""#),
        ] {
            let expected = PLAIN.replace("\"finished\"", &format!("\"finished\",{more}"));
            assert_eq!(serde_json::to_value(item).unwrap(), value(&expected));
        }
        for (more, expected) in [
            (r#""session":"s-1""#, &named),
            (r#""session":null"#, &plain()),
            (
                r#""session":"what only a later version takes for one""#,
                &plain(),
            ),
            (r#""cache_class":{"five":[1,2]},"session":"s-1""#, &named),
            (r#""endpoint":"chat/completions""#, &placed),
            (r#""endpoint":null"#, &plain()),
            (r#""endpoint":"what only a later version has""#, &plain()),
            (r#""endpoint":"\u0063hat/completions""#, &placed),
        ] {
            assert_eq!(with(more), *expected, "{more}");
        }
    }
}
