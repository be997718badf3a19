//! Sums over receipts: the one definition that all reports use.

use serde::{Deserialize, Serialize};

use super::{Latency, Words};
use crate::{
    account::IdError,
    contract::{Booked, JournalLine, Receipt},
    endpoint::Endpoint,
    money::MicroRub,
    timeline::Timeline,
    usage::{End, Usage},
};

/// Usage and money of a number of calls. Money is in micro-rubles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sums {
    /// The number of charged calls.
    #[serde(rename = "n", skip_serializing_if = "is_zero")]
    pub calls: u64,
    /// The number of charged calls whose response broke off at the vendor or contained an error of the vendor.
    #[serde(rename = "f", skip_serializing_if = "is_zero")]
    pub failed_calls: u64,
    /// The number of charged calls whose usage was estimated.
    #[serde(rename = "e", skip_serializing_if = "is_zero")]
    pub estimated_calls: u64,
    /// The tokens of the calls, by class.
    #[serde(rename = "u", skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The sum of the charges.
    #[serde(rename = "c", skip_serializing_if = "is_zero")]
    pub charged_micro: i128,
    /// The sum of the costs that could not be charged.
    #[serde(rename = "l", skip_serializing_if = "is_zero")]
    pub loss_micro: i128,
    /// The number of calls whose vendor cost is known. The following two fields are sums over these calls only.
    #[serde(rename = "k", skip_serializing_if = "is_zero")]
    pub cost_known_calls: u64,
    /// The sum of the vendors' prices of the calls whose vendor cost is known: what the operator pays for these calls.
    #[serde(rename = "v", skip_serializing_if = "is_zero")]
    pub vendor_cost_micro: i128,
    /// The charges for the calls whose vendor cost is known, minus the vendors' prices of these calls.
    #[serde(rename = "g", skip_serializing_if = "is_zero")]
    pub margin_micro: i128,
    /// The time from the request to the end of the call, for calls whose receipts contain it. Sums of earlier versions
    /// lack this field.
    #[serde(rename = "w", skip_serializing_if = "Latency::is_none")]
    pub whole: Latency,
    /// The time from the request to the first byte of the response, for calls whose receipts contain it.
    #[serde(rename = "b", skip_serializing_if = "Latency::is_none")]
    pub first_byte: Latency,
}

/// The fields of a receipt that sums need. Parsing only these fields takes less time than parsing the full receipt.
#[derive(Clone, Debug)]
pub struct Counted<'a> {
    /// When the call was booked ([`Receipt::at_ms`]), in Unix milliseconds.
    pub at_ms: u64,
    /// The id of the key.
    pub key: &'a str,
    /// The id of the group that was charged; `None` if no group was charged.
    pub group: Option<&'a str>,
    /// The model's name in the catalog ([`Item::model`](crate::contract::Item::model)). The fields from here to `usage`
    /// come from the item too.
    pub model: &'a str,
    /// The vendor that served the call.
    pub vendor: &'a str,
    /// The endpoint that the caller used.
    pub endpoint: Option<Endpoint>,
    /// How the call ended.
    pub end: End,
    /// Whether the usage was estimated.
    pub estimated: bool,
    /// The tokens of the call, by class.
    pub usage: Usage,
    /// The amount that was charged.
    pub charged_rub: MicroRub,
    /// The part of the cost that could not be charged, plus the price of usage that was cut off (see
    /// [`Counted::loss`]).
    pub loss_rub: MicroRub,
    /// The vendor's price of the call; `None` if the vendor's rates are not configured.
    pub vendor_cost_rub: Option<MicroRub>,
    /// The times from the request to the end of the call and to the first byte, in milliseconds.
    pub took_ms: (Option<u32>, Option<u32>),
}

impl<'a> Counted<'a> {
    /// Returns the fields of this receipt that sums need.
    #[must_use]
    pub fn from_receipt(receipt: &'a Receipt) -> Self {
        let item = &receipt.item;
        Self {
            at_ms: receipt.at_ms,
            key: &receipt.key,
            group: receipt.group.as_deref(),
            model: &item.model,
            vendor: &item.vendor,
            endpoint: item.endpoint,
            end: item.end,
            estimated: item.estimated,
            usage: item.usage,
            charged_rub: receipt.charged_rub,
            loss_rub: Self::loss(receipt.loss_rub, item.bounded_loss_rub),
            vendor_cost_rub: item.vendor_cost_rub,
            took_ms: Self::took(item.timeline.as_ref()),
        }
    }

    /// Returns the operator's loss: the part of the cost that could not be charged, plus the price of usage that was
    /// cut off.
    #[must_use]
    pub fn loss(unpaid: MicroRub, bounded: Option<MicroRub>) -> MicroRub {
        unpaid.plus_or_max(bounded.unwrap_or_default())
    }

    /// Returns the value of [`Counted::took_ms`] for a call with this timeline.
    #[must_use]
    pub fn took(timeline: Option<&Timeline>) -> (Option<u32>, Option<u32>) {
        let whole_ms = timeline.map(|times| times.whole_ms);
        (whole_ms, timeline.and_then(|times| times.first_byte_ms))
    }

    /// Returns whether the call belongs to the row with these fields in the sums of its account.
    pub(super) fn is_of(&self, words: &Words) -> bool {
        words.key.as_deref() == Some(self.key)
            && words.model == self.model
            && words.vendor == self.vendor
            && words.endpoint == self.endpoint
            && words.group.as_deref() == self.group
    }

    /// Returns the fields of the row in which the call is summed for its account. An invalid group is ignored, because
    /// the call was charged and must be counted.
    pub(super) fn words(&self) -> Result<Words, IdError> {
        Ok(Words {
            key: Some(self.key.parse()?),
            group: self.group.and_then(|group| group.parse().ok()),
            model: self.model.to_owned(),
            vendor: self.vendor.to_owned(),
            endpoint: self.endpoint,
        })
    }
}

impl Sums {
    /// Creates the sums of one call.
    #[must_use]
    pub fn from_receipt(receipt: &Receipt) -> Self {
        let mut sums = Self::default();
        sums.count(&Counted::from_receipt(receipt));
        sums
    }

    /// Adds a call to the sums.
    pub fn count(&mut self, call: &Counted<'_>) {
        let charged = i128::from(call.charged_rub.micro());
        self.calls += 1;
        self.failed_calls += u64::from(is_failed(call.end));
        self.estimated_calls += u64::from(call.estimated);
        self.usage = self.usage.plus(&call.usage);
        self.charged_micro += charged;
        self.loss_micro += i128::from(call.loss_rub.micro());
        if let Some(cost) = call.vendor_cost_rub {
            let cost = i128::from(cost.micro());
            self.cost_known_calls += 1;
            self.vendor_cost_micro += cost;
            self.margin_micro += charged - cost;
        }
        let (whole_ms, first_byte_ms) = call.took_ms;
        whole_ms.into_iter().for_each(|ms| self.whole.count(ms));
        (first_byte_ms.into_iter()).for_each(|ms| self.first_byte.count(ms));
    }

    /// Adds `other` to these sums.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.failed_calls += other.failed_calls;
        self.estimated_calls += other.estimated_calls;
        self.usage = self.usage.plus(&other.usage);
        self.charged_micro += other.charged_micro;
        self.loss_micro += other.loss_micro;
        self.cost_known_calls += other.cost_known_calls;
        self.vendor_cost_micro += other.vendor_cost_micro;
        self.margin_micro += other.margin_micro;
        self.whole.add(&other.whole);
        self.first_byte.add(&other.first_byte);
    }

    /// Returns whether these sums are correct for `receipts`. Some durations may be missing, because earlier versions
    /// write sums without durations.
    pub(super) fn agree_with(&self, receipts: &Self) -> bool {
        let timed = [&self.whole, &self.first_byte];
        let of = [&receipts.whole, &receipts.first_byte];
        timed.iter().zip(of).all(|(some, all)| some.is_within(all))
            && self.same_but_for_times(receipts)
    }

    /// Returns whether two sums are equal, ignoring durations.
    pub(super) fn same_but_for_times(&self, other: &Self) -> bool {
        let Self {
            whole, first_byte, ..
        } = self;
        let other = Self {
            whole: whole.clone(),
            first_byte: first_byte.clone(),
            ..other.clone()
        };
        *self == other
    }
}

/// Returns whether a call that ended in this way counts in [`Sums::failed_calls`].
#[must_use]
pub const fn is_failed(end: End) -> bool {
    matches!(end, End::VendorCut | End::VendorError)
}

/// Returns the receipt in a journal line, if sums include it. A disputed receipt is not included: it moved no money,
/// and its call may have another receipt.
pub(crate) fn counted(line: &JournalLine) -> Option<&Receipt> {
    match line {
        JournalLine::Call(receipt) => (receipt.booked != Booked::Stale).then_some(receipt),
        JournalLine::Entry { .. } => None,
    }
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_sums_omit_fields_that_are_zero_and_round_trip() {
        for (sums, json) in [
            (Sums::default(), "{}"),
            (
                Sums {
                    calls: 2,
                    charged_micro: 1 << 70,
                    margin_micro: -7,
                    ..Sums::default()
                },
                r#"{"n":2,"c":1180591620717411303424,"g":-7}"#,
            ),
            (
                Sums {
                    calls: 2,
                    whole: Latency::of_ms(7),
                    first_byte: Latency::of_ms(3),
                    ..Sums::default()
                },
                r#"{"n":2,"w":"7","b":"3"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&sums).unwrap(), json);
            assert_eq!(serde_json::from_str::<Sums>(json).unwrap(), sums);
        }
    }
}
