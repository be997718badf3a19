//! The effect of a reload on each setting. A setting's name, type, default and description are in the module `raw`, and
//! its range is in the checks. `docs/settings.md` shows all of these. Tests keep this page, the table in this module
//! and the checks consistent.

use secrecy::ExposeSecret;

use super::{Config, OidcConfig};

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

/// The effect of changing a setting in the configuration file of a running gateway.
enum OnReload {
    /// A reload applies the change at once.
    Taken,
    /// The change applies after a restart. A reload reports the change if this function finds that the setting differs
    /// between the two configurations.
    Restart(fn(started: &Config, next: &Config) -> bool),
    /// Only a start reads the setting. A reload ignores a change.
    Start,
}

use OnReload::{Restart, Start, Taken};

/// Creates a `Restart` for a field of the configuration, or of its section `[admin]`: a restart is needed if the
/// field differs.
macro_rules! differs {
    (admin: $($field:tt)+) => {
        Restart(|one, other| {
            let [one, other] = [&one.admin, &other.admin];
            one.as_ref().map(|it| it.$($field)+) != other.as_ref().map(|it| it.$($field)+)
        })
    };
    ($($field:tt)+) => {
        Restart(|one, other| one.$($field)+ != other.$($field)+)
    };
}

/// The effect of a reload, by the path of a setting or of a table that contains settings. The longest matching path
/// decides.
const SETTINGS: &[(&str, OnReload)] = &[
    ("listen", differs!(listen)),
    ("reuse_port", differs!(reuse_port)),
    ("service", differs!(service)),
    ("base_url", Taken),
    ("language", differs!(language)),
    ("trusted_proxies", Taken),
    ("cors_origins", Taken),
    ("reload_poll_seconds", Taken),
    // A changed certificate applies at once. Adding or removing `[tls]` applies after a restart.
    ("tls", differs!(tls.is_some())),
    ("tls.certificate_file", Taken),
    ("tls.key_file", Taken),
    ("admin.listen", differs!(admin: listen)),
    ("admin.key", differs!(admin: key.expose_secret())),
    (
        "admin.operators_file",
        differs!(admin: operators_file.as_deref()),
    ),
    ("admin.hosts", differs!(admin: hosts.as_slice())),
    ("admin.metrics_key", differs!(admin: metrics_key)),
    ("admin.connections_max", Taken),
    ("admin.oidc", Restart(|one, other| oidc(one) != oidc(other))),
    ("traces", differs!(traces)),
    ("seller", Taken),
    ("webhook", Taken),
    ("mail", Taken),
    ("telegram", Taken),
    ("payments", differs!(payments)),
    ("cabinet", differs!(cabinet)),
    ("ledger.url", differs!(ledger.url)),
    ("ledger.ca_file", differs!(ledger.authorities)),
    ("ledger.hold", differs!(ledger.hold)),
    ("ledger.image_tokens", differs!(ledger.image_tokens)),
    (
        "ledger.hold_conversations_max",
        differs!(ledger.hold_conversations_max),
    ),
    ("ledger.document_tokens", differs!(ledger.document_tokens)),
    ("ledger.search_tokens", differs!(ledger.search_tokens)),
    ("ledger.hold_grace_seconds", Taken),
    ("ledger.open_wait_seconds", Start),
    (
        "ledger.refused_calls_max",
        differs!(ledger.refused_calls.map(|it| it.calls_max)),
    ),
    (
        "ledger.refused_calls_days",
        differs!(ledger.refused_calls.map(|it| it.age_max)),
    ),
    ("ledger.outbox", differs!(ledger.outbox.path)),
    ("ledger.outbox_calls_max", differs!(ledger.outbox.calls_max)),
    (
        "ledger.outbox_age_max_seconds",
        differs!(ledger.outbox.age_max),
    ),
    ("ledger.lease_ms_max", differs!(ledger.lease_max)),
    ("idempotency", differs!(idempotency)),
    ("limits", Taken),
    ("rate", Taken),
    ("tariff", Taken),
    ("vendor", Taken),
    ("account_group", Taken),
    ("price_rule", Taken),
    ("model", Taken),
];

/// Returns the paths of the settings that differ and apply only after a restart. A reload applies all other changes.
#[must_use]
pub fn need_restart(started: &Config, next: &Config) -> Vec<&'static str> {
    let differs = |on_reload: &OnReload| match on_reload {
        Restart(differs) => differs(started, next),
        Taken | Start => false,
    };
    let differing = SETTINGS.iter().filter(|(_, row)| differs(row));
    differing.map(|(path, _)| *path).collect()
}

fn oidc(config: &Config) -> Option<&OidcConfig> {
    config.admin.as_ref()?.oidc.as_ref()
}
