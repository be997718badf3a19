//! Gauges of the gateway's current state, which are set at each scrape.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use rust_decimal::prelude::ToPrimitive;
use tollgate_layers::{
    failover::{BreakerState, VendorState},
    rate_limit::shared::RateCounts,
    reserve::redis::LeaseCounts,
};

use super::families::NameLabels;
use crate::{catalog::snapshot::RateReading, logins::CredentialState};

/// The gateway's current state, as read at a scrape.
#[derive(Debug)]
pub(crate) struct Readings {
    pub(crate) holds_open: usize,
    /// The age of the oldest hold; zero without holds.
    pub(crate) hold_oldest: Duration,
    pub(crate) vendors: Vec<VendorState>,
    /// The states of expiring credentials, by vendor name.
    pub(crate) credentials: BTreeMap<String, CredentialState>,
    pub(crate) outbox_rows: usize,
    /// The age of the oldest charge in the outbox; zero if the outbox is empty.
    pub(crate) outbox_oldest: Duration,
    pub(crate) leases: LeaseCounts,
    pub(crate) rates: RateCounts,
    pub(crate) connections: usize,
    /// The exchange rate in force; `None` if no rate is known, or the last rate is too old to be used.
    pub(crate) rate: Option<RateReading>,
    pub(crate) is_ready: bool,
}

/// A gauge with a fractional value, such as seconds or rubles.
type Fraction = Gauge<f64, AtomicU64>;

#[derive(Debug, Default)]
pub(super) struct State {
    holds_open: Gauge,
    hold_oldest: Fraction,
    breaker_open: Family<NameLabels<2>, Gauge>,
    model_unknown: Family<NameLabels<2>, Gauge>,
    keys_parked: Family<NameLabels<1>, Gauge>,
    token_age: Family<NameLabels<1>, Fraction>,
    token_left: Family<NameLabels<1>, Fraction>,
    login_failures: Family<NameLabels<1>, Gauge>,
    outbox_rows: Gauge,
    outbox_oldest: Fraction,
    connections: Gauge,
    rate: Fraction,
    rate_age: Fraction,
    prices_available: Gauge,
    ready: Gauge,
    certificate_expires: Fraction,
    /// The exchange rate that was read last. Its age continues to grow after the rate is too old to be used.
    last_rate: Option<RateReading>,
}

impl State {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let state = Self::default();
        // A gauge without a value is NaN, so that no alert fires: `<` and `>` are false for NaN.
        for none in [&state.rate, &state.rate_age, &state.certificate_expires] {
            none.set(f64::NAN);
        }
        series! { registry, state:
            holds_open "tollgate_holds_open" "Holds of this node's calls, from their grant until they are settled or released";
            hold_oldest "tollgate_hold_oldest_seconds" "Age of the oldest hold; 0 without holds";
            breaker_open "tollgate_vendor_breaker_open" "1 while a route's breaker is open: calls that have another route avoid this route. The label model is the vendor's name of the model";
            model_unknown "tollgate_vendor_model_unknown" "1 after the vendor answered 404 for the model, until the vendor answers a call of this model";
            keys_parked "tollgate_vendor_keys_parked" "Parked keys: keys of the operator that the vendor refused recently";
            token_age "tollgate_vendor_token_age_seconds" "Time since the vendor's token in use was issued, for vendors whose tokens expire";
            token_left "tollgate_vendor_token_left_seconds" "Time until the vendor's token is no longer used; absent if the expiry is not known";
            login_failures "tollgate_vendor_login_failures" "Failed requests for the vendor's token since the last successful request";
            outbox_rows "tollgate_outbox_rows" "Charges in the outbox that wait for the ledger; 0 with a ledger in memory or SQLite";
            outbox_oldest "tollgate_outbox_oldest_seconds" "Age of the oldest charge in the outbox; 0 if the outbox is empty";
            connections "tollgate_connections" "Connections of callers";
            rate "tollgate_exchange_rate_rubles" "Rubles for one USDT, as last read; NaN until a rate has been read";
            rate_age "tollgate_exchange_rate_age_seconds" "Age of the exchange rate; 0 if the operator has set a fixed rate";
            prices_available "tollgate_prices_available" "1 while models have prices; 0 while the exchange rate is missing or too old and no call is sold";
            ready "tollgate_ready" "1 while /readyz reports that this node should get calls";
            certificate_expires "tollgate_certificate_expires_timestamp_seconds" "Expiry of the callers' certificate, in Unix time; NaN without one";
        }
        state
    }

    pub(super) fn certificate_expires(&self, unix_seconds: u64) {
        self.certificate_expires.set(unix_seconds as f64);
    }

    pub(super) fn set(&mut self, now: Readings) {
        self.holds_open.set(whole(now.holds_open));
        self.hold_oldest.set(now.hold_oldest.as_secs_f64());
        self.set_vendors(now.vendors, &now.credentials);
        self.outbox_rows.set(whole(now.outbox_rows));
        self.outbox_oldest.set(now.outbox_oldest.as_secs_f64());
        self.connections.set(whole(now.connections));
        self.set_rate(now.rate);
        self.ready.set(now.is_ready.into());
    }

    fn set_vendors(
        &self,
        vendors: Vec<VendorState>,
        credentials: &BTreeMap<String, CredentialState>,
    ) {
        // If a route was removed from the configuration, its series is removed here.
        self.breaker_open.clear();
        self.model_unknown.clear();
        self.keys_parked.clear();
        self.token_age.clear();
        self.token_left.clear();
        self.login_failures.clear();
        for vendor in vendors {
            let name: Arc<str> = Arc::from(&*vendor.name);
            for route in vendor.routes {
                let model = Arc::from(&*route.model);
                let labels = [("vendor", Arc::clone(&name)), ("model", model)];
                let is_open = route.breaker != BreakerState::Closed;
                self.breaker_open.get_or_create(&labels).set(is_open.into());
                let unknown = self.model_unknown.get_or_create(&labels);
                unknown.set(route.model_unknown.into());
            }
            let labels = [("vendor", name)];
            let parked = self.keys_parked.get_or_create(&labels);
            parked.set(whole(vendor.keys_parked));
            if let Some(state) = credentials.get(&*vendor.name) {
                self.set_credential(&labels, state);
            }
        }
    }

    fn set_credential(&self, labels: &NameLabels<1>, state: &CredentialState) {
        for (gauge, time) in [(&self.token_age, state.age), (&self.token_left, state.left)] {
            if let Some(time) = time {
                gauge.get_or_create(labels).set(time.as_secs_f64());
            }
        }
        let failures = self.login_failures.get_or_create(labels);
        failures.set(state.failures.into());
    }

    fn set_rate(&mut self, rate: Option<RateReading>) {
        self.prices_available.set(rate.is_some().into());
        self.last_rate = rate.or(self.last_rate);
        if let Some(last) = self.last_rate {
            self.rate.set(last.rate.to_f64().unwrap_or(f64::NAN));
            let age = last.at.map_or(Duration::ZERO, |at| at.elapsed());
            self.rate_age.set(age.as_secs_f64());
        }
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
