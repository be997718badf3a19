//! `tollgate code`: manages promo codes and invitations.

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};
use tollgate_layers::money::MicroRub;

use super::{
    AdminArgs,
    failure::Failure,
    show::{Cell, facts, rows, table},
};

#[derive(Debug, Subcommand)]
pub(super) enum CodeCommand {
    /// Create a code and print it; it cannot be shown again
    ///
    /// A promo code credits an existing account. With --opens-account, the code is an invitation instead: a person uses
    /// it to open an account. Invitations require cabinet.terms_url in the configuration.
    #[command(
        after_help = "Examples:\n  tollgate code create --amount 500 --uses 20 --expires 2027-01-31\n  \
                            tollgate code create --amount 0 --opens-account"
    )]
    Create {
        /// Amount that each use of the code credits, in rubles
        #[arg(long)]
        amount: MicroRub,
        /// Make the code an invitation, which opens an account
        #[arg(long)]
        opens_account: bool,
        /// Maximum number of accounts that may use the code
        #[arg(long, default_value_t = 1)]
        uses: u32,
        /// Date or RFC 3339 time at which the code expires
        #[arg(long)]
        expires: Option<String>,
    },
    /// List all codes by id; the codes themselves cannot be shown again
    #[command(after_help = "Example:\n  tollgate code list")]
    List,
    /// Make a code invalid
    #[command(after_help = "Example:\n  tollgate code remove 0123456789abcdef01234567")]
    Remove {
        /// The code's id
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
    let text = |answer: &Value| facts(&cells, answer);
    match command {
        CodeCommand::List => {
            let text = |answer: &Value| table(&cells, rows(answer, "codes"));
            admin.request(Method::GET, path, None, text).await
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
            admin.request(Method::POST, path, Some(body), text).await
        }
        CodeCommand::Remove { id } => {
            let path = format!("{path}/{}", crate::text::percent::encoded(&id));
            admin.request(Method::DELETE, &path, None, text).await
        }
    }
}
