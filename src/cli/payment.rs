//! `tollgate payment`: each command sends one request to the admin API and prints the response.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};
use tollgate_layers::{key::AccountId, money::MicroRub};

use super::{
    AdminArgs,
    client::{Client, with_query},
    failure::Failure,
    show::{self, Cell, facts, rows, table},
};
use crate::{config::is_whole_kopecks, payments::IntentId};

#[derive(Debug, Subcommand)]
pub(super) enum PaymentCommand {
    /// Create a payment for a customer and print the link at which the customer pays
    ///
    /// The balance is credited as soon as the provider reports that the customer has paid. If the command is repeated
    /// with the same id, it returns the same payment.
    #[command(after_help = "Example:\n  tollgate payment create acme 5000")]
    Create {
        /// The account to credit
        account: AccountId,
        /// The amount, in rubles and whole kopecks
        #[arg(allow_negative_numbers = true, value_parser = amount)]
        rubles: MicroRub,
        /// The provider: yookassa, cloudpayments or stripe; required if several are configured
        #[arg(long)]
        provider: Option<String>,
        /// Email address to which the fiscal receipt is sent
        #[arg(long)]
        email: Option<String>,
        /// The payment's id, a UUID; a repeated command with this id returns the same payment
        #[arg(long)]
        id: Option<IntentId>,
    },
    /// Set up, show or remove automatic top-up by a saved card; setting it up prints the link of the payment that saves
    /// the card
    ///
    /// By making the payment at the printed link, the payer allows the provider to save the card. From then on, the
    /// card is charged --amount whenever the account's free money falls below --below, but at most --month-max in a
    /// calendar month. Without these options, the command shows the account's rule; without an account, it shows all
    /// rules.
    #[command(
        after_help = "Examples:\n  tollgate payment auto acme --below 500 --amount 2000 --month-max 20000\n  \
                      tollgate payment auto acme\n  tollgate payment auto acme --remove"
    )]
    Auto(AutoArgs),
    /// List payments, newest first, and the money that accounts owe for refunds
    #[command(after_help = "Example:\n  tollgate payment list --account acme --state open")]
    List {
        /// List only payments of this account
        #[arg(long)]
        account: Option<AccountId>,
        /// List only payments in this state: creating, open, paid, canceled or refused
        #[arg(long)]
        state: Option<String>,
    },
    /// Fetch a payment's state from the provider, and update the books accordingly
    ///
    /// Use this command if a notification of the provider was lost: the command has the effect of that notification. If
    /// the account owes money for a refund, that money is taken from the account's free money.
    #[command(
        after_help = "Example:\n  tollgate payment check 019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90"
    )]
    Check {
        /// The payment's id
        id: IntentId,
    },
}

/// Options of `tollgate payment auto`: the account and its rule.
#[derive(Debug, Args)]
pub(super) struct AutoArgs {
    /// Id of the account
    account: Option<AccountId>,
    /// Charge the card when the account's free money falls below this amount, in rubles
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true, value_parser = amount, requires = "amount", requires = "account")]
    below: Option<MicroRub>,
    /// Amount of each card charge, in rubles; at least --below
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true, value_parser = amount, requires = "month_max")]
    amount: Option<MicroRub>,
    /// Maximum that the card is charged in a calendar month, in rubles; at least --amount
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true, value_parser = amount, requires = "below")]
    month_max: Option<MicroRub>,
    /// The provider: yookassa, cloudpayments or stripe; required if several are configured
    #[arg(long, requires = "below")]
    provider: Option<String>,
    /// Email address to which fiscal receipts are sent
    #[arg(long, requires = "below")]
    email: Option<String>,
    /// Id of the payment that saves the card, a UUID; a repeated command with this id creates no second payment
    #[arg(long, requires = "below")]
    id: Option<IntentId>,
    /// Remove the account's rule and the saved card
    #[arg(long, conflicts_with_all = ["below", "resume"], requires = "account")]
    remove: bool,
    /// Resume automatic top-up after the card was declined too often
    #[arg(long, conflicts_with = "below", requires = "account")]
    resume: bool,
}

/// Parses an amount that providers accept: above zero and in whole kopecks.
fn amount(text: &str) -> Result<MicroRub, String> {
    let amount = text
        .parse::<MicroRub>()
        .map_err(|error| error.to_string())?;
    match amount > MicroRub::ZERO && is_whole_kopecks(amount) {
        true => Ok(amount),
        false => Err("must be 0.01 rubles or more, in whole kopecks".into()),
    }
}

const PAYMENT: &[Cell] = &[
    Cell::text("payment", "/id"),
    Cell::text("account", "/account"),
    Cell::rubles("amount", "/amount_rub"),
    Cell::text("state", "/state"),
    Cell::text("why", "/reason"),
    Cell::text("provider", "/provider"),
    Cell::text("payment at provider", "/payment"),
    Cell::text("made", "/created_at"),
    Cell::text("by", "/by"),
    Cell::text("top-up", "/entry"),
    Cell::rubles("debt", "/debt_rub"),
    Cell::text("link", "/url"),
];

const PAYMENT_ROW: &[Cell] = &[
    Cell::text("payment", "/id"),
    Cell::text("made", "/created_at"),
    Cell::text("account", "/account"),
    Cell::rubles("amount", "/amount_rub"),
    Cell::text("state", "/state"),
    Cell::rubles("debt", "/debt_rub"),
    Cell::text("top-up", "/entry").or("-"),
    Cell::text("why", "/reason").or("-"),
];

const RULE: &[Cell] = &[
    Cell::text("account", "/account"),
    Cell::text("status", "/status"),
    Cell::text("why", "/reason"),
    Cell::rubles("below", "/below_rub"),
    Cell::rubles("charge", "/amount_rub"),
    Cell::rubles("monthly maximum", "/month_max_rub"),
    Cell::rubles("charged this month", "/month_rub"),
    Cell::text("provider", "/provider"),
    Cell::text("card", "/card"),
    Cell::text("next try", "/next_try_at"),
    Cell::text("made", "/created_at"),
    Cell::text("by", "/by"),
    Cell::text("payment", "/payment"),
    Cell::text("link", "/url"),
];

const RULE_ROW: &[Cell] = &[
    Cell::text("account", "/account"),
    Cell::text("status", "/status"),
    Cell::rubles("below", "/below_rub"),
    Cell::rubles("charge", "/amount_rub"),
    Cell::rubles("monthly maximum", "/month_max_rub"),
    Cell::rubles("charged this month", "/month_rub"),
    Cell::text("provider", "/provider"),
    Cell::text("card", "/card").or("-"),
    Cell::text("why", "/reason").or("-"),
];

pub(super) async fn payment(admin: &AdminArgs, command: PaymentCommand) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let answer = match command {
        PaymentCommand::List { account, state } => {
            let account = account.map(|id| id.to_string());
            let parameters = [("account", account), ("state", state)];
            let path = with_query("/admin/v1/payments", parameters);
            return admin.request(Method::GET, &path, None, list).await;
        }
        PaymentCommand::Auto(args) => return auto(admin, &client, args).await,
        PaymentCommand::Create {
            account,
            rubles,
            provider,
            email,
            id,
        } => {
            let body = json!({"account": account, "amount_rub": rubles, "provider": provider, "email": email});
            request_payment(&client, Method::POST, "/admin/v1/payments", id, body).await?
        }
        PaymentCommand::Check { id } => {
            let path = format!("/admin/v1/payments/{id}/check");
            client.call(Method::POST, &path, None).await?
        }
    };
    show::print(admin.json, &answer, |answer| facts(PAYMENT, answer))
}

/// Shows, sets, removes or resumes the automatic top-up of an account; without an account, lists all rules.
async fn auto(admin: &AdminArgs, client: &Client, args: AutoArgs) -> Result<(), Failure> {
    let Some(account) = args.account else {
        let path = "/admin/v1/auto_topups";
        return admin.request(Method::GET, path, None, rules).await;
    };
    let path = format!("/admin/v1/accounts/{account}/auto_topup");
    let answer = match args.below {
        _ if args.remove => client.call(Method::DELETE, &path, None).await?,
        _ if args.resume => {
            let path = format!("{path}/resume");
            client.call(Method::POST, &path, None).await?
        }
        None => client.call(Method::GET, &path, None).await?,
        Some(below) => {
            let body = json!({
                "below_rub": below, "amount_rub": args.amount, "month_max_rub": args.month_max,
                "provider": args.provider, "email": args.email,
            });
            request_payment(client, Method::PUT, &path, args.id, body).await?
        }
    };
    show::print(admin.json, &answer, |answer| {
        if args.remove {
            return format!("account {account} is no longer topped up automatically\n");
        }
        facts(RULE, answer)
    })
}

/// Sends a request that creates a payment, with the fields of `body` that have a value. The command chooses the
/// payment's id if none is given, so that a repeated command can name the same payment. If it is unknown whether the
/// request took effect, the error text contains the id.
async fn request_payment(
    client: &Client,
    method: Method,
    path: &str,
    id: Option<IntentId>,
    mut body: Value,
) -> Result<Value, Failure> {
    let id = id.unwrap_or_default();
    body["id"] = json!(id);
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let requested = client.call(method, path, Some(body)).await;
    requested.map_err(|failure| match failure {
        Failure::OutOfReach(text) => Failure::OutOfReach(format!(
            "{text} (to repeat the same payment, add --id {id})"
        )),
        known => known,
    })
}

fn rules(answer: &Value) -> String {
    let rules = rows(answer, "auto_topups");
    if rules.is_empty() {
        return "no account has automatic top-up; to set it up, see tollgate payment auto --help\n"
            .to_owned();
    }
    table(RULE_ROW, rules)
}

fn list(answer: &Value) -> String {
    let payments = rows(answer, "payments");
    if payments.is_empty() {
        return "no payments yet; create one with: tollgate payment create ACCOUNT RUBLES\n"
            .to_owned();
    }
    let mut text = table(PAYMENT_ROW, payments);
    let left_out = answer["left_out"].as_u64().unwrap_or_default();
    if left_out > 0 {
        text.push_str(&format!("{left_out} older payments are not shown\n"));
    }
    if answer["debt_rub"]
        .as_str()
        .is_some_and(|debt| debt != "0.00")
    {
        let owed = [Cell::rubles("owed for refunds", "/debt_rub")];
        text.push_str(&facts(&owed, answer));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_up_rules_are_listed_with_the_amount_left_in_the_month() {
        let rule = json!({
            "account": "acme", "status": "on", "below_rub": "500.00", "amount_rub": "2000.00", "month_max_rub": "20000.00",
            "month_rub": "4000.00", "provider": "yookassa", "card": "····4242", "reason": null,
        });
        assert_eq!(
            rules(&json!({ "auto_topups": [rule] })),
            "ACCOUNT  STATUS  BELOW, ₽  CHARGE, ₽  MONTHLY MAXIMUM, ₽  CHARGED THIS MONTH, ₽  PROVIDER  CARD      WHY\n\
             acme     on        500.00    2000.00            20000.00                4000.00  yookassa  ····4242  -\n"
        );
        assert!(rules(&json!({ "auto_topups": [] })).contains("tollgate payment auto"));
    }

    #[test]
    fn payments_are_listed_with_their_debt() {
        let payment = json!({
            "id": "p", "created_at": "2027-01-31T00:00:00Z", "account": "acme", "amount_rub": "5000.00",
            "state": "paid", "debt_rub": "12.50", "entry": "yookassa:1",
        });
        let answer = json!({ "payments": [payment], "left_out": 2, "debt_rub": "12.50" });
        assert_eq!(
            list(&answer),
            "PAYMENT  MADE                  ACCOUNT  AMOUNT, ₽  STATE  DEBT, ₽  TOP-UP      WHY\n\
             p        2027-01-31T00:00:00Z  acme       5000.00  paid     12.50  yookassa:1  -\n\
             2 older payments are not shown\n\
             owed for refunds  12.50 ₽\n"
        );
        assert!(list(&json!({ "payments": [] })).contains("tollgate payment create"));
    }
}
