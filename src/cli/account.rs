//! `tollgate account`, `topup` and `adjust`: each command sends one request to the admin API and prints the response.

use clap::{Args, Subcommand};
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
        /// The account's id, which never changes: letters, digits, - and _
        id: AccountId,
        /// The account's name, for people
        #[arg(long)]
        name: Option<String>,
    },
    /// List all accounts
    #[command(
        after_help = "Example:\n  tollgate account list --json | jq '.accounts[] | select(.free_rub == \"0.00\")'"
    )]
    List,
    /// Show an account: its balance, the money that holds reserve, the free rest, and its keys
    ///
    /// "Spent today" counts charges since 00:00 UTC. "Spent this month" counts charges since 00:00 UTC of the first day
    /// of the month.
    #[command(after_help = "Example:\n  tollgate account show acme")]
    Show(AccountArg),
    /// Rename an account
    #[command(after_help = "Example:\n  tollgate account set acme --name \"Acme Holding\"")]
    Set {
        /// The account; its id does not change
        id: AccountId,
        /// The account's new name, for people
        #[arg(long)]
        name: String,
    },
    /// Refuse the account's new calls; calls in flight run to their end
    ///
    /// An account cannot be deleted, because its payments and receipts stay.
    #[command(after_help = "Example:\n  tollgate account suspend acme")]
    Suspend(AccountArg),
    /// Show or set an account's alert levels: at each level, an event is emitted
    ///
    /// A level is compared with the balance or, with --key or --group, with the amount left under the ceilings of that
    /// key or group. An event is emitted once when the amount falls to the level. It is emitted again only after a
    /// payment has raised the amount above the level. The given levels replace all earlier levels.
    #[command(
        after_help = "Examples:\n  tollgate account alert acme --at 1000 --at 200\n  \
                            tollgate account alert acme --key k0AbC123dEf456gH --at 50\n  \
                            tollgate account alert acme --group support --at 500\n  tollgate account alert acme"
    )]
    Alert(AlertArgs),
    /// Accept calls of a suspended account again
    #[command(after_help = "Example:\n  tollgate account resume acme")]
    Resume(AccountArg),
}

#[derive(Debug, Args)]
pub(super) struct AccountArg {
    /// Id of the account
    id: AccountId,
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

/// Columns of an account in a list.
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

/// Returns the columns of an account's list of keys. They include, for each ceiling, the ceiling and the amount spent
/// under it.
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
    let (method, id, body) = match command {
        AccountCommand::Alert(args) => return alert(admin, &args).await,
        AccountCommand::List => {
            let none = "no accounts yet; open one with: tollgate account create ID --name NAME\n";
            let path = "/admin/v1/accounts";
            return admin.list(path, "accounts", ACCOUNT_ROW, none).await;
        }
        AccountCommand::Create { id, name } => {
            let body = json!({"id": id, "name": name.unwrap_or_default()});
            let created = |answer: &Value| facts(ACCOUNT, answer);
            let path = "/admin/v1/accounts";
            return admin.request(Method::POST, path, Some(body), created).await;
        }
        AccountCommand::Show(AccountArg { id }) => (Method::GET, id, None),
        AccountCommand::Set { id, name } => (Method::PATCH, id, Some(json!({"name": name}))),
        AccountCommand::Suspend(AccountArg { id }) => {
            (Method::PATCH, id, Some(json!({"status": "suspended"})))
        }
        AccountCommand::Resume(AccountArg { id }) => {
            (Method::PATCH, id, Some(json!({"status": "active"})))
        }
    };
    let path = format!("/admin/v1/accounts/{id}");
    admin.request(method, &path, body, overview).await
}

/// Returns the facts of an account, and its keys if the response contains them.
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

/// Returns the key, with `changed_at` set to null if the key was never changed. For such a key, the API returns its
/// creation time as `changed_at`.
fn with_change(key: &Value) -> Value {
    let mut key = key.clone();
    if key["changed_at"] == key["created_at"] {
        key["changed_at"] = Value::Null;
    }
    key
}

/// Options of `tollgate topup`: the account and the payment.
#[derive(Debug, Args)]
pub(super) struct TopupArgs {
    /// Id of the account
    account: AccountId,
    /// Decimal rubles, more than 0
    #[arg(allow_negative_numbers = true, value_parser = payment)]
    rubles: MicroRub,
    /// The payment's id
    #[arg(long, value_name = "PAYMENT-ID")]
    id: String,
}

/// Options of `tollgate adjust`: the account and the correction.
#[derive(Debug, Args)]
pub(super) struct AdjustArgs {
    /// Id of the account
    account: AccountId,
    /// Decimal rubles; a negative amount is taken off the balance
    #[arg(allow_negative_numbers = true)]
    rubles: MicroRub,
    /// The correction's id
    #[arg(long)]
    id: String,
    /// The reason for the correction, which is stored in the journal
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub(super) async fn top_up(admin: &AdminArgs, args: &TopupArgs) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{}/topups", args.account);
    let body = json!({"id": args.id, "amount_rub": args.rubles});
    enter(admin, &path, &args.id, body).await
}

pub(super) async fn adjust(admin: &AdminArgs, args: &AdjustArgs) -> Result<(), Failure> {
    let path = format!("/admin/v1/accounts/{}/adjustments", args.account);
    let body = json!({"id": args.id, "amount_rub": args.rubles, "reason": args.reason});
    enter(admin, &path, &args.id, body).await
}

async fn enter(admin: &AdminArgs, path: &str, id: &str, body: Value) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let answer = client.call(Method::POST, path, Some(body)).await?;
    show::print(admin.json, &answer, |answer| facts(ACCOUNT, answer))?;
    if !admin.json {
        match answer["repeated"] == true {
            true => eprintln!("{id} was booked before, so nothing was booked now."),
            false => eprintln!(
                "{id} is booked. If you repeat the command with this id and account, nothing more is booked."
            ),
        }
    }
    Ok(())
}

/// Parses the amount of a payment, which must be above zero.
fn payment(text: &str) -> Result<MicroRub, String> {
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
        // The responses of other account commands contain no keys.
        assert_eq!(overview(&json!({"id": "acme"})), "account  acme\n");
    }

    #[test]
    fn negative_payment_is_refused_with_a_hint_to_the_adjust_command() {
        assert!(payment("-5").unwrap_err().contains("tollgate adjust"));
        assert!(!payment("0").unwrap_err().contains("tollgate adjust"));
        assert_eq!(payment("0.000001"), Ok(MicroRub::new(1)));
    }
}
