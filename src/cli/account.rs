//! `tollgate account`, `topup` and `adjust`: each is one call of the admin API, and prints its answer.

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};
use tollgate_layers::{key::AccountId, money::MicroRub};

use super::{
    AdminArgs, ceilings,
    client::Client,
    event::{AlertArgs, alert},
    failure::Failure,
    show::{self, Cell, facts, rows, table},
};

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Open an account
    ///
    /// Repeating the command with the same id and name changes nothing.
    #[command(after_help = "Example:\n  tollgate account create acme --name \"Acme LLC\"")]
    Create {
        /// Its id, which never changes: letters, digits, - and _
        id: AccountId,
        /// Its name, for people
        #[arg(long)]
        name: Option<String>,
    },
    /// List all accounts
    #[command(
        after_help = "Example:\n  tollgate account list --json | jq '.accounts[] | select(.free_rub == \"0.00\")'"
    )]
    List,
    /// Show an account: its balance, what running calls hold, what is free, and its keys
    ///
    /// Spent today and spent this month count charges since 00:00 UTC of the day, and of the first day of the month.
    #[command(after_help = "Example:\n  tollgate account show acme")]
    Show {
        /// The account
        id: AccountId,
    },
    /// Rename an account
    #[command(after_help = "Example:\n  tollgate account set acme --name \"Acme Holding\"")]
    Set {
        /// The account; its id does not change
        id: AccountId,
        /// Its name, for people
        #[arg(long)]
        name: String,
    },
    /// Refuse the account's new calls; running ones end
    ///
    /// An account is not deleted: its payments and receipts stay.
    #[command(after_help = "Example:\n  tollgate account suspend acme")]
    Suspend {
        /// The account
        id: AccountId,
    },
    /// Show or set the balances at which an event is emitted; with --key or --group, for what is left under its
    /// ceilings
    ///
    /// An event is emitted once when what is left falls to a level, and again only after a payment has lifted it above
    /// that level. The levels given replace the earlier ones.
    #[command(
        after_help = "Examples:\n  tollgate account alert acme --at 1000 --at 200\n  \
                            tollgate account alert acme --key k0AbC123dEf456gH --at 50\n  \
                            tollgate account alert acme --group support --at 500\n  tollgate account alert acme"
    )]
    Alert(AlertArgs),
    /// Let a suspended account call again
    #[command(after_help = "Example:\n  tollgate account resume acme")]
    Resume {
        /// The account
        id: AccountId,
    },
}

const ACCOUNT: &[Cell] = &[
    Cell::text("account", "/id"),
    Cell::text("name", "/name"),
    Cell::text("status", "/status"),
    Cell::rubles("balance", "/balance_rub"),
    Cell::rubles("held", "/held_rub"),
    Cell::number("open holds", "/holds_open"),
    Cell::rubles("free", "/free_rub"),
    Cell::rubles("owed for refunds", "/debt_rub"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("spent this month", "/spent_month_rub"),
    Cell::rubles("spent today", "/spent_day_rub"),
    Cell::rubles("loss", "/loss_rub"),
];

/// The columns of an account in a list.
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

/// Columns of a key under its account: its ceilings and what it has spent, in all, this month and today.
pub(super) fn account_key_row() -> Vec<Cell> {
    let before = [
        Cell::text("key", "/id"),
        Cell::text("name", "/name"),
        Cell::text("kind", "/kind"),
        Cell::text("status", "/status"),
    ];
    let after = [
        Cell::rubles("held", "/held_rub"),
        Cell::rubles("free", "/free_rub"),
        Cell::text("changed", "/changed_at").or("never"),
    ];
    ceilings::columns(&before, &after)
}

pub(super) async fn account(admin: &AdminArgs, command: AccountCommand) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let (method, id, body) = match command {
        AccountCommand::Alert(args) => return alert(admin, &args).await,
        AccountCommand::List => return list_accounts(&client, admin.json).await,
        AccountCommand::Create { id, name } => {
            let body = json!({"id": id, "name": name.unwrap_or_default()});
            let answer = client
                .call(Method::POST, "/admin/v1/accounts", Some(body))
                .await?;
            return show::print(admin.json, &answer, |answer| facts(ACCOUNT, answer));
        }
        AccountCommand::Show { id } => (Method::GET, id, None),
        AccountCommand::Set { id, name } => (Method::PATCH, id, Some(json!({"name": name}))),
        AccountCommand::Suspend { id } => (Method::PATCH, id, Some(json!({"status": "suspended"}))),
        AccountCommand::Resume { id } => (Method::PATCH, id, Some(json!({"status": "active"}))),
    };
    let answer = client
        .call(method, &format!("/admin/v1/accounts/{id}"), body)
        .await?;
    show::print(admin.json, &answer, overview)
}

/// Lists the facts of an account, and its keys if the answer contains them.
fn overview(account: &Value) -> String {
    let mut text = facts(ACCOUNT, account);
    let keys = rows(account, "keys");
    if !keys.is_empty() {
        let keys: Vec<Value> = keys.iter().map(with_change).collect();
        text.push('\n');
        text.push_str(&table(&account_key_row(), &keys));
    }
    text
}

/// Returns the key with `changed_at` set to null if the key was never changed: the API then returns the time of its
/// creation.
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
    admin: &AdminArgs,
    account: &AccountId,
    rubles: MicroRub,
    id: &str,
) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{account}/topups");
    enter(admin, &path, id, json!({"id": id, "amount_rub": rubles})).await
}

pub(super) async fn adjust(
    admin: &AdminArgs,
    account: &AccountId,
    rubles: MicroRub,
    id: &str,
    reason: &str,
) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{account}/adjustments");
    let body = json!({"id": id, "amount_rub": rubles, "reason": reason});
    enter(admin, &path, id, body).await
}

async fn enter(admin: &AdminArgs, path: &str, id: &str, body: Value) -> Result<(), Failure> {
    let answer = Client::new(admin)?
        .call(Method::POST, path, Some(body))
        .await?;
    show::print(admin.json, &answer, |answer| facts(ACCOUNT, answer))?;
    if !admin.json {
        let booked = match answer["repeated"] == true {
            true => "was booked before, nothing was booked now",
            false => "is booked, once",
        };
        eprintln!("{id} {booked}: the same id again, for this account, changes nothing.");
    }
    Ok(())
}

/// Parses the amount of a payment, which is above zero.
pub(super) fn payment(text: &str) -> Result<MicroRub, String> {
    let amount = text.parse::<MicroRub>();
    let amount = amount.map_err(|error| error.to_string())?;
    if amount > MicroRub::ZERO {
        return Ok(amount);
    }
    let range = format!(
        "a payment is {} to {} rubles",
        MicroRub::new(1),
        MicroRub::MAX
    );
    Err(if amount == MicroRub::ZERO {
        range
    } else {
        format!(
            "{range}; to reduce the balance: tollgate adjust ACCOUNT {text} --id ID --reason TEXT"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_shown_with_its_keys() {
        let key = json!({
            "id": "k1", "name": "ci", "kind": "caller", "status": "active", "ceiling_rub": null, "spent_rub": "3.00",
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
             KEY  NAME  KIND    STATUS  SPENT, ₽  OF, ₽  MONTH, ₽  OF, ₽  TODAY, ₽  OF, ₽  HELD, ₽  FREE, ₽  CHANGED\n\
             k1   ci    caller  active      3.00      -      2.00  30.00      1.00   5.00     0.00     4.00  2027-01-31T00:00:00Z\n"
        );
        let mut made = account.clone();
        made["keys"][0]["created_at"] = made["keys"][0]["changed_at"].clone();
        assert!(overview(&made).ends_with("    4.00  never\n"));
        // Answers of the other account commands have no keys.
        assert_eq!(overview(&json!({"id": "acme"})), "account  acme\n");
    }

    #[test]
    fn negative_payment_is_refused_with_a_hint_to_the_adjust_command() {
        assert!(payment("-5").unwrap_err().contains("tollgate adjust"));
        assert!(!payment("0").unwrap_err().contains("tollgate adjust"));
        assert_eq!(payment("0.000001"), Ok(MicroRub::new(1)));
    }
}
