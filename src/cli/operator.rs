//! `tollgate operator`: manages the operators who may sign in to the console with a name and a password. It edits the
//! operators' file, and sends no request to a gateway.

use std::{
    io::{self, BufRead as _},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::json;

use super::{failure::Failure, show};
use crate::operators::{Named, Operators, PASSWORD_CHARS_MIN, Role};

#[derive(Debug, Subcommand)]
pub(super) enum OperatorCommand {
    /// Add an operator and print the generated password; it cannot be shown again
    ///
    /// If an operator with this name exists, the command replaces the password and the role, and ends all sessions of
    /// this operator.
    #[command(
        after_help = "Examples:\n  tollgate operator create anna --role finance --file /etc/tollgate/operators.toml\n  \
                            tollgate operator create anna --role finance --file operators.toml --password-stdin <password"
    )]
    Create {
        /// The operator's name: letters, digits, '.', '-', '_' and '@'
        name: String,
        /// The operator's role: read, finance, support or admin
        #[arg(long)]
        role: Role,
        /// Read the password from the first line of standard input (12 characters or more), instead of generating one
        #[arg(long)]
        password_stdin: bool,
        #[command(flatten)]
        place: FileArgs,
    },
    /// List operators and their roles
    #[command(
        after_help = "Example:\n  tollgate operator list --file /etc/tollgate/operators.toml"
    )]
    List {
        #[command(flatten)]
        place: FileArgs,
    },
    /// Remove an operator; the operator's sessions end at their next request
    #[command(
        after_help = "Example:\n  tollgate operator delete anna --file /etc/tollgate/operators.toml"
    )]
    Delete {
        /// The operator's name
        name: String,
        #[command(flatten)]
        place: FileArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// The operators' file, which admin.operators_file in the configuration names
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl OperatorCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Create {
                name,
                role,
                password_stdin,
                place,
            } => create(&name, role, password_stdin, &place),
            Self::List { place } => list(&place),
            Self::Delete { name, place } => delete(&name, &place),
        }
    }
}

fn create(name: &str, role: Role, from_stdin: bool, place: &FileArgs) -> Result<(), Failure> {
    let operators = read(&place.file)?;
    let (password, shown) = if from_stdin {
        (typed()?, None)
    } else {
        let made = made()?;
        (made.clone(), Some(made))
    };
    let one = Named::new(name, role, &password)
        .map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
    write(&operators.with(one), &place.file)?;
    let mut reported = json!({ "name": name, "role": role.as_str() });
    let mut text = format!("{name} may sign in as {role}\n");
    if let Some(password) = shown {
        text += &format!("password: {password}\nThe password is shown only this once.\n");
        reported["password"] = password.into();
    }
    show::print(place.json, &reported, |_| text)
}

fn list(place: &FileArgs) -> Result<(), Failure> {
    let operators = read_one_that_is_there(&place.file)?;
    let row = |one: &Named| json!({ "name": one.name, "role": one.role.as_str() });
    let rows: Vec<_> = operators.iter().map(row).collect();
    show::print(place.json, &json!({ "operators": rows }), |_| {
        let rows = operators.iter();
        rows.map(|one| format!("{}  {}\n", one.name, one.role))
            .collect()
    })
}

fn delete(name: &str, place: &FileArgs) -> Result<(), Failure> {
    let operators = read_one_that_is_there(&place.file)?;
    let left = operators.without(name).ok_or_else(|| {
        Failure::Refused(format!(
            "there is no operator {name} in {}: `tollgate operator list` lists the operators",
            place.file.display()
        ))
    })?;
    write(&left, &place.file)?;
    show::write(&format!("{name} can no longer sign in\n"))
}

/// Reads the operators' file, which must exist. Only `create` may make the file: for other commands, a missing file
/// means a mistyped path.
fn read_one_that_is_there(path: &Path) -> Result<Operators, Failure> {
    if !path.exists() {
        return Err(Failure::Io(format!(
            "{}: the file does not exist; `tollgate operator create` creates it",
            path.display()
        )));
    }
    read(path)
}

fn read(path: &Path) -> Result<Operators, Failure> {
    Operators::read(path).map_err(|error| {
        let text = format!("{}: {error}", path.display());
        // `InvalidData` means that the file was read, but its content is not UTF-8 text.
        let unreadable = |error: &io::Error| error.kind() != io::ErrorKind::InvalidData;
        match error.downcast_ref().is_some_and(unreadable) {
            true => Failure::Io(text),
            false => Failure::Data(text),
        }
    })
}

fn write(operators: &Operators, path: &Path) -> Result<(), Failure> {
    let written = operators.write(path);
    written.map_err(|error| Failure::of_file(path, &error))
}

fn typed() -> Result<String, Failure> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::Io(format!("standard input: {error}")))?;
    let password = line.trim_end_matches(['\r', '\n']).to_owned();
    if password.chars().count() < PASSWORD_CHARS_MIN {
        return Err(Failure::Usage(format!(
            "the password on standard input has fewer than {PASSWORD_CHARS_MIN} characters"
        )));
    }
    Ok(password)
}

/// Returns a generated password: 120 random bits, in groups that are easy to type.
fn made() -> Result<String, Failure> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Internal(format!("the system gave no random bytes: {error}")))?;
    let letters = bytes.map(|byte| char::from(LETTERS[usize::from(byte % 32)]));
    let groups = letters.chunks(6).map(String::from_iter);
    Ok(groups.collect::<Vec<_>>().join("-"))
}
