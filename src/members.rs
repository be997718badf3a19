//! Members of accounts: people who may sign in to the cabinet, with their roles, sign-in links and sessions.
//!
//! Two kinds of documents of the ledger: `members/<account>` has an account's members and decides who may do what;
//! `person/<id>` has a person's accounts, unused sign-in links and open sessions. A person is added to `person/<id>`
//! first and removed from it last: if a process dies in between, the person lists an account too many, which grants
//! nothing.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate_layers::{
    error::BoxError,
    key::{AccountId, KeyId},
    reserve::ledger::BookError,
};
use tollgate_ledger::contract::{Documents, Update};

use crate::{config::is_email, ledger::AnyLedger};

/// The maximum number of members of an account.
pub(crate) const MEMBERS_MAX: usize = 100;
/// The maximum number of accounts of a person.
const ACCOUNTS_MAX: usize = 50;
/// How long a sign-in link is valid.
pub(crate) const LINK_MS: u64 = 15 * 60 * 1000;
/// The maximum number of a person's valid links, and so of mails to one address in 15 minutes.
const LINKS_MAX: usize = 3;
/// The maximum number of a person's sessions. A further session ends the one that has been idle longest.
const SESSIONS_MAX: usize = 10;
/// A session ends after this time without a request.
const IDLE_MS: u64 = 2 * 60 * 60 * 1000;
/// A session ends at this age.
pub(crate) const AGE_MS: u64 = 12 * 60 * 60 * 1000;
/// The time of a session's last request is stored at most this often.
const SEEN_MS: u64 = 5 * 60 * 1000;

/// The rights of a member in an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MemberRole {
    /// May do everything, and manages the members.
    Owner,
    /// Sees payments and statements and pays; makes no keys.
    Finance,
    /// Makes and limits keys; sees no payments.
    Developer,
}

impl MemberRole {
    /// All roles.
    pub(crate) const ALL: [Self; 3] = [Self::Owner, Self::Finance, Self::Developer];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Finance => "finance",
            Self::Developer => "developer",
        }
    }

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

/// A mail address, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct MailAddress(String);

impl MailAddress {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the id of the person with this address.
    pub(crate) fn person(&self) -> PersonId {
        let digest = Sha256::digest(self.0.as_bytes());
        let digits: String = digest[..12]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        PersonId(format!("member-{digits}"))
    }
}

impl FromStr for MailAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mail = text.trim().to_ascii_lowercase();
        match is_email(&mail) && mail.parse::<lettre::Address>().is_ok() {
            true => Ok(Self(mail)),
            false => Err("must be an address like name@example.com"),
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

/// The id of a person, derived from the mail address, so that no address is in a URL or a log of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PersonId(String);

impl PersonId {
    /// Returns the id in the place of a key's id, for the endpoints that act for a key.
    pub(crate) fn as_key(&self) -> KeyId {
        self.0.parse().expect("letters and digits are a valid id")
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

/// A member of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) mail: MailAddress,
    pub(crate) role: MemberRole,
    /// When the member was added, in Unix milliseconds.
    pub(crate) added_ms: u64,
}

/// A person's accounts, sign-in links and sessions.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Person {
    mail: MailAddress,
    accounts: Vec<AccountId>,
    #[serde(default)]
    links: Vec<Link>,
    #[serde(default)]
    sessions: Vec<Session>,
}

/// A sign-in link that was sent. Only digests are stored: nobody can sign in with what the ledger has.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Link {
    digest: String,
    /// The digest of the browser's cookie: the link works only in the browser that requested it.
    browser: String,
    until_ms: u64,
}

/// A session of a signed-in person.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    digest: String,
    csrf: String,
    /// The account that the pages show.
    pub(crate) account: AccountId,
    begun_ms: u64,
    seen_ms: u64,
}

impl Session {
    /// Returns the token that forms of this session send back.
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

/// A signed-in person: the session, and the role in the session's account.
#[derive(Clone, Debug)]
pub(crate) struct SignedIn {
    pub(crate) mail: MailAddress,
    pub(crate) role: MemberRole,
    pub(crate) session: Session,
    /// All accounts of which the person may be a member.
    pub(crate) accounts: Vec<AccountId>,
}

/// The reason why a change of members was not made.
#[derive(Debug)]
pub(crate) enum MembersError {
    /// The account has the maximum number of members, or the person of accounts.
    TooMany,
    /// The person is not a member of the account.
    Unknown,
    /// The account would have no owner left.
    LastOwner,
    Ledger(BookError),
}

impl From<BookError> for MembersError {
    fn from(error: BookError) -> Self {
        Self::Ledger(error)
    }
}

/// Members of accounts, stored in the ledger.
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

    /// Adds a member, or changes the role of a member. With `keeps_owner` the last owner stays an owner.
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

    /// Removes a member and returns it. With `keeps_owner` the last owner stays.
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
        let forget = |found: Option<Person>| {
            let Some(mut person) = found else {
                return Ok(Update::Keep(()));
            };
            person.accounts.retain(|one| one != account);
            person.sessions.retain(|one| one.account != *account);
            Ok::<_, MembersError>(match person.accounts.is_empty() {
                true => Update::Remove(()),
                false => Update::Write(person, ()),
            })
        };
        let name = removed.mail.person().document();
        self.store.update(&name, forget).await?;
        Ok(removed)
    }

    /// Stores a new sign-in link and returns its token. `None` if nobody with this address is a member of an account,
    /// or if the person has the maximum number of links.
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
        let add = |found: Option<Person>| {
            let Some(mut person) = found else {
                return Ok(Update::Keep(false));
            };
            person.links.retain(|link| link.until_ms > now_ms);
            if person.accounts.is_empty() || person.links.len() >= LINKS_MAX {
                return Ok(Update::Keep(false));
            }
            person.links.push(link.clone());
            Ok::<_, BookError>(Update::Write(person, true))
        };
        let id = mail.person();
        let is_stored = self.store.update(&id.document(), add).await?;
        Ok(is_stored.then(|| format!("{id}.{secret}")))
    }

    /// Uses up a sign-in link and returns the token of a new session. `None` if the link is unknown, used or expired,
    /// or was requested by another browser. `before` is the token of the browser's session, which ends.
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
        let enter = |found: Option<Person>| {
            let Some(mut person) = found else {
                return Ok(Update::Keep(false));
            };
            person.links.retain(|link| link.until_ms > now_ms);
            let used = person
                .links
                .iter()
                .position(|one| is_same(&one.digest, &link) && is_same(&one.browser, &browser));
            let (Some(used), Some(account)) = (used, person.accounts.first().cloned()) else {
                return Ok(Update::Keep(false));
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
            Ok::<_, BookError>(Update::Write(person, true))
        };
        let has_entered = self.store.update(&id.document(), enter).await?;
        if !has_entered {
            return Ok(None);
        }
        if let Some(before) = before {
            self.end(before).await?;
        }
        Ok(Some(format!("{id}.{new}")))
    }

    /// Returns whether a sign-in link is valid in this browser, without using it up.
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
        Ok(links.iter().any(|one| {
            one.until_ms > now_ms && is_same(&one.digest, &link) && is_same(&one.browser, &browser)
        }))
    }

    /// Returns the signed-in person of a session's token, with the role that the person has now.
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

    /// Makes a session show another account of its person. Returns whether the person is a member of it.
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
        let change = |found: Option<Person>| {
            let Some(mut person) = found else {
                return Ok(Update::Keep(()));
            };
            let mut sessions = person.sessions.iter_mut();
            // The session may have ended in the meantime; then it stays ended.
            match sessions.find(|one| one.digest == changed.digest) {
                Some(session) => session.clone_from(changed),
                None => return Ok(Update::Keep(())),
            }
            Ok::<_, BookError>(Update::Write(person, ()))
        };
        self.store.update(&id.document(), change).await
    }

    /// Ends the session of a token.
    pub(crate) async fn end(&self, token: &str) -> Result<(), BookError> {
        let Some((id, secret)) = parts(token) else {
            return Ok(());
        };
        let digest = digest(secret);
        self.end_where(&id, |session| session.digest == digest)
            .await
    }

    /// Ends all sessions of a person, and makes unused links invalid.
    pub(crate) async fn end_all(&self, mail: &MailAddress) -> Result<(), BookError> {
        self.end_where(&mail.person(), |_| true).await
    }

    async fn end_where(
        &self,
        id: &PersonId,
        is_ended: impl Fn(&Session) -> bool + Send,
    ) -> Result<(), BookError> {
        let end = move |found: Option<Person>| {
            let Some(mut person) = found else {
                return Ok(Update::Keep(()));
            };
            let count = person.sessions.len();
            person.sessions.retain(|session| !is_ended(session));
            if person.sessions.is_empty() {
                person.links.clear();
            }
            Ok::<_, BookError>(match person.sessions.len() == count {
                true => Update::Keep(()),
                false => Update::Write(person, ()),
            })
        };
        self.store.update(&id.document(), end).await
    }
}

fn document(account: &AccountId) -> String {
    format!("members/{account}")
}

fn has_owner(members: &[Member]) -> bool {
    members.iter().any(|one| one.role == MemberRole::Owner)
}

/// Divides the token of a link or a session into the person's id and the secret.
fn parts(token: &str) -> Option<(PersonId, &str)> {
    let (id, secret) = token.split_once('.')?;
    let digits = id.strip_prefix("member-")?;
    let is_id = digits.len() == 24 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| (PersonId(id.to_owned()), secret))
}

/// Returns the SHA-256 digest of a secret, as the ledger stores it.
pub(crate) fn digest(secret: &str) -> String {
    let digest = Sha256::digest(secret.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_same(one: &str, other: &str) -> bool {
    bool::from(one.as_bytes().ct_eq(other.as_bytes()))
}

/// Returns 256 random bits in hexadecimal digits.
pub(crate) fn random() -> Result<String, BookError> {
    let mut bytes = [0; 32];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| BookError::Unavailable(BoxError::from(error.to_string())))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use tollgate_ledger::memory::MemoryLedger;

    use super::*;

    const BROWSER: &str = "the browser that asked";
    const NOW: u64 = 1_795_000_000_000;

    fn mail(text: &str) -> MailAddress {
        text.parse().unwrap()
    }

    fn account(text: &str) -> AccountId {
        text.parse().unwrap()
    }

    async fn members(of: &[(&str, &str, MemberRole)]) -> Members {
        let members = Members::new(AnyLedger::Memory(MemoryLedger::new()));
        for (id, address, role) in of {
            let member = Member {
                mail: mail(address),
                role: *role,
                added_ms: NOW,
            };
            members.put(&account(id), &member, false).await.unwrap();
        }
        members
    }

    async fn anna() -> Members {
        members(&[("acme", "anna@acme.example", MemberRole::Owner)]).await
    }

    async fn link(members: &Members) -> String {
        let anna = mail("anna@acme.example");
        let made = members.new_link(&anna, BROWSER, NOW).await;
        made.unwrap().unwrap()
    }

    #[test]
    fn mail_addresses_are_compared_without_case_and_unsafe_ones_are_refused() {
        assert_eq!(mail(" Anna@ACME.example "), mail("anna@acme.example"));
        for bad in [
            "",
            "anna",
            "anna@acme",
            "a b@acme.example",
            "anna@acme.example\r\nBcc: x@y.example",
            "<script>@acme.example",
            "a\"b@acme.example",
            "anna@acme.example,eve@evil.example",
        ] {
            assert!(bad.parse::<MailAddress>().is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_link_signs_in_once_in_its_browser_within_its_time() {
        let members = anna().await;
        let token = link(&members).await;
        for (token, browser, now) in [
            (&*token, "another browser", NOW),
            (&*token, BROWSER, NOW + LINK_MS),
            (&token[..token.len() - 1], BROWSER, NOW),
            ("member-000000000000000000000000.0", BROWSER, NOW),
            ("person/x", BROWSER, NOW),
        ] {
            let entered = members.enter(token, browser, None, now).await.unwrap();
            assert_eq!(entered, None, "{token} {browser}");
        }
        assert!(members.is_link(&token, BROWSER, NOW).await.unwrap());
        assert!(
            !members
                .is_link(&token, "another browser", NOW)
                .await
                .unwrap()
        );
        let session = members.enter(&token, BROWSER, None, NOW).await.unwrap();
        let who = members.signed_in(&session.unwrap(), NOW).await.unwrap();
        assert_eq!(who.unwrap().role, MemberRole::Owner);
        assert_eq!(
            members.enter(&token, BROWSER, None, NOW).await.unwrap(),
            None
        );
    }

    #[tokio::test]
    async fn the_ledger_has_no_secret_of_a_link_or_a_session() {
        let members = anna().await;
        let token = link(&members).await;
        let used = link(&members).await;
        let session = members.enter(&used, BROWSER, None, NOW).await;
        let session = session.unwrap().unwrap();
        let documents = members.store.documents("person/").await.unwrap();
        for token in [token, session] {
            let (_, secret) = token.split_once('.').unwrap();
            assert!(documents.iter().all(|one| !one.text.contains(secret)));
        }
    }

    #[tokio::test]
    async fn an_address_gets_at_most_three_links_in_fifteen_minutes_and_a_stranger_none() {
        let members = anna().await;
        for _ in 0..LINKS_MAX {
            link(&members).await;
        }
        let anna = mail("anna@acme.example");
        let more = members.new_link(&anna, BROWSER, NOW + LINK_MS - 1).await;
        assert_eq!(more.unwrap(), None);
        let later = members.new_link(&anna, BROWSER, NOW + LINK_MS).await;
        assert!(later.unwrap().is_some());
        let stranger = mail("eve@evil.example");
        assert_eq!(
            members.new_link(&stranger, BROWSER, NOW).await.unwrap(),
            None
        );
        assert_eq!(members.store.documents("person/").await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn sessions_end_when_idle_or_old_or_signed_out_or_replaced() {
        let members = anna().await;
        let enter = async |before: Option<String>, now| {
            let token = members
                .new_link(&mail("anna@acme.example"), BROWSER, now)
                .await;
            let token = token.unwrap().unwrap();
            let entered = members.enter(&token, BROWSER, before.as_deref(), now).await;
            entered.unwrap().unwrap()
        };
        let is_in = async |token: &str, now| members.signed_in(token, now).await.unwrap().is_some();
        let first = enter(None, NOW).await;
        assert!(is_in(&first, NOW + IDLE_MS).await);
        assert!(is_in(&first, NOW + 2 * IDLE_MS).await, "seen in between");
        assert!(!is_in(&first, NOW + 3 * IDLE_MS + 1).await);
        assert!(!is_in(&first, NOW + AGE_MS + 1).await);

        let second = enter(None, NOW).await;
        let third = enter(Some(second.clone()), NOW).await;
        assert!(!is_in(&second, NOW).await && is_in(&third, NOW).await);
        members.end(&third).await.unwrap();
        assert!(!is_in(&third, NOW).await);

        let later = NOW + LINK_MS;
        let both = [enter(None, later).await, enter(None, later).await];
        members.end_all(&mail("anna@acme.example")).await.unwrap();
        for token in both {
            assert!(!is_in(&token, later).await);
        }
    }

    #[tokio::test]
    async fn removed_member_is_out_at_once_and_an_account_keeps_its_last_owner() {
        let members = members(&[
            ("acme", "anna@acme.example", MemberRole::Owner),
            ("acme", "boris@acme.example", MemberRole::Developer),
            ("beta", "boris@acme.example", MemberRole::Finance),
        ])
        .await;
        let boris = mail("boris@acme.example");
        let token = members.new_link(&boris, BROWSER, NOW).await;
        let token = token.unwrap().unwrap();
        let session = members.enter(&token, BROWSER, None, NOW).await;
        let session = session.unwrap().unwrap();
        let who = members.signed_in(&session, NOW).await.unwrap().unwrap();
        assert!(!members.choose(&who, &account("other")).await.unwrap());
        assert!(members.choose(&who, &account("beta")).await.unwrap());
        let who = members.signed_in(&session, NOW).await.unwrap().unwrap();
        assert_eq!(who.role, MemberRole::Finance);

        let id = boris.person().to_string();
        for place in ["acme", "beta"] {
            members.remove(&account(place), &id, false).await.unwrap();
        }
        assert!(members.signed_in(&session, NOW).await.unwrap().is_none());
        let again = members.remove(&account("acme"), &id, true).await;
        assert!(matches!(again, Err(MembersError::Unknown)));

        let anna = mail("anna@acme.example");
        let id = anna.person().to_string();
        let last = members.remove(&account("acme"), &id, true).await;
        assert!(matches!(last, Err(MembersError::LastOwner)));
        let demoted = Member {
            mail: anna,
            role: MemberRole::Finance,
            added_ms: NOW,
        };
        let demoted = members.put(&account("acme"), &demoted, true).await;
        assert!(matches!(demoted, Err(MembersError::LastOwner)));
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the requests run on the threads of the runtime"
    )]
    #[tokio::test]
    async fn parallel_uses_of_a_link_make_one_session() {
        let members = anna().await;
        let token = link(&members).await;
        let uses = (0..50).map(|_| {
            let (members, token) = (members.clone(), token.clone());
            tokio::spawn(async move { members.enter(&token, BROWSER, None, NOW).await })
        });
        let uses = futures_util::future::join_all(uses.collect::<Vec<_>>()).await;
        let entered = uses.into_iter().filter(|one| match one {
            Ok(Ok(entered)) => entered.is_some(),
            other => panic!("{other:?}"),
        });
        assert_eq!(entered.count(), 1);
    }
}
