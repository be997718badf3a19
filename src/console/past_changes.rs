//! The page of past changes: each change that an operator made, with the operator and the time, and a form that
//! restores the previous version of the configuration.

use std::collections::BTreeMap;

use askama::Template;
use http::StatusCode;
use serde::Deserialize;

use super::{
    Answer, Visit,
    api::Failed,
    pages::{Frame, written},
    texts::english,
};

#[derive(Deserialize)]
struct PastChanges {
    changes: Vec<PastChange>,
    stored_max: u64,
}

#[derive(Deserialize)]
struct PastChange {
    at: String,
    who: String,
    what: String,
    details: BTreeMap<String, String>,
}

/// The kinds of changes: the admin API's name, and the words that the page shows.
const KINDS: [(&str, &str); 32] = [
    ("account.adjust", english("Balance corrected")),
    ("account.alerts", english("Account alert levels changed")),
    ("account.auto_topup", english("Automatic top-up configured")),
    (
        "account.auto_topup_remove",
        english("Automatic top-up removed"),
    ),
    (
        "account.auto_topup_resume",
        english("Automatic top-up resumed"),
    ),
    ("account.change", english("Account changed")),
    ("account.create", english("Account created")),
    ("account.topup", english("Payment booked")),
    ("audit", english("Audit performed")),
    ("code.create", english("Code created")),
    ("code.remove", english("Code removed")),
    ("configuration.change", english("Configuration changed")),
    ("group.alerts", english("Group alert levels changed")),
    ("group.change", english("Group changed")),
    ("group.create", english("Group created")),
    ("group.remove", english("Group removed")),
    ("key.alerts", english("Key alert levels changed")),
    ("key.change", english("Key changed")),
    ("key.create", english("Key created")),
    ("key.delete", english("Key deleted")),
    ("member.put", english("Member added or changed")),
    ("member.remove", english("Member removed")),
    ("operator.invite", english("Operator invited")),
    ("operator.remove", english("Operator removed")),
    ("payment.check", english("Payment checked at the provider")),
    ("payment.create", english("Payment requested")),
    ("receiver.replay", english("Event sent again")),
    ("receiver.resume", english("Receiver resumed")),
    ("receiver.stop", english("Receiver stopped")),
    ("usage.rebuild", english("Rebuild of usage sums started")),
    ("vendor.change", english("Vendor disabled or enabled")),
    ("vendor.test", english("Vendor tested")),
];

impl PastChange {
    /// Returns the words for the change's kind; the admin API's name of the kind if there are no words for it.
    fn kind(&self) -> &str {
        let known = KINDS.iter().find(|(what, _)| *what == self.what);
        known.map_or(&*self.what, |(_, words)| *words)
    }

    fn detail(&self, name: &str) -> Option<&str> {
        self.details.get(name).map(String::as_str)
    }

    /// Returns the change's details that have no column of their own.
    fn others(&self) -> impl Iterator<Item = (String, &str)> {
        let own = ["account", "key", "difference", "hash", "applied"];
        let others = self.details.iter().filter(move |(name, text)| {
            !own.contains(&name.as_str()) && !text.is_empty() && *text != "false"
        });
        others.map(|(name, text)| (name.replace('_', " ").replace(" rub", ", ₽"), &**text))
    }
}

#[derive(Template)]
#[template(path = "past_changes.html")]
struct PastChangesHtml<'a> {
    page: Frame<'a>,
    past: PastChanges,
    /// The hash of the configuration file, if its previous version can be restored.
    restorable: Option<String>,
}

impl Visit {
    pub(super) async fn past_changes(&self) -> Result<Answer, Failed> {
        let past = self.api.get("/admin/v1/changes").await??;
        // A gateway that runs without a configuration file has no earlier configuration to restore.
        let configuration = self.configuration().await?.ok();
        let restorable = configuration.filter(|it| it.previous).map(|it| it.hash);
        let page = self.frame("Changes", "Changes", None);
        let page = PastChangesHtml {
            page,
            past,
            restorable,
        };
        Ok(written(StatusCode::OK, &page))
    }
}
