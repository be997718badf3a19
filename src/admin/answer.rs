//! Responses of the admin API about accounts, keys and receipts. Lists of accounts contain each account as the ledger
//! returns it.

use std::borrow::Cow;

use ipnet::IpNet;
use serde::Serialize;
use tollgate_layers::{
    key::{AccountId, GroupId, KeyId, KeyStatus},
    money::MicroRub,
    reserve::ledger::{AccountView, GroupView, Item, KeyView, Receipt},
    usage::End,
};

use crate::{api::ceilings::Spending, text::time::rfc3339};

/// A key as the API returns it: without its digest.
#[derive(Serialize)]
pub(super) struct KeyAnswer<'a> {
    /// The key's secret; present only in the response that created the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    id: &'a KeyId,
    account: &'a AccountId,
    /// The kind of the key: `caller` calls models, `owner` manages the account's keys.
    kind: &'static str,
    prefix: &'a str,
    name: &'a str,
    status: KeyStatus,
    #[serde(flatten)]
    spending: Spending,
    held_rub: MicroRub,
    free_rub: MicroRub,
    models: &'a [String],
    addresses: &'a [IpNet],
    requests_per_second: Option<u32>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    group: Option<&'a GroupId>,
    concurrency: Option<u32>,
    idempotency: bool,
    growing_holds: bool,
    expires_at: Option<String>,
    created_at: String,
    changed_at: String,
}

impl<'a> From<&'a KeyView> for KeyAnswer<'a> {
    fn from(view: &'a KeyView) -> Self {
        let record = &view.record;
        Self {
            key: None,
            id: &record.id,
            account: &record.account,
            kind: record.kind(),
            prefix: &record.prefix,
            name: &record.name,
            status: record.status,
            spending: Spending::from(view),
            held_rub: view.held_rub,
            free_rub: view.free_rub,
            models: record.models_named(),
            addresses: &record.addresses,
            requests_per_second: record.requests_per_second,
            requests_per_minute: record.requests_per_minute,
            tokens_per_minute: record.tokens_per_minute,
            group: record.group.as_ref(),
            concurrency: record.concurrency,
            idempotency: record.idempotency,
            growing_holds: record.growing_holds,
            expires_at: record.expires_at_ms.map(rfc3339),
            created_at: rfc3339(record.created_at_ms),
            changed_at: rfc3339(record.changed_at_ms.max(record.created_at_ms)),
        }
    }
}

impl<'a> KeyAnswer<'a> {
    /// A key that was just created, with its secret.
    pub(super) fn with_secret(view: &'a KeyView, secret: &'a str) -> Self {
        Self {
            key: Some(secret),
            ..Self::from(view)
        }
    }
}

/// A group of keys, with the same fields as a key.
#[derive(Serialize)]
pub(super) struct GroupAnswer<'a> {
    id: &'a GroupId,
    name: &'a str,
    status: &'static str,
    #[serde(flatten)]
    spending: Spending,
    held_rub: MicroRub,
    free_rub: MicroRub,
}

impl<'a> From<&'a GroupView> for GroupAnswer<'a> {
    fn from(view: &'a GroupView) -> Self {
        Self {
            id: &view.record.id,
            name: &view.record.name,
            status: match view.record.removed {
                true => "removed",
                false => "active",
            },
            spending: Spending::from(view),
            held_rub: view.held_rub,
            free_rub: view.free_rub,
        }
    }
}

/// An account with its keys, their spending in the current UTC day and month, and its debt for refunds.
#[derive(Serialize)]
pub(super) struct AccountAnswer<'a> {
    #[serde(flatten)]
    view: &'a AccountView,
    spent_month_rub: MicroRub,
    spent_day_rub: MicroRub,
    debt_rub: MicroRub,
    keys: Vec<KeyAnswer<'a>>,
}

impl<'a> AccountAnswer<'a> {
    pub(super) fn new(view: &'a AccountView, keys: &'a [KeyView], debt_rub: MicroRub) -> Self {
        let sum = |spent: fn(&KeyView) -> MicroRub| {
            keys.iter()
                .map(spent)
                .fold(MicroRub::ZERO, MicroRub::plus_or_max)
        };
        Self {
            view,
            spent_month_rub: sum(|key| key.month.spent_rub),
            spent_day_rub: sum(|key| key.day.spent_rub),
            debt_rub,
            keys: keys.iter().map(KeyAnswer::from).collect(),
        }
    }
}

/// The state of an account after a payment or a correction.
#[derive(Serialize)]
pub(super) struct EnteredAnswer<'a> {
    #[serde(flatten)]
    view: &'a AccountView,
    /// Whether the entry had already been booked, so that this request changed nothing.
    repeated: bool,
}

impl<'a> EnteredAnswer<'a> {
    pub(super) const fn new(view: &'a AccountView, repeated: bool) -> Self {
        Self { view, repeated }
    }
}

/// A receipt with its time as text, and the margin if the vendor's cost is known.
#[derive(Serialize)]
pub(super) struct ReceiptAnswer<'a> {
    at: String,
    #[serde(flatten)]
    receipt: Cow<'a, Receipt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    margin_rub: Option<MicroRub>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<TimelineAnswer<'a>>,
}

/// Timeline of a call: times in milliseconds since its request arrived.
#[derive(Serialize)]
pub(super) struct TimelineAnswer<'a> {
    held_ms: u32,
    attempts: Vec<AttemptAnswer<'a>>,
    first_byte_ms: Option<u32>,
    whole_ms: u32,
    /// HTTP status sent to the client: the status of the vendor, or of the last failed attempt. Null if the client
    /// disconnected before a status was sent.
    status: Option<u16>,
    code: Option<&'a str>,
}

#[derive(Serialize)]
struct AttemptAnswer<'a> {
    vendor: &'a str,
    at_ms: u32,
    /// Duration of the attempt until its first byte or its failure, in milliseconds.
    took_ms: u32,
    status: u16,
    /// Error code of a failed attempt; null for the attempt that succeeded.
    code: Option<&'a str>,
}

impl<'a> TimelineAnswer<'a> {
    fn of(item: &'a Item) -> Option<Self> {
        let line = item.timeline.as_ref()?;
        let mut attempts: Vec<AttemptAnswer<'_>> = line
            .failed
            .iter()
            .map(|attempt| AttemptAnswer {
                vendor: &attempt.vendor,
                at_ms: attempt.at_ms,
                took_ms: attempt.took_ms,
                status: attempt.status,
                code: Some(&attempt.code),
            })
            .collect();
        let answered = line.asked_ms.zip(line.first_byte_ms).zip(line.status);
        let left = item.end == End::ClientLeft;
        let last = line.failed.last().filter(|_| answered.is_none() && !left);
        if let Some(((at_ms, first_byte_ms), status)) = answered {
            attempts.push(AttemptAnswer {
                vendor: &item.vendor,
                at_ms,
                took_ms: first_byte_ms.saturating_sub(at_ms),
                status,
                code: None,
            });
        }
        Some(Self {
            held_ms: line.held_ms,
            attempts,
            first_byte_ms: line.first_byte_ms,
            whole_ms: line.whole_ms,
            status: line.status.or(last.map(|last| last.status)),
            code: last.map(|last| &*last.code),
        })
    }
}

/// Returns the receipt without its timeline, because the response has its own form of the timeline in another field.
fn without_timeline(receipt: &Receipt) -> Cow<'_, Receipt> {
    let mut receipt = Cow::Borrowed(receipt);
    if receipt.item.timeline.is_some() {
        receipt.to_mut().item.timeline = None;
    }
    receipt
}

impl<'a> From<&'a Receipt> for ReceiptAnswer<'a> {
    fn from(receipt: &'a Receipt) -> Self {
        Self {
            at: rfc3339(receipt.at_ms),
            receipt: without_timeline(receipt),
            timeline: TimelineAnswer::of(&receipt.item),
            margin_rub: receipt
                .item
                .vendor_cost_rub
                .and_then(|cost| receipt.charged_rub.checked_sub(cost)),
            price_rule: (receipt.item.price.as_ref()).and_then(|price| price.rule.as_deref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::{
        key::{KeyDigest, KeyRecord},
        reserve::ledger::PeriodView,
    };

    use super::*;

    #[test]
    fn answer_shows_the_secret_of_a_new_key_once_and_never_its_digest() {
        let (id, account) = ("k1".parse().unwrap(), "acme".parse().unwrap());
        let mut record = KeyRecord::new(id, account, KeyDigest::new([0xa5; 32]));
        record.prefix = "tg-AbC123".into();
        record.name = "build server".into();
        record.expires_at_ms = Some(1_801_353_600_000);
        let view = KeyView {
            record,
            ceiling_rub: Some(MicroRub::rubles(10)),
            spent_rub: MicroRub::ZERO,
            held_rub: MicroRub::ZERO,
            free_rub: MicroRub::rubles(5),
            month: PeriodView {
                ceiling_rub: Some(MicroRub::rubles(7)),
                spent_rub: MicroRub::rubles(2),
                resets_at_ms: 0,
            },
            day: PeriodView {
                ceiling_rub: None,
                spent_rub: MicroRub::rubles(1),
                resets_at_ms: 0,
            },
        };
        let shown = serde_json::to_string(&KeyAnswer::from(&view)).unwrap();
        assert_eq!(
            shown,
            "{\"id\":\"k1\",\"account\":\"acme\",\"kind\":\"caller\",\"prefix\":\"tg-AbC123\",\"name\":\"build server\",\
             \"status\":\"active\",\"ceiling_rub\":\"10.00\",\"spent_rub\":\"0.00\",\
             \"ceiling_month_rub\":\"7.00\",\"spent_month_rub\":\"2.00\",\"ceiling_day_rub\":null,\
             \"spent_day_rub\":\"1.00\",\"held_rub\":\"0.00\",\"free_rub\":\"5.00\",\"models\":[],\
             \"addresses\":[],\"requests_per_second\":null,\"requests_per_minute\":null,\
             \"tokens_per_minute\":null,\"group\":null,\"concurrency\":null,\"idempotency\":false,\"growing_holds\":false,\"expires_at\":\"2027-01-31T00:00:00Z\",\
             \"created_at\":\"1970-01-01T00:00:00Z\",\"changed_at\":\"1970-01-01T00:00:00Z\"}"
        );
        let made = serde_json::to_string(&KeyAnswer::with_secret(&view, "tg-secret")).unwrap();
        assert!(made.starts_with("{\"key\":\"tg-secret\",\"id\":\"k1\"") && !made.contains("a5a5"));
    }
}
