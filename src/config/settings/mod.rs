//! What a reload does with each setting. Its name, type, default and sentence stand in `raw`, its range where it is
//! checked; `docs/settings.md` shows all of it, and tests hold the page, this table and the checks together.

use std::{net::SocketAddr, path::Path};

use secrecy::ExposeSecret;

use super::{AdminConfig, Config};

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

/// What becomes of a setting that has changed in the file of a running gateway.
enum OnReload {
    /// It is in force at once.
    Taken,
    /// It is in force from the next start on, which a reload says where they differ.
    Restart(fn(started: &Config, next: &Config) -> bool),
    /// It is of use at the start alone.
    Start,
}

use OnReload::{Restart, Start, Taken};

/// Each setting stands here by its name, or by the table that it is in; the longer name counts.
const SETTINGS: &[(&str, OnReload)] = &[
    ("listen", Restart(|one, other| one.listen != other.listen)),
    (
        "reuse_port",
        Restart(|one, other| one.reuse_port != other.reuse_port),
    ),
    (
        "service",
        Restart(|one, other| one.service != other.service),
    ),
    ("base_url", Taken),
    (
        "language",
        Restart(|one, other| one.language != other.language),
    ),
    ("trusted_proxies", Taken),
    ("reload_poll_seconds", Taken),
    // Another certificate is taken; TLS itself is there or not.
    (
        "tls",
        Restart(|one, other| one.tls.is_some() != other.tls.is_some()),
    ),
    ("tls.certificate_file", Taken),
    ("tls.key_file", Taken),
    (
        "admin.listen",
        Restart(|one, other| listens(&one.admin) != listens(&other.admin)),
    ),
    (
        "admin.key",
        Restart(|one, other| shown(&one.admin) != shown(&other.admin)),
    ),
    (
        "admin.operators_file",
        Restart(|one, other| operators(&one.admin) != operators(&other.admin)),
    ),
    ("admin.connections_max", Taken),
    ("admin.oidc", Restart(oidc_differs)),
    ("traces", Restart(|one, other| one.traces != other.traces)),
    ("seller", Taken),
    ("webhook", Taken),
    ("mail", Taken),
    ("telegram", Taken),
    (
        "payments",
        Restart(|one, other| one.payments != other.payments),
    ),
    (
        "ledger.url",
        Restart(|one, other| one.ledger.url != other.ledger.url),
    ),
    (
        "ledger.ca_file",
        Restart(|one, other| one.ledger.authorities != other.ledger.authorities),
    ),
    (
        "ledger.hold",
        Restart(|one, other| one.ledger.hold != other.ledger.hold),
    ),
    (
        "ledger.image_tokens",
        Restart(|one, other| one.ledger.image_tokens != other.ledger.image_tokens),
    ),
    (
        "ledger.document_tokens",
        Restart(|one, other| one.ledger.document_tokens != other.ledger.document_tokens),
    ),
    (
        "ledger.search_tokens",
        Restart(|one, other| one.ledger.search_tokens != other.ledger.search_tokens),
    ),
    ("ledger.hold_grace_seconds", Taken),
    ("ledger.open_wait_seconds", Start),
    (
        "ledger.outbox",
        Restart(|one, other| one.ledger.outbox.path != other.ledger.outbox.path),
    ),
    (
        "ledger.outbox_calls_max",
        Restart(|one, other| one.ledger.outbox.calls_max != other.ledger.outbox.calls_max),
    ),
    (
        "ledger.outbox_age_max_seconds",
        Restart(|one, other| one.ledger.outbox.age_max != other.ledger.outbox.age_max),
    ),
    (
        "ledger.lease_ms_max",
        Restart(|one, other| one.ledger.lease_max != other.ledger.lease_max),
    ),
    (
        "idempotency",
        Restart(|one, other| one.idempotency != other.idempotency),
    ),
    ("limits", Taken),
    ("rate", Taken),
    ("tariff", Taken),
    ("vendor", Taken),
    ("account_group", Taken),
    ("price_rule", Taken),
    ("model", Taken),
];

/// The settings that differ and are in force from the next start on; a reload takes all the others.
#[must_use]
pub fn need_restart(started: &Config, next: &Config) -> Vec<&'static str> {
    let differs = |on_reload: &OnReload| match on_reload {
        Restart(differs) => differs(started, next),
        Taken | Start => false,
    };
    let differing = SETTINGS.iter().filter(|(_, row)| differs(row));
    differing.map(|(path, _)| *path).collect()
}

fn listens(admin: &Option<AdminConfig>) -> Option<SocketAddr> {
    admin.as_ref().map(|admin| admin.listen)
}

fn operators(admin: &Option<AdminConfig>) -> Option<&Path> {
    admin
        .as_ref()
        .and_then(|admin| admin.operators_file.as_deref())
}

fn oidc_differs(one: &Config, other: &Config) -> bool {
    let oidc = |config: &Config| config.admin.as_ref()?.oidc.clone();
    match (oidc(one), oidc(other)) {
        (Some(one), Some(other)) => !one.is(&other),
        (one, other) => one.is_some() != other.is_some(),
    }
}

fn shown(admin: &Option<AdminConfig>) -> Option<&str> {
    admin.as_ref().map(|admin| admin.key.expose_secret())
}
