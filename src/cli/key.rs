//! `tollgate key`: a key's limits as options, one call of the admin API per command, and how its answer is printed.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};
use tollgate_layers::key::{AccountId, GroupId, KeyId};

use super::{
    AdminArgs,
    ceilings::{self, Ceilings, NoCeilings},
    client::Client,
    failure::Failure,
    key_id::IdNotKey,
    show::{self, Cell, facts, rows, table},
    time,
};
use crate::api::fields::parse_address;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Make a key and print it, once
    ///
    /// Without limits the key may spend the whole balance of the account, on every model, from every address.
    #[command(after_help = "Examples:\n  tollgate key create acme --name ci\n  \
                            tollgate key create acme --ceiling 500 --model gpt-5-mini --address 203.0.113.0/24 \
                            --expires 2027-01-31\n  \
                            tollgate key create acme --ceiling-day 20 --ceiling-month 300 --requests-per-minute 60 \
                            --tokens-per-minute 200000")]
    Create {
        /// The account that pays
        account: AccountId,
        /// Make an owner key: it cannot call models, and manages the account's keys
        #[arg(long, conflicts_with = "models")]
        owner: bool,
        #[command(flatten)]
        limits: Limits,
    },
    /// List an account's keys, including deleted ones
    #[command(after_help = "Example:\n  tollgate key list acme")]
    List {
        /// The account
        account: AccountId,
    },
    /// Show a key: its limits, what it has spent, what it can spend now
    #[command(after_help = "Example:\n  tollgate key show k0AbC123dEf456gH")]
    Show {
        /// The key's id, not the key itself
        #[arg(value_parser = IdNotKey)]
        key: KeyId,
    },
    /// Refuse the key's new calls until it is enabled
    #[command(after_help = "Example:\n  tollgate key disable k0AbC123dEf456gH")]
    Disable {
        /// The key's id, not the key itself
        #[arg(value_parser = IdNotKey)]
        key: KeyId,
    },
    /// Let a disabled key call again
    #[command(after_help = "Example:\n  tollgate key enable k0AbC123dEf456gH")]
    Enable {
        /// The key's id, not the key itself
        #[arg(value_parser = IdNotKey)]
        key: KeyId,
    },
    /// Refuse the key for ever; its receipts stay
    #[command(after_help = "Example:\n  tollgate key delete k0AbC123dEf456gH")]
    Delete {
        /// The key's id, not the key itself
        #[arg(value_parser = IdNotKey)]
        key: KeyId,
    },
    /// Change a key's name and limits
    ///
    /// A list that is given replaces the whole list. Options not given leave their values unchanged.
    #[command(
        after_help = "Examples:\n  tollgate key set k0AbC123dEf456gH --ceiling 200\n  \
                            tollgate key set k0AbC123dEf456gH --name build --any-model --no-expiry\n  \
                            tollgate key set k0AbC123dEf456gH --ceiling-day 5 --no-ceiling-month"
    )]
    Set {
        /// The key's id, not the key itself
        #[arg(value_parser = IdNotKey)]
        key: KeyId,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        without: Without,
    },
}

/// A key's name and limits, as options.
#[derive(Debug, Args)]
pub(super) struct Limits {
    /// A name, for people
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    ceilings: Ceilings,
    /// A model it may call, by its catalog name; repeat for several
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// An address or a block from which it may be used; repeat for several
    #[arg(long = "address", value_name = "CIDR", value_parser = address)]
    addresses: Vec<String>,
    /// The date or time of expiry: 2027-01-31, 2027-01-31T12:00:00+03:00
    #[arg(long, value_name = "DATE", value_parser = time)]
    expires: Option<String>,
    /// At most this many requests per second, on each node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests_per_second: Option<u32>,
    /// At most this many requests per minute, over all nodes; a burst of ten seconds' worth is allowed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests_per_minute: Option<u32>,
    /// At most this many tokens per minute, over all nodes; after using more, the key waits until it is below the limit
    /// again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    tokens_per_minute: Option<u32>,
    /// The group of keys whose ceilings it shares
    #[arg(long, value_name = "GROUP")]
    group: Option<GroupId>,
    /// At most this many calls open at once, over all nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    concurrency: Option<u32>,
    /// Keep answers to calls with an Idempotency-Key, sealed, and repeat them: a call that is sent again is not charged
    /// again
    #[arg(long)]
    idempotency: bool,
    /// Let the holds of streams grow with their output, at models whose largest speed is known: a stream holds less at
    /// first, and ends early if its hold cannot be raised
    #[arg(long)]
    growing_holds: bool,
}

/// The limits that can be removed from a key, as options.
#[derive(Debug, Args)]
pub(super) struct Without {
    #[command(flatten)]
    ceilings: NoCeilings,
    /// Never expire
    #[arg(long, conflicts_with = "expires")]
    no_expiry: bool,
    /// Allow every model
    #[arg(long, conflicts_with = "models")]
    any_model: bool,
    /// Allow every address
    #[arg(long, conflicts_with = "addresses")]
    any_address: bool,
    /// Remove the limit of requests per second
    #[arg(long, conflicts_with = "requests_per_second")]
    any_rate: bool,
    /// Remove the limit of requests per minute
    #[arg(long, conflicts_with = "requests_per_minute")]
    no_requests_per_minute: bool,
    /// Remove the limit of tokens per minute
    #[arg(long, conflicts_with = "tokens_per_minute")]
    no_tokens_per_minute: bool,
    /// Remove it from its group
    #[arg(long, conflicts_with = "group")]
    no_group: bool,
    /// Remove the limit of open calls
    #[arg(long, conflicts_with = "concurrency")]
    any_concurrency: bool,
    /// Stop keeping answers
    #[arg(long, conflicts_with = "idempotency")]
    no_idempotency: bool,
    /// Hold the whole output of a stream from its start, except at models whose holds grow for all keys
    #[arg(long, conflicts_with = "growing_holds")]
    no_growing_holds: bool,
}

/// Returns the cells that are printed of a key.
fn key_cells() -> Vec<Cell> {
    let before = [
        Cell::text("key", "/key"),
        Cell::text("id", "/id"),
        Cell::text("account", "/account"),
        Cell::text("begins", "/prefix"),
        Cell::text("name", "/name"),
        Cell::text("kind", "/kind"),
        Cell::text("status", "/status"),
    ];
    let after = [
        Cell::rubles("held", "/held_rub"),
        Cell::rubles("free", "/free_rub"),
        Cell::text("models", "/models").or("any"),
        Cell::text("addresses", "/addresses").or("any"),
        Cell::text("requests per second", "/requests_per_second").or("no limit"),
        Cell::text("requests per minute", "/requests_per_minute").or("no limit"),
        Cell::text("tokens per minute", "/tokens_per_minute").or("no limit"),
        Cell::text("group", "/group").or("none"),
        Cell::text("calls at once", "/concurrency").or("no limit"),
        Cell::text("idempotency", "/idempotency"),
        Cell::text("growing holds", "/growing_holds"),
        Cell::text("expires", "/expires_at").or("never"),
        Cell::text("created", "/created_at"),
        Cell::text("changed", "/changed_at"),
    ];
    ceilings::cells(&before, &after)
}

/// Columns of a key in a list: what distinguishes keys, and their money.
const KEY_ROW: &[Cell] = &[
    Cell::text("id", "/id"),
    Cell::text("begins", "/prefix"),
    Cell::text("name", "/name"),
    Cell::text("kind", "/kind"),
    Cell::text("status", "/status"),
    Cell::rubles("ceiling", "/ceiling_rub").or("none"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("free", "/free_rub"),
    Cell::text("group", "/group").or("none"),
    Cell::text("expires", "/expires_at").or("never"),
];

pub(super) async fn key(admin: &AdminArgs, command: KeyCommand) -> Result<(), Failure> {
    let (method, id, body) = match command {
        KeyCommand::Create {
            account,
            owner,
            limits,
        } => return create_key(admin, &account, owner, limits).await,
        KeyCommand::List { account } => return list_keys(admin, &account).await,
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
            if without.no_idempotency {
                body.insert("idempotency".into(), Value::Bool(false));
            }
            if without.no_growing_holds {
                body.insert("growing_holds".into(), Value::Bool(false));
            }
            if body.is_empty() {
                return Err(nothing_to_set(&key));
            }
            (Method::PATCH, key, Some(Value::Object(body)))
        }
    };
    let answer = Client::new(admin)?
        .call(method, &format!("/admin/v1/keys/{id}"), body)
        .await?;
    show::print(admin.json, &answer, shown)
}

/// Returns all facts of a key. An owner key calls no models, so they are shown as `none`: for another key an empty
/// list of models means all.
fn shown(key: &Value) -> String {
    let mut key = key.clone();
    if key["kind"] == "owner" {
        key["models"] = "none".into();
    }
    facts(&key_cells(), &key)
}

async fn create_key(
    admin: &AdminArgs,
    account: &AccountId,
    owner: bool,
    limits: Limits,
) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{account}/keys");
    let mut body = given(limits);
    if owner {
        body.insert("kind".into(), "owner".into());
    }
    let answer = Client::new(admin)?
        .call(Method::POST, &path, Some(Value::Object(body)))
        .await?;
    show::print(admin.json, &answer, shown)?;
    if !admin.json {
        // The advice is written to standard error, so that a pipe gets only the facts.
        eprintln!("Store the key now: it is not kept here and cannot be shown again.");
    }
    Ok(())
}

async fn list_keys(admin: &AdminArgs, account: &AccountId) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{account}/keys");
    let answer = Client::new(admin)?.call(Method::GET, &path, None).await?;
    let rows = rows(&answer, "keys");
    if rows.is_empty() && !admin.json {
        return show::write(&format!(
            "no keys yet; make one with: tollgate key create {account}\n"
        ));
    }
    show::print(admin.json, &answer, |_| table(KEY_ROW, rows))
}

/// Returns the limits that the command line gives, as fields of the API.
fn given(limits: Limits) -> Map<String, Value> {
    let Limits {
        name,
        ceilings,
        models,
        addresses,
        expires,
        requests_per_second,
        requests_per_minute,
        tokens_per_minute,
        group,
        concurrency,
        idempotency,
        growing_holds,
    } = limits;
    let list = |items: Vec<String>| (!items.is_empty()).then(|| Value::from(items));
    let others = [
        ("name", name.map(Value::from)),
        ("models", list(models)),
        ("addresses", list(addresses)),
        ("expires_at", expires.map(Value::from)),
        ("requests_per_second", requests_per_second.map(Value::from)),
        ("requests_per_minute", requests_per_minute.map(Value::from)),
        ("tokens_per_minute", tokens_per_minute.map(Value::from)),
        ("group", group.map(|group| Value::from(group.to_string()))),
        ("concurrency", concurrency.map(Value::from)),
        ("idempotency", idempotency.then_some(Value::Bool(true))),
        ("growing_holds", growing_holds.then_some(Value::Bool(true))),
    ]
    .into_iter()
    .filter_map(|(field, value)| Some((field, value?)));
    let all = ceilings.given().chain(others);
    all.map(|(field, value)| (field.to_owned(), value))
        .collect()
}

/// Returns the limits to remove, as fields of the API.
fn taken_away(without: &Without) -> impl Iterator<Item = &'static str> {
    let others = [
        (without.no_expiry, "expires_at"),
        (without.any_model, "models"),
        (without.any_address, "addresses"),
        (without.any_rate, "requests_per_second"),
        (without.no_requests_per_minute, "requests_per_minute"),
        (without.no_tokens_per_minute, "tokens_per_minute"),
        (without.no_group, "group"),
        (without.any_concurrency, "concurrency"),
    ]
    .into_iter()
    .filter_map(|(taken_away, field)| taken_away.then_some(field));
    without.ceilings.fields().chain(others)
}

fn nothing_to_set(key: &KeyId) -> Failure {
    Failure::Usage(format!(
        "nothing to change on {key}: name a limit, like --ceiling 100 (tollgate key set --help)"
    ))
}

fn address(text: &str) -> Result<String, String> {
    parse_address(text).map(|block| block.to_string())
}

#[cfg(test)]
mod tests {
    use tollgate_layers::money::MicroRub;

    use super::*;
    use crate::cli::account::account_key_row;

    fn limits() -> Limits {
        Limits {
            name: None,
            ceilings: Ceilings::default(),
            models: Vec::new(),
            addresses: Vec::new(),
            expires: None,
            requests_per_second: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            group: None,
            concurrency: None,
            idempotency: false,
            growing_holds: false,
        }
    }

    #[test]
    fn owner_key_is_listed_without_models() {
        let key = |kind: &str| json!({"id": "k1", "kind": kind, "models": []});
        assert_eq!(
            shown(&key("owner")),
            "id      k1\nkind    owner\nmodels  none\n"
        );
        assert_eq!(
            shown(&key("caller")),
            "id      k1\nkind    caller\nmodels  any\n"
        );
        for row in [KEY_ROW, &account_key_row()[..]] {
            assert!(table(row, &[key("owner")]).contains("  owner  "));
        }
    }

    #[test]
    fn change_of_a_key_sends_only_the_given_options() {
        assert!(given(limits()).is_empty());
        let named = Limits {
            name: Some("ci".into()),
            ceilings: Ceilings {
                ceiling: Some(MicroRub::new(500_000)),
                ceiling_day: Some(MicroRub::rubles(2)),
                ..Ceilings::default()
            },
            models: vec!["m".into()],
            requests_per_second: Some(5),
            tokens_per_minute: Some(7),
            idempotency: true,
            ..limits()
        };
        assert_eq!(
            Value::Object(given(named)),
            json!({
                "name": "ci", "ceiling_rub": "0.50", "ceiling_day_rub": "2.00", "models": ["m"],
                "requests_per_second": 5, "tokens_per_minute": 7, "idempotency": true,
            })
        );
    }
}
