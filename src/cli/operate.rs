//! The operator's commands: one call of the admin API each, and how its answer is shown.

use http::Method;
use serde_json::{Map, Value, json};
use tollgate_layers::{
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
};

use super::{
    AccountCommand, KeyCommand, Limits, Reach, VendorCommand,
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
    Cell::rubles("free", "/free_rub"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("loss", "/loss_rub"),
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
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("free", "/free_rub"),
    Cell::text("models", "/models").or("any"),
    Cell::text("addresses", "/addresses").or("any"),
    Cell::text("requests per second", "/requests_per_second").or("no limit"),
    Cell::text("expires", "/expires_at").or("never"),
    Cell::text("created", "/created_at"),
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
    Cell::text("model", "/model"),
    Cell::text("vendor", "/vendor"),
    Cell::text("end", "/end"),
    Cell::text("input tokens", "/usage/input"),
    Cell::text("cached input tokens", "/usage/cached_input"),
    Cell::text("cache write tokens", "/usage/cache_write"),
    Cell::text("output tokens", "/usage/output"),
    Cell::text("usage estimated", "/estimated"),
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
];

const VENDOR: &[Cell] = &[
    Cell::text("vendor", "/name"),
    Cell::text("status", "/status"),
    Cell::number("in flight", "/in_flight"),
    Cell::number("at most", "/connections_max"),
    Cell::number("keys", "/keys"),
    Cell::number("keys parked", "/keys_parked"),
];

pub(super) async fn account(reach: &Reach, command: AccountCommand) -> Result<(), Failure> {
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
        AccountCommand::Suspend { id } => (Method::PATCH, id, Some(json!({"status": "suspended"}))),
        AccountCommand::Resume { id } => (Method::PATCH, id, Some(json!({"status": "active"}))),
    };
    let answer = client
        .call(method, &format!("/admin/v1/accounts/{id}"), body)
        .await?;
    show::print(reach.json, &answer, |answer| facts(ACCOUNT, answer))
}

async fn list_accounts(client: &Client, json: bool) -> Result<(), Failure> {
    let answer = client.call(Method::GET, "/admin/v1/accounts", None).await?;
    let rows = rows(&answer, "accounts");
    if rows.is_empty() && !json {
        return show::write(
            "no accounts yet; open one with: tollgate account create ID --name NAME\n",
        );
    }
    show::print(json, &answer, |_| table(ACCOUNT, rows))
}

pub(super) async fn top_up(
    reach: &Reach,
    account: &AccountId,
    rubles: MicroRub,
    id: &str,
) -> Result<(), Failure> {
    let body = json!({"id": id, "amount_rub": rubles});
    enter(reach, &format!("/admin/v1/accounts/{account}/topups"), body).await
}

pub(super) async fn adjust(
    reach: &Reach,
    account: &AccountId,
    rubles: MicroRub,
    id: &str,
    reason: &str,
) -> Result<(), Failure> {
    let body = json!({"id": id, "amount_rub": rubles, "reason": reason});
    enter(
        reach,
        &format!("/admin/v1/accounts/{account}/adjustments"),
        body,
    )
    .await
}

async fn enter(reach: &Reach, path: &str, body: Value) -> Result<(), Failure> {
    let answer = Client::new(reach)?
        .call(Method::POST, path, Some(body))
        .await?;
    show::print(reach.json, &answer, |answer| facts(ACCOUNT, answer))
}

pub(super) async fn key(reach: &Reach, command: KeyCommand) -> Result<(), Failure> {
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
            no_ceiling,
            no_expiry,
            any_model,
            any_address,
            any_rate,
        } => {
            let mut body = given(limits);
            for (taken_away, field) in [
                (no_ceiling, "ceiling_rub"),
                (no_expiry, "expires_at"),
                (any_model, "models"),
                (any_address, "addresses"),
                (any_rate, "requests_per_second"),
            ] {
                if taken_away {
                    body.insert(field.into(), Value::Null);
                }
            }
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

async fn create_key(reach: &Reach, account: &AccountId, limits: Limits) -> Result<(), Failure> {
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

async fn list_keys(reach: &Reach, account: &AccountId) -> Result<(), Failure> {
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

pub(super) async fn receipt(reach: &Reach, number: RequestNumber) -> Result<(), Failure> {
    let answer = Client::new(reach)?
        .call(Method::GET, &format!("/admin/v1/receipts/{number}"), None)
        .await?;
    show::print(reach.json, &answer, |answer| facts(RECEIPT, answer))
}

pub(super) async fn vendor(reach: &Reach, command: VendorCommand) -> Result<(), Failure> {
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
    show::print(reach.json, &answer, |answer| facts(VENDOR, answer))
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
        models,
        addresses,
        expires,
        requests_per_second,
    } = limits;
    let list = |items: Vec<String>| (!items.is_empty()).then(|| Value::from(items));
    [
        ("name", name.map(Value::from)),
        (
            "ceiling_rub",
            ceiling.map(|ceiling| Value::from(ceiling.to_string())),
        ),
        ("models", list(models)),
        ("addresses", list(addresses)),
        ("expires_at", expires.map(Value::from)),
        ("requests_per_second", requests_per_second.map(Value::from)),
    ]
    .into_iter()
    .filter_map(|(field, value)| Some((field.to_owned(), value?)))
    .collect()
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
            models: Vec::new(),
            addresses: Vec::new(),
            expires: None,
            requests_per_second: None,
        }
    }

    #[test]
    fn only_what_was_named_is_sent() {
        assert!(given(limits()).is_empty());
        let named = Limits {
            name: Some("ci".into()),
            ceiling: Some(MicroRub::new(500_000)),
            models: vec!["m".into()],
            requests_per_second: Some(5),
            ..limits()
        };
        assert_eq!(
            Value::Object(given(named)),
            json!({"name": "ci", "ceiling_rub": "0.50", "models": ["m"], "requests_per_second": 5})
        );
    }

    #[test]
    fn vendors_are_listed_by_route() {
        let route = |model: &str, state: &str| {
            json!({
                "model": model, "state": state, "failures": 0, "in_flight": 2, "ewma_ms": 400,
                "shut_until": null, "rests_until": null,
            })
        };
        let answer = json!({ "vendors": [
            { "name": "a", "status": "active", "routes": [route("m-1", "answering"), route("m-2", "shut")] },
            { "name": "b", "status": "disabled", "routes": [] },
        ] });
        assert_eq!(
            table(ROUTE_ROW, &route_rows(&answer)),
            "VENDOR  STATUS  MODEL  STATE      FAILURES  IN FLIGHT   MS  SHUT UNTIL  RESTS UNTIL\n\
             a       active  m-1    answering         0          2  400  -           -\n\
             a       active  m-2    shut              0          2  400  -           -\n"
        );
    }

    #[test]
    fn a_receipt_shows_tokens_and_money() {
        let receipt = json!({
            "number": "n", "at": "2027-01-31T00:00:00Z", "estimated": false, "usage": {"input": 10, "output": 3},
            "price": {"input": "26.018751"}, "charged_rub": "0.000361"
        });
        let text = facts(RECEIPT, &receipt);
        assert!(
            text.contains("input tokens        10\n")
                && text.contains("usage estimated     false\n"),
            "{text}"
        );
        assert!(
            text.contains("26.018751 ₽\n") && text.contains("charged             0.000361 ₽\n"),
            "{text}"
        );
    }
}
