//! `tollgate key`: each command sends one request to the admin API and prints the response.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};
use tollgate_layers::key::{AccountId, GroupId, KeyId};

use super::{
    AdminArgs,
    ceilings::{self, Ceilings, NoCeilings},
    failure::Failure,
    key_id::IdNotKey,
    show::{Cell, facts},
    time,
};
use crate::api::fields::parse_address;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Create a key and print it; it cannot be shown again
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
        /// Make the key an owner key, which cannot call models and manages the account's keys
        #[arg(long, conflicts_with = "models")]
        owner: bool,
        #[command(flatten)]
        limits: Limits,
    },
    /// List an account's keys, including deleted ones
    #[command(after_help = "Example:\n  tollgate key list acme")]
    List {
        /// Id of the account
        account: AccountId,
    },
    /// Show a key: its limits, what it has spent, and what it can still spend
    #[command(after_help = "Example:\n  tollgate key show k0AbC123dEf456gH")]
    Show(KeyArg),
    /// Refuse the key's new calls until it is enabled
    #[command(after_help = "Example:\n  tollgate key disable k0AbC123dEf456gH")]
    Disable(KeyArg),
    /// Accept calls with a disabled key again
    #[command(after_help = "Example:\n  tollgate key enable k0AbC123dEf456gH")]
    Enable(KeyArg),
    /// Refuse the key's calls for ever; the key's receipts stay
    #[command(after_help = "Example:\n  tollgate key delete k0AbC123dEf456gH")]
    Delete(KeyArg),
    /// Change a key's name and limits
    ///
    /// A given list replaces the key's whole list. Options that are not given change nothing.
    #[command(
        after_help = "Examples:\n  tollgate key set k0AbC123dEf456gH --ceiling 200\n  \
                            tollgate key set k0AbC123dEf456gH --name build --any-model --no-expiry\n  \
                            tollgate key set k0AbC123dEf456gH --ceiling-day 5 --no-ceiling-month"
    )]
    Set {
        #[command(flatten)]
        key: KeyArg,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        without: Without,
    },
}

#[derive(Debug, Args)]
pub(super) struct KeyArg {
    /// The key's id, not the secret key itself
    #[arg(value_parser = IdNotKey)]
    key: KeyId,
}

/// Options for a key's name and limits.
#[derive(Debug, Args)]
pub(super) struct Limits {
    /// The key's name, for display
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    ceilings: Ceilings,
    /// Catalog name of a model that the key may call; repeat for several
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Address or network from which the key may be used; repeat for several
    #[arg(long = "address", value_name = "CIDR", value_parser = address)]
    addresses: Vec<String>,
    /// Date or time from which the key is refused: 2027-01-31, 2027-01-31T12:00:00+03:00
    #[arg(long, value_name = "DATE", value_parser = time)]
    expires: Option<String>,
    /// Maximum requests per second with the key, counted on each node separately
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests_per_second: Option<u32>,
    /// Maximum requests per minute with the key, over all nodes; a burst of ten seconds' worth is allowed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests_per_minute: Option<u32>,
    /// Maximum tokens per minute with the key, over all nodes; a key above the limit waits until it is below the limit
    /// again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    tokens_per_minute: Option<u32>,
    /// The group whose ceilings also limit the key
    #[arg(long, value_name = "GROUP")]
    group: Option<GroupId>,
    /// Maximum number of the key's calls that are open at once, over all nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    concurrency: Option<u32>,
    /// Store the responses of calls with an Idempotency-Key, encrypted; a repeated call gets the stored response and is
    /// not charged again
    #[arg(long)]
    idempotency: bool,
    /// Let a stream's hold grow with its output: less money is held at first, and the stream ends early if a larger
    /// hold is refused. Applies to models whose largest speed is known
    #[arg(long)]
    growing_holds: bool,
}

/// Options that remove a key's limits.
#[derive(Debug, Args)]
pub(super) struct Without {
    #[command(flatten)]
    ceilings: NoCeilings,
    /// Remove the expiry
    #[arg(long, conflicts_with = "expires")]
    no_expiry: bool,
    /// Allow every model
    #[arg(long, conflicts_with = "models")]
    any_model: bool,
    /// Allow every address
    #[arg(long, conflicts_with = "addresses")]
    any_address: bool,
    /// Remove the limit on requests per second
    #[arg(long, conflicts_with = "requests_per_second")]
    any_rate: bool,
    /// Remove the limit on requests per minute
    #[arg(long, conflicts_with = "requests_per_minute")]
    no_requests_per_minute: bool,
    /// Remove the limit on tokens per minute
    #[arg(long, conflicts_with = "tokens_per_minute")]
    no_tokens_per_minute: bool,
    /// Remove the key from its group
    #[arg(long, conflicts_with = "group")]
    no_group: bool,
    /// Remove the limit on open calls
    #[arg(long, conflicts_with = "concurrency")]
    any_concurrency: bool,
    /// Stop storing the responses of calls with an Idempotency-Key
    #[arg(long, conflicts_with = "idempotency")]
    no_idempotency: bool,
    /// Hold a stream's whole output from its start, except at models whose holds grow for all keys
    #[arg(long, conflicts_with = "growing_holds")]
    no_growing_holds: bool,
}

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

/// Columns of a list of keys: what distinguishes a key, and the key's money.
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
    let (method, KeyArg { key: id }, body) = match command {
        KeyCommand::Create {
            account,
            owner,
            limits,
        } => return create_key(admin, &account, owner, limits).await,
        KeyCommand::List { account } => {
            let path = format!("/admin/v1/accounts/{account}/keys");
            let none = format!("no keys yet; create one with: tollgate key create {account}\n");
            return admin.list(&path, "keys", KEY_ROW, &none).await;
        }
        KeyCommand::Show(key) => (Method::GET, key, None),
        KeyCommand::Disable(key) => (Method::PATCH, key, Some(json!({"status": "disabled"}))),
        KeyCommand::Enable(key) => (Method::PATCH, key, Some(json!({"status": "active"}))),
        KeyCommand::Delete(key) => (Method::DELETE, key, None),
        KeyCommand::Set {
            key,
            limits,
            without,
        } => {
            let mut body = given(limits);
            body.extend(taken_away(&without).map(|field| (field.to_owned(), Value::Null)));
            for (field, is_off) in [
                ("idempotency", without.no_idempotency),
                ("growing_holds", without.no_growing_holds),
            ] {
                body.extend(is_off.then(|| (field.to_owned(), Value::Bool(false))));
            }
            if body.is_empty() {
                return Err(Failure::Usage(format!(
                    "nothing to change in key {}: give an option, for example --ceiling 100 (see tollgate key set --help)",
                    key.key
                )));
            }
            (Method::PATCH, key, Some(Value::Object(body)))
        }
    };
    let path = format!("/admin/v1/keys/{id}");
    admin.request(method, &path, body, shown).await
}

/// Returns all facts of a key. The models of an owner key are printed as `none`: an owner key calls no models, but for
/// other keys an empty list means all models.
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
    let body = Some(Value::Object(body));
    admin.request(Method::POST, &path, body, shown).await?;
    if !admin.json {
        // The advice goes to standard error, so that a pipe gets only the facts about the key.
        eprintln!(
            "Store the key now: the gateway keeps only its digest and cannot show the key again."
        );
    }
    Ok(())
}

/// Returns the name and limits that the command line gives, as fields of the API.
fn given(limits: Limits) -> Map<String, Value> {
    let text = |text: Option<String>| text.map(Value::from);
    let number = |number: Option<u32>| number.map(Value::from);
    let list = |items: Vec<String>| (!items.is_empty()).then(|| Value::from(items));
    let flag = |flag: bool| flag.then_some(Value::Bool(true));
    let others = [
        ("name", text(limits.name)),
        ("models", list(limits.models)),
        ("addresses", list(limits.addresses)),
        ("expires_at", text(limits.expires)),
        ("requests_per_second", number(limits.requests_per_second)),
        ("requests_per_minute", number(limits.requests_per_minute)),
        ("tokens_per_minute", number(limits.tokens_per_minute)),
        ("group", text(limits.group.map(|group| group.to_string()))),
        ("concurrency", number(limits.concurrency)),
        ("idempotency", flag(limits.idempotency)),
        ("growing_holds", flag(limits.growing_holds)),
    ]
    .into_iter()
    .filter_map(|(field, value)| Some((field, value?)));
    let all = limits.ceilings.given().chain(others);
    all.map(|(field, value)| (field.to_owned(), value))
        .collect()
}

/// Returns the API's fields of the limits that the command line removes.
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

fn address(text: &str) -> Result<String, String> {
    parse_address(text).map(|block| block.to_string())
}

#[cfg(test)]
mod tests {
    use tollgate_layers::money::MicroRub;

    use super::*;
    use crate::cli::{account::account_key_row, show::table};

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
    fn key_set_command_sends_only_the_given_options() {
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
