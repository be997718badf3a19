//! Fixtures for the contract tests and for your own tests. All values differ from each other, so that a mix-up is
//! detected.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    account::{AccountId, KeyDigest, KeyId, KeyRecord},
    contract::{Entry, Hold, Item, Settlement},
    endpoint::Endpoint,
    money::MicroRub,
    number::RequestNumber,
    price::{Class, Condition, Counts, Currency, Hours, Moment, Price, Rate, Rates, Weekdays},
    usage::{End, StoppedBy, Usage},
};

/// The time to live of a [`hold`]: longer than any test.
pub const HOUR: Duration = Duration::from_secs(3600);

/// Creates an amount in micro-rubles.
#[must_use]
pub const fn micro(amount: i64) -> MicroRub {
    MicroRub::new(amount)
}

/// Creates a request number. Each `n` has a different number.
#[must_use]
pub const fn number(n: u128) -> RequestNumber {
    RequestNumber::from_uuid(Uuid::from_u128(n))
}

/// Returns the id of the account that most tests use.
#[must_use]
pub fn acme() -> AccountId {
    account("acme")
}

/// Parses the id of an account.
///
/// # Panics
/// If the text is not a valid id.
#[must_use]
pub fn account(id: &str) -> AccountId {
    id.parse().unwrap()
}

/// Parses the id of a key.
///
/// # Panics
/// If the text is not a valid id.
#[must_use]
pub fn key(id: &str) -> KeyId {
    id.parse().unwrap()
}

/// Returns an active key without restrictions. All 32 bytes of its digest are `digest`.
#[must_use]
pub fn record(account: &AccountId, id: &str, digest: u8) -> KeyRecord {
    KeyRecord {
        prefix: "tg-AbC123…".into(),
        name: "laptop".into(),
        created_at_ms: 1_790_000_000_000,
        ..KeyRecord::new(key(id), account.clone(), KeyDigest::new([digest; 32]))
    }
}

/// Creates a payment of `amount` micro-rubles.
#[must_use]
pub fn topup(id: &str, amount: i64) -> Entry {
    Entry {
        id: id.into(),
        amount: micro(amount),
        reason: None,
    }
}

/// Creates a correction of `amount` micro-rubles.
#[must_use]
pub fn correction(id: &str, amount: i64) -> Entry {
    Entry {
        reason: Some("a mistake".into()),
        ..topup(id, amount)
    }
}

/// Returns a request for a hold on a key of [`acme`], to be granted in full or refused. The hold expires after one
/// [`HOUR`].
#[must_use]
pub fn hold(n: u128, id: &str, want: i64) -> Hold {
    Hold {
        number: number(n),
        account: acme(),
        key: key(id),
        want: micro(want),
        least: micro(want),
        ttl: HOUR,
    }
}

/// Returns a request for a hold that expires immediately.
#[must_use]
pub fn due(n: u128, id: &str, want: i64) -> Hold {
    Hold {
        ttl: Duration::ZERO,
        ..hold(n, id, want)
    }
}

/// Returns a settlement of a call on a key of [`acme`], marked as sent for the first time (`fresh`).
#[must_use]
pub fn settlement(n: u128, id: &str, cost: i64) -> Settlement {
    Settlement {
        number: number(n),
        account: acme(),
        key: key(id),
        held: micro(100),
        cost: micro(cost),
        fresh: true,
        lease: None,
        item: item(cost),
    }
}

/// Returns an item with this cost in micro-rubles. All of its fields have different values.
#[must_use]
pub fn item(cost: i64) -> Item {
    let price = Price {
        input: Rate::new(1_001),
        cached_input: Rate::new(102),
        output: Rate::new(2_003),
        cache_write: Rate::new(504),
        version: 7,
        exchange_rate: "98.7654".into(),
        currency: Currency::Rub,
        classes: Rates::default()
            .with(Class::CacheWrite1h, Some(Rate::new(705)))
            .with(Class::WebSearchCall, Some(Rate::new(1))),
        condition: Condition {
            hours_utc: Hours::from_spans(&["01:00-04:00", "22:00-00:30"]).expect("spans of hours"),
            weekdays: Weekdays::from_names(&["mon", "sun"]).expect("days"),
            hours_at: Moment::End,
            valid_from_ms: Some(1_798_761_600_000),
            above_input_tokens: Some(10),
            service_tier: "flex".into(),
            ..Condition::default()
        },
        rule: Some("правило".into()),
    };
    // The tool calls cost one micro-ruble less than the total. The tokens cost a fraction, which is rounded up to one
    // micro-ruble.
    let usage = Usage {
        input: 11,
        cached_input: 12,
        cache_write: 13,
        output: 14,
        classes: Counts::default().with(Class::CacheWrite1h, 15),
    };
    let usage = match u64::try_from(cost).unwrap_or(0).checked_sub(1) {
        None => Usage::default(),
        Some(calls) => Usage {
            classes: usage.classes.with(Class::WebSearchCall, calls),
            ..usage
        },
    };
    Item {
        model: "модель \"1\"".into(),
        vendor: "vendor-1".into(),
        usage,
        price: Some(Arc::new(price)),
        estimated: true,
        bounded: true,
        unpriced: true,
        vendor_cost_rub: Some(micro(17)),
        vendor_usage: Some(Usage {
            output: 1_000_000,
            classes: Counts::default().with(Class::WebSearchCall, 101),
            ..usage
        }),
        bounded_loss_rub: Some(micro(19)),
        held_max_rub: Some(micro(101)),
        held_at_end_rub: Some(micro(23)),
        stopped_by: Some(StoppedBy::Ceiling),
        end: End::ClientLeft,
        session: Some("session-1".parse().unwrap()),
        endpoint: Some(Endpoint::Responses),
        timeline: "3 1063 1500 5003 200|4 1059 502 vendor_unavailable acme"
            .parse()
            .ok(),
    }
}
