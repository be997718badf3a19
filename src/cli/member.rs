//! `tollgate member`: manages the people who may sign in to an account's cabinet.

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};
use tollgate_layers::key::AccountId;

use super::{
    AdminArgs,
    failure::Failure,
    show::{Cell, facts},
};
use crate::members::MailAddress;

#[derive(Debug, Subcommand)]
pub(super) enum MemberCommand {
    /// Add a member, or change a member's role
    ///
    /// An owner may do everything, and manages the members. A member with the role finance sees payments and
    /// statements, and pays. A developer creates keys, and sees no payments.
    #[command(after_help = "Example:\n  tollgate member add acme anna@acme.example --role owner")]
    Add {
        /// Id of the account
        account: AccountId,
        /// The member's email address
        #[arg(value_parser = mail)]
        mail: MailAddress,
        /// The role of the member
        #[arg(long, value_parser = ["owner", "finance", "developer"])]
        role: String,
    },
    /// List an account's members
    #[command(after_help = "Example:\n  tollgate member list acme")]
    List {
        /// Id of the account
        account: AccountId,
    },
    /// Remove a member and end the member's sessions
    #[command(after_help = "Example:\n  tollgate member remove acme anna@acme.example")]
    Remove {
        /// Id of the account
        account: AccountId,
        /// The member's email address
        #[arg(value_parser = mail)]
        mail: MailAddress,
    },
}

fn mail(text: &str) -> Result<MailAddress, String> {
    text.parse().map_err(str::to_owned)
}

pub(super) async fn member(admin: &AdminArgs, command: MemberCommand) -> Result<(), Failure> {
    let cells = [
        Cell::text("mail", "/mail"),
        Cell::text("role", "/role"),
        Cell::text("added", "/added_at"),
        Cell::text("id", "/id"),
    ];
    let path = |account: &AccountId| format!("/admin/v1/accounts/{account}/members");
    let text = |answer: &Value| facts(&cells, answer);
    match command {
        MemberCommand::List { account } => {
            let none = format!(
                "no members yet; add one with: tollgate member add {account} <mail> --role owner\n"
            );
            admin.list(&path(&account), "members", &cells, &none).await
        }
        MemberCommand::Add {
            account,
            mail,
            role,
        } => {
            let body = json!({ "mail": mail.as_str(), "role": role });
            let path = path(&account);
            admin.request(Method::POST, &path, Some(body), text).await
        }
        MemberCommand::Remove { account, mail } => {
            let path = format!("{}/{}", path(&account), mail.person());
            admin.request(Method::DELETE, &path, None, text).await
        }
    }
}
