//! Which changes of a configuration a running gateway takes, and which it does not.

use secrecy::ExposeSecret;

use super::{AdminConfig, Config, LedgerConfig, OutboxConfig};

/// The fields that differ and are in force from the next start on; a reload takes all the others.
///
/// Every field is named here, so that a new one does not compile until it is decided for it too.
#[must_use]
pub fn need_restart(started: &Config, next: &Config) -> Vec<&'static str> {
    let Config {
        listen,
        reuse_port,
        service,
        base_url: _,
        language,
        trusted_proxies: _,
        reload_poll: _,
        tls,
        admin,
        traces,
        ledger,
        limits: _,
        live: _,
        warnings: _,
    } = started;
    let LedgerConfig {
        url,
        hold,
        image_tokens,
        document_tokens,
        hold_grace: _,
        // Of use at the start alone, like the fields above it.
        open_wait: _,
        outbox:
            OutboxConfig {
                path,
                calls_max,
                age_max,
            },
    } = ledger;
    let books = &next.ledger;
    let differing = [
        ("listen", *listen != next.listen),
        ("reuse_port", *reuse_port != next.reuse_port),
        ("service", *service != next.service),
        ("language", *language != next.language),
        // Another certificate is taken; TLS itself is there or not.
        ("tls", tls.is_some() != next.tls.is_some()),
        ("admin.listen", listens(admin) != listens(&next.admin)),
        ("admin.key", shown(admin) != shown(&next.admin)),
        ("traces", *traces != next.traces),
        ("ledger.url", *url != books.url),
        ("ledger.hold", *hold != books.hold),
        ("ledger.image_tokens", *image_tokens != books.image_tokens),
        (
            "ledger.document_tokens",
            *document_tokens != books.document_tokens,
        ),
        ("ledger.outbox", *path != books.outbox.path),
        (
            "ledger.outbox_calls_max",
            *calls_max != books.outbox.calls_max,
        ),
        (
            "ledger.outbox_age_max_seconds",
            *age_max != books.outbox.age_max,
        ),
    ];
    differing
        .into_iter()
        .filter(|(_, differs)| *differs)
        .map(|(field, _)| field)
        .collect()
}

fn listens(admin: &Option<AdminConfig>) -> Option<std::net::SocketAddr> {
    admin.as_ref().map(|admin| admin.listen)
}

fn shown(admin: &Option<AdminConfig>) -> Option<&str> {
    admin.as_ref().map(|admin| admin.key.expose_secret())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{SMALL, changed, parse};

    #[test]
    fn a_reload_names_what_it_does_not_take() {
        let text = |text: &str| format!("listen = \"127.0.0.1:1\"\n{text}");
        let started = parse(&text(SMALL)).unwrap();
        let needs = |next: &str| need_restart(&started, &parse(next).unwrap());
        assert!(needs(&text(SMALL)).is_empty());
        for (from, to) in [
            ("output = \"2.00\"", "output = \"3.00\""),
            ("fixed = \"90.50\"", "fixed = \"91\""),
            ("127.0.0.1:9", "127.0.0.1:10"),
            (
                "[admin]",
                "[limits]\nin_flight_max = 1\nconnections_max = 1\ndrain_seconds = 1\n[admin]",
            ),
            ("[admin]", "[ledger]\nhold_grace_seconds = 90\n[admin]"),
        ] {
            assert!(needs(&text(&changed(from, to))).is_empty(), "{to}");
        }
        let next = changed("${ADMIN_KEY}", "${VENDOR_KEY}");
        let next = next.replacen("[admin]", "[ledger]\nurl = \"memory:\"\n[admin]", 1);
        let next =
            format!("listen = \"127.0.0.1:2\"\nreuse_port = true\nlanguage = \"en\"\n{next}");
        assert_eq!(
            needs(&next),
            [
                "listen",
                "reuse_port",
                "language",
                "admin.key",
                "ledger.url"
            ]
        );
    }
}
