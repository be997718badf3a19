//! The pages of an account's calls: charged ones with the arithmetic of the charge, and refused ones with their causes.

use askama::Template;
use http::{Method, StatusCode};
use serde::Deserialize;
use tollgate_layers::{Error, money::MicroRub, price::Price, respond::Language, usage::Usage};

use super::{Answer, Visit, frame::Page, frame::written};
use crate::{
    console::{
        call::{Line, computation, exact},
        calls::state_in_words,
        shown,
        texts::{english, translated},
    },
    edge::routes::Route,
    endpoints::page::grouped,
    observe::record::{How, Unbooked},
    text::{percent::encoded, time::rfc3339},
};

/// The maximum number of refused calls on a page.
const REFUSED_MAX: usize = 50;

#[derive(Deserialize)]
struct Receipts {
    receipts: Vec<Receipt>,
    next: Option<String>,
}

/// A charged call, as the callers' endpoint returns it.
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
    code: &'static str,
    cause: &'static str,
}

impl Refused {
    /// Describes a call that has ended; `None` if it is still running.
    fn from_ended(call: Unbooked) -> Option<Self> {
        let How::Ended {
            status,
            code,
            released,
            ..
        } = call.how
        else {
            return None;
        };
        let code = code.unwrap_or_default();
        Some(Self {
            at: rfc3339(call.came_ms),
            number: call.number.to_string(),
            key: call.key.map_or_else(String::new, |key| match &*key.name {
                "" => key.id.to_string(),
                name => name.to_owned(),
            }),
            model: call.model.unwrap_or_default(),
            status,
            code,
            cause: cause(code, status, released),
        })
    }
}

#[derive(Template)]
#[template(
    path = "cabinet_calls.html",
    config = "src/cabinet/templates/askama.toml"
)]
struct CallsHtml<'a> {
    page: Page<'a>,
    receipts: Vec<Receipt>,
    next: Option<String>,
    is_first: bool,
    refused: Vec<Refused>,
}

#[derive(Template)]
#[template(
    path = "cabinet_call.html",
    config = "src/cabinet/templates/askama.toml"
)]
struct CallHtml<'a> {
    page: Page<'a>,
    receipt: Receipt,
    lines: Vec<Line>,
    /// The exact sum of the lines.
    sum: String,
    /// The computation in one line.
    formula: String,
}

impl Visit {
    /// Lists charged calls, latest first, and on the first page refused calls, as far as this gateway remembers them.
    pub(super) async fn calls_page(&self) -> Result<Answer, Error> {
        let after = self.form.get("after");
        let query = match after {
            "" => String::new(),
            after => format!("after={}", encoded(after)),
        };
        let inner = &self.cabinet.0;
        let requested = (Method::GET, Route::Receipts, None);
        let found: Receipts = self
            .call(inner.receipts.clone(), requested, &query, None)
            .await?;
        let account = &self.who.session.account;
        let is_own = |call: &Unbooked| {
            let key = call.key.as_deref();
            key.is_some_and(|key| key.account == *account)
        };
        let mut refused = match after {
            "" => inner.calls.all_unbooked(is_own),
            _ => Vec::new(),
        };
        refused.sort_by_key(|call| std::cmp::Reverse(call.came_ms));
        let refused = refused.into_iter().filter_map(Refused::from_ended);
        Ok(written(
            StatusCode::OK,
            &CallsHtml {
                page: self.page(english("Calls"), english("Calls"), None),
                receipts: found.receipts,
                next: found.next,
                is_first: after.is_empty(),
                refused: refused.take(REFUSED_MAX).collect(),
            },
        ))
    }

    pub(super) async fn call_page(&self, number: &str) -> Result<Answer, Error> {
        let requested = (Method::GET, Route::Receipt, Some(number));
        let receipts = self.cabinet.0.receipts.clone();
        let receipt: Receipt = self.call(receipts, requested, "", None).await?;
        let (lines, sum) = receipt.lines();
        let title =
            crate::console::texts::filled(english("Call {0}"), self.language, &[&receipt.number]);
        Ok(written(
            StatusCode::OK,
            &CallHtml {
                page: self.page(&title, english("Calls"), None),
                sum: exact(sum, self.language),
                formula: formula(&lines, receipt.charged_rub, self.language),
                lines,
                receipt,
            },
        ))
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

/// Returns why a call was not charged, and what to do.
fn cause(code: &str, status: u16, released: bool) -> &'static str {
    match code {
        "account_empty" => english("The account had no money. Top up the balance."),
        "insufficient_balance" => english(
            "The call could cost more than the free balance or limit. Top up, or lower max_tokens.",
        ),
        "ceiling_used_up" => english("The key had used up its limit. Raise the limit."),
        "account_suspended" => english("The account is suspended. Ask the seller."),
        "key_disabled" => english("The key is disabled. Enable it on its page."),
        "key_expired" => english("The key has expired. Make another key."),
        "owner_key" => english("An owner key cannot call models. Use another key."),
        "model_not_allowed" => {
            english("The key may not call this model. Change the models of the key.")
        }
        "model_not_found" => english("There is no such model. Check the name in the price list."),
        "address_not_allowed" => {
            english("The key may not be used from this address. Ask the seller.")
        }
        "rate_limit_exceeded" => english("Too many requests in a short time. Send fewer at once."),
        "concurrency_limit_exceeded" => {
            english("Too many calls of the key were running. Send fewer at once.")
        }
        "idempotency_key_in_use" | "idempotency_key_reused" | "idempotent_answer_gone" => {
            english("The idempotency key belongs to another call. Use a new one for each call.")
        }
        _ if status == 429 || status >= 500 => {
            english("The service could not answer at that time. Send the call again.")
        }
        _ if status >= 400 => {
            english("The request was not valid. The answer to the program names the field.")
        }
        _ if released => english("The call ended without an answer, and nothing was charged."),
        _ => english("Nothing was charged."),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::price::Rate;

    use super::*;

    #[test]
    fn charge_is_written_as_the_sum_of_its_products() {
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
    fn each_refusal_has_a_cause_that_says_what_to_do() {
        for (code, status, begin) in [
            ("account_empty", 401, "The account had no money"),
            ("vendor_unavailable", 503, "The service could not answer"),
            ("vendor_rate_limit", 429, "The service could not answer"),
            ("", 400, "The request was not valid"),
            ("", 200, "The call ended without an answer"),
        ] {
            assert!(cause(code, status, true).starts_with(begin), "{code}");
        }
    }
}
