//! Effect of a reload on each setting. `raw` has a setting's name, type, default and description, and the checks have
//! its range; `docs/settings.md` shows all of these, and tests keep the page, this table and the checks consistent.

use std::{net::SocketAddr, path::Path};

use secrecy::ExposeSecret;

use super::{AdminConfig, Config};

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

/// Effect of changing a setting in the file of a running gateway.
enum OnReload {
    /// A reload applies the change at once.
    Taken,
    /// The change applies at the next start. The function compares both configurations, so that a reload can report it.
    Restart(fn(started: &Config, next: &Config) -> bool),
    /// The setting is only read at the start; a reload ignores a change.
    Start,
}

use OnReload::{Restart, Start, Taken};

/// Settings by name, or by the table that contains them; the longest match decides.
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
    ("cors_origins", Taken),
    ("reload_poll_seconds", Taken),
    // A changed certificate applies at once; switching TLS on or off applies after a restart.
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
    (
        "admin.hosts",
        Restart(|one, other| hosts(&one.admin) != hosts(&other.admin)),
    ),
    (
        "admin.metrics_key",
        Restart(|one, other| metrics_key(&one.admin) != metrics_key(&other.admin)),
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
        "cabinet",
        Restart(|one, other| one.cabinet != other.cabinet),
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
        "ledger.hold_conversations_max",
        Restart(|one, other| {
            one.ledger.hold_conversations_max != other.ledger.hold_conversations_max
        }),
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

/// Returns the settings that differ and apply only after a restart; a reload applies all other settings.
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

fn hosts(admin: &Option<AdminConfig>) -> Option<&[String]> {
    admin.as_ref().map(|admin| admin.hosts.as_slice())
}

fn metrics_key(admin: &Option<AdminConfig>) -> Option<bool> {
    admin.as_ref().map(|admin| admin.metrics_key)
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
