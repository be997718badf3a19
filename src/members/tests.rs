//! Members, links and sessions, tested on each kind of ledger.

use std::time::Duration;

use tollgate_layers::reserve::HoldMode;
use tollgate_ledger::memory::MemoryLedger;

use self::redis::RedisServer;
use super::*;
use crate::config::{LedgerConfig, LedgerUrl, OutboxConfig};

#[path = "../../tests/support/redis.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "made for other test binaries"
)]
mod redis;

const BROWSER: &str = "the browser that asked";
const NOW: u64 = 1_795_000_000_000;

fn mail(text: &str) -> MailAddress {
    text.parse().unwrap()
}

fn account(text: &str) -> AccountId {
    text.parse().unwrap()
}

/// Runs a check on a ledger in memory, in an SQLite file, and in a Redis server.
pub(crate) async fn on_each_ledger(check: impl AsyncFn(AnyLedger)) {
    check(AnyLedger::Memory(MemoryLedger::new())).await;
    let dir = tempfile::tempdir().unwrap();
    let server = RedisServer::start().await;
    for url in [
        LedgerUrl::Sqlite(dir.path().join("ledger.db")),
        LedgerUrl::Redis(server.url()),
    ] {
        let config = LedgerConfig {
            url,
            authorities: None,
            hold: HoldMode::Usual,
            image_tokens: 1,
            document_tokens: 1,
            hold_conversations_max: 0,
            search_tokens: 1,
            hold_grace: Duration::from_secs(60),
            open_wait: Duration::ZERO,
            outbox: OutboxConfig {
                path: dir.path().join("outbox.db"),
                calls_max: 1,
                age_max: Duration::from_secs(1),
            },
            lease_max: Duration::ZERO,
            refused_calls: None,
        };
        check(AnyLedger::open(&config).await.unwrap()).await;
    }
}

async fn members(store: AnyLedger, of: &[(&str, &str, MemberRole)]) -> Members {
    let members = Members::new(store);
    for (id, address, role) in of {
        let member = Member {
            mail: mail(address),
            role: *role,
            added_ms: NOW,
        };
        members.put(&account(id), &member, false).await.unwrap();
    }
    members
}

async fn anna(store: AnyLedger) -> Members {
    members(store, &[("acme", "anna@acme.example", MemberRole::Owner)]).await
}

async fn link(members: &Members) -> String {
    let anna = mail("anna@acme.example");
    let made = members.new_link(&anna, BROWSER, NOW).await;
    made.unwrap().unwrap()
}

#[test]
fn email_addresses_are_compared_ignoring_case_and_unsafe_ones_are_refused() {
    assert_eq!(mail(" Anna@ACME.example "), mail("anna@acme.example"));
    for bad in [
        "",
        "anna",
        "anna@acme",
        "a b@acme.example",
        "anna@acme.example\r\nBcc: x@y.example",
        "<script>@acme.example",
        "a\"b@acme.example",
        "anna@acme.example,eve@evil.example",
    ] {
        assert!(bad.parse::<MailAddress>().is_err(), "{bad:?}");
    }
}

#[tokio::test]
async fn unexpired_sign_in_link_works_once_and_only_in_the_requesting_browser() {
    on_each_ledger(async |store| {
        let members = anna(store).await;
        let token = link(&members).await;
        for (token, browser, now) in [
            (&*token, "another browser", NOW),
            (&*token, BROWSER, NOW + LINK_MS),
            (&token[..token.len() - 1], BROWSER, NOW),
            ("member-000000000000000000000000.0", BROWSER, NOW),
            ("person/x", BROWSER, NOW),
        ] {
            let entered = members.enter(token, browser, None, now).await.unwrap();
            assert_eq!(entered, None, "{token} {browser}");
        }
        assert!(members.is_link(&token, BROWSER, NOW).await.unwrap());
        assert!(
            !members
                .is_link(&token, "another browser", NOW)
                .await
                .unwrap()
        );
        let session = members.enter(&token, BROWSER, None, NOW).await.unwrap();
        let who = members.signed_in(&session.unwrap(), NOW).await.unwrap();
        assert_eq!(who.unwrap().role, MemberRole::Owner);
        assert_eq!(
            members.enter(&token, BROWSER, None, NOW).await.unwrap(),
            None
        );
    })
    .await;
}

#[tokio::test]
async fn ledger_stores_no_secret_of_a_sign_in_link_or_session() {
    on_each_ledger(async |store| {
        let members = anna(store).await;
        let token = link(&members).await;
        let used = link(&members).await;
        let session = members.enter(&used, BROWSER, None, NOW).await;
        let session = session.unwrap().unwrap();
        let documents = members.store.documents("person/").await.unwrap();
        for token in [token, session] {
            let (_, secret) = token.split_once('.').unwrap();
            assert!(documents.iter().all(|one| !one.text.contains(secret)));
        }
    })
    .await;
}

#[tokio::test]
async fn member_gets_at_most_three_sign_in_links_in_fifteen_minutes_and_a_stranger_gets_none() {
    on_each_ledger(async |store| {
        let members = anna(store).await;
        for _ in 0..LINKS_MAX {
            link(&members).await;
        }
        let anna = mail("anna@acme.example");
        let more = members.new_link(&anna, BROWSER, NOW + LINK_MS - 1).await;
        assert_eq!(more.unwrap(), None);
        let later = members.new_link(&anna, BROWSER, NOW + LINK_MS).await;
        assert!(later.unwrap().is_some());
        let stranger = mail("eve@evil.example");
        assert_eq!(
            members.new_link(&stranger, BROWSER, NOW).await.unwrap(),
            None
        );
        assert_eq!(members.store.documents("person/").await.unwrap().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn session_ends_if_it_is_idle_or_old_or_signed_out_or_replaced() {
    on_each_ledger(async |store| {
        let members = anna(store).await;
        let enter = async |before: Option<String>, now| {
            let token = members
                .new_link(&mail("anna@acme.example"), BROWSER, now)
                .await;
            let token = token.unwrap().unwrap();
            let entered = members.enter(&token, BROWSER, before.as_deref(), now).await;
            entered.unwrap().unwrap()
        };
        let is_in = async |token: &str, now| members.signed_in(token, now).await.unwrap().is_some();
        let first = enter(None, NOW).await;
        assert!(is_in(&first, NOW + IDLE_MS).await);
        assert!(is_in(&first, NOW + 2 * IDLE_MS).await, "seen in between");
        assert!(!is_in(&first, NOW + 3 * IDLE_MS + 1).await);
        assert!(!is_in(&first, NOW + AGE_MS + 1).await);

        let second = enter(None, NOW).await;
        let third = enter(Some(second.clone()), NOW).await;
        assert!(!is_in(&second, NOW).await && is_in(&third, NOW).await);
        members.end(&third).await.unwrap();
        assert!(!is_in(&third, NOW).await);

        let later = NOW + LINK_MS;
        let both = [enter(None, later).await, enter(None, later).await];
        members.end_all(&mail("anna@acme.example")).await.unwrap();
        for token in both {
            assert!(!is_in(&token, later).await);
        }
    })
    .await;
}

#[tokio::test]
async fn removed_member_is_signed_out_at_once_and_the_last_owner_cannot_be_removed() {
    on_each_ledger(async |store| {
        let members = members(
            store,
            &[
                ("acme", "anna@acme.example", MemberRole::Owner),
                ("acme", "boris@acme.example", MemberRole::Developer),
                ("beta", "boris@acme.example", MemberRole::Finance),
            ],
        )
        .await;
        let boris = mail("boris@acme.example");
        let token = members.new_link(&boris, BROWSER, NOW).await;
        let token = token.unwrap().unwrap();
        let session = members.enter(&token, BROWSER, None, NOW).await;
        let session = session.unwrap().unwrap();
        let who = members.signed_in(&session, NOW).await.unwrap().unwrap();
        assert!(!members.choose(&who, &account("other")).await.unwrap());
        assert!(members.choose(&who, &account("beta")).await.unwrap());
        let who = members.signed_in(&session, NOW).await.unwrap().unwrap();
        assert_eq!(who.role, MemberRole::Finance);

        let id = boris.person().to_string();
        for place in ["acme", "beta"] {
            members.remove(&account(place), &id, false).await.unwrap();
        }
        assert!(members.signed_in(&session, NOW).await.unwrap().is_none());
        let again = members.remove(&account("acme"), &id, true).await;
        assert!(matches!(again, Err(MembersError::Unknown)));

        let anna = mail("anna@acme.example");
        let id = anna.person().to_string();
        let last = members.remove(&account("acme"), &id, true).await;
        assert!(matches!(last, Err(MembersError::LastOwner)));
        let demoted = Member {
            mail: anna,
            role: MemberRole::Finance,
            added_ms: NOW,
        };
        let demoted = members.put(&account("acme"), &demoted, true).await;
        assert!(matches!(demoted, Err(MembersError::LastOwner)));
    })
    .await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "the requests run on the threads of the runtime"
)]
#[tokio::test]
async fn parallel_uses_of_a_sign_in_link_make_one_session() {
    on_each_ledger(async |store| {
        let members = anna(store).await;
        let token = link(&members).await;
        let uses = (0..50).map(|_| {
            let (members, token) = (members.clone(), token.clone());
            tokio::spawn(async move { members.enter(&token, BROWSER, None, NOW).await })
        });
        let uses = futures_util::future::join_all(uses.collect::<Vec<_>>()).await;
        let entered = uses.into_iter().filter(|one| match one {
            Ok(Ok(entered)) => entered.is_some(),
            other => panic!("{other:?}"),
        });
        assert_eq!(entered.count(), 1);
    })
    .await;
}
