//! The operators file: named operators with their roles and the digests of their passwords.
//!
//! ```toml
//! [[operator]]
//! name = "anna"
//! role = "finance"
//! password = "$argon2id$v=19$m=19456,t=2,p=1$…"
//!
//! [[invitation]]
//! name = "boris"
//! role = "support"
//! token = "…"          # SHA-256 of the link's token
//! expires_at = "2026-12-02T10:00:00Z"
//! ```

use std::{
    fmt::Write as _,
    fs, io,
    path::Path,
    sync::{Mutex, PoisonError},
};

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tollgate_layers::error::BoxError;

use super::role::Role;
use crate::{
    net::replace::replace_file,
    text::{
        hex::{hex, random},
        time::{parse_rfc3339_ms, rfc3339},
    },
};

/// The maximum number of operators in a file.
pub(crate) const OPERATORS_MAX: usize = 1000;
/// The name under which the holder of the admin key acts.
pub(crate) const ADMIN: &str = "admin";
const NAME_LEN_MAX: usize = 64;
/// The minimum length of a password that a person chooses, in characters.
pub(crate) const PASSWORD_CHARS_MIN: usize = 12;
/// The time within which an invitation can be accepted.
const INVITED_MS: u64 = 3 * 24 * 3_600_000;
/// Lock held while this process changes an operators file.
static CHANGING: Mutex<()> = Mutex::new(());

/// The operators who may sign in by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Operators {
    #[serde(default, rename = "operator")]
    list: Vec<Named>,
    #[serde(default, rename = "invitation")]
    invited: Vec<Invitation>,
}

/// An invitation to become an operator, which can be accepted once.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Invitation {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The SHA-256 digest of the token in the link, in hexadecimal digits.
    token: String,
    pub(crate) expires_at: String,
}

impl Invitation {
    /// Creates an invitation. Returns the invitation and the token for its link.
    ///
    /// # Errors
    /// An error if the name is invalid, or if the system has no random bytes.
    pub(crate) fn new(name: &str, role: Role, now_ms: u64) -> Result<(Self, String), BoxError> {
        check_name(name)?;
        let token = random()?;
        let invitation = Self {
            name: name.to_owned(),
            role,
            token: hex(&Sha256::digest(&token)),
            expires_at: rfc3339(now_ms.saturating_add(INVITED_MS)),
        };
        Ok((invitation, token))
    }

    pub(crate) fn is_open(&self, now_ms: u64) -> bool {
        parse_rfc3339_ms(&self.expires_at).is_some_and(|at| now_ms < at)
    }
}

/// Omits the digest of the token.
impl std::fmt::Debug for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Invitation").field("name", &self.name))
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// An operator that the file names.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// The digest of the password, as an argon2 PHC string.
    pub(crate) password: String,
}

impl Operators {
    /// Reads the operators file. If the file does not exist, the list is empty.
    ///
    /// # Errors
    /// An error if the file cannot be read, or is not a list of operators. Its text describes the mistake, without the
    /// file's content.
    pub(crate) fn read(path: &Path) -> Result<Self, BoxError> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn parse(text: &str) -> Result<Self, BoxError> {
        // The error omits the parser's message, which would quote the text, possibly a digest.
        let operators: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                text[..span.start.min(text.len())].matches('\n').count() + 1
            });
            format!("line {line}: not an [[operator]] with name, role (read, finance, support, admin) and password")
        })?;
        if operators.list.len() > OPERATORS_MAX {
            let problem = format!("the operators file has more than {OPERATORS_MAX} operators");
            return Err(problem.into());
        }
        for (index, one) in operators.list.iter().enumerate() {
            check_name(&one.name)?;
            let mut earlier = operators.list[..index].iter();
            if earlier.any(|other| other.name == one.name) {
                return Err(format!("names {} twice", one.name).into());
            }
            let name = &one.name;
            PasswordHash::new(&one.password)
                .map_err(|_| format!("{name}: the operator's password is not an argon2 digest"))?;
        }
        for one in &operators.invited {
            check_name(&one.name)?;
            let is_digest =
                one.token.len() == 64 && one.token.bytes().all(|it| it.is_ascii_hexdigit());
            if !is_digest || parse_rfc3339_ms(&one.expires_at).is_none() {
                let name = &one.name;
                let problem = format!("{name}: the invitation's token or expires_at is not valid");
                return Err(problem.into());
            }
        }
        Ok(operators)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Named> {
        self.list.iter().find(|one| one.name == name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Named> {
        self.list.iter()
    }

    /// Returns the list with this operator added. An earlier operator of the same name is replaced.
    pub(crate) fn with(mut self, one: Named) -> Self {
        match self.list.iter_mut().find(|other| other.name == one.name) {
            Some(other) => *other = one,
            None => self.list.push(one),
        }
        self
    }

    /// Returns the list without this operator; `None` if no operator has this name.
    pub(crate) fn without(mut self, name: &str) -> Option<Self> {
        let before = self.list.len() + self.invited.len();
        self.list.retain(|one| one.name != name);
        self.invited.retain(|one| one.name != name);
        (self.list.len() + self.invited.len() < before).then_some(self)
    }

    pub(crate) fn invitations(&self) -> &[Invitation] {
        &self.invited
    }

    /// Returns the open invitation to which a token belongs.
    pub(crate) fn invited_by(&self, token: &str, now_ms: u64) -> Option<&Invitation> {
        let digest = hex(&Sha256::digest(token));
        let mut invited = self.invited.iter();
        invited.find(|one| one.token == digest && one.is_open(now_ms))
    }

    /// Returns the list with this invitation added and with expired invitations removed.
    ///
    /// # Errors
    /// An error if an operator already has the name, or if the list is full.
    pub(crate) fn inviting(mut self, one: Invitation, now_ms: u64) -> Result<Self, String> {
        if self.find(&one.name).is_some() {
            return Err(format!(
                "an operator named {} exists already: choose another name",
                one.name
            ));
        }
        self.invited
            .retain(|other| other.name != one.name && other.is_open(now_ms));
        if self.list.len() + self.invited.len() >= OPERATORS_MAX {
            return Err(format!(
                "there are {OPERATORS_MAX} operators and invitations already: remove some"
            ));
        }
        self.invited.push(one);
        Ok(self)
    }

    /// Returns the list with the operator added who has accepted an invitation; the invitation is removed.
    pub(crate) fn accepting(mut self, one: Named) -> Self {
        self.invited.retain(|other| other.name != one.name);
        self.with(one)
    }

    /// Reads the file, changes the list, and writes the file. `change` returns the new list, or the reason why nothing
    /// is changed.
    ///
    /// # Errors
    /// An error if the file cannot be read or written.
    pub(crate) fn change<E>(
        path: &Path,
        change: impl FnOnce(Self) -> Result<Self, E>,
    ) -> Result<Result<(), E>, BoxError> {
        let _guard = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match change(Self::read(path)?) {
            Ok(changed) => Ok(changed.write(path)?),
            Err(refused) => Err(refused),
        })
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// An error if the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = String::from(
            "# The operators who may sign in to the console. `tollgate operator` and the console write this file; the gateway reads it at each sign-in and request.\n",
        );
        for Named {
            name,
            role,
            password,
        } in &self.list
        {
            // No value needs quoting: `check_name`, `Role` and the alphabet of PHC strings exclude such characters.
            write!(
                text,
                "\n[[operator]]\nname = \"{name}\"\nrole = \"{role}\"\npassword = \"{password}\"\n"
            )
            .expect("writing to a string cannot fail");
        }
        for Invitation {
            name,
            role,
            token,
            expires_at,
        } in &self.invited
        {
            write!(
                text,
                "\n[[invitation]]\nname = \"{name}\"\nrole = \"{role}\"\ntoken = \"{token}\"\nexpires_at = \"{expires_at}\"\n"
            )
            .expect("writing to a string cannot fail");
        }
        replace_file(path, text.as_bytes())
    }
}

impl Named {
    /// Creates an operator with this password. Only the password's digest is kept.
    ///
    /// # Errors
    /// An error if the name is invalid, or if the system has no random bytes.
    pub(crate) fn new(name: &str, role: Role, password: &str) -> Result<Self, BoxError> {
        check_name(name)?;
        let mut salt = [0; 16];
        getrandom::fill(&mut salt).map_err(|error| error.to_string())?;
        let digest = Argon2::default()
            .hash_password_with_salt(password.as_bytes(), &salt)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            name: name.to_owned(),
            role,
            password: digest.to_string(),
        })
    }

    /// Returns whether this is the operator's password. Takes the time of one argon2 computation.
    pub(crate) fn is_password(&self, password: &str) -> bool {
        Argon2::default()
            .verify_password(password.as_bytes(), self.password.as_str())
            .is_ok()
    }
}

/// Omits the digest of the password.
impl std::fmt::Debug for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Named").field("name", &self.name))
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// Checks an operator's name. A name may contain letters, digits, `.`, `-`, `_` and `@`, so that it is safe in logs and
/// files. The name `admin` is reserved for the admin key.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.chars().all(plain) {
        return Err(format!(
            "an operator's name has 1 to {NAME_LEN_MAX} characters: letters a-z and A-Z, digits, '.', '-', '_' and '@'"
        ));
    }
    if name == ADMIN {
        return Err(format!(
            "the name {ADMIN} is reserved for the admin key: choose another name"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_file_round_trips_and_each_password_matches_only_its_operator() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operators.toml");
        assert_eq!(Operators::read(&path).unwrap().iter().count(), 0);
        let anna = Named::new("anna", Role::Finance, "correct horse").unwrap();
        let boris = Named::new("boris@example", Role::Read, "another").unwrap();
        let both = Operators::default().with(anna).with(boris);
        both.write(&path).unwrap();
        let read = Operators::read(&path).unwrap();
        let anna = read.find("anna").unwrap();
        assert_eq!(anna.role, Role::Finance);
        assert!(anna.is_password("correct horse"));
        assert!(!anna.is_password("another") && !anna.is_password(""));
        assert!(!format!("{read:?}").contains("argon2"), "{read:?}");

        let changed = read.with(Named::new("anna", Role::Admin, "new").unwrap());
        assert_eq!(changed.iter().count(), 2);
        assert_eq!(changed.find("anna").unwrap().role, Role::Admin);
        let one = changed.without("anna").unwrap();
        assert_eq!(
            (one.iter().count(), one.clone().without("anna").is_none()),
            (1, true)
        );
        use std::os::unix::fs::PermissionsExt as _;
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);

        // The gateway can still read its file of operators after a command that ran as another user has written it.
        use std::os::unix::fs::{MetadataExt as _, chown};
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let is_root = chown(&path, Some(1), Some(1)).is_ok();
        one.write(&path).unwrap();
        assert_eq!(mode(), 0o640);
        if is_root {
            let of = fs::metadata(&path).unwrap();
            assert_eq!((of.uid(), of.gid()), (1, 1));
        }
    }

    #[test]
    fn invitation_is_found_only_by_its_token_until_it_expires_or_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operators.toml");
        let now = 1_795_000_000_000;
        let (one, token) = Invitation::new("boris", Role::Support, now).unwrap();
        let invite = |operators: Operators| operators.inviting(one.clone(), now);
        Operators::change(&path, invite).unwrap().unwrap();
        let read = Operators::read(&path).unwrap();
        assert_eq!(read.invited_by(&token, now).unwrap().role, Role::Support);
        assert!(
            read.invited_by(&one.token, now).is_none(),
            "the file does not have the token"
        );
        assert!(read.invited_by(&token, now + INVITED_MS).is_none());
        assert!(!fs::read_to_string(&path).unwrap().contains(&token));
        assert!(!format!("{read:?}").contains(&one.token), "{read:?}");
        let again = Invitation::new("boris", Role::Read, now).unwrap();
        let other = read.clone().inviting(again.0, now).unwrap();
        assert_eq!(other.invitations().len(), 1);
        assert!(
            other.invited_by(&token, now).is_none(),
            "a new invitation replaces the old one"
        );
        assert!(
            read.clone()
                .without("boris")
                .unwrap()
                .invited_by(&token, now)
                .is_none()
        );
        let named = read.with(Named::new("boris", Role::Read, "x").unwrap());
        assert!(named.inviting(one, now).is_err());
    }

    #[test]
    fn invalid_operators_file_is_refused_without_quoting_it() {
        let digest = Named::new("anna", Role::Read, "x").unwrap().password;
        let good =
            format!("[[operator]]\nname = \"anna\"\nrole = \"read\"\npassword = \"{digest}\"\n");
        assert!(Operators::parse(&good).is_ok());
        for (from, to, says) in [
            ("name = \"anna\"", "name = \"admin\"", "admin key"),
            ("name = \"anna\"", "name = \"an na\"", "letters"),
            ("role = \"read\"", "role = \"root\"", "line 3"),
            (
                "password = \"$",
                "password = \"hunter2 $",
                "anna: the operator's password",
            ),
            ("[[operator]]", "[[operators]]", "line"),
            ("role", "groups = 1\nrole", "line"),
        ] {
            let error = Operators::parse(&good.replacen(from, to, 1))
                .unwrap_err()
                .to_string();
            assert!(error.contains(says), "{error}");
            assert!(
                !error.contains('$') && !error.contains("hunter2"),
                "{error}"
            );
        }
        let twice = Operators::parse(&format!("{good}{good}"))
            .unwrap_err()
            .to_string();
        assert!(twice.contains("twice"), "{twice}");
    }
}
