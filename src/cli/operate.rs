//! The operator's commands: one call of the admin API each, and how its answer is shown.

use http::Method;
use serde_json::{Map, Value, json};
use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
};

use super::{
    AccountCommand, AdminArgs, KeyCommand, Limits, VendorCommand, Without,
    client::Client,
    failure::Failure,
    show::{self, Cell, facts, table},
};
use crate::admin::path_segment;

const ACCOUNT: &[Cell] = &[
    Cell::text("account", "/id"),
    Cell::text("name", "/name"),
    Cell::text("status", "/status"),
    Cell::rubles("balance", "/balance_rub"),
    Cell::rubles("held", "/held_rub"),
    Cell::number("open holds", "/holds_open"),
    Cell::rubles("free", "/free_rub"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("spent this month", "/spent_month_rub"),
    Cell::rubles("spent today", "/spent_day_rub"),
    Cell::rubles("loss", "/loss_rub"),
];

/// An account in a list.
const ACCOUNT_ROW: &[Cell] = &[
    Cell::text("account", "/id"),
    Cell::text("name", "/name"),
    Cell::text("status", "/status"),
    Cell::rubles("balance", "/balance_rub"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("free", "/free_rub"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("loss", "/loss_rub"),
];

/// A key under its account: what it may spend and has spent, in all, this month and today.
const ACCOUNT_KEY_ROW: &[Cell] = &[
    Cell::text("key", "/id"),
    Cell::text("name", "/name"),
    Cell::text("status", "/status"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("of", "/ceiling_rub").or("-"),
    Cell::rubles("month", "/spent_month_rub"),
    Cell::rubles("of", "/ceiling_month_rub").or("-"),
    Cell::rubles("today", "/spent_day_rub"),
    Cell::rubles("of", "/ceiling_day_rub").or("-"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("free", "/free_rub"),
    Cell::text("changed", "/changed_at").or("never"),
];

const KEY: &[Cell] = &[
    Cell::text("key", "/key"),
    Cell::text("id", "/id"),
    Cell::text("account", "/account"),
    Cell::text("begins", "/prefix"),
    Cell::text("name", "/name"),
    Cell::text("status", "/status"),
    Cell::rubles("ceiling", "/ceiling_rub").or("none"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("ceiling of a month", "/ceiling_month_rub").or("none"),
    Cell::rubles("spent this month", "/spent_month_rub"),
    Cell::rubles("ceiling of a day", "/ceiling_day_rub").or("none"),
    Cell::rubles("spent today", "/spent_day_rub"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("free", "/free_rub"),
    Cell::text("models", "/models").or("any"),
    Cell::text("addresses", "/addresses").or("any"),
    Cell::text("requests per second", "/requests_per_second").or("no limit"),
    Cell::text("requests per minute", "/requests_per_minute").or("no limit"),
    Cell::text("tokens per minute", "/tokens_per_minute").or("no limit"),
    Cell::text("expires", "/expires_at").or("never"),
    Cell::text("created", "/created_at"),
    Cell::text("changed", "/changed_at"),
];

/// A key in a list: what tells keys apart, and their money.
const KEY_ROW: &[Cell] = &[
    Cell::text("id", "/id"),
    Cell::text("begins", "/prefix"),
    Cell::text("name", "/name"),
    Cell::text("status", "/status"),
    Cell::rubles("ceiling", "/ceiling_rub").or("none"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("free", "/free_rub"),
    Cell::text("expires", "/expires_at").or("never"),
];

const RECEIPT: &[Cell] = &[
    Cell::text("number", "/number"),
    Cell::text("at", "/at"),
    Cell::text("account", "/account"),
    Cell::text("key", "/key"),
    Cell::text("session", "/session"),
    Cell::text("model", "/model"),
    Cell::text("vendor", "/vendor"),
    Cell::text("end", "/end"),
    Cell::text("input tokens", "/usage/input"),
    Cell::text("cached input tokens", "/usage/cached_input"),
    Cell::text("cache write tokens", "/usage/cache_write"),
    Cell::text("output tokens", "/usage/output"),
    Cell::text("usage estimated", "/estimated"),
    Cell::text("usage bounded", "/bounded"),
    Cell::rubles("input, per million", "/price/input"),
    Cell::rubles("cached input, per million", "/price/cached_input"),
    Cell::rubles("cache write, per million", "/price/cache_write"),
    Cell::rubles("output, per million", "/price/output"),
    Cell::text("price version", "/price/version"),
    Cell::rubles("rate of USDT", "/price/exchange_rate"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("cost", "/cost_rub"),
    Cell::rubles("charged", "/charged_rub"),
    Cell::rubles("loss", "/loss_rub"),
    Cell::text("booked", "/booked"),
];

/// A route in a list, with its vendor beside it.
const ROUTE_ROW: &[Cell] = &[
    Cell::text("vendor", "/vendor/name"),
    Cell::text("status", "/vendor/status"),
    Cell::text("model", "/route/model"),
    Cell::text("state", "/route/state"),
    Cell::number("failures", "/route/failures"),
    Cell::number("in flight", "/route/in_flight"),
    Cell::number("ms", "/route/ewma_ms"),
    Cell::text("shut until", "/route/shut_until"),
    Cell::text("rests until", "/route/rests_until"),
    Cell::text("last error", "/route/last_error/at"),
    Cell::text("which was", "/route/last_error/text"),
];

const VENDOR: &[Cell] = &[
    Cell::text("vendor", "/name"),
    Cell::text("status", "/status"),
    Cell::number("in flight", "/in_flight"),
    Cell::number("at most", "/connections_max"),
    Cell::number("keys", "/keys"),
    Cell::number("keys parked", "/keys_parked"),
];

pub(super) async fn account(reach: &AdminArgs, command: AccountCommand) -> Result<(), Failure> {
    let client = Client::new(reach)?;
    let (method, id, body) = match command {
        AccountCommand::List => return list_accounts(&client, reach.json).await,
        AccountCommand::Create { id, name } => {
            let body = json!({"id": id, "name": name.unwrap_or_default()});
            let answer = client
                .call(Method::POST, "/admin/v1/accounts", Some(body))
                .await?;
            return show::print(reach.json, &answer, |answer| facts(ACCOUNT, answer));
        }
        AccountCommand::Show { id } => (Method::GET, id, None),
        AccountCommand::Set { id, name } => (Method::PATCH, id, Some(json!({"name": name}))),
        AccountCommand::Suspend { id } => (Method::PATCH, id, Some(json!({"status": "suspended"}))),
        AccountCommand::Resume { id } => (Method::PATCH, id, Some(json!({"status": "active"}))),
    };
    let answer = client
        .call(method, &format!("/admin/v1/accounts/{id}"), body)
        .await?;
    show::print(reach.json, &answer, overview)
}

/// An account, and its keys where the answer has them.
fn overview(account: &Value) -> String {
    let mut text = facts(ACCOUNT, account);
    let keys = rows(account, "keys");
    if !keys.is_empty() {
        let keys: Vec<Value> = keys.iter().map(with_change).collect();
        text.push('\n');
        text.push_str(&table(ACCOUNT_KEY_ROW, &keys));
    }
    text
}

/// A key whose time of change is null until there was one; the API's is then when it was made.
fn with_change(key: &Value) -> Value {
    let mut key = key.clone();
    if key["changed_at"] == key["created_at"] {
        key["changed_at"] = Value::Null;
    }
    key
}

async fn list_accounts(client: &Client, json: bool) -> Result<(), Failure> {
    let answer = client.call(Method::GET, "/admin/v1/accounts", None).await?;
    let rows = rows(&answer, "accounts");
    if rows.is_empty() && !json {
        return show::write(
            "no accounts yet; open one with: tollgate account create ID --name NAME\n",
        );
    }
    show::print(json, &answer, |_| table(ACCOUNT_ROW, rows))
}

pub(super) async fn top_up(
    reach: &AdminArgs,
    account: &AccountId,
    rubles: MicroRub,
    id: &str,
) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{account}/topups");
    enter(reach, &path, id, json!({"id": id, "amount_rub": rubles})).await
}

pub(super) async fn adjust(
    reach: &AdminArgs,
    account: &AccountId,
    rubles: MicroRub,
    id: &str,
    reason: &str,
) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{account}/adjustments");
    let body = json!({"id": id, "amount_rub": rubles, "reason": reason});
    enter(reach, &path, id, body).await
}

async fn enter(reach: &AdminArgs, path: &str, id: &str, body: Value) -> Result<(), Failure> {
    let answer = Client::new(reach)?
        .call(Method::POST, path, Some(body))
        .await?;
    show::print(reach.json, &answer, |answer| facts(ACCOUNT, answer))?;
    if !reach.json {
        // The ledger does not say whether the id was new.
        eprintln!("{id} is booked, once: the same id again, for this account, changes nothing.");
    }
    Ok(())
}

pub(super) async fn key(reach: &AdminArgs, command: KeyCommand) -> Result<(), Failure> {
    let (method, id, body) = match command {
        KeyCommand::Create { account, limits } => return create_key(reach, &account, limits).await,
        KeyCommand::List { account } => return list_keys(reach, &account).await,
        KeyCommand::Show { key } => (Method::GET, key, None),
        KeyCommand::Disable { key } => (Method::PATCH, key, Some(json!({"status": "disabled"}))),
        KeyCommand::Enable { key } => (Method::PATCH, key, Some(json!({"status": "active"}))),
        KeyCommand::Delete { key } => (Method::DELETE, key, None),
        KeyCommand::Set {
            key,
            limits,
            without,
        } => {
            let mut body = given(limits);
            body.extend(taken_away(&without).map(|field| (field.to_owned(), Value::Null)));
            if body.is_empty() {
                return Err(nothing_to_set(&key));
            }
            (Method::PATCH, key, Some(Value::Object(body)))
        }
    };
    let answer = Client::new(reach)?
        .call(method, &format!("/admin/v1/keys/{id}"), body)
        .await?;
    show::print(reach.json, &answer, |answer| facts(KEY, answer))
}

async fn create_key(reach: &AdminArgs, account: &AccountId, limits: Limits) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{account}/keys");
    let answer = Client::new(reach)?
        .call(Method::POST, &path, Some(Value::Object(given(limits))))
        .await?;
    show::print(reach.json, &answer, |answer| facts(KEY, answer))?;
    if !reach.json {
        // Not on standard output, so that a pipe gets the facts alone.
        eprintln!("Store the key now: it is not kept here and cannot be shown again.");
    }
    Ok(())
}

async fn list_keys(reach: &AdminArgs, account: &AccountId) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{account}/keys");
    let answer = Client::new(reach)?.call(Method::GET, &path, None).await?;
    let rows = rows(&answer, "keys");
    if rows.is_empty() && !reach.json {
        return show::write(&format!(
            "no keys yet; make one with: tollgate key create {account}\n"
        ));
    }
    show::print(reach.json, &answer, |_| table(KEY_ROW, rows))
}

pub(super) async fn receipt(reach: &AdminArgs, number: RequestNumber) -> Result<(), Failure> {
    let answer = Client::new(reach)?
        .call(Method::GET, &format!("/admin/v1/receipts/{number}"), None)
        .await?;
    show::print(reach.json, &answer, |answer| facts(RECEIPT, answer))
}

pub(super) async fn vendor(reach: &AdminArgs, command: VendorCommand) -> Result<(), Failure> {
    let (name, status) = match command {
        VendorCommand::List => {
            let answer = Client::new(reach)?
                .call(Method::GET, "/admin/v1/vendors", None)
                .await?;
            return show::print(reach.json, &answer, |answer| {
                table(ROUTE_ROW, &route_rows(answer))
            });
        }
        VendorCommand::Disable { vendor } => (vendor, "disabled"),
        VendorCommand::Enable { vendor } => (vendor, "active"),
    };
    let path = format!("/admin/v1/vendors/{}", path_segment(&name));
    let answer = Client::new(reach)?
        .call(Method::PATCH, &path, Some(json!({"status": status})))
        .await?;
    show::print(reach.json, &answer, |answer| facts(VENDOR, answer))?;
    if status == "disabled" && !reach.json {
        eprintln!(
            "{name} gets no new calls from this node; calls in flight run to their ends. \
             To put it back: tollgate vendor enable {name}"
        );
    }
    Ok(())
}

/// A row for each route: what the vendor has for all of them stands in each.
fn route_rows(answer: &Value) -> Vec<Value> {
    let vendors = rows(answer, "vendors").iter();
    vendors
        .flat_map(|vendor| {
            let routes = rows(vendor, "routes").iter();
            routes.map(move |route| json!({"vendor": vendor, "route": route}))
        })
        .collect()
}

/// The limits that were named, as the fields of the API.
fn given(limits: Limits) -> Map<String, Value> {
    let Limits {
        name,
        ceiling,
        ceiling_month,
        ceiling_day,
        models,
        addresses,
        expires,
        requests_per_second,
        requests_per_minute,
        tokens_per_minute,
    } = limits;
    let list = |items: Vec<String>| (!items.is_empty()).then(|| Value::from(items));
    let rubles = |amount: Option<MicroRub>| amount.map(|amount| Value::from(amount.to_string()));
    [
        ("name", name.map(Value::from)),
        ("ceiling_rub", rubles(ceiling)),
        ("ceiling_month_rub", rubles(ceiling_month)),
        ("ceiling_day_rub", rubles(ceiling_day)),
        ("models", list(models)),
        ("addresses", list(addresses)),
        ("expires_at", expires.map(Value::from)),
        ("requests_per_second", requests_per_second.map(Value::from)),
        ("requests_per_minute", requests_per_minute.map(Value::from)),
        ("tokens_per_minute", tokens_per_minute.map(Value::from)),
    ]
    .into_iter()
    .filter_map(|(field, value)| Some((field.to_owned(), value?)))
    .collect()
}

/// The limits that are taken away, as the fields of the API.
fn taken_away(without: &Without) -> impl Iterator<Item = &'static str> {
    [
        (without.no_ceiling, "ceiling_rub"),
        (without.no_ceiling_month, "ceiling_month_rub"),
        (without.no_ceiling_day, "ceiling_day_rub"),
        (without.no_expiry, "expires_at"),
        (without.any_model, "models"),
        (without.any_address, "addresses"),
        (without.any_rate, "requests_per_second"),
        (without.no_requests_per_minute, "requests_per_minute"),
        (without.no_tokens_per_minute, "tokens_per_minute"),
    ]
    .into_iter()
    .filter_map(|(taken_away, field)| taken_away.then_some(field))
}

fn nothing_to_set(key: &KeyId) -> Failure {
    Failure::Usage(format!(
        "nothing to change on {key}: name a limit, like --ceiling 100 (tollgate key set --help)"
    ))
}

fn rows<'a>(answer: &'a Value, field: &str) -> &'a [Value] {
    answer
        .get(field)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            name: None,
            ceiling: None,
            ceiling_month: None,
            ceiling_day: None,
            models: Vec::new(),
            addresses: Vec::new(),
            expires: None,
            requests_per_second: None,
            requests_per_minute: None,
            tokens_per_minute: None,
        }
    }

    #[test]
    fn only_what_was_named_is_sent() {
        assert!(given(limits()).is_empty());
        let named = Limits {
            name: Some("ci".into()),
            ceiling: Some(MicroRub::new(500_000)),
            ceiling_day: Some(MicroRub::rubles(2)),
            models: vec!["m".into()],
            requests_per_second: Some(5),
            tokens_per_minute: Some(7),
            ..limits()
        };
        assert_eq!(
            Value::Object(given(named)),
            json!({
                "name": "ci", "ceiling_rub": "0.50", "ceiling_day_rub": "2.00", "models": ["m"],
                "requests_per_second": 5, "tokens_per_minute": 7,
            })
        );
    }

    #[test]
    fn an_account_is_shown_with_its_keys() {
        let key = json!({
            "id": "k1", "name": "ci", "status": "active", "ceiling_rub": null, "spent_rub": "3.00",
            "ceiling_month_rub": "30.00", "spent_month_rub": "2.00", "ceiling_day_rub": "5.00",
            "spent_day_rub": "1.00", "held_rub": "0.00", "free_rub": "4.00",
            "changed_at": "2027-01-31T00:00:00Z",
        });
        let account = json!({
            "id": "acme", "balance_rub": "7.00", "holds_open": 2, "spent_day_rub": "1.00", "keys": [key],
        });
        assert_eq!(
            overview(&account),
            "account      acme\n\
             balance      7.00 ₽\n\
             open holds   2\n\
             spent today  1.00 ₽\n\
             \n\
             KEY  NAME  STATUS  SPENT, ₽  OF, ₽  MONTH, ₽  OF, ₽  TODAY, ₽  OF, ₽  HELD, ₽  FREE, ₽  CHANGED\n\
             k1   ci    active      3.00      -      2.00  30.00      1.00   5.00     0.00     4.00  2027-01-31T00:00:00Z\n"
        );
        let mut made = account.clone();
        made["keys"][0]["created_at"] = made["keys"][0]["changed_at"].clone();
        assert!(overview(&made).ends_with("    4.00  never\n"));
        // Other answers have no keys.
        assert_eq!(overview(&json!({"id": "acme"})), "account  acme\n");
    }

    #[test]
    fn vendors_are_listed_by_route() {
        let route = |model: &str, state: &str, last_error: Value| {
            json!({
                "model": model, "state": state, "failures": 0, "in_flight": 2, "ewma_ms": 400,
                "shut_until": null, "rests_until": null, "last_error": last_error,
            })
        };
        let error =
            json!({ "at": "2027-01-31T00:00:00Z", "status": 404, "text": "model not found (404)" });
        let routes = [
            route("m-1", "answering", error),
            route("m-2", "shut", Value::Null),
        ];
        let answer = json!({ "vendors": [
            { "name": "a", "status": "active", "routes": routes },
            { "name": "b", "status": "disabled", "routes": [] },
        ] });
        assert_eq!(
            table(ROUTE_ROW, &route_rows(&answer)),
            "VENDOR  STATUS  MODEL  STATE      FAILURES  IN FLIGHT   MS  SHUT UNTIL  RESTS UNTIL  LAST ERROR            WHICH WAS\n\
             a       active  m-1    answering         0          2  400  -           -            2027-01-31T00:00:00Z  model not found (404)\n\
             a       active  m-2    shut              0          2  400  -           -            -                     -\n"
        );
    }

    #[test]
    fn a_receipt_shows_tokens_and_money() {
        let receipt = json!({
            "number": "n", "at": "2027-01-31T00:00:00Z", "estimated": false,
            "bounded": true, "usage": {"input": 10, "output": 3},
            "price": {"input": "26.018751"}, "charged_rub": "0.000361"
        });
        let text = facts(RECEIPT, &receipt);
        assert!(
            text.contains("input tokens        10\n")
                && text.contains("usage estimated     false\n")
                && text.contains("usage bounded       true\n"),
            "{text}"
        );
        assert!(
            text.contains("26.018751 ₽\n") && text.contains("charged             0.000361 ₽\n"),
            "{text}"
        );
    }
}
