//! Pages with forms: keys, payments and members.

use askama::Template;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tollgate_layers::{Error, error::Problem, key::AccountId, money::MicroRub};

use super::{
    Answer, Visit,
    frame::{Page, role_in_words},
    see,
};
use crate::{
    api::ceilings::{CEILINGS, Ceiling, Spending},
    codes::CodeError,
    console::{
        pages::written,
        texts::{english, filled, translated},
    },
    edge::routes::Route,
    endpoints::key_info::no_books,
    members::{Member, MemberRole, MembersError},
    text::time::now_ms,
};

/// A key, as the callers' endpoint for owner keys returns it.
#[derive(Deserialize)]
struct Key {
    /// The key's secret; present only in the response to the request that creates the key.
    #[serde(default)]
    key: Option<String>,
    id: String,
    kind: String,
    prefix: String,
    name: String,
    status: String,
    #[serde(flatten)]
    spending: Spending,
    held_rub: MicroRub,
    models: Vec<String>,
    created_at: String,
}

impl Key {
    fn is_owner(&self) -> bool {
        self.kind == "owner"
    }

    fn title(&self) -> &str {
        match &*self.name {
            "" => &self.prefix,
            name => name,
        }
    }

    /// Returns each ceiling with its value and the amount spent.
    fn rows(&self) -> [(&'static Ceiling, Option<MicroRub>, MicroRub); 3] {
        self.spending.rows()
    }
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<Key>,
}

#[derive(Template)]
#[template(path = "cabinet_keys.html")]
struct KeysHtml<'a> {
    page: Page<'a>,
    keys: Vec<Key>,
    may_change: bool,
    /// For each ceiling: the label and the name of its input, and the text that was typed.
    ceilings: Vec<(&'static str, &'static str, String)>,
    typed: [&'a str; 2],
}

impl KeysHtml<'_> {
    /// Returns the heads of the columns with the amounts spent.
    fn columns(&self) -> [&'static str; 3] {
        CEILINGS.each_ref().map(|ceiling| ceiling.labels.2)
    }
}

#[derive(Template)]
#[template(path = "cabinet_key.html")]
struct KeyHtml<'a> {
    page: Page<'a>,
    key: Key,
    may_change: bool,
}

impl KeyHtml<'_> {
    fn models(&self) -> String {
        self.key.models.join(" ")
    }
}

#[derive(Template)]
#[template(path = "cabinet_key_made.html")]
struct KeyMadeHtml<'a> {
    page: Page<'a>,
    key: Key,
    secret: String,
    root: String,
}

/// The response of the callers' endpoint for payments.
#[derive(Deserialize)]
struct Offer {
    min_rub: MicroRub,
    max_rub: MicroRub,
    providers: Vec<String>,
    debt_rub: MicroRub,
    payments: Vec<Payment>,
}

#[derive(Deserialize)]
struct Payment {
    amount_rub: MicroRub,
    provider: String,
    url: Option<String>,
    created_at: String,
}

impl Payment {
    fn page(&self) -> Option<&str> {
        safe_page(self.url.as_deref())
    }
}

/// Returns the provider's page, if its address is safe to link.
fn safe_page(url: Option<&str>) -> Option<&str> {
    url.filter(|url| url.starts_with("https://"))
}

#[derive(Deserialize)]
struct Auto {
    auto_topup: Option<Rule>,
}

/// The account's automatic top-up rule.
#[derive(Deserialize)]
struct Rule {
    below_rub: MicroRub,
    amount_rub: MicroRub,
    month_max_rub: MicroRub,
    month_rub: MicroRub,
    status: String,
    card: Option<String>,
    url: Option<String>,
}

impl Rule {
    fn page(&self) -> Option<&str> {
        safe_page(self.url.as_deref())
    }
}

#[derive(Template)]
#[template(path = "cabinet_payments.html")]
struct PaymentsHtml<'a> {
    page: Page<'a>,
    /// The bounds of payments and the unpaid payments; `None` if the seller accepts no payments through the pages.
    offer: Option<Offer>,
    rule: Option<Rule>,
    contact: Option<String>,
    offers_invoices: bool,
    amount: &'a str,
    mail: &'a str,
}

#[derive(Template)]
#[template(path = "cabinet_members.html")]
struct MembersHtml<'a> {
    page: Page<'a>,
    members: Vec<Member>,
    roles: [(MemberRole, &'static str); 3],
    mail: &'a str,
}

impl MembersHtml<'_> {
    fn role_of(&self, member: &Member) -> &'static str {
        role_in_words(member.role)
    }

    fn is_self(&self, member: &Member) -> bool {
        self.page.who == Some(member.mail.as_str())
    }
}

impl Visit {
    pub(super) async fn keys_page(&self) -> Result<Answer, Error> {
        let keys = self.cabinet.0.keys.clone();
        let mut problem = None;
        if self.posted {
            let body = Value::Object(self.limits());
            let requested = (Method::POST, Route::OwnKeys, None);
            let made = self.call(keys.clone(), requested, "", Some(&body)).await;
            match made {
                Ok(key) => return Ok(self.key_made(key)),
                Err(error) => problem = Some(self.text_of(&error)),
            }
        }
        let requested = (Method::GET, Route::OwnKeys, None);
        let Keys { mut keys } = self.call(keys, requested, "", None).await?;
        keys.retain(|key| key.status != "deleted");
        let (status, text) = problem.unzip();
        let ceilings = CEILINGS.iter().map(|it| {
            let field = it.field();
            (it.labels.0, field, self.typed(field).to_owned())
        });
        let html = KeysHtml {
            page: self.page(english("Keys"), english("Keys"), text.as_deref()),
            keys,
            may_change: self.who.role.may_change_keys(),
            ceilings: ceilings.collect(),
            typed: [self.typed("name"), self.typed("models")],
        };
        Ok(written(status.unwrap_or(StatusCode::OK), &html))
    }

    /// Returns the text of a field in the posted form; empty if no form was posted.
    fn typed(&self, field: &str) -> &str {
        if self.posted {
            self.form.get(field)
        } else {
            ""
        }
    }

    /// Shows the page with the secret of a new key. No other page shows the secret.
    fn key_made(&self, mut key: Key) -> Answer {
        self.log("key.create", &key.id);
        let secret = key.key.take().unwrap_or_default();
        let page = self.page(english("Key created"), english("Keys"), None);
        let root = self.cabinet.0.live.snapshot().urls().base_url.clone();
        let html = KeyMadeHtml {
            page,
            key,
            secret,
            root,
        };
        written(StatusCode::OK, &html)
    }

    pub(super) async fn key_page(&self, id: &str) -> Result<Answer, Error> {
        let keys = self.cabinet.0.keys.clone();
        let mut problem = None;
        if self.posted {
            match self.change_key(id).await {
                Ok(to) => return Ok(see(&to)),
                Err(error) => problem = Some(self.text_of(&error)),
            }
        }
        let requested = (Method::GET, Route::OwnKey, Some(id));
        let key: Key = self.call(keys, requested, "", None).await?;
        let (status, text) = problem.unzip();
        let title = filled(english("Key {0}"), self.language, &[&key.title()]);
        let html = KeyHtml {
            page: self.page(&title, english("Keys"), text.as_deref()),
            may_change: self.who.role.may_change_keys() && !key.is_owner(),
            key,
        };
        Ok(written(status.unwrap_or(StatusCode::OK), &html))
    }

    /// Makes the change of a key that the form requests, and returns the page to redirect to.
    async fn change_key(&self, id: &str) -> Result<String, Error> {
        let (method, body, to) = match self.form.get("do") {
            "limits" => {
                let to = format!("/cabinet/keys/{id}?done=saved");
                (Method::PATCH, Some(Value::Object(self.limits())), to)
            }
            action @ ("disable" | "enable") => {
                let status = match action {
                    "disable" => "disabled",
                    _ => "active",
                };
                let to = format!("/cabinet/keys/{id}?done=saved");
                (Method::PATCH, Some(json!({ "status": status })), to)
            }
            "delete" if !self.form.get("sure").is_empty() => {
                let to = "/cabinet/keys?done=deleted".to_owned();
                (Method::DELETE, None, to)
            }
            "delete" => return Err(Error::invalid("sure", Problem::Missing)),
            _ => return Err(Error::invalid("do", Problem::Unsupported)),
        };
        let what = match method {
            Method::DELETE => "key.delete",
            _ => "key.change",
        };
        let requested = (method, Route::OwnKey, Some(id));
        let keys = self.cabinet.0.keys.clone();
        let changed: Key = self.call(keys, requested, "", body.as_ref()).await?;
        self.log(what, &changed.id);
        Ok(to)
    }

    /// Returns the name, the ceilings and the models that a form gives to a key.
    fn limits(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("name".into(), self.form.get("name").into());
        for ceiling in &CEILINGS {
            let typed = Some(self.form.rubles(ceiling.field()));
            let value = typed.filter(|typed| !typed.is_empty());
            fields.insert(ceiling.field().into(), value.into());
        }
        let models = self.form.get("models").split([' ', ',', '\n', '\r']);
        let models: Vec<&str> = models.filter(|model| !model.is_empty()).collect();
        fields.insert("models".into(), models.into());
        fields
    }

    fn log(&self, what: &str, key: &str) {
        let (who, account) = (self.who.mail.as_str(), &self.who.session.account);
        tracing::info!(target: "audit", who, what, account = %account, key);
    }

    pub(super) async fn payments_page(&self) -> Result<Answer, Error> {
        let inner = &self.cabinet.0;
        let mut problem = None;
        if self.posted && self.form.get("do") == "code" {
            match self.spend_code().await? {
                Ok(()) => return Ok(see("/cabinet/payments?done=code")),
                Err(text) => {
                    let text = translated(text, self.language).to_owned();
                    problem = Some((StatusCode::UNPROCESSABLE_ENTITY, text));
                }
            }
        } else if self.posted {
            match self.pay().await {
                Ok(to) => return Ok(see(to)),
                Err(error) => problem = Some(self.text_of(&error)),
            }
        }
        let requested = (Method::GET, Route::Payments, None);
        let offer = match self.call(inner.payments.clone(), requested, "", None).await {
            Ok(offer) => Some(offer),
            Err(Error::PathUnknown) => None,
            Err(error) => return Err(error),
        };
        let mut rule = None;
        if offer.is_some() {
            let requested = (Method::GET, Route::AutoTopup, None);
            let auto = self.call(inner.payments.clone(), requested, "", None);
            rule = auto.await.map(|Auto { auto_topup }| auto_topup)?;
        }
        let (status, text) = problem.unzip();
        let snapshot = inner.live.snapshot();
        let mail = match self.form.get("email") {
            "" => self.who.mail.as_str(),
            mail => mail,
        };
        let html = PaymentsHtml {
            page: self.page(english("Payments"), english("Payments"), text.as_deref()),
            offer,
            rule,
            contact: snapshot.seller().and_then(|seller| seller.contact.clone()),
            offers_invoices: self.offers_invoices(),
            amount: self.typed("amount_rub"),
            mail,
        };
        Ok(written(status.unwrap_or(StatusCode::OK), &html))
    }

    /// Credits the account by a promo code. The inner error is the reason why nothing was credited.
    async fn spend_code(&self) -> Result<Result<(), &'static str>, Error> {
        let (who, account) = (self.who.mail.as_str(), &self.who.session.account);
        let codes = &self.cabinet.0.codes;
        let text = match codes.spend(self.form.get("code"), account, now_ms()).await {
            Ok(amount) => {
                tracing::info!(target: "audit", who, what = "code.spend", account = %account, amount_rub = %amount);
                return Ok(Ok(()));
            }
            Err(CodeError::Invalid) => {
                english("This promo code is not valid, or it has no uses left.")
            }
            Err(CodeError::Used) => {
                english("This account has already used the promo code, and was credited once.")
            }
            Err(CodeError::Ledger(error)) => return Err(no_books(error)),
        };
        tracing::warn!(target: "audit", who, what = "code.refused", account = %account);
        Ok(Err(text))
    }

    /// Makes the payment, or the change of the automatic top-up rule, that the form requests.
    async fn pay(&self) -> Result<&'static str, Error> {
        let mut body = Map::new();
        for field in ["email", "provider"] {
            if !self.form.get(field).is_empty() {
                body.insert(field.into(), self.form.get(field).into());
            }
        }
        let (amounts, method, route, to): (&[&str], _, _, _) = match self.form.get("do") {
            "pay" => (
                &["amount_rub"],
                Method::POST,
                Route::Payments,
                "/cabinet/payments",
            ),
            "rule" => (
                &["below_rub", "amount_rub", "month_max_rub"],
                Method::PUT,
                Route::AutoTopup,
                "/cabinet/payments?done=rule",
            ),
            "no-rule" if !self.form.get("sure").is_empty() => (
                &[],
                Method::DELETE,
                Route::AutoTopup,
                "/cabinet/payments?done=no-rule",
            ),
            "no-rule" => return Err(Error::invalid("sure", Problem::Missing)),
            _ => return Err(Error::invalid("do", Problem::Unsupported)),
        };
        for field in amounts {
            body.insert((*field).into(), self.form.rubles(field).into());
        }
        let (who, account) = (self.who.mail.as_str(), &self.who.session.account);
        tracing::info!(target: "audit", who, what = "cabinet.payment", account = %account, request = %method);
        let payments = self.cabinet.0.payments.clone();
        let body = Value::Object(body);
        let requested = (method, route, None);
        let _: Value = self.call(payments, requested, "", Some(&body)).await?;
        Ok(to)
    }

    pub(super) async fn members_page(&self) -> Result<Answer, Error> {
        let mut problem = None;
        if self.posted {
            match self.change_members().await {
                Ok(to) => return Ok(see(to)),
                Err(Refusal::Text(text)) => {
                    problem = Some((StatusCode::UNPROCESSABLE_ENTITY, text.to_owned()));
                }
                Err(Refusal::Error(error)) => return Err(error),
            }
        }
        let members = self.cabinet.0.members.list(&self.who.session.account).await;
        let (status, text) = problem.unzip();
        let html = MembersHtml {
            page: self.page(english("Members"), english("Members"), text.as_deref()),
            members: members.map_err(no_books)?,
            roles: MemberRole::ALL.map(|role| (role, role_in_words(role))),
            mail: self.typed("mail"),
        };
        Ok(written(status.unwrap_or(StatusCode::OK), &html))
    }

    async fn change_members(&self) -> Result<&'static str, Refusal> {
        let (members, account) = (&self.cabinet.0.members, &self.who.session.account);
        let who = self.who.mail.as_str();
        match self.form.get("do") {
            "put" => {
                let no_mail = english("Enter an email address, for example name@example.com.");
                let mail = self.form.get("mail").parse();
                let role = self.form.get("role").parse();
                let member = Member {
                    mail: mail.map_err(|_| Refusal::Text(no_mail))?,
                    role: role.map_err(|_| Refusal::Text(english("Choose a role.")))?,
                    added_ms: now_ms(),
                };
                members.put(account, &member, true).await?;
                tracing::info!(
                    target: "audit", who, what = "member.put", account = %account, member = %member.mail.person(),
                    mail = member.mail.as_str(), role = member.role.as_str()
                );
                Ok("/cabinet/members?done=saved")
            }
            "remove" if self.form.get("sure").is_empty() => {
                Err(Refusal::Text(english("Tick the checkbox to confirm.")))
            }
            "remove" => {
                let person = self.form.get("member");
                let removed = members.remove(account, person, true).await?;
                tracing::info!(
                    target: "audit", who, what = "member.remove", account = %account, member = %removed.mail.person(),
                    mail = removed.mail.as_str()
                );
                Ok("/cabinet/members?done=removed")
            }
            _ => Err(Refusal::Error(Error::invalid("do", Problem::Unsupported))),
        }
    }

    /// Makes the session show another account of the signed-in person.
    pub(super) async fn change_account(&self) -> Result<Answer, Error> {
        if let Ok(account) = self.form.get("account").parse::<AccountId>() {
            let chosen = self.cabinet.0.members.choose(&self.who, &account).await;
            if chosen.map_err(no_books)? {
                return Ok(see("/cabinet"));
            }
        }
        let text = english("You are not a member of this account.");
        Ok(self.message_page(StatusCode::FORBIDDEN, text))
    }
}

/// The reason why a change of members was not made.
enum Refusal {
    Text(&'static str),
    Error(Error),
}

impl From<MembersError> for Refusal {
    fn from(error: MembersError) -> Self {
        Self::Text(match error {
            MembersError::TooMany => english("The account has too many members. Remove one first."),
            MembersError::Unknown => english("The account has no such member."),
            MembersError::LastOwner => {
                english("The account must keep an owner. Make another member an owner first.")
            }
            MembersError::Ledger(error) => return Self::Error(no_books(error)),
        })
    }
}
