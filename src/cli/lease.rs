//! `tollgate lease`: the gateways' leases, from which they grant holds without the shared ledger.

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
    /// List leases: account, gateway, amount, and until when the gateway may grant holds from it
    ///
    /// Lists the leases of all gateways on the ledger. Only the gateway that has a lease can report what running calls
    /// hold of it, so that amount is shown only if the command is sent to that gateway.
    #[command(
        after_help = "Examples:\n  tollgate lease list\n  tollgate lease list --account acme"
    )]
    List {
        /// Only this account
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
    Cell::rubles("by calls", "/calls_rub").or("not known to this gateway"),
    Cell::text("grants until", "/grants_until").or("nothing more"),
    Cell::text("since", "/since"),
];

pub(super) async fn lease(admin: &AdminArgs, command: LeaseCommand) -> Result<(), Failure> {
    let LeaseCommand::List { account } = command;
    let path = match &account {
        Some(account) => format!("/admin/v1/leases?account={account}"),
        None => "/admin/v1/leases".to_owned(),
    };
    let answer = Client::new(admin)?.call(Method::GET, &path, None).await?;
    let rows = rows(&answer, "leases");
    if rows.is_empty() && !admin.json {
        return show::write("no leases: the ledger itself makes the hold of every call\n");
    }
    show::print(admin.json, &answer, |_| table(LEASE_ROW, rows))
}
