//! `tollgate lease`: what gateways hold by themselves.

use clap::Subcommand;
use http::Method;
use tollgate_layers::key::AccountId;

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, rows, table},
};

#[derive(Debug, Subcommand)]
pub(super) enum LeaseCommand {
    /// List leases: whose money, which gateway has it, how much, and until when it may grant from it
    ///
    /// Of all gateways on the ledger. What running calls hold of a lease is known to the gateway that has it, and shown
    /// where that one answers.
    #[command(
        after_help = "Examples:\n  tollgate lease list\n  tollgate lease list --account acme"
    )]
    List {
        /// This account only
        #[arg(long)]
        account: Option<AccountId>,
    },
}

const LEASE_ROW: &[Cell] = &[
    Cell::text("account", "/account"),
    Cell::text("key", "/key"),
    Cell::text("lease", "/number"),
    Cell::text("owner", "/owner"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("by calls", "/calls_rub").or("not known here"),
    Cell::text("grants until", "/grants_until").or("nothing more"),
    Cell::text("since", "/since"),
];

pub(super) async fn lease(reach: &AdminArgs, command: LeaseCommand) -> Result<(), Failure> {
    let LeaseCommand::List { account } = command;
    let path = match &account {
        Some(account) => format!("/admin/v1/leases?account={account}"),
        None => "/admin/v1/leases".to_owned(),
    };
    let answer = Client::new(reach)?.call(Method::GET, &path, None).await?;
    let rows = rows(&answer, "leases");
    if rows.is_empty() && !reach.json {
        return show::write("no leases: every call is held for by the ledger itself\n");
    }
    show::print(reach.json, &answer, |_| table(LEASE_ROW, rows))
}
