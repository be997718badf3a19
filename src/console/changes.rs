//! Translates posted forms into requests to the admin API, and names the message to show after each change.

use http::Method;
use serde_json::{Map, Value, json};

use super::{form::Form, texts::english};
use crate::{api::ceilings, text::percent::encoded};

/// Changes that cannot be undone. Such a change is made only if the checkbox `sure` in its form is ticked.
const FINAL: [&str; 4] = [
    "delete",
    "auto-topup-remove",
    "remove-group",
    "remove-operator",
];

/// Returns whether the form requests a change that cannot be undone, but does not confirm this change.
pub(super) fn is_unconfirmed(form: &Form) -> bool {
    FINAL.contains(&form.get("do")) && form.get("sure").is_empty()
}

/// A request to the admin API that makes a change.
pub(super) struct Change {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Option<Value>,
    /// The word for the change's result. The next page turns it into a message.
    pub(super) done: &'static str,
}

impl Change {
    fn new(
        method: Method,
        path: String,
        body: impl Into<Option<Value>>,
        done: &'static str,
    ) -> Option<Self> {
        Some(Self {
            method,
            path,
            body: body.into(),
            done,
        })
    }

    fn post(path: String, body: impl Into<Option<Value>>, done: &'static str) -> Option<Self> {
        Self::new(Method::POST, path, body, done)
    }

    fn put(path: String, body: Value, done: &'static str) -> Option<Self> {
        Self::new(Method::PUT, path, body, done)
    }

    fn delete(path: String, done: &'static str) -> Option<Self> {
        Self::new(Method::DELETE, path, None, done)
    }

    fn patch(path: String, body: Value, done: &'static str) -> Option<Self> {
        Self::new(Method::PATCH, path, body, done)
    }
}

/// Returns the change that a form on the page at this path requests; `None` if the page has no such form.
pub(super) fn wanted(segments: &[&str], form: &Form) -> Option<Change> {
    let text = |name: &str| Value::from(form.get(name));
    match (segments, form.get("do")) {
        (["console", "accounts"], _) => {
            let body = json!({ "id": text("id"), "name": text("name") });
            Change::post("/admin/v1/accounts".into(), body, "account")
        }
        (["console", "accounts", id], action) => of_account(id, action, form),
        (["console", "keys", id], action) => of_key(id, action, form),
        (["console", "vendors"], action @ ("disable" | "enable")) => {
            let path = format!("/admin/v1/vendors/{}", encoded(form.get("vendor")));
            match action {
                "disable" => Change::patch(path, json!({ "status": "disabled" }), "out"),
                _ => Change::patch(path, json!({ "status": "active" }), "back"),
            }
        }
        (["console", "vendors", name], "test") => {
            let body = match form.get("model") {
                "" => json!({}),
                model => json!({ "model": model }),
            };
            let path = format!("/admin/v1/configuration/vendors/{name}/test");
            Change::post(path, body, "tested")
        }
        (["console", "events"], action) => of_receiver(action, form),
        (["console", "operators"], "invite") => {
            let body = json!({ "name": text("name"), "role": text("role") });
            Change::post("/admin/v1/operators".into(), body, "invited")
        }
        (["console", "operators"], "remove-operator") => {
            let path = format!("/admin/v1/operators/{}", encoded(form.get("name")));
            Change::delete(path, "operator-removed")
        }
        (["console", "audit"], _) => Change::post("/admin/v1/audit".into(), None, "audit"),
        _ => None,
    }
}

/// Returns the request to the admin API that changes an account or creates a key of the account.
fn of_account(id: &str, action: &str, form: &Form) -> Option<Change> {
    let text = |name: &str| Value::from(form.get(name));
    let path = format!("/admin/v1/accounts/{id}");
    let mut entry = json!({ "id": text("id"), "amount_rub": form.rubles("amount_rub") });
    match action {
        "topup" => Change::post(format!("{path}/topups"), entry, "topup"),
        "adjust" => {
            entry["reason"] = text("reason");
            Change::post(format!("{path}/adjustments"), entry, "adjust")
        }
        "auto-topup" => {
            let rule = json!({
                "below_rub": form.rubles("below_rub"), "amount_rub": form.rubles("charge_rub"),
                "month_max_rub": form.rubles("month_max_rub"),
            });
            Change::put(format!("{path}/auto_topup"), rule, "auto-topup")
        }
        "auto-topup-remove" => Change::delete(format!("{path}/auto_topup"), "auto-topup-removed"),
        "auto-topup-resume" => Change::post(
            format!("{path}/auto_topup/resume"),
            None,
            "auto-topup-resumed",
        ),
        "rename" => Change::patch(path, json!({ "name": text("name") }), "saved"),
        "suspend" => Change::patch(path, json!({ "status": "suspended" }), "suspended"),
        "resume" => Change::patch(path, json!({ "status": "active" }), "resumed"),
        "alerts" => Change::put(format!("{path}/alerts"), levels(form), "saved"),
        "create-key" => {
            let mut body = with_ceilings(form);
            body.insert("name".into(), text("name"));
            if !form.get("owner").is_empty() {
                body.insert("kind".into(), "owner".into());
            }
            Change::post(format!("{path}/keys"), Value::from(body), "key")
        }
        "create-group" => {
            let mut body = with_ceilings(form);
            body.insert("id".into(), text("id"));
            if !form.get("name").is_empty() {
                body.insert("name".into(), text("name"));
            }
            Change::post(format!("{path}/groups"), Value::from(body), "group")
        }
        "remove-group" => {
            let group = encoded(form.get("group"));
            Change::delete(format!("{path}/groups/{group}"), "group-removed")
        }
        _ => None,
    }
}

/// Returns the body of a request that creates a key or a group, with the ceilings of the form.
fn with_ceilings(form: &Form) -> Map<String, Value> {
    ceilings::fields()
        .map(|ceiling| (ceiling.into(), or_null(&form.rubles(ceiling))))
        .collect()
}

fn of_key(id: &str, action: &str, form: &Form) -> Option<Change> {
    let path = format!("/admin/v1/keys/{id}");
    match action {
        "limits" => Change::patch(path, limits(form), "saved"),
        "alerts" => Change::put(format!("{path}/alerts"), levels(form), "saved"),
        "disable" => Change::patch(path, json!({ "status": "disabled" }), "disabled"),
        "enable" => Change::patch(path, json!({ "status": "active" }), "enabled"),
        "delete" => Change::delete(path, "deleted"),
        _ => None,
    }
}

fn of_receiver(action: &str, form: &Form) -> Option<Change> {
    let path = format!("/admin/v1/receivers/{}", encoded(form.get("receiver")));
    match action {
        "replay" => {
            let body = json!({ "number": number(form.get("number")) });
            Change::post(format!("{path}/replays"), body, "replayed")
        }
        "stop" => Change::patch(path, json!({ "status": "stopped" }), "stopped"),
        "resume" => Change::patch(path, json!({ "status": "active" }), "going"),
        _ => None,
    }
}

/// Returns the key limits that the operator edited: those that differ from the values with which the form was shown. If
/// the form did not send these values, returns all limits. An empty field removes the limit. Unedited limits are not
/// sent, because somebody else may have changed them since, or the API may no longer accept their values.
fn limits(form: &Form) -> Value {
    let shown = Form::parse(form.exact("shown"));
    let is_new = |name: &&str| form.exact("shown").is_empty() || form.get(name) != shown.get(name);
    let of = |names: &'static [&'static str]| names.iter().copied().filter(is_new);
    let mut body = Map::new();
    body.extend(of(&["name"]).map(|name| (name.into(), form.get(name).into())));
    let ceilings = ceilings::fields().filter(is_new);
    body.extend(ceilings.map(|name| (name.into(), or_null(&form.rubles(name)))));
    let texts = of(&["group", "expires_at"]);
    body.extend(texts.map(|name| (name.into(), or_null(form.get(name)))));
    let lists = of(&["models", "addresses"]);
    body.extend(lists.map(|name| (name.into(), words(form.get(name)).into())));
    let numbers = of(&[
        "requests_per_second",
        "requests_per_minute",
        "tokens_per_minute",
        "concurrency",
    ]);
    body.extend(numbers.map(|name| (name.into(), number(form.get(name)))));
    let flags = of(&["idempotency", "growing_holds"]);
    body.extend(flags.map(|name| (name.into(), (!form.get(name).is_empty()).into())));
    if body.is_empty() {
        body.insert("name".into(), form.get("name").into());
    }
    body.into()
}

/// Returns the alert levels; an empty list turns alerts off.
fn levels(form: &Form) -> Value {
    json!({ "levels_rub": words(form.get("levels_rub")) })
}

pub(super) fn words(text: &str) -> Vec<&str> {
    let words = text.split([' ', ',', '\t']);
    words.filter(|word| !word.is_empty()).collect()
}

/// Parses a JSON number. Text that is not a number is passed on as typed, so that the API's refusal names the field.
fn number(text: &str) -> Value {
    text.parse::<u64>()
        .map_or_else(|_| or_null(text), Value::from)
}

fn or_null(text: &str) -> Value {
    match text {
        "" => Value::Null,
        text => text.into(),
    }
}

/// Returns the page to redirect to after a change. It is loaded with GET, so reloading it changes nothing.
pub(super) fn after(segments: &[&str], form: &Form, done: &str) -> String {
    let page = match segments {
        ["console", "accounts"] => format!("/console/accounts/{}", encoded(form.get("id"))),
        segments => format!("/{}", segments.join("/")),
    };
    format!("{page}?done={done}")
}

/// Returns the message that the next page shows about the change.
pub(super) fn reported(done: &str) -> Option<&'static str> {
    Some(match done {
        "account" => english("The account was created."),
        "topup" => english("The payment is booked."),
        "adjust" => english("The correction is booked."),
        "repeated" => english("This ID was booked before, so nothing was booked this time."),
        "auto-topup" => english("Send the payer the link below: paying through it gives consent."),
        "auto-topup-removed" => english("The card was deleted."),
        "auto-topup-resumed" => english("Automatic top-up was resumed."),
        "group" => {
            english("The key group was created. To add a key, choose the group on the key’s page.")
        }
        "group-removed" => english("The key group was removed."),
        "saved" => english("Saved."),
        "suspended" => english("The account is suspended."),
        "resumed" => english("The account is active again."),
        "disabled" => english("The key is disabled."),
        "enabled" => english("The key is active again."),
        "deleted" => english("The key is deleted."),
        "out" => english("The vendor is disabled."),
        "back" => english("The vendor is enabled."),
        "operator-removed" => english("The operator was removed."),
        "configured" => english("The configuration file was changed, and the change is in force."),
        "configured-later" => english(
            "The configuration file was changed. The gateway applies the change at its next check of the file.",
        ),
        "replayed" => english("The event was sent again, and the receiver accepted it."),
        "stopped" => {
            english("The event receiver is stopped. Its events are kept until it is resumed.")
        }
        "going" => english("The event receiver gets events again."),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_console_form_makes_the_same_api_call_as_the_matching_command() {
        let form = |text: &str| Form::parse(text);
        let requested = |path: &[&str], text: &str| {
            let Change {
                method, path, body, ..
            } = wanted(path, &form(text)).unwrap();
            (method.to_string(), path, body.unwrap_or_default())
        };
        assert_eq!(
            requested(
                &["console", "accounts", "acme"],
                "do=topup&id=p-1&amount_rub=10"
            ),
            (
                "POST".into(),
                "/admin/v1/accounts/acme/topups".into(),
                json!({"id": "p-1", "amount_rub": "10"})
            )
        );
        assert_eq!(
            requested(
                &["console", "accounts", "acme"],
                "do=create-group&id=team&name=&ceiling_month_rub=1+000,50"
            ),
            (
                "POST".into(),
                "/admin/v1/accounts/acme/groups".into(),
                json!({"id": "team", "ceiling_rub": null, "ceiling_month_rub": "1000.50", "ceiling_day_rub": null})
            )
        );
        assert_eq!(
            requested(
                &["console", "accounts", "acme"],
                "do=remove-group&group=a%2Fb"
            )
            .1,
            "/admin/v1/accounts/acme/groups/a%2Fb"
        );
        assert_eq!(
            requested(
                &["console", "accounts", "acme"],
                "do=auto-topup&below_rub=500&charge_rub=2000&month_max_rub=9000"
            ),
            (
                "PUT".into(),
                "/admin/v1/accounts/acme/auto_topup".into(),
                json!({"below_rub": "500", "amount_rub": "2000", "month_max_rub": "9000"})
            )
        );
        assert_eq!(
            requested(&["console", "accounts", "acme"], "do=auto-topup-remove"),
            (
                "DELETE".into(),
                "/admin/v1/accounts/acme/auto_topup".into(),
                Value::Null
            )
        );
        let (_, path, body) = requested(
            &["console", "keys", "k1"],
            "do=limits&name=ci&ceiling_rub=5&models=a,b+c&requests_per_second=3&tokens_per_minute=many\
             &concurrency=4&group=g1&idempotency=1",
        );
        assert_eq!(path, "/admin/v1/keys/k1");
        assert_eq!(
            body,
            json!({
                "name": "ci", "ceiling_rub": "5", "ceiling_month_rub": null, "ceiling_day_rub": null,
                "expires_at": null, "models": ["a", "b", "c"], "addresses": [], "requests_per_second": 3,
                "requests_per_minute": null, "tokens_per_minute": "many", "concurrency": 4, "group": "g1",
                "idempotency": true, "growing_holds": false,
            })
        );
        // Fields that were not edited keep the values that the ledger has now.
        let shown = "name%3Dci%26models%3Da%2520b%26expires_at%3D2020-01-01%26idempotency%3D1";
        for (typed, sent) in [
            (
                "name=ci&models=a+b&expires_at=2020-01-01&idempotency=1",
                json!({"name": "ci"}),
            ),
            (
                "name=ci&models=a&expires_at=2020-01-01&ceiling_rub=5",
                json!({"models": ["a"], "ceiling_rub": "5", "idempotency": false}),
            ),
            (
                "name=&models=a+b&idempotency=1",
                json!({"name": "", "expires_at": null}),
            ),
        ] {
            let typed = format!("do=limits&{typed}&shown={shown}");
            assert_eq!(
                requested(&["console", "keys", "k1"], &typed).2,
                sent,
                "{typed}"
            );
        }
        for (path, of) in [
            (&["console", "keys", "k1"], "keys/k1"),
            (&["console", "accounts", "acme"], "accounts/acme"),
        ] {
            let body = json!({ "levels_rub": ["100", "20"] });
            assert_eq!(
                requested(path, "do=alerts&levels_rub=100,+20"),
                ("PUT".into(), format!("/admin/v1/{of}/alerts"), body)
            );
        }
        assert_eq!(
            requested(&["console", "vendors"], "do=disable&vendor=a%2Fb").1,
            "/admin/v1/vendors/a%2Fb"
        );
        assert_eq!(
            requested(
                &["console", "events"],
                "do=replay&receiver=crm%2F1&number=17"
            ),
            (
                "POST".into(),
                "/admin/v1/receivers/crm%2F1/replays".into(),
                json!({"number": 17})
            )
        );
        for (path, text) in [
            (&["console", "accounts", "acme"][..], "do=drop"),
            (&["console", "events"], "do=drop"),
            (&["console", "keys", "k1"], ""),
            (&["console", "prices"], "do=limits"),
            (&[""], "do=topup"),
        ] {
            assert!(wanted(path, &form(text)).is_none(), "{path:?} {text}");
        }
    }
}
