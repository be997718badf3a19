//! Endpoint for past changes: what operators have changed through this API, with the operator and the time of each
//! change.
//!
//! The audit lines of each successful change are stored as documents of the ledger, so all nodes show the same changes,
//! and a restart keeps them. At most [`CHANGES_MAX`] changes are stored: a new change replaces the oldest one. The log
//! has all changes.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tollgate_layers::reserve::ledger::BookError;
use tollgate_ledger::contract::{Documents, Update};

use super::{
    Admin, Answer, ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    observe::log::AuditLine,
    text::time::{now_ms, rfc3339},
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/changes" => show_changes;
};

/// The maximum number of stored changes.
const CHANGES_MAX: u64 = 500;
/// The name of the document with the number of the newest change.
const LAST: &str = "changes_last";
/// The prefix of the names of the documents that each store one change.
const CHANGE: &str = "change:";

/// A change that an operator made.
#[derive(Clone, Deserialize, Serialize)]
struct PastChange {
    /// The number of the change, counted from 1.
    number: u64,
    at: String,
    who: String,
    what: String,
    /// The other fields of the audit line, by name.
    details: BTreeMap<String, String>,
}

impl Admin {
    async fn show_changes(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let stored = self.store.documents(CHANGE).await.or_refuse("changes")?;
        let stored = stored.iter().filter(|it| !it.is_removed());
        let changes: Result<Vec<PastChange>, _> = stored.map(|it| it.parse()).collect();
        let mut changes = changes.or_refuse("changes")?;
        changes.sort_by_key(|change| std::cmp::Reverse(change.number));
        ok(&json!({ "changes": changes, "stored_max": CHANGES_MAX }))
    }

    /// Stores the audit lines of a change. The change has already been made, so an error is only logged.
    pub(super) async fn store_changes(&self, lines: Vec<AuditLine>) {
        for line in lines {
            if let Err(error) = self.store_change(line).await {
                tracing::warn!(%error, "a change was made, but could not be stored for the page of changes; the change's audit line is in this log");
            }
        }
    }

    async fn store_change(&self, mut line: AuditLine) -> Result<(), BookError> {
        let (Some(who), Some(what)) = (line.remove("who"), line.remove("what")) else {
            return Ok(());
        };
        let next = |last: Option<u64>| {
            let number = last.unwrap_or_default() + 1;
            Ok::<_, BookError>(Update::Write(number, number))
        };
        let number = self.store.update(LAST, next).await?;
        let details = line.into_iter().filter(|(name, _)| *name != "message");
        let change = PastChange {
            number,
            at: rfc3339(now_ms()),
            who,
            what,
            details: details
                .map(|(name, text)| (name.to_owned(), text))
                .collect(),
        };
        let name = format!("{CHANGE}{:03}", number % CHANGES_MAX);
        let replace = |_: Option<PastChange>| Ok::<_, BookError>(Update::Write(change.clone(), ()));
        self.store.update(&name, replace).await
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::Value;

    use super::*;
    use crate::{
        admin::tests::{Log, admin, asked_by, request},
        operators::{Operator, Role},
    };

    #[tokio::test]
    async fn changes_are_listed_newest_first_with_their_operator() {
        let _log = Log::listen();
        let api = admin();
        let anna = Operator::new("anna", Role::Support);
        let create = |id: &str| format!("{{\"id\": \"{id}\"}}");
        let (status, made) = asked_by(&anna, &api, Method::POST, "accounts", &create("a")).await;
        assert_eq!(status, 200, "{made}");
        let rename = r#"{"name": "Acme"}"#;
        let (status, _) = request(&api, Method::PATCH, "accounts/a", rename).await;
        assert_eq!(status, 200);
        // Neither a refused change nor a read request is listed as a change.
        let (status, _) = request(&api, Method::PATCH, "accounts/b", rename).await;
        assert_eq!(status, 404);
        let (_, _) = request(&api, Method::GET, "export", "").await;
        let reader = Operator::new("rita", Role::Read);
        let (status, shown) = asked_by(&reader, &api, Method::GET, "changes", "").await;
        assert_eq!(status, 200, "{shown}");
        let changes = shown["changes"].as_array().unwrap().iter();
        let fields = ["number", "who", "what"];
        let changes: Vec<_> = changes
            .map(|it| (fields.map(|name| &it[name]), &it["details"]["account"]))
            .collect();
        assert_eq!(
            changes,
            [
                (
                    [&json!(2), &json!("admin"), &json!("account.change")],
                    &json!("a")
                ),
                (
                    [&json!(1), &json!("anna"), &json!("account.create")],
                    &json!("a")
                ),
            ]
        );
        assert_eq!(shown["stored_max"], json!(CHANGES_MAX));
        let details = &shown["changes"][0]["details"]["change"];
        assert!(details.as_str().unwrap().contains("Acme"), "{details}");
    }

    #[tokio::test]
    async fn full_list_of_past_changes_drops_the_oldest_ones() {
        let _log = Log::listen();
        let api = admin();
        request(&api, Method::POST, "accounts", r#"{"id": "a"}"#).await;
        for number in 1..CHANGES_MAX + 2 {
            let rename = format!("{{\"name\": \"{number}\"}}");
            request(&api, Method::PATCH, "accounts/a", &rename).await;
        }
        let (_, shown) = request(&api, Method::GET, "changes", "").await;
        let numbers = shown["changes"].as_array().unwrap().iter();
        let numbers: Vec<u64> = numbers
            .filter_map(|it| Value::as_u64(&it["number"]))
            .collect();
        let expected: Vec<u64> = (3..=CHANGES_MAX + 2).rev().collect();
        assert_eq!(numbers, expected);
    }
}
