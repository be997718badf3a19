//! What the admin API shows of accounts, keys and receipts. In a list an account is shown as the ledger
//! gives it.

use ipnet::IpNet;
use serde::Serialize;
use tollgate_layers::{
    key::{AccountId, KeyId, KeyStatus},
    money::MicroRub,
    reserve::ledger::{AccountView, KeyView, Receipt},
};

use crate::text::time::rfc3339;

/// A key, without its digest.
#[derive(Serialize)]
pub(super) struct KeyAnswer<'a> {
    /// The secret itself: in the answer that made it, and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    id: &'a KeyId,
    account: &'a AccountId,
    /// What it is there for: `caller` or `owner`.
    kind: &'static str,
    prefix: &'a str,
    name: &'a str,
    status: KeyStatus,
    ceiling_rub: Option<MicroRub>,
    spent_rub: MicroRub,
    ceiling_month_rub: Option<MicroRub>,
    spent_month_rub: MicroRub,
    ceiling_day_rub: Option<MicroRub>,
    spent_day_rub: MicroRub,
    held_rub: MicroRub,
    free_rub: MicroRub,
    models: &'a [String],
    addresses: &'a [IpNet],
    requests_per_second: Option<u32>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    idempotency: bool,
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
            ceiling_rub: view.ceiling_rub,
            spent_rub: view.spent_rub,
            ceiling_month_rub: view.month.ceiling_rub,
            spent_month_rub: view.month.spent_rub,
            ceiling_day_rub: view.day.ceiling_rub,
            spent_day_rub: view.day.spent_rub,
            held_rub: view.held_rub,
            free_rub: view.free_rub,
            models: record.models_named(),
            addresses: &record.addresses,
            requests_per_second: record.requests_per_second,
            requests_per_minute: record.requests_per_minute,
            tokens_per_minute: record.tokens_per_minute,
            idempotency: record.idempotency,
            expires_at: record.expires_at_ms.map(rfc3339),
            created_at: rfc3339(record.created_at_ms),
            changed_at: rfc3339(record.changed_at_ms.max(record.created_at_ms)),
        }
    }
}

impl<'a> KeyAnswer<'a> {
    /// A key just made, with its secret.
    pub(super) fn with_secret(view: &'a KeyView, secret: &'a str) -> Self {
        Self {
            key: Some(secret),
            ..Self::from(view)
        }
    }
}

/// An account with its keys, and what they spent in the current day and month of UTC.
#[derive(Serialize)]
pub(super) struct AccountAnswer<'a> {
    #[serde(flatten)]
    view: &'a AccountView,
    spent_month_rub: MicroRub,
    spent_day_rub: MicroRub,
    keys: Vec<KeyAnswer<'a>>,
}

impl<'a> AccountAnswer<'a> {
    pub(super) fn new(view: &'a AccountView, keys: &'a [KeyView]) -> Self {
        let sum = |spent: fn(&KeyView) -> MicroRub| {
            keys.iter()
                .map(spent)
                .fold(MicroRub::ZERO, MicroRub::plus_or_max)
        };
        Self {
            view,
            spent_month_rub: sum(|key| key.month.spent_rub),
            spent_day_rub: sum(|key| key.day.spent_rub),
            keys: keys.iter().map(KeyAnswer::from).collect(),
        }
    }
}

/// A receipt, with its time as text too, and what is left of the charge behind the vendor's cost, where that is known.
#[derive(Serialize)]
pub(super) struct ReceiptAnswer<'a> {
    at: String,
    #[serde(flatten)]
    receipt: &'a Receipt,
    #[serde(skip_serializing_if = "Option::is_none")]
    margin_rub: Option<MicroRub>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_rule: Option<&'a str>,
}

impl<'a> From<&'a Receipt> for ReceiptAnswer<'a> {
    fn from(receipt: &'a Receipt) -> Self {
        Self {
            at: rfc3339(receipt.at_ms),
            receipt,
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
    fn a_key_shows_its_secret_once_and_its_digest_never() {
        let view = KeyView {
            record: KeyRecord {
                id: "k1".parse().unwrap(),
                account: "acme".parse().unwrap(),
                digest: KeyDigest::new([0xa5; 32]),
                prefix: "tg-AbC123".into(),
                name: "build server".into(),
                status: KeyStatus::Active,
                models: Vec::new(),
                addresses: Vec::new(),
                requests_per_second: None,
                requests_per_minute: None,
                tokens_per_minute: None,
                idempotency: false,
                expires_at_ms: Some(1_801_353_600_000),
                created_at_ms: 0,
                changed_at_ms: 0,
            },
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
             \"tokens_per_minute\":null,\"idempotency\":false,\"expires_at\":\"2027-01-31T00:00:00Z\",\
             \"created_at\":\"1970-01-01T00:00:00Z\",\"changed_at\":\"1970-01-01T00:00:00Z\"}"
        );
        let made = serde_json::to_string(&KeyAnswer::with_secret(&view, "tg-secret")).unwrap();
        assert!(made.starts_with("{\"key\":\"tg-secret\",\"id\":\"k1\"") && !made.contains("a5a5"));
    }
}
