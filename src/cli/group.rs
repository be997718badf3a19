//! `tollgate group`: keys of an account that spend under shared ceilings.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value};
use tollgate_layers::{
    key::{AccountId, GroupId},
    money::MicroRub,
};

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, facts, rows, table},
};

#[derive(Debug, Subcommand)]
pub(super) enum GroupCommand {
    /// Make a group of keys
    ///
    /// Its keys spend together what its ceilings allow, each besides what its own allow. Put keys into it with
    /// `tollgate key create --group` and `tollgate key set --group`.
    #[command(
        after_help = "Example:\n  tollgate group create acme support --name Support --ceiling-month 5000"
    )]
    Create {
        /// The account whose keys it is for
        account: AccountId,
        /// The group's id, once in its account
        group: GroupId,
        #[command(flatten)]
        ceilings: GroupCeilings,
    },
    /// List an account's groups, removed ones too
    #[command(after_help = "Example:\n  tollgate group list acme")]
    List {
        /// The account
        account: AccountId,
    },
    /// Change a group's name and ceilings; what is not named stays
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
        /// Take the ceiling away
        #[arg(long, conflicts_with = "ceiling")]
        no_ceiling: bool,
        /// Take the ceiling of a month away
        #[arg(long, conflicts_with = "ceiling_month")]
        no_ceiling_month: bool,
        /// Take the ceiling of a day away
        #[arg(long, conflicts_with = "ceiling_day")]
        no_ceiling_day: bool,
    },
    /// Remove a group for good, once none of its keys is left
    #[command(after_help = "Example:\n  tollgate group remove acme support")]
    Remove {
        /// The account
        account: AccountId,
        /// The group
        group: GroupId,
    },
}

/// What a group may be given.
#[derive(Debug, Args)]
pub(super) struct GroupCeilings {
    /// A name, for people
    #[arg(long)]
    name: Option<String>,
    /// The most that its keys may spend together in all
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true)]
    ceiling: Option<MicroRub>,
    /// The most that they may spend in a month of UTC
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true)]
    ceiling_month: Option<MicroRub>,
    /// The most that they may spend in a day of UTC
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true)]
    ceiling_day: Option<MicroRub>,
}

const GROUP: &[Cell] = &[
    Cell::text("id", "/id"),
    Cell::text("name", "/name"),
    Cell::text("status", "/status"),
    Cell::rubles("ceiling", "/ceiling_rub").or("none"),
    Cell::rubles("spent", "/spent_rub"),
    Cell::rubles("ceiling of a month", "/ceiling_month_rub").or("none"),
    Cell::rubles("spent this month", "/spent_month_rub"),
    Cell::rubles("ceiling of a day", "/ceiling_day_rub").or("none"),
    Cell::rubles("spent today", "/spent_day_rub"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("free", "/free_rub"),
];

pub(super) async fn group(reach: &AdminArgs, command: GroupCommand) -> Result<(), Failure> {
    let (method, path, body) = match command {
        GroupCommand::List { account } => return list_groups(reach, &account).await,
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
            no_ceiling,
            no_ceiling_month,
            no_ceiling_day,
        } => {
            let mut body = given(ceilings);
            for (taken_away, field) in [
                (no_ceiling, "ceiling_rub"),
                (no_ceiling_month, "ceiling_month_rub"),
                (no_ceiling_day, "ceiling_day_rub"),
            ] {
                if taken_away {
                    body.insert(field.into(), Value::Null);
                }
            }
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
    let answer = Client::new(reach)?
        .call(method, &path, body.map(Value::Object))
        .await?;
    show::print(reach.json, &answer, |answer| facts(GROUP, answer))
}

async fn list_groups(reach: &AdminArgs, account: &AccountId) -> Result<(), Failure> {
    let path = path_of(account, None);
    let answer = Client::new(reach)?.call(Method::GET, &path, None).await?;
    let rows = rows(&answer, "groups");
    if rows.is_empty() && !reach.json {
        return show::write(&format!(
            "no groups yet; make one with: tollgate group create {account} <id>\n"
        ));
    }
    show::print(reach.json, &answer, |_| table(GROUP, rows))
}

fn path_of(account: &AccountId, group: Option<&GroupId>) -> String {
    let groups = format!("/admin/v1/accounts/{account}/groups");
    match group {
        None => groups,
        Some(group) => format!("{groups}/{group}"),
    }
}

/// What was named, as the fields of the API.
fn given(ceilings: GroupCeilings) -> Map<String, Value> {
    let GroupCeilings {
        name,
        ceiling,
        ceiling_month,
        ceiling_day,
    } = ceilings;
    let rubles = |amount: Option<MicroRub>| amount.map(|amount| Value::from(amount.to_string()));
    [
        ("name", name.map(Value::from)),
        ("ceiling_rub", rubles(ceiling)),
        ("ceiling_month_rub", rubles(ceiling_month)),
        ("ceiling_day_rub", rubles(ceiling_day)),
    ]
    .into_iter()
    .filter_map(|(field, value)| Some((field.to_owned(), value?)))
    .collect()
}
