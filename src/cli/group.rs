//! `tollgate group`: groups of an account's keys that spend under shared ceilings.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value};
use tollgate_layers::key::{AccountId, GroupId};

use super::{
    AdminArgs,
    ceilings::{self, Ceilings, NoCeilings},
    failure::Failure,
    show::{Cell, facts},
};

#[derive(Debug, Subcommand)]
pub(super) enum GroupCommand {
    /// Create a group of keys
    ///
    /// The keys of a group together may spend at most the group's ceilings; each key's own ceilings apply as well. To
    /// put a key into a group, use `tollgate key create --group` or `tollgate key set --group`.
    #[command(
        after_help = "Example:\n  tollgate group create acme support --name Support --ceiling-month 5000"
    )]
    Create {
        /// The account whose keys the group may contain
        account: AccountId,
        /// The group's id, unique in its account
        group: GroupId,
        #[command(flatten)]
        ceilings: GroupCeilings,
    },
    /// List an account's groups, including removed ones
    #[command(after_help = "Example:\n  tollgate group list acme")]
    List {
        /// Id of the account
        account: AccountId,
    },
    /// Change a group's name and ceilings; options that are not given change nothing
    #[command(
        after_help = "Example:\n  tollgate group update acme support --ceiling-day 200 --no-ceiling-month"
    )]
    Update {
        /// Id of the account
        account: AccountId,
        /// Id of the group
        group: GroupId,
        #[command(flatten)]
        ceilings: GroupCeilings,
        #[command(flatten)]
        without: NoCeilings,
    },
    /// Remove a group permanently; all its keys must have left it before
    #[command(after_help = "Example:\n  tollgate group remove acme support")]
    Remove {
        /// Id of the account
        account: AccountId,
        /// Id of the group
        group: GroupId,
    },
}

/// Options for a group's name and ceilings.
#[derive(Debug, Args)]
pub(super) struct GroupCeilings {
    /// The group's name, for display
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    ceilings: Ceilings,
}

fn group_cells() -> Vec<Cell> {
    let before = [
        Cell::text("id", "/id"),
        Cell::text("name", "/name"),
        Cell::text("status", "/status"),
    ];
    let after = [
        Cell::rubles("held", "/held_rub"),
        Cell::rubles("free", "/free_rub"),
    ];
    ceilings::cells(&before, &after)
}

pub(super) async fn group(admin: &AdminArgs, command: GroupCommand) -> Result<(), Failure> {
    let (method, path, body) = match command {
        GroupCommand::List { account } => {
            let path = path_of(&account, None);
            let none =
                format!("no groups yet; create one with: tollgate group create {account} <id>\n");
            return admin.list(&path, "groups", &group_cells(), &none).await;
        }
        GroupCommand::Create {
            account,
            group,
            ceilings,
        } => {
            let mut body = given(ceilings);
            body.insert("id".into(), group.to_string().into());
            (Method::POST, path_of(&account, None), Some(body))
        }
        GroupCommand::Update {
            account,
            group,
            ceilings,
            without,
        } => {
            let mut body = given(ceilings);
            let removed = without.fields();
            body.extend(removed.map(|field| (field.to_owned(), Value::Null)));
            if body.is_empty() {
                return Err(Failure::Usage(format!(
                    "nothing to change in group {group}: give an option, for example --ceiling-day 100 (see tollgate group update --help)"
                )));
            }
            (Method::PATCH, path_of(&account, Some(&group)), Some(body))
        }
        GroupCommand::Remove { account, group } => {
            (Method::DELETE, path_of(&account, Some(&group)), None)
        }
    };
    let text = |answer: &Value| facts(&group_cells(), answer);
    admin
        .request(method, &path, body.map(Value::Object), text)
        .await
}

fn path_of(account: &AccountId, group: Option<&GroupId>) -> String {
    let groups = format!("/admin/v1/accounts/{account}/groups");
    match group {
        None => groups,
        Some(group) => format!("{groups}/{group}"),
    }
}

/// Returns the options that the command line gives, as fields of the API.
fn given(options: GroupCeilings) -> Map<String, Value> {
    let name = options.name.map(|name| ("name", name.into()));
    let all = options.ceilings.given().chain(name);
    all.map(|(field, value)| (field.to_owned(), value))
        .collect()
}
