//! Members of accounts: the people who may sign in to an account's cabinet. Stores their roles, sign-in links and
//! sessions.
//!
//! The ledger stores two kinds of documents. `members/<account>` lists an account's members with their roles; it alone
//! decides what a person may do. `person/<id>` lists a person's accounts, unused sign-in links and open sessions. An
//! account is added to `person/<id>` before the person is added to `members/<account>`, and is removed from
//! `person/<id>` after the person is removed from `members/<account>`. If a process dies in between, `person/<id>`
//! lists one account too many, which grants no rights.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate_layers::{
    key::{AccountId, KeyId},
    reserve::ledger::BookError,
};
use tollgate_ledger::contract::{Documents, Update};

use crate::{
    config::is_email,
    ledger::AnyLedger,
    text::hex::{self, hex},
};

/// The maximum number of members per account.
pub(crate) const MEMBERS_MAX: usize = 100;
/// The maximum number of accounts per person.
const ACCOUNTS_MAX: usize = 50;
/// How long a sign-in link is valid.
pub(crate) const LINK_MS: u64 = 15 * 60 * 1000;
/// The maximum number of unexpired sign-in links per person, and therefore of emails to one address in 15 minutes.
const LINKS_MAX: usize = 3;
/// The maximum number of sessions per person. A new session above this number ends the session that has been idle
/// longest.
const SESSIONS_MAX: usize = 10;
/// A session ends if it has received no request for this long.
const IDLE_MS: u64 = 2 * 60 * 60 * 1000;
/// A session ends this long after the sign-in, even if it is in use.
pub(crate) const AGE_MS: u64 = 12 * 60 * 60 * 1000;
/// The minimum time between two updates of the stored time of a session's last request.
const SEEN_MS: u64 = 5 * 60 * 1000;

crate::text::words::words! {
    /// The rights that a member has in an account.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum MemberRole {
        /// May do everything, including adding and removing members.
        Owner = "owner",
        /// May see payments and statements, and may pay. May not create keys.
        Finance = "finance",
        /// May create keys and set their limits. May not see payments.
        Developer = "developer",
    }
}

impl MemberRole {
    pub(crate) const fn may_pay(self) -> bool {
        matches!(self, Self::Owner | Self::Finance)
    }

    pub(crate) const fn may_change_keys(self) -> bool {
        matches!(self, Self::Owner | Self::Developer)
    }

    pub(crate) const fn may_change_members(self) -> bool {
        matches!(self, Self::Owner)
    }
}

impl FromStr for MemberRole {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or("must be owner, finance or developer")
    }
}

/// An email address in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct MailAddress(String);

impl MailAddress {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the id of the person who has this email address.
    pub(crate) fn person(&self) -> PersonId {
        let digest = Sha256::digest(self.0.as_bytes());
        PersonId(format!("member-{}", hex(&digest[..12])))
    }
}

impl FromStr for MailAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mail = text.trim().to_ascii_lowercase();
        match is_email(&mail) && mail.parse::<lettre::Address>().is_ok() {
            true => Ok(Self(mail)),
            false => Err("must be an email address, for example name@example.com"),
        }
    }
}

impl TryFrom<String> for MailAddress {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<MailAddress> for String {
    fn from(mail: MailAddress) -> Self {
        mail.0
    }
}

/// The id of a person: a digest of the email address. URLs and logs contain this id instead of the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PersonId(String);

impl PersonId {
    /// Returns the person's id as a key id, so that the endpoints for owner keys can act for this person.
    pub(crate) fn as_key(&self) -> KeyId {
        self.0
            .parse()
            .expect("an id of letters and digits is valid")
    }

    fn document(&self) -> String {
        format!("person/{}", self.0)
    }
}

impl fmt::Display for PersonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A person's membership of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) mail: MailAddress,
    pub(crate) role: MemberRole,
    /// When the member was added, in Unix milliseconds.
    pub(crate) added_ms: u64,
}

/// A person who may sign in: the person's accounts, sign-in links and sessions.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Person {
    mail: MailAddress,
    accounts: Vec<AccountId>,
    #[serde(default)]
    links: Vec<Link>,
    #[serde(default)]
    sessions: Vec<Session>,
}

/// An unused sign-in link. The ledger stores only digests of it, so nobody can sign in with the ledger's data.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Link {
    digest: String,
    /// The digest of the browser's cookie: the link works only in the browser that requested the link.
    browser: String,
    until_ms: u64,
}

impl Link {
    /// Returns whether this is the link with these digests of its secret and of the browser's cookie.
    fn is(&self, link: &str, browser: &str) -> bool {
        is_same(&self.digest, link) && is_same(&self.browser, browser)
    }
}

/// The session of a person who has signed in to the cabinet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    digest: String,
    csrf: String,
    /// The account that the cabinet's pages show in this session.
    pub(crate) account: AccountId,
    begun_ms: u64,
    seen_ms: u64,
}

impl Session {
    /// Returns the CSRF token that the forms of this session must send back.
    pub(crate) fn csrf(&self) -> &str {
        &self.csrf
    }

    pub(crate) fn is_csrf(&self, given: &str) -> bool {
        is_same(&self.csrf, given)
    }

    const fn is_over(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.seen_ms) > IDLE_MS
            || now_ms.saturating_sub(self.begun_ms) > AGE_MS
    }
}

/// A person who is signed in: the session, and the person's role in the session's account.
#[derive(Clone, Debug)]
pub(crate) struct SignedIn {
    pub(crate) mail: MailAddress,
    pub(crate) role: MemberRole,
    pub(crate) session: Session,
    /// All accounts that the person's record lists. The person may have been removed from some of them.
    pub(crate) accounts: Vec<AccountId>,
}

/// The reason why the members of an account were not changed.
#[derive(Debug)]
pub(crate) enum MembersError {
    /// The account already has the maximum number of members, or the person already has the maximum number of accounts.
    TooMany,
    /// The person is not a member of the account.
    Unknown,
    /// The change would leave the account without an owner.
    LastOwner,
    Ledger(BookError),
}

impl From<BookError> for MembersError {
    fn from(error: BookError) -> Self {
        Self::Ledger(error)
    }
}

/// Stores the members of accounts in the ledger.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    store: AnyLedger,
}

impl Members {
    pub(crate) const fn new(store: AnyLedger) -> Self {
        Self { store }
    }

    /// Returns the members of an account, in the order in which they were added.
    pub(crate) async fn list(&self, account: &AccountId) -> Result<Vec<Member>, BookError> {
        let members = self.store.read_value(&document(account)).await?;
        Ok(members.value.unwrap_or_default())
    }

    /// Adds a member, or changes the role of an existing member. With `keeps_owner`, a change that would leave the
    /// account without an owner is refused.
    pub(crate) async fn put(
        &self,
        account: &AccountId,
        member: &Member,
        keeps_owner: bool,
    ) -> Result<(), MembersError> {
        let members = self.list(account).await?;
        let is_member = members.iter().any(|known| known.mail == member.mail);
        if !is_member && members.len() >= MEMBERS_MAX {
            return Err(MembersError::TooMany);
        }
        let lists = |found: Option<Person>| {
            let mut person = found.unwrap_or_else(|| Person {
                mail: member.mail.clone(),
                accounts: Vec::new(),
                links: Vec::new(),
                sessions: Vec::new(),
            });
            if person.accounts.contains(account) {
                return Ok(Update::Keep(()));
            }
            if person.accounts.len() >= ACCOUNTS_MAX {
                return Err(MembersError::TooMany);
            }
            person.accounts.push(account.clone());
            Ok(Update::Write(person, ()))
        };
        let person = member.mail.person().document();
        self.store.update(&person, lists).await?;
        let add = |found: Option<Vec<Member>>| {
            let mut members = found.unwrap_or_default();
            let known = members.iter_mut().find(|known| known.mail == member.mail);
            match known {
                Some(known) => known.role = member.role,
                None => members.push(member.clone()),
            }
            match keeps_owner && !has_owner(&members) {
                true => Err(MembersError::LastOwner),
                false => Ok(Update::Write(members, ())),
            }
        };
        self.store.update(&document(account), add).await
    }

    /// Removes a member and returns it. With `keeps_owner`, the last owner is not removed.
    pub(crate) async fn remove(
        &self,
        account: &AccountId,
        person: &str,
        keeps_owner: bool,
    ) -> Result<Member, MembersError> {
        let remove = |found: Option<Vec<Member>>| {
            let mut members = found.unwrap_or_default();
            let place = members
                .iter()
                .position(|one| one.mail.person().0 == person)
                .ok_or(MembersError::Unknown)?;
            let removed = members.remove(place);
            match keeps_owner && !has_owner(&members) {
                true => Err(MembersError::LastOwner),
                false => Ok(Update::Write(members, removed)),
            }
        };
        let removed = self.store.update(&document(account), remove).await?;
        let forget = |mut person: Person| {
            person.accounts.retain(|one| one != account);
            person.sessions.retain(|one| one.account != *account);
            match person.accounts.is_empty() {
                true => Update::Remove(()),
                false => Update::Write(person, ()),
            }
        };
        self.change_person(&removed.mail.person(), forget).await?;
        Ok(removed)
    }

    /// Changes what the ledger stores about a person. If it stores nothing, nothing changes.
    async fn change_person<T: Default + Send>(
        &self,
        id: &PersonId,
        change: impl Fn(Person) -> Update<Person, T> + Send,
    ) -> Result<T, BookError> {
        let change = move |found: Option<Person>| {
            Ok::<_, BookError>(match found {
                Some(person) => change(person),
                None => Update::Keep(T::default()),
            })
        };
        self.store.update(&id.document(), change).await
    }

    /// Stores a new sign-in link and returns its token. Returns `None` if no account has a member with this email
    /// address, or if the person already has the maximum number of unused links.
    pub(crate) async fn new_link(
        &self,
        mail: &MailAddress,
        browser: &str,
        now_ms: u64,
    ) -> Result<Option<String>, BookError> {
        let secret = random()?;
        let link = Link {
            digest: digest(&secret),
            browser: digest(browser),
            until_ms: now_ms + LINK_MS,
        };
        let add = |mut person: Person| {
            person.links.retain(|link| link.until_ms > now_ms);
            if person.accounts.is_empty() || person.links.len() >= LINKS_MAX {
                return Update::Keep(false);
            }
            person.links.push(link.clone());
            Update::Write(person, true)
        };
        let id = mail.person();
        let is_stored = self.change_person(&id, add).await?;
        Ok(is_stored.then(|| format!("{id}.{secret}")))
    }

    /// Uses up a sign-in link and returns the token of a new session. Returns `None` if the link is unknown, used,
    /// expired, or was requested by another browser. `before` is the token of the session that the browser had so far;
    /// that session ends.
    pub(crate) async fn enter(
        &self,
        token: &str,
        browser: &str,
        before: Option<&str>,
        now_ms: u64,
    ) -> Result<Option<String>, BookError> {
        let Some((id, secret)) = parts(token) else {
            return Ok(None);
        };
        let (link, browser) = (digest(secret), digest(browser));
        let (new, csrf) = (random()?, random()?);
        let enter = |mut person: Person| {
            person.links.retain(|link| link.until_ms > now_ms);
            let mut links = person.links.iter();
            let used = links.position(|one| one.is(&link, &browser));
            let (Some(used), Some(account)) = (used, person.accounts.first().cloned()) else {
                return Update::Keep(false);
            };
            person.links.remove(used);
            person.sessions.retain(|session| !session.is_over(now_ms));
            if person.sessions.len() >= SESSIONS_MAX {
                let idle = (person.sessions.iter().enumerate()).min_by_key(|(_, one)| one.seen_ms);
                let idle = idle.map_or(0, |(place, _)| place);
                person.sessions.remove(idle);
            }
            person.sessions.push(Session {
                digest: digest(&new),
                csrf: csrf.clone(),
                account,
                begun_ms: now_ms,
                seen_ms: now_ms,
            });
            Update::Write(person, true)
        };
        let has_entered = self.change_person(&id, enter).await?;
        if !has_entered {
            return Ok(None);
        }
        if let Some(before) = before {
            self.end(before).await?;
        }
        Ok(Some(format!("{id}.{new}")))
    }

    /// Returns whether a sign-in link is valid in this browser. The link stays unused.
    pub(crate) async fn is_link(
        &self,
        token: &str,
        browser: &str,
        now_ms: u64,
    ) -> Result<bool, BookError> {
        let Some((id, secret)) = parts(token) else {
            return Ok(false);
        };
        let (link, browser) = (digest(secret), digest(browser));
        let person: Option<Person> = self.store.read_value(&id.document()).await?.value;
        let links = person.map(|person| person.links).unwrap_or_default();
        let mut links = links.iter().filter(|one| one.until_ms > now_ms);
        Ok(links.any(|one| one.is(&link, &browser)))
    }

    /// Returns the person whose session has this token, with the person's current role.
    pub(crate) async fn signed_in(
        &self,
        token: &str,
        now_ms: u64,
    ) -> Result<Option<SignedIn>, BookError> {
        let Some((id, secret)) = parts(token) else {
            return Ok(None);
        };
        let digest = digest(secret);
        let person: Option<Person> = self.store.read_value(&id.document()).await?.value;
        let Some(person) = person else {
            return Ok(None);
        };
        let is_own = |one: &&Session| is_same(&one.digest, &digest) && !one.is_over(now_ms);
        let Some(mut session) = person.sessions.iter().find(is_own).cloned() else {
            return Ok(None);
        };
        let members = self.list(&session.account).await?;
        let Some(member) = members.iter().find(|one| one.mail == person.mail) else {
            return Ok(None);
        };
        if now_ms.saturating_sub(session.seen_ms) > SEEN_MS {
            session.seen_ms = now_ms;
            self.change_session(&id, &session).await?;
        }
        Ok(Some(SignedIn {
            mail: person.mail,
            role: member.role,
            session,
            accounts: person.accounts,
        }))
    }

    /// Switches a session to another account of its person. Returns whether the person is a member of that account.
    pub(crate) async fn choose(
        &self,
        who: &SignedIn,
        account: &AccountId,
    ) -> Result<bool, BookError> {
        let members = self.list(account).await?;
        if !members.iter().any(|one| one.mail == who.mail) {
            return Ok(false);
        }
        let session = Session {
            account: account.clone(),
            ..who.session.clone()
        };
        self.change_session(&who.mail.person(), &session).await?;
        Ok(true)
    }

    async fn change_session(&self, id: &PersonId, changed: &Session) -> Result<(), BookError> {
        let change = |mut person: Person| {
            let mut sessions = person.sessions.iter_mut();
            // If the session has ended in the meantime, it is not stored again.
            match sessions.find(|one| one.digest == changed.digest) {
                Some(session) => session.clone_from(changed),
                None => return Update::Keep(()),
            }
            Update::Write(person, ())
        };
        self.change_person(id, change).await
    }

    /// Ends the session with this token.
    pub(crate) async fn end(&self, token: &str) -> Result<(), BookError> {
        let Some((id, secret)) = parts(token) else {
            return Ok(());
        };
        let digest = digest(secret);
        self.end_where(&id, |session| session.digest == digest)
            .await
    }

    /// Ends all sessions of a person, and invalidates the person's unused sign-in links.
    pub(crate) async fn end_all(&self, mail: &MailAddress) -> Result<(), BookError> {
        self.end_where(&mail.person(), |_| true).await
    }

    async fn end_where(
        &self,
        id: &PersonId,
        is_ended: impl Fn(&Session) -> bool + Send,
    ) -> Result<(), BookError> {
        let end = move |mut person: Person| {
            let count = person.sessions.len();
            person.sessions.retain(|session| !is_ended(session));
            if person.sessions.is_empty() {
                person.links.clear();
            }
            match person.sessions.len() == count {
                true => Update::Keep(()),
                false => Update::Write(person, ()),
            }
        };
        self.change_person(id, end).await
    }
}

fn document(account: &AccountId) -> String {
    format!("members/{account}")
}

fn has_owner(members: &[Member]) -> bool {
    members.iter().any(|one| one.role == MemberRole::Owner)
}

/// Splits the token of a link or a session into the person's id and the secret.
fn parts(token: &str) -> Option<(PersonId, &str)> {
    let (id, secret) = token.split_once('.')?;
    let digits = id.strip_prefix("member-")?;
    let is_id = digits.len() == 24 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| (PersonId(id.to_owned()), secret))
}

/// Returns the SHA-256 digest of a secret. The ledger stores this digest instead of the secret.
pub(crate) fn digest(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

fn is_same(one: &str, other: &str) -> bool {
    bool::from(one.as_bytes().ct_eq(other.as_bytes()))
}

/// Returns 256 random bits as 64 hexadecimal digits.
pub(crate) fn random() -> Result<String, BookError> {
    hex::random().map_err(BookError::Unavailable)
}

#[cfg(test)]
pub(crate) mod tests;
