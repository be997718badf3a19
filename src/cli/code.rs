//! `tollgate code`: promo codes and invitations.

use clap::Subcommand;
use http::Method;
use serde_json::json;
use tollgate_layers::money::MicroRub;

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, facts, rows, table},
};

#[derive(Debug, Subcommand)]
pub(super) enum CodeCommand {
    /// Make a code, and print it once
    ///
    /// A promo code credits an account that exists; with --opens-account, the code is an invitation: a person signs up
    /// with it, if cabinet.terms_url is set.
    #[command(
        after_help = "Examples:\n  tollgate code create --amount 500 --uses 20 --expires 2027-01-31\n  \
                            tollgate code create --amount 0 --opens-account"
    )]
    Create {
        /// Amount that each use credits, in rubles
        #[arg(long)]
        amount: MicroRub,
        /// Makes an invitation, which opens an account
        #[arg(long)]
        opens_account: bool,
        /// How many accounts may use it
        #[arg(long, default_value_t = 1)]
        uses: u32,
        /// The time from which it is not valid, as a date or RFC 3339
        #[arg(long)]
        expires: Option<String>,
    },
    /// List all codes, without the codes themselves
    #[command(after_help = "Example:\n  tollgate code list")]
    List,
    /// Make a code invalid
    #[command(after_help = "Example:\n  tollgate code remove 0123456789abcdef01234567")]
    Remove {
        /// The id of the code
        id: String,
    },
}

pub(super) async fn code(admin: &AdminArgs, command: CodeCommand) -> Result<(), Failure> {
    let cells = [
        Cell::text("id", "/id"),
        Cell::text("code", "/code"),
        Cell::rubles("amount", "/amount_rub"),
        Cell::text("opens account", "/opens_account"),
        Cell::text("uses", "/uses_max"),
        Cell::text("expires", "/expires_at"),
    ];
    let path = "/admin/v1/codes";
    let client = Client::new(admin)?;
    let answer = match command {
        CodeCommand::List => {
            let answer = client.call(Method::GET, path, None).await?;
            let rows = rows(&answer, "codes");
            return show::print(admin.json, &answer, |_| table(&cells, rows));
        }
        CodeCommand::Create {
            amount,
            opens_account,
            uses,
            expires,
        } => {
            let mut body = json!({
                "amount_rub": amount.to_string(), "opens_account": opens_account, "uses_max": uses,
            });
            if let Some(expires) = expires {
                body["expires_at"] = expires.into();
            }
            client.call(Method::POST, path, Some(body)).await?
        }
        CodeCommand::Remove { id } => {
            let path = format!("{path}/{}", crate::admin::path_segment(&id));
            client.call(Method::DELETE, &path, None).await?
        }
    };
    show::print(admin.json, &answer, |answer| facts(&cells, answer))
}
