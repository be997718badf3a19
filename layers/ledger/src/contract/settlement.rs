//! Settlements: the end of a call, and what the call is charged for.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Hold;
use crate::{
    account::{AccountId, KeyId},
    endpoint::{self, Endpoint},
    money::MicroRub,
    number::RequestNumber,
    price::Price,
    session::{self, SessionId},
    timeline::{self, Timeline},
    usage::{End, StoppedBy, Usage},
};

/// The end of a call that cost something: what it used and what it cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Settlement {
    /// The call's number.
    pub number: RequestNumber,
    /// The account that pays.
    pub account: AccountId,
    /// The key that the call was made with.
    pub key: KeyId,
    /// The amount that was held at first. If the hold was changed, the item has the later amounts.
    pub held: MicroRub,
    /// The cost of the call.
    pub cost: MicroRub,
    /// Whether the first attempt to settle this call was so recent that its tombstone would still exist. If so, and the
    /// ledger finds neither a hold nor a tombstone of the call, the ledger has lost the hold, and may charge the call
    /// without it.
    pub fresh: bool,
    /// The lease that held the call's money, if the call is settled by another process than the lease's owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<RequestNumber>,
    /// The content of the receipt in addition to the money.
    pub item: Item,
}

impl Settlement {
    /// Creates the settlement of a call that has just ended and cost `cost`. `held` is the amount granted for `hold`.
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

/// The content of a receipt in addition to the money: what was sold, at which price, and how the call ran.
///
/// Ledgers store it as JSON, in files and streams that gateways of several versions read. So fields of later versions
/// may be missing, empty fields are left out, and unknown fields are ignored. The order of fields is fixed: first the
/// fields that many calls have in common, then, from `usage` on, the fields that differ between calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The catalog's name of the model, or of another thing that is sold.
    pub model: String,
    /// The vendor that answered.
    pub vendor: String,
    /// The prices that the cost was computed with.
    pub price: Option<Arc<Price>>,
    /// Whether the usage was estimated or repaired, because the vendor's usage was missing or implausible.
    pub estimated: bool,
    /// Whether the vendor's counts were higher than the request allows, and were cut to what the hold covers.
    #[serde(default)]
    pub bounded: bool,
    /// Whether the vendor reported tokens or units that have no price. They were charged at the highest rate that
    /// covers them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unpriced: bool,
    /// The way in which the call ended.
    pub end: End,
    /// The endpoint that the call was made to; `None` if the gateway did not record it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "endpoint::stored"
    )]
    pub endpoint: Option<Endpoint>,
    /// The tokens of the call, by class.
    pub usage: Usage,
    /// The vendor's price of the call in rubles, if the vendor's rates are configured. It uses the exchange rate on
    /// which the call's own price is based. Only the operator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_cost_rub: Option<MicroRub>,
    /// The usage that the vendor reported, if the charged usage was cut (`bounded`). Only the operator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_usage: Option<Usage>,
    /// The vendor's price of the usage that was cut, as far as the vendor may bill it. It is a loss of the operator and
    /// not part of the call's cost. Only the operator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounded_loss_rub: Option<MicroRub>,
    /// The largest amount that the call held, if its hold was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_max_rub: Option<MicroRub>,
    /// The amount that the call held when it ended, if its hold was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_at_end_rub: Option<MicroRub>,
    /// The reason why the gateway stopped the call, if it did: the call's growing hold could not be raised.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "StoppedBy::stored"
    )]
    pub stopped_by: Option<StoppedBy>,
    /// The session that the caller's request names, if any.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "session::stored"
    )]
    pub session: Option<SessionId>,
    /// The call's timing; `None` if it was not recorded.
    #[serde(
        rename = "times",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "timeline::stored"
    )]
    pub timeline: Option<Timeline>,
}

impl Item {
    /// Creates an item with the mandatory fields: no usage, and all other fields empty. Code that fills in the other
    /// fields with `..Item::new(…)` keeps compiling when fields are added.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// How a settlement was booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Booked {
    /// The call was charged from its hold.
    Held,
    /// The call was charged from free money, because its hold had expired.
    Late,
    /// The call was charged from free money, because the ledger had lost its hold.
    Forced,
    /// The call was not charged: it never had a hold, or it ended too long ago to rule out an earlier settlement.
    Stale,
    /// The call was not charged: the account does not exist any more.
    NoAccount,
    /// The call was not charged, because its hold had been released.
    Released,
}

impl Booked {
    /// Returns the name of this result in receipts and logs.
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

/// The result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// How the call was booked at its first settlement.
    pub booked: Booked,
    /// The amount that was charged.
    pub charged: MicroRub,
    /// The part of the cost that could not be charged; the operator bears it.
    pub loss: MicroRub,
    /// Whether the call had been booked before. The other fields then have the result of its first settlement.
    pub repeated: bool,
}

impl Settled {
    /// Returns whether this settlement moved money. A repeat of an earlier settlement does not.
    #[must_use]
    pub const fn moved(&self) -> bool {
        !self.repeated && matches!(self.booked, Booked::Held | Booked::Late | Booked::Forced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An item as versions without sessions and endpoints write it.
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
    fn receipt_without_session_and_endpoint_keeps_its_old_format() {
        assert_eq!(serde_json::to_value(plain()).unwrap(), value(PLAIN));
        assert_eq!(serde_json::from_str::<Item>(PLAIN).unwrap(), plain());
    }

    #[test]
    fn item_with_fields_of_another_version_is_read() {
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
