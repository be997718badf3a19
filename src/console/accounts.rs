//! Three pages: the list of accounts, one account, and one key.

use askama::Template;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use tollgate_layers::{money::MicroRub, reserve::ledger::AccountView};

use super::{
    Answer, Visit,
    api::{Failed, Refused},
    pages::{Frame, status_of, written},
    see,
    texts::english,
    views::{Account, AutoTopup, Group, Key},
};
use crate::{
    admin::Refusal,
    api::ceilings::CEILINGS,
    text::{
        hex::random,
        percent::{encoded, query},
    },
};

/// The maximum number of accounts that a page shows, and also the maximum number of keys.
const SHOWN_MAX: usize = 200;
/// The maximum number of accounts whose keys are searched. Each account takes one request to the API.
const KEYS_LOOKED_AT_MAX: usize = 500;

/// The alert levels of an account's balance.
#[derive(Deserialize)]
struct Alerts {
    levels_rub: Vec<MicroRub>,
}

/// The result of a search for keys.
#[derive(Default)]
struct FoundKeys {
    keys: Vec<Key>,
    /// How many accounts were searched for the key, in the order of the list.
    of_accounts: usize,
}

#[derive(Template)]
#[template(path = "accounts.html")]
struct AccountsHtml<'a> {
    page: Frame<'a>,
    q: &'a str,
    /// The beginning of a key's id or secret, as typed into the search form; if empty, the page lists accounts, not
    /// keys.
    key: &'a str,
    rows: Vec<AccountView>,
    found: usize,
    keys: FoundKeys,
}

#[derive(Template)]
#[template(path = "account.html")]
struct AccountHtml<'a> {
    page: Frame<'a>,
    account: Account,
    auto: Option<AutoTopup>,
    groups: Vec<Group>,
    alerts: String,
    payment: Entry,
    correction: Entry,
}

impl AccountHtml<'_> {
    /// For each ceiling, returns the label and the name of its input field in the form.
    fn ceilings(&self) -> Vec<(&'static str, &'static str)> {
        let ceilings = CEILINGS.iter();
        ceilings.map(|it| (it.labels.0, it.field())).collect()
    }

    /// Returns whether the account has a group that can be removed.
    fn has_group(&self) -> bool {
        self.groups.iter().any(|group| group.status == "active")
    }

    /// For each period, returns the headings of two columns: the amount spent, and the ceiling.
    fn ceiling_columns(&self) -> Vec<(&'static str, &'static str)> {
        let ceilings = CEILINGS.iter();
        ceilings.map(|it| (it.labels.2, it.labels.1)).collect()
    }
}

/// The contents of the form for a payment or a correction.
#[derive(Default)]
struct Entry {
    id: String,
    amount_rub: String,
    reason: String,
    is_open: bool,
}

#[derive(Template)]
#[template(path = "key.html")]
struct KeyHtml<'a> {
    page: Frame<'a>,
    key: Key,
    models: String,
    addresses: String,
    per_second: String,
    per_minute: String,
    tokens: String,
    at_once: String,
    expires: String,
    /// The key groups of the key's account.
    groups: Vec<Group>,
    alerts: String,
}

impl KeyHtml<'_> {
    /// For each ceiling, returns the label, the name and the value of its input field in the form.
    fn ceilings(&self) -> Vec<(&'static str, &'static str, String)> {
        let rows = self.key.spending.rows().into_iter();
        rows.map(|(ceiling, value, _)| {
            let value = value.map(|value| value.to_string());
            (ceiling.labels.0, ceiling.field(), value.unwrap_or_default())
        })
        .collect()
    }

    /// Returns the values with which the form's fields are shown, form-urlencoded.
    fn shown(&self) -> String {
        let flag = |is_set| if is_set { "1" } else { "" };
        let others = [
            ("name", &*self.key.name),
            ("models", &self.models),
            ("addresses", &self.addresses),
            ("requests_per_second", &self.per_second),
            ("requests_per_minute", &self.per_minute),
            ("tokens_per_minute", &self.tokens),
            ("concurrency", &self.at_once),
            ("group", self.key.group.as_deref().unwrap_or_default()),
            ("expires_at", &self.expires),
            ("idempotency", flag(self.key.idempotency)),
            ("growing_holds", flag(self.key.growing_holds)),
        ];
        let ceilings = self.ceilings();
        let ceilings = ceilings.iter().map(|(_, name, value)| (*name, &**value));
        query(ceilings.chain(others))
    }

    /// Returns the groups to choose from: the active ones and the key's own. `true` marks the key's own group.
    fn groups(&self) -> impl Iterator<Item = (&Group, bool)> {
        let groups = self.groups.iter();
        groups
            .map(|group| (group, self.key.group.as_ref() == Some(&group.id)))
            .filter(|(group, is_its_own)| *is_its_own || group.status == "active")
    }
}

#[derive(Template)]
#[template(path = "key_made.html")]
struct KeyMadeHtml<'a> {
    page: Frame<'a>,
    key: Key,
    secret: String,
}

/// Returns a new id for a booking. It is generated before the form is shown, so that a form that is submitted twice is
/// booked once.
fn entry_id() -> Result<String, Refusal> {
    let random = random().map_err(Refusal::fault)?;
    Ok(format!("console-{}", &random[..16]))
}

impl Visit {
    /// Returns the accounts that an operator can choose in a page's filter.
    pub(super) async fn offered_accounts(&self) -> Result<Vec<AccountView>, Refusal> {
        let accounts = self.api.list("/admin/v1/accounts").await?;
        let mut accounts: Vec<AccountView> = accounts.unwrap_or_default();
        accounts.truncate(SHOWN_MAX);
        Ok(accounts)
    }

    pub(super) async fn accounts(&self, problem: Option<&Refused>) -> Result<Answer, Failed> {
        let mut rows: Vec<AccountView> = self.api.list("/admin/v1/accounts").await??;
        let (q, key) = (self.asked("q"), self.asked("key"));
        let wanted = q.to_lowercase();
        rows.retain(|row| {
            row.id.to_lowercase().contains(&wanted) || row.name.to_lowercase().contains(&wanted)
        });
        let mut keys = FoundKeys::default();
        if !key.is_empty() {
            let path = format!("/admin/v1/keys/{}", encoded(key));
            if let Ok(found) = self.api.get::<Key>(&path).await? {
                return Ok(see(&format!("/console/keys/{}", found.id)));
            }
            keys = self.keys_like(key, &rows).await?;
        }
        let found = rows.len();
        rows.truncate(SHOWN_MAX);
        let page = self.frame("Accounts", "Accounts", problem);
        let html = AccountsHtml {
            page,
            q,
            key,
            rows,
            found,
            keys,
        };
        Ok(written(status_of(problem), &html))
    }

    /// Returns those keys of these accounts whose id or secret begins with `begins`.
    async fn keys_like(&self, begins: &str, accounts: &[AccountView]) -> Result<FoundKeys, Failed> {
        let mut found = FoundKeys::default();
        for account in accounts.iter().take(KEYS_LOOKED_AT_MAX) {
            let path = format!("/admin/v1/accounts/{}/keys", account.id);
            let keys: Vec<Key> = self.api.list(&path).await??;
            let keys = keys.into_iter().filter(|key| key.is_like(begins));
            found.keys.extend(keys);
            found.of_accounts += 1;
            if found.keys.len() >= SHOWN_MAX {
                found.keys.truncate(SHOWN_MAX);
                break;
            }
        }
        Ok(found)
    }

    async fn groups_of(&self, account: &str) -> Result<Vec<Group>, Failed> {
        let path = format!("/admin/v1/accounts/{account}/groups");
        Ok(self.api.list(&path).await??)
    }

    /// Returns the alert levels of the account or key at the API's path `what`, as a text for the form.
    async fn alerts_of(&self, what: &str) -> Result<String, Failed> {
        let path = format!("/admin/v1/{what}/alerts");
        let Alerts { levels_rub } = self.api.get(&path).await??;
        let levels: Vec<String> = levels_rub.iter().map(MicroRub::to_string).collect();
        Ok(levels.join(" "))
    }

    pub(super) async fn account(
        &self,
        id: &str,
        problem: Option<&Refused>,
    ) -> Result<Answer, Failed> {
        let path = format!("/admin/v1/accounts/{id}");
        let account = self.api.get::<Account>(&path).await??;
        let groups = self.groups_of(id).await?;
        let alerts = self.alerts_of(&format!("accounts/{id}")).await?;
        // An account need not have a rule for automatic top-up, so a 404 is not an error of this page.
        let auto = self.api.get(&format!("{path}/auto_topup")).await?.ok();
        let title = self.fill(english("Account {0}"), &[&account.view.id]);
        let html = AccountHtml {
            page: self.frame(title, "Accounts", problem),
            account,
            auto,
            groups,
            alerts,
            payment: self.entry("topup", problem)?,
            correction: self.entry("adjust", problem)?,
        };
        Ok(written(status_of(problem), &html))
    }

    /// Returns the contents of a booking's form: empty fields, and a new id. After a failed booking the form keeps what
    /// was typed and the same id, because the booking may have been made, and the ledger books an id only once.
    fn entry(&self, requested: &str, problem: Option<&Refused>) -> Result<Entry, Refusal> {
        let typed = |name: &str| self.form.get(name).to_owned();
        if problem.is_some() && self.form.get("do") == requested {
            return Ok(Entry {
                id: typed("id"),
                amount_rub: typed("amount_rub"),
                reason: typed("reason"),
                is_open: true,
            });
        }
        Ok(Entry {
            id: entry_id()?,
            ..Entry::default()
        })
    }

    pub(super) async fn key(&self, id: &str, problem: Option<&Refused>) -> Result<Answer, Failed> {
        let path = format!("/admin/v1/keys/{id}");
        let key = self.api.get::<Key>(&path).await??;
        let groups = self.groups_of(&key.account).await?;
        let alerts = self.alerts_of(&format!("keys/{id}")).await?;
        let count = |value: Option<u32>| value.map_or_else(String::new, |it| it.to_string());
        let html = KeyHtml {
            page: self.frame(
                self.fill(english("Key {0}"), &[&key.id]),
                "Accounts",
                problem,
            ),
            models: key.models.join(" "),
            addresses: key.addresses.join(" "),
            per_second: count(key.requests_per_second),
            per_minute: count(key.requests_per_minute),
            tokens: count(key.tokens_per_minute),
            at_once: count(key.concurrency),
            expires: key.expires_at.clone().unwrap_or_default(),
            groups,
            alerts,
            key,
        };
        Ok(written(status_of(problem), &html))
    }

    /// Shows the page with the secret of a new key. No other page shows the secret.
    pub(super) fn key_made(&self, answer: Value) -> Result<Answer, Refusal> {
        let key: Key = serde_json::from_value(answer).map_err(Refusal::fault)?;
        let page = self.frame(self.fill(english("Key {0}"), &[&key.id]), "Accounts", None);
        let secret = key.key.clone().unwrap_or_default();
        Ok(written(StatusCode::OK, &KeyMadeHtml { page, key, secret }))
    }
}
