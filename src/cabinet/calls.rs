//! The pages of an account's calls: charged ones with the arithmetic of the charge, and refused ones with their causes.

use std::collections::HashMap;

use askama::Template;
use http::{Method, StatusCode};
use serde::Deserialize;
use tollgate_layers::{
    Error, key::KeyId, money::MicroRub, price::Price, reserve::ledger::LedgerAdmin,
    respond::Language, usage::Usage,
};
use tollgate_ledger::unbooked::{UnbookedCall, UnbookedQuery, UnbookedState};

use super::{
    Answer, Visit,
    frame::{MessageHtml, Page},
};
use crate::{
    console::{
        call::{Line, computation, exact},
        calls::state_in_words,
        pages::written,
        shown,
        texts::{english, filled, translated},
    },
    edge::routes::Route,
    text::language::grouped,
    text::{percent::encoded, time::rfc3339},
};

/// The maximum number of refused calls on a page.
const REFUSED_MAX: usize = 50;

#[derive(Deserialize)]
struct Receipts {
    receipts: Vec<Receipt>,
    next: Option<String>,
}

/// A charged call, as the callers' receipts endpoint returns it.
#[derive(Deserialize)]
struct Receipt {
    number: String,
    key: String,
    model: String,
    at: String,
    end: String,
    usage: Usage,
    estimated: bool,
    bounded: bool,
    #[serde(default)]
    unpriced: bool,
    price: Option<Price>,
    held_rub: MicroRub,
    cost_rub: MicroRub,
    charged_rub: MicroRub,
    loss_rub: MicroRub,
}

impl Receipt {
    fn words(&self) -> &str {
        state_in_words(&self.end)
    }

    fn lines(&self) -> (Vec<Line>, u128) {
        match &self.price {
            Some(price) => computation(price, &self.usage, None),
            None => (Vec::new(), 0),
        }
    }
}

/// A call that was not charged.
struct Refused {
    at: String,
    number: String,
    key: String,
    model: String,
    status: u16,
    code: String,
    /// The field that made the request invalid, if a field did.
    field: String,
    cause: &'static str,
}

impl Refused {
    /// Describes an uncharged call that has ended; `None` if it is still running. `names` has the names of the
    /// account's keys.
    fn from_ended(call: UnbookedCall, names: &HashMap<KeyId, String>) -> Option<Self> {
        let status = call.status?;
        let code = call.code.unwrap_or_default();
        let key = call.key.as_ref();
        let name = key.and_then(|key| names.get(key).filter(|name| !name.is_empty()).cloned());
        Some(Self {
            at: rfc3339(call.number.unix_ms()),
            number: call.number.to_string(),
            key: name
                .or_else(|| key.map(ToString::to_string))
                .unwrap_or_default(),
            model: call.model.unwrap_or_default(),
            cause: cause(&code, status, call.state == UnbookedState::Released),
            status,
            code,
            field: call.field.unwrap_or_default(),
        })
    }
}

#[derive(Template)]
#[template(path = "cabinet_calls.html")]
struct CallsHtml<'a> {
    page: Page<'a>,
    /// Charged calls; `None` on the second and later pages of refused calls.
    receipts: Option<Vec<Receipt>>,
    next: Option<String>,
    /// Refused calls; `None` on the second and later pages of charged calls.
    refused: Option<Vec<Refused>>,
    refused_next: Option<String>,
}

#[derive(Template)]
#[template(path = "cabinet_call.html")]
struct CallHtml<'a> {
    page: Page<'a>,
    receipt: Receipt,
    lines: Vec<Line>,
    /// The exact sum of the charge's lines.
    sum: String,
    /// The computation of the charge in one line.
    formula: String,
}

impl Visit {
    /// Lists charged calls and refused calls, latest first. A further page continues only one of the two lists.
    pub(super) async fn calls_page(&self) -> Result<Answer, Error> {
        let (after, before) = (self.form.get("after"), self.form.get("before"));
        let (mut receipts, mut next) = (None, None);
        if before.is_empty() {
            let query = match after {
                "" => String::new(),
                after => format!("after={}", encoded(after)),
            };
            let requested = (Method::GET, Route::Receipts, None);
            let endpoint = self.cabinet.0.receipts.clone();
            let found: Receipts = self.call(endpoint, requested, &query, None).await?;
            (receipts, next) = (Some(found.receipts), found.next);
        }
        let (mut refused, mut refused_next) = (None, None);
        if after.is_empty() {
            let (calls, next) = self.refused_calls(before).await?;
            (refused, refused_next) = (Some(calls), next);
        }
        let html = CallsHtml {
            page: self.page(english("Calls"), english("Calls"), None),
            receipts,
            next,
            refused,
            refused_next,
        };
        Ok(written(StatusCode::OK, &html))
    }

    /// Returns a page of the account's calls that were not charged, and the cursor of the next page.
    async fn refused_calls(&self, before: &str) -> Result<(Vec<Refused>, Option<String>), Error> {
        let (inner, account) = (&self.cabinet.0, &self.who.session.account);
        let query = UnbookedQuery {
            account: Some(account.clone()),
            before: before.parse().ok(),
            ..UnbookedQuery::latest(REFUSED_MAX)
        };
        let page = inner.calls.unbooked_page(&query).await;
        let page = page.map_err(Error::LedgerUnavailable)?;
        let refused = self.described(page.calls).await?;
        Ok((refused, page.next.map(|next| next.to_string())))
    }

    /// Returns a call of the account that ended without a charge.
    async fn refused(&self, number: &str) -> Result<Option<Refused>, Error> {
        let Ok(number) = number.parse() else {
            return Ok(None);
        };
        let call = self.cabinet.0.calls.unbooked(number).await;
        let call = call.map_err(Error::LedgerUnavailable)?;
        let own = call.filter(|call| call.account.as_ref() == Some(&self.who.session.account));
        Ok(self.described(own.into_iter().collect()).await?.pop())
    }

    /// Describes calls that have ended, with the names of their keys.
    async fn described(&self, calls: Vec<UnbookedCall>) -> Result<Vec<Refused>, Error> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let keys = self.cabinet.0.store.keys(&self.who.session.account).await;
        let keys = keys.map_err(|error| Error::LedgerUnavailable(error.into()))?;
        let names = keys.into_iter();
        let names = names.map(|key| (key.record.id, key.record.name)).collect();
        let described = calls.into_iter();
        let described = described.filter_map(|call| Refused::from_ended(call, &names));
        Ok(described.collect())
    }

    pub(super) async fn call_page(&self, number: &str) -> Result<Answer, Error> {
        if let Some(refused) = self.refused(number).await? {
            let title = filled(english("Call {0}"), self.language, &[&refused.number]);
            let page = self.page(&title, english("Calls"), Some(refused.cause));
            return Ok(written(StatusCode::OK, &MessageHtml { page }));
        }
        let requested = (Method::GET, Route::Receipt, Some(number));
        let receipts = self.cabinet.0.receipts.clone();
        let receipt: Receipt = self.call(receipts, requested, "", None).await?;
        let (lines, sum) = receipt.lines();
        let title = filled(english("Call {0}"), self.language, &[&receipt.number]);
        let html = CallHtml {
            page: self.page(&title, english("Calls"), None),
            sum: exact(sum, self.language),
            formula: formula(&lines, receipt.charged_rub, self.language),
            lines,
            receipt,
        };
        Ok(written(StatusCode::OK, &html))
    }
}

/// Writes a charge as one line: `282 × 28,28 ₽/млн + 40 × 226,25 ₽/млн = 0,02 ₽`.
fn formula(lines: &[Line], charged: MicroRub, language: Language) -> String {
    let per_million = translated(english("₽/million"), language);
    let terms = lines.iter().map(|line| {
        let (count, rate) = (grouped(&line.count.to_string(), language), line.rate);
        let unit = if line.is_each { "₽" } else { per_million };
        format!("{count} × {} {unit}", shown::exact(&rate, language))
    });
    let terms: Vec<String> = terms.collect();
    let charged = shown::short(charged.micro().into(), language);
    format!("{} = {charged} ₽", terms.join(" + "))
}

/// Returns the reason why a call was not charged, and what the member can do.
fn cause(code: &str, status: u16, released: bool) -> &'static str {
    match code {
        "account_empty" => english("The account’s balance was used up. Top up the balance."),
        "insufficient_balance" => english(
            "The call could cost more than the available balance or a limit. Top up the balance, or lower max_tokens.",
        ),
        "ceiling_used_up" => english("The key’s spending limit was used up. Raise the limit."),
        "account_suspended" => english("The account is suspended. Contact the seller."),
        "key_disabled" => english("The key is disabled. Enable it on the key’s page."),
        "key_expired" => english("The key has expired. Create another key."),
        "owner_key" => english("An owner key cannot call models. Use another key."),
        "model_not_allowed" => {
            english("The key does not allow this model. Add the model to the key’s allowed models.")
        }
        "model_not_found" => english("The price list has no model with this name. Check the name."),
        "address_not_allowed" => {
            english("The key does not allow this IP address. Contact the seller.")
        }
        "rate_limit_exceeded" => {
            english("The key sent too many requests in a short time. Send them more slowly.")
        }
        "concurrency_limit_exceeded" => {
            english("The key had too many calls in flight. Run fewer calls at once.")
        }
        "idempotency_key_in_use" | "idempotency_key_reused" | "idempotent_answer_gone" => english(
            "The idempotency key belongs to another call. Use a new idempotency key for each call.",
        ),
        _ if status == 429 || status >= 500 => {
            english("The service could not answer when the call was made. Send the call again.")
        }
        _ if status >= 400 => {
            english("The request was not valid. The error response names the invalid field.")
        }
        _ if released => english("The call ended without a response, and nothing was charged."),
        _ => english("Nothing was charged."),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::price::Rate;

    use super::*;

    #[test]
    fn charge_is_written_as_a_sum_of_token_counts_times_rates() {
        let price = Price {
            input: Rate::new(28_280_000),
            output: Rate::new(226_250_000),
            ..Price::default()
        };
        let usage = Usage {
            input: 282,
            output: 40,
            ..Usage::default()
        };
        let (lines, _) = computation(&price, &usage, None);
        assert_eq!(
            formula(&lines, price.cost(&usage), Language::Ru),
            "282 × 28,28 ₽/млн + 40 × 226,25 ₽/млн = 0,02 ₽"
        );
    }

    #[test]
    fn cause_of_each_uncharged_call_is_explained() {
        for (code, status, begin) in [
            ("account_empty", 401, "The account’s balance was used up"),
            ("vendor_unavailable", 503, "The service could not answer"),
            ("vendor_rate_limit", 429, "The service could not answer"),
            ("", 400, "The request was not valid"),
            ("", 200, "The call ended without a response"),
        ] {
            assert!(cause(code, status, true).starts_with(begin), "{code}");
        }
    }
}
