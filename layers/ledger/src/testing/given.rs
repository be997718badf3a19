//! Fixtures for these tests and for your own. All values differ from each other, so that a mix-up is noticed.

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

/// The time after which a [`hold`] expires: longer than any test.
pub const HOUR: Duration = Duration::from_secs(3600);

/// Creates an amount in micro-rubles.
#[must_use]
pub const fn micro(amount: i64) -> MicroRub {
    MicroRub::new(amount)
}

/// Creates a call number, a different one for each `n`.
#[must_use]
pub const fn number(n: u128) -> RequestNumber {
    RequestNumber::from_uuid(Uuid::from_u128(n))
}

/// Returns the account that most of the tests use.
#[must_use]
pub fn acme() -> AccountId {
    account("acme")
}

/// Creates the id of an account.
///
/// # Panics
/// If the text is not a valid id.
#[must_use]
pub fn account(id: &str) -> AccountId {
    id.parse().unwrap()
}

/// Creates the id of a key.
///
/// # Panics
/// If the text is not a valid id.
#[must_use]
pub fn key(id: &str) -> KeyId {
    id.parse().unwrap()
}

/// Returns an active key without restrictions. Each of the 32 bytes of its digest is `digest`.
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

/// Returns a hold on a key of [`acme`], to be granted in full or not at all. It expires after an [`HOUR`].
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

/// Creates a hold that expires at once.
#[must_use]
pub fn due(n: u128, id: &str, want: i64) -> Hold {
    Hold {
        ttl: Duration::ZERO,
        ..hold(n, id, want)
    }
}

/// Returns the end of a call on a key of [`acme`], as in the first attempt to settle the call.
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

/// A receipt's item with this cost in micro-rubles. All of its fields have different values.
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
    // The tool calls cost all but one micro-ruble; the tokens cost a fraction, which is rounded up to one micro-ruble.
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
