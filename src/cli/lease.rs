//! `tollgate lease`: lists leases. From a lease, a gateway grants holds without a request to the shared ledger.

use clap::Subcommand;
use tollgate_layers::key::AccountId;

use super::{AdminArgs, client::with_query, failure::Failure, show::Cell};

#[derive(Debug, Subcommand)]
pub(super) enum LeaseCommand {
    /// List leases: account, gateway, amount, and until when the gateway may grant holds from the lease
    ///
    /// Lists the leases of all gateways on the ledger. How much of a lease the calls in flight hold is known only to
    /// the gateway that has the lease. To see that amount, send the command to this gateway.
    #[command(
        after_help = "Examples:\n  tollgate lease list\n  tollgate lease list --account acme"
    )]
    List {
        /// List only leases of this account
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
    let account = account.map(|account| account.to_string());
    let path = with_query("/admin/v1/leases", [("account", account)]);
    let none = "no leases: the ledger itself makes the hold of each call\n";
    admin.list(&path, "leases", LEASE_ROW, none).await
}
