//! `tollgate member`: the people who may sign in to an account's cabinet.

use clap::{Subcommand, ValueEnum};
use http::Method;
use serde_json::json;
use tollgate_layers::key::AccountId;

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, facts, rows, table},
};
use crate::members::MailAddress;

#[derive(Debug, Subcommand)]
pub(super) enum MemberCommand {
    /// Add a member, or change a member's role
    ///
    /// An owner does everything and manages the members; finance sees payments and statements and pays; a developer
    /// makes keys and sees no payments.
    #[command(after_help = "Example:\n  tollgate member add acme anna@acme.example --role owner")]
    Add {
        /// The account
        account: AccountId,
        /// The member's mail address
        #[arg(value_parser = mail)]
        mail: MailAddress,
        /// The role of the member
        #[arg(long)]
        role: RoleArg,
    },
    /// List an account's members
    #[command(after_help = "Example:\n  tollgate member list acme")]
    List {
        /// The account
        account: AccountId,
    },
    /// Remove a member, and end the member's sessions
    #[command(after_help = "Example:\n  tollgate member remove acme anna@acme.example")]
    Remove {
        /// The account
        account: AccountId,
        /// The member's mail address
        #[arg(value_parser = mail)]
        mail: MailAddress,
    },
}

/// A role, as the command line names it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum RoleArg {
    Owner,
    Finance,
    Developer,
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
    let client = Client::new(admin)?;
    let answer = match command {
        MemberCommand::List { account } => {
            let answer = client.call(Method::GET, &path(&account), None).await?;
            let rows = rows(&answer, "members");
            if rows.is_empty() && !admin.json {
                return show::write(&format!(
                    "no members yet; add one with: tollgate member add {account} <mail> --role owner\n"
                ));
            }
            return show::print(admin.json, &answer, |_| table(&cells, rows));
        }
        MemberCommand::Add {
            account,
            mail,
            role,
        } => {
            let role = match role {
                RoleArg::Owner => "owner",
                RoleArg::Finance => "finance",
                RoleArg::Developer => "developer",
            };
            let body = json!({ "mail": mail.as_str(), "role": role });
            client
                .call(Method::POST, &path(&account), Some(body))
                .await?
        }
        MemberCommand::Remove { account, mail } => {
            let path = format!("{}/{}", path(&account), mail.person());
            client.call(Method::DELETE, &path, None).await?
        }
    };
    show::print(admin.json, &answer, |answer| facts(&cells, answer))
}
