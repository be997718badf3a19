//! `tollgate group`: groups of an account's keys that spend under shared ceilings.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value};
use tollgate_layers::key::{AccountId, GroupId};

use super::{
    AdminArgs,
    ceilings::{self, Ceilings, NoCeilings},
    client::Client,
    failure::Failure,
    show::{self, Cell, facts, rows, table},
};

#[derive(Debug, Subcommand)]
pub(super) enum GroupCommand {
    /// Make a group of keys
    ///
    /// Its keys share the group's ceilings; each key's own ceilings apply too. Put keys into it with
    /// `tollgate key create --group` and `tollgate key set --group`.
    #[command(
        after_help = "Example:\n  tollgate group create acme support --name Support --ceiling-month 5000"
    )]
    Create {
        /// The account whose keys it is for
        account: AccountId,
        /// The group's id, unique in its account
        group: GroupId,
        #[command(flatten)]
        ceilings: GroupCeilings,
    },
    /// List an account's groups, including removed ones
    #[command(after_help = "Example:\n  tollgate group list acme")]
    List {
        /// The account
        account: AccountId,
    },
    /// Change a group's name and ceilings; options not given leave their values unchanged
    #[command(
        after_help = "Example:\n  tollgate group update acme support --ceiling-day 200 --no-ceiling-month"
    )]
    Update {
        /// The account
        account: AccountId,
        /// The group
        group: GroupId,
        #[command(flatten)]
        ceilings: GroupCeilings,
        #[command(flatten)]
        without: NoCeilings,
    },
    /// Remove a group for good; none of its keys may be left
    #[command(after_help = "Example:\n  tollgate group remove acme support")]
    Remove {
        /// The account
        account: AccountId,
        /// The group
        group: GroupId,
    },
}

/// A group's name and ceilings, as options.
#[derive(Debug, Args)]
pub(super) struct GroupCeilings {
    /// A name, for people
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    ceilings: Ceilings,
}

/// Returns the cells that are printed of a group. The group's keys share the ceilings.
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
        GroupCommand::List { account } => return list_groups(admin, &account).await,
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
            body.extend(
                without
                    .fields()
                    .map(|field| (field.to_owned(), Value::Null)),
            );
            if body.is_empty() {
                return Err(Failure::Usage(format!(
                    "nothing to change on {group}: name a ceiling, like --ceiling-day 100 (tollgate group update --help)"
                )));
            }
            (Method::PATCH, path_of(&account, Some(&group)), Some(body))
        }
        GroupCommand::Remove { account, group } => {
            (Method::DELETE, path_of(&account, Some(&group)), None)
        }
    };
    let answer = Client::new(admin)?
        .call(method, &path, body.map(Value::Object))
        .await?;
    show::print(admin.json, &answer, |answer| facts(&group_cells(), answer))
}

async fn list_groups(admin: &AdminArgs, account: &AccountId) -> Result<(), Failure> {
    let path = path_of(account, None);
    let answer = Client::new(admin)?.call(Method::GET, &path, None).await?;
    let rows = rows(&answer, "groups");
    if rows.is_empty() && !admin.json {
        return show::write(&format!(
            "no groups yet; make one with: tollgate group create {account} <id>\n"
        ));
    }
    show::print(admin.json, &answer, |_| table(&group_cells(), rows))
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
