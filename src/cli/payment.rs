//! `tollgate payment`: one call of the admin API per command, and how its answer is printed.

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};
use tollgate_layers::{key::AccountId, money::MicroRub};

use super::{
    AdminArgs,
    client::{Client, encoded},
    failure::Failure,
    show::{self, Cell, facts, rows, table},
};
use crate::{config::is_whole_kopecks, payments::IntentId};

#[derive(Debug, Subcommand)]
pub(super) enum PaymentCommand {
    /// Create a payment for a customer and print the link to pay by
    ///
    /// The balance is credited as soon as the provider reports the payment. Repeating the command with the same id
    /// gives the same payment.
    #[command(after_help = "Example:\n  tollgate payment create acme 5000")]
    Create {
        /// The account to credit
        account: AccountId,
        /// The amount, in rubles and whole kopecks
        #[arg(allow_negative_numbers = true, value_parser = amount)]
        rubles: MicroRub,
        /// The provider, if several are configured: yookassa, cloudpayments or stripe
        #[arg(long)]
        provider: Option<String>,
        /// The address for the fiscal receipt
        #[arg(long)]
        email: Option<String>,
        /// The payment's id, a UUID; the same id gives the same payment
        #[arg(long)]
        id: Option<IntentId>,
    },
    /// Set up automatic top-up by a card that the provider keeps: prints the link by which the payer agrees
    ///
    /// By paying, the payer lets the provider keep the card. From then on the card is charged --amount when less than
    /// --below is free, at most --month-max in a calendar month. Without these options the rule is shown; without an
    /// account, all rules.
    #[command(
        after_help = "Examples:\n  tollgate payment auto acme --below 500 --amount 2000 --month-max 20000\n  \
                      tollgate payment auto acme\n  tollgate payment auto acme --remove"
    )]
    Auto {
        /// The account
        account: Option<AccountId>,
        /// Charge the card when less than this is left, in rubles
        #[arg(long, value_name = "RUBLES", allow_negative_numbers = true, value_parser = amount, requires = "amount", requires = "account")]
        below: Option<MicroRub>,
        /// The amount of one charge, in rubles; at least --below
        #[arg(long, value_name = "RUBLES", allow_negative_numbers = true, value_parser = amount, requires = "month_max")]
        amount: Option<MicroRub>,
        /// The most to charge in a calendar month, in rubles; at least --amount
        #[arg(long, value_name = "RUBLES", allow_negative_numbers = true, value_parser = amount, requires = "below")]
        month_max: Option<MicroRub>,
        /// The provider, if several are configured: yookassa, cloudpayments or stripe
        #[arg(long, requires = "below")]
        provider: Option<String>,
        /// The address for fiscal receipts
        #[arg(long, requires = "below")]
        email: Option<String>,
        /// The id of the payment that saves the card, a UUID; the same id gives the same payment
        #[arg(long, requires = "below")]
        id: Option<IntentId>,
        /// Remove the rule, and forget the card
        #[arg(long, conflicts_with_all = ["below", "resume"], requires = "account")]
        remove: bool,
        /// Charge the card again after it was declined too often
        #[arg(long, conflicts_with = "below", requires = "account")]
        resume: bool,
    },
    /// List payments, latest first, and what is owed for refunds
    #[command(after_help = "Example:\n  tollgate payment list --account acme --state open")]
    List {
        /// Only of this account
        #[arg(long)]
        account: Option<AccountId>,
        /// Only those that are creating, open, paid, canceled or refused
        #[arg(long)]
        state: Option<String>,
    },
    /// Get the payment's state from the provider, and book it
    ///
    /// Does what the provider's notification would do, if that was lost. If the account owes money for a refund, takes
    /// what is free by now.
    #[command(
        after_help = "Example:\n  tollgate payment check 019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90"
    )]
    Check {
        /// The payment's id
        id: IntentId,
    },
}

/// Parses an amount that providers accept: above zero, in whole kopecks.
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
    Cell::text("its payment", "/payment"),
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
            let params = [
                ("account", account.map(|id| id.to_string())),
                ("state", state),
            ];
            let params: Vec<String> = params
                .into_iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", encoded(&value?))))
                .collect();
            let path = format!("/admin/v1/payments?{}", params.join("&"));
            let answer = client.call(Method::GET, &path, None).await?;
            return show::print(admin.json, &answer, list);
        }
        command @ PaymentCommand::Auto { .. } => return auto(admin, &client, command).await,
        PaymentCommand::Create {
            account,
            rubles,
            provider,
            email,
            id,
        } => {
            // The command chooses the id, so that a repeated command can name the same payment.
            let id = id.unwrap_or_default();
            let mut body = json!({"id": id, "account": account, "amount_rub": rubles});
            add(&mut body, [("provider", provider), ("email", email)]);
            let requested = client
                .call(Method::POST, "/admin/v1/payments", Some(body))
                .await;
            requested.map_err(|failure| repeatable(failure, id))?
        }
        PaymentCommand::Check { id } => {
            let path = format!("/admin/v1/payments/{id}/check");
            client.call(Method::POST, &path, None).await?
        }
    };
    show::print(admin.json, &answer, |answer| facts(PAYMENT, answer))
}

/// Shows, sets, removes or resumes rules of automatic top-up.
async fn auto(admin: &AdminArgs, client: &Client, command: PaymentCommand) -> Result<(), Failure> {
    let PaymentCommand::Auto {
        account: Some(account),
        below,
        amount,
        month_max,
        provider,
        email,
        id,
        remove,
        resume,
    } = command
    else {
        let answer = client
            .call(Method::GET, "/admin/v1/auto_topups", None)
            .await?;
        return show::print(admin.json, &answer, rules);
    };
    let path = format!("/admin/v1/accounts/{account}/auto_topup");
    let answer = match below {
        _ if remove => client.call(Method::DELETE, &path, None).await?,
        _ if resume => {
            let path = format!("{path}/resume");
            client.call(Method::POST, &path, None).await?
        }
        None => client.call(Method::GET, &path, None).await?,
        Some(below) => {
            // The command chooses the id, so that a repeated command can name the same payment.
            let id = id.unwrap_or_default();
            let mut body = json!({
                "id": id, "below_rub": below, "amount_rub": amount, "month_max_rub": month_max,
            });
            add(&mut body, [("provider", provider), ("email", email)]);
            let requested = client.call(Method::PUT, &path, Some(body)).await;
            requested.map_err(|failure| repeatable(failure, id))?
        }
    };
    show::print(admin.json, &answer, |answer| {
        if remove {
            return format!("{account} is no longer topped up by a card\n");
        }
        facts(RULE, answer)
    })
}

/// If the outcome is unknown, adds the payment's id to the error: the command may have generated the id, which is
/// needed to repeat the command.
fn repeatable(failure: Failure, id: IntentId) -> Failure {
    match failure {
        Failure::OutOfReach(text) => {
            Failure::OutOfReach(format!("{text} (the same payment again: --id {id})"))
        }
        known => known,
    }
}

fn add(body: &mut Value, fields: [(&str, Option<String>); 2]) {
    for (name, value) in fields {
        if let Some(value) = value {
            body[name] = value.into();
        }
    }
}

fn rules(answer: &Value) -> String {
    let rules = rows(answer, "auto_topups");
    if rules.is_empty() {
        return "no account is topped up by a card; see tollgate payment auto --help\n".to_owned();
    }
    table(RULE_ROW, rules)
}

fn list(answer: &Value) -> String {
    let payments = rows(answer, "payments");
    if payments.is_empty() {
        return "no payments; ask for one with: tollgate payment create ACCOUNT RUBLES\n"
            .to_owned();
    }
    let mut text = table(PAYMENT_ROW, payments);
    let left_out = answer["left_out"].as_u64().unwrap_or_default();
    if left_out > 0 {
        text.push_str(&format!("and {left_out} older ones\n"));
    }
    if answer["debt_rub"]
        .as_str()
        .is_some_and(|debt| debt != "0.00")
    {
        text.push_str(&facts(
            &[Cell::rubles("owed for refunds", "/debt_rub")],
            answer,
        ));
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
             and 2 older ones\n\
             owed for refunds  12.50 ₽\n"
        );
        assert!(list(&json!({ "payments": [] })).contains("tollgate payment create"));
    }
}
