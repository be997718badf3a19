//! Codes that operators give to customers. A promo code credits an existing account. An invitation opens an account,
//! and may credit it. An account can use a code once, and each code has a maximum number of uses.
//!
//! The ledger document `code/<id>` stores a code, its uses, and the sign-ups whose email address is not confirmed yet.
//! A use is recorded before its credit is booked. The id of the credit's entry is derived from the code, so a
//! repetition after a failure books the credit at most once.

use std::{fmt::Write as _, str::FromStr};

use serde::{Deserialize, Serialize};
use tollgate_layers::{
    key::AccountId,
    money::MicroRub,
    reserve::ledger::{BookError, Entry, LedgerAdmin},
};
use tollgate_ledger::contract::{Documents, Update};

use crate::{
    ledger::AnyLedger,
    members::{LINK_MS, MailAddress, Member, MemberRole, Members, MembersError, digest, random},
};

/// The maximum number of accounts that may use one code.
pub(crate) const USES_MAX: u32 = 1000;
/// The maximum number of unconfirmed sign-ups per code. A link expires after 15 minutes, so this is also the maximum
/// number of emails that a code can cause in 15 minutes.
const SIGN_UPS_MAX: usize = 10;
/// The maximum number of unconfirmed sign-ups with the same email address, per code.
const OF_MAIL_MAX: usize = 3;
const NAME_CHARS_MAX: usize = 100;

/// A promo code or an invitation, and the accounts that have used it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Code {
    /// The amount that each use of the code credits to an account.
    pub(crate) amount_rub: MicroRub,
    /// Whether the code is an invitation, which opens an account. Otherwise it is a promo code.
    pub(crate) opens_account: bool,
    pub(crate) uses_max: u32,
    pub(crate) used_by: Vec<AccountId>,
    /// The Unix time in milliseconds at which the code expires. `None` if it never expires.
    pub(crate) until_ms: Option<u64>,
    pub(crate) made_ms: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sign_ups: Vec<SignUp>,
}

impl Code {
    /// Creates a promo code or an invitation that nobody has used.
    pub(crate) const fn new(
        amount_rub: MicroRub,
        opens_account: bool,
        uses_max: u32,
        until_ms: Option<u64>,
        made_ms: u64,
    ) -> Self {
        Self {
            amount_rub,
            opens_account,
            uses_max,
            used_by: Vec::new(),
            until_ms,
            made_ms,
            sign_ups: Vec::new(),
        }
    }

    /// Returns whether an account may use the code. An account that has already used the code may repeat the request.
    fn admits(&self, account: &AccountId, now_ms: u64) -> bool {
        let is_left = self.used_by.len() < self.uses_max as usize;
        let is_valid = self.until_ms.is_none_or(|until| now_ms < until);
        self.used_by.contains(account) || is_left && is_valid
    }
}

/// A sign-up whose email address is not confirmed yet. The ledger stores only digests of the confirmation link.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SignUp {
    mail: MailAddress,
    name: String,
    digest: String,
    browser: String,
    until_ms: u64,
}

/// The reason why a promo code or an invitation was not used.
#[derive(Debug)]
pub(crate) enum CodeError {
    /// The code does not exist, has expired, or has no uses left.
    Invalid,
    /// The account has already used the code and received its credit.
    Used,
    Ledger(BookError),
}

impl From<BookError> for CodeError {
    fn from(error: BookError) -> Self {
        Self::Ledger(error)
    }
}

/// The id of a code: a digest of its text, so that the ledger does not store the text itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodeId(String);

impl CodeId {
    /// Computes the id from a code as a person types it: separators and upper case do not matter.
    fn from_typed(typed: &str) -> Self {
        let plain = typed.chars().filter(char::is_ascii_alphanumeric);
        let plain: String = plain.take(64).collect();
        Self(digest(&plain.to_ascii_lowercase())[..24].to_owned())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn document(&self) -> String {
        format!("code/{}", self.0)
    }

    /// Returns the id of the ledger entry that credits an account for this code.
    fn entry(&self) -> String {
        format!("code-{}", self.0)
    }
}

impl FromStr for CodeId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_id = text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self(text.to_owned())).ok_or(())
    }
}

/// Stores codes in the ledger, and books their credits.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    store: AnyLedger,
    members: Members,
}

impl Codes {
    pub(crate) const fn new(store: AnyLedger, members: Members) -> Self {
        Self { store, members }
    }

    /// Stores a new code. Returns its id and its text; the text is not stored.
    pub(crate) async fn make(&self, code: &Code) -> Result<(CodeId, String), BookError> {
        let mut text = String::new();
        for (place, digit) in random()?.chars().take(20).enumerate() {
            let apart = if place > 0 && place % 5 == 0 { "-" } else { "" };
            let _ = write!(text, "{apart}{}", digit.to_ascii_uppercase());
        }
        let id = CodeId::from_typed(&text);
        self.store.write_value(&id.document(), 0, code).await?;
        Ok((id, text))
    }

    /// Returns all codes that were not removed, with their ids.
    pub(crate) async fn list(&self) -> Result<Vec<(CodeId, Code)>, BookError> {
        let documents = self.store.documents("code/").await?;
        let codes = documents.iter().filter(|document| !document.is_removed());
        codes
            .map(|document| {
                let id = document.name.trim_start_matches("code/");
                Ok((CodeId(id.to_owned()), document.parse()?))
            })
            .collect()
    }

    /// Removes a code, which can then no longer be used, and returns it. Returns `None` if no code has this id.
    pub(crate) async fn remove(&self, id: &CodeId) -> Result<Option<Code>, BookError> {
        let remove = |found: Option<Code>| {
            Ok::<_, BookError>(match found {
                Some(code) => Update::Remove(Some(code)),
                None => Update::Keep(None),
            })
        };
        self.store.update(&id.document(), remove).await
    }

    /// Credits an account for a promo code, and returns the amount. If the account has already used the code, the
    /// credit is booked only if it was not booked the first time.
    pub(crate) async fn spend(
        &self,
        typed: &str,
        account: &AccountId,
        now_ms: u64,
    ) -> Result<MicroRub, CodeError> {
        let id = CodeId::from_typed(typed);
        let record = |found: Option<Code>| {
            let code = found.filter(|code| !code.opens_account);
            let mut code = code.ok_or(CodeError::Invalid)?;
            used(&mut code, account, now_ms)
        };
        let (amount, is_first) = self.store.update(&id.document(), record).await?;
        if !is_first
            && (amount == MicroRub::ZERO || self.store.entry(account, &id.entry()).await?.is_some())
        {
            return Err(CodeError::Used);
        }
        self.credit(&id, account, amount).await?;
        Ok(amount)
    }

    async fn credit(
        &self,
        id: &CodeId,
        account: &AccountId,
        amount: MicroRub,
    ) -> Result<(), BookError> {
        if amount == MicroRub::ZERO {
            return Ok(());
        }
        let entry = Entry {
            id: id.entry(),
            amount,
            reason: Some("promo code".to_owned()),
        };
        self.store.enter(account, &entry).await.map(drop)
    }

    /// Stores a sign-up by invitation, and returns the token of the link that confirms the sign-up's email address.
    /// Returns `None` if the invitation is invalid, or already has too many unconfirmed sign-ups.
    pub(crate) async fn sign_up(
        &self,
        typed: &str,
        (mail, name): (&MailAddress, &str),
        browser: &str,
        now_ms: u64,
    ) -> Result<Option<String>, BookError> {
        let id = CodeId::from_typed(typed);
        let secret = random()?;
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        let sign_up = SignUp {
            mail: mail.clone(),
            name: name.chars().take(NAME_CHARS_MAX).collect(),
            digest: digest(&secret),
            browser: digest(browser),
            until_ms: now_ms + LINK_MS,
        };
        let account = account_of(mail);
        let add = |found: Option<Code>| {
            let code = found.filter(|code| code.opens_account && code.admits(&account, now_ms));
            let Some(mut code) = code else {
                return Ok(Update::Keep(false));
            };
            code.sign_ups.retain(|one| one.until_ms > now_ms);
            let of_mail = code.sign_ups.iter().filter(|one| one.mail == *mail);
            if of_mail.count() >= OF_MAIL_MAX || code.sign_ups.len() >= SIGN_UPS_MAX {
                return Ok(Update::Keep(false));
            }
            code.sign_ups.push(sign_up.clone());
            Ok::<_, BookError>(Update::Write(code, true))
        };
        let is_stored = self.store.update(&id.document(), add).await?;
        Ok(is_stored.then(|| format!("{}.{secret}", id.0)))
    }

    /// Returns whether the link is valid: it confirms a sign-up, and this browser made that sign-up.
    pub(crate) async fn is_link(
        &self,
        token: &str,
        browser: &str,
        now_ms: u64,
    ) -> Result<bool, BookError> {
        let Some((id, link)) = link_of(token, browser, now_ms) else {
            return Ok(false);
        };
        let code: Option<Code> = self.store.read_value(&id.document()).await?.value;
        Ok(code.is_some_and(|code| code.sign_ups.iter().any(|one| link.is(one))))
    }

    /// Opens the account of a confirmed sign-up, and returns the owner's email address. Returns `None` if the link is
    /// unknown, used, expired, or was requested by another browser, or if the invitation has no uses left.
    pub(crate) async fn open(
        &self,
        token: &str,
        browser: &str,
        now_ms: u64,
    ) -> Result<Option<MailAddress>, BookError> {
        let Some((id, link)) = link_of(token, browser, now_ms) else {
            return Ok(None);
        };
        let record = |found: Option<Code>| {
            let mut code = found.ok_or(CodeError::Invalid)?;
            let sign_up = code.sign_ups.iter().find(|one| link.is(one)).cloned();
            let sign_up = sign_up.ok_or(CodeError::Invalid)?;
            let account = account_of(&sign_up.mail);
            Ok(match used(&mut code, &account, now_ms)? {
                Update::Write(code, (amount, _)) => Update::Write(code, (sign_up, amount)),
                Update::Remove((amount, _)) | Update::Keep((amount, _)) => {
                    Update::Keep((sign_up, amount))
                }
            })
        };
        let (sign_up, amount) = match self.store.update(&id.document(), record).await {
            Ok(recorded) => recorded,
            Err(CodeError::Invalid | CodeError::Used) => return Ok(None),
            Err(CodeError::Ledger(error)) => return Err(error),
        };
        let account = account_of(&sign_up.mail);
        match self.store.create_account(&account, &sign_up.name).await {
            Ok(_) | Err(BookError::Exists) => {}
            Err(error) => return Err(error),
        }
        let members = self.members.list(&account).await?;
        let is_own = members.is_empty() || members.iter().any(|one| one.mail == sign_up.mail);
        // If the account's other owners have removed this person, a second sign-up must not add the person again.
        if !is_own {
            return Ok(None);
        }
        self.credit(&id, &account, amount).await?;
        if members.is_empty() {
            let owner = Member {
                mail: sign_up.mail.clone(),
                role: MemberRole::Owner,
                added_ms: now_ms,
            };
            match self.members.put(&account, &owner, false).await {
                Ok(()) => {}
                Err(MembersError::Ledger(error)) => return Err(error),
                Err(_) => return Ok(None),
            }
        }
        // Marking the link as used is the last step: if a step above fails, the person can open the same link again.
        let finish = |found: Option<Code>| {
            let Some(mut code) = found else {
                return Ok(Update::Keep(false));
            };
            let count = code.sign_ups.len();
            code.sign_ups.retain(|one| !link.is(one));
            Ok::<_, BookError>(match code.sign_ups.len() < count {
                true => Update::Write(code, true),
                false => Update::Keep(false),
            })
        };
        let is_first = self.store.update(&id.document(), finish).await?;
        Ok(is_first.then_some(sign_up.mail))
    }
}

/// The digests by which a confirmation link is recognized, and the time at which the person opens the link.
struct LinkOf {
    digest: String,
    browser: String,
    now_ms: u64,
}

impl LinkOf {
    fn is(&self, one: &SignUp) -> bool {
        one.until_ms > self.now_ms && one.digest == self.digest && one.browser == self.browser
    }
}

fn link_of(token: &str, browser: &str, now_ms: u64) -> Option<(CodeId, LinkOf)> {
    let (id, secret) = token.split_once('.')?;
    let link = LinkOf {
        digest: digest(secret),
        browser: digest(browser),
        now_ms,
    };
    Some((id.parse().ok()?, link))
}

/// Records that an account uses the code. Returns the amount to credit, and whether this is the account's first use.
fn used(
    code: &mut Code,
    account: &AccountId,
    now_ms: u64,
) -> Result<Update<Code, (MicroRub, bool)>, CodeError> {
    if !code.admits(account, now_ms) {
        return Err(CodeError::Invalid);
    }
    let amount = code.amount_rub;
    if code.used_by.contains(account) {
        return Ok(Update::Keep((amount, false)));
    }
    code.used_by.push(account.clone());
    Ok(Update::Write(code.clone(), (amount, true)))
}

/// Returns the id of the account that a sign-up with this email address opens. Each address can open one account.
fn account_of(mail: &MailAddress) -> AccountId {
    let person = mail.person().to_string();
    let id = person.replace("member-", "c");
    id.parse().expect("an id of letters and digits is valid")
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tollgate_ledger::memory::MemoryLedger;

    use super::*;
    use crate::members::tests::on_each_ledger;

    const BROWSER: &str = "the browser";
    const NOW: u64 = 1_795_000_000_000;
    const FIFTY: MicroRub = MicroRub::new(50_000_000);

    fn codes(store: AnyLedger) -> Codes {
        Codes::new(store.clone(), Members::new(store))
    }

    fn account(number: usize) -> AccountId {
        format!("a{number}").parse().unwrap()
    }

    fn mail(number: usize) -> MailAddress {
        format!("user{number}@company{number}.example")
            .parse()
            .unwrap()
    }

    async fn given(codes: &Codes) -> i64 {
        let accounts = codes.store.accounts().await.unwrap();
        accounts.iter().map(|one| one.balance_rub.micro()).sum()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the requests run on the threads of the runtime"
    )]
    #[tokio::test]
    async fn five_hundred_parallel_requests_spend_a_single_use_code_once() {
        on_each_ledger(async |store| {
            let codes = codes(store);
            for number in 0..500 {
                let made = codes.store.create_account(&account(number), "a").await;
                made.unwrap();
            }
            let code = Code::new(FIFTY, false, 1, None, NOW);
            let (_, text) = codes.make(&code).await.unwrap();
            let spent = (0..500).map(|number| {
                let (codes, text) = (codes.clone(), text.clone());
                tokio::spawn(async move { codes.spend(&text, &account(number), NOW).await })
            });
            let spent = join_all(spent.collect::<Vec<_>>()).await;
            assert_eq!(
                spent.iter().filter(|one| matches!(one, Ok(Ok(_)))).count(),
                1
            );
            assert_eq!(given(&codes).await, FIFTY.micro());
        })
        .await;
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the requests run on the threads of the runtime"
    )]
    #[tokio::test]
    async fn account_that_repeats_a_promo_code_in_parallel_is_credited_once() {
        on_each_ledger(async |store| {
            let codes = codes(store);
            codes.store.create_account(&account(1), "a").await.unwrap();
            let code = Code::new(FIFTY, false, 10, None, NOW);
            let (_, text) = codes.make(&code).await.unwrap();
            let spent = (0..500).map(|_| {
                let (codes, text) = (codes.clone(), text.clone());
                tokio::spawn(async move { codes.spend(&text, &account(1), NOW).await })
            });
            join_all(spent.collect::<Vec<_>>()).await;
            assert_eq!(given(&codes).await, FIFTY.micro());
            let again = codes.spend(&text, &account(1), NOW).await;
            assert!(matches!(again, Err(CodeError::Used)), "{again:?}");
        })
        .await;
    }

    #[tokio::test]
    async fn repeated_request_books_a_credit_that_failed_after_the_use_of_the_code_was_recorded() {
        on_each_ledger(async |store| {
            let codes = codes(store);
            codes.store.create_account(&account(1), "a").await.unwrap();
            let mut code = Code::new(FIFTY, false, 1, None, NOW);
            code.used_by.push(account(1));
            let (_, text) = codes.make(&code).await.unwrap();
            for is_used in [false, true] {
                let spent = codes.spend(&text, &account(1), NOW).await;
                assert_eq!(matches!(spent, Err(CodeError::Used)), is_used, "{spent:?}");
                assert_eq!(given(&codes).await, FIFTY.micro());
            }
        })
        .await;
    }

    #[tokio::test]
    async fn expired_or_removed_or_unknown_codes_and_invitations_credit_nothing() {
        on_each_ledger(async |store| {
            let codes = codes(store);
            codes.store.create_account(&account(1), "a").await.unwrap();
            let expired = Code::new(FIFTY, false, 1, Some(NOW), NOW);
            let invitation = Code::new(FIFTY, true, 1, None, NOW);
            let removed = Code::new(FIFTY, false, 1, None, NOW);
            let (_, expired) = codes.make(&expired).await.unwrap();
            let (_, invitation) = codes.make(&invitation).await.unwrap();
            let (id, removed) = codes.make(&removed).await.unwrap();
            assert!(codes.remove(&id).await.unwrap().is_some());
            for text in [
                &*expired,
                &invitation,
                &removed,
                "",
                "AAAAA-AAAAA-AAAAA-AAAAA",
            ] {
                let spent = codes.spend(text, &account(1), NOW).await;
                assert!(matches!(spent, Err(CodeError::Invalid)), "{text}");
            }
            assert_eq!(given(&codes).await, 0);
            assert_eq!(codes.list().await.unwrap().len(), 2);
        })
        .await;
    }

    #[tokio::test]
    async fn ten_thousand_sign_ups_give_no_more_money_and_accounts_than_the_invitation_allows() {
        let codes = codes(AnyLedger::Memory(MemoryLedger::new()));
        let code = Code::new(FIFTY, true, 3, None, NOW);
        let (_, text) = codes.make(&code).await.unwrap();
        let typed = text.to_lowercase().replace('-', " ");
        for number in 0..10_000 {
            // At each attempt, the links of earlier sign-ups have expired.
            let now = NOW + LINK_MS * number as u64;
            for typed in ["", "guess", &*typed] {
                let (mail, name) = (mail(number), "Company");
                let token = codes.sign_up(typed, (&mail, name), BROWSER, now).await;
                if let Some(token) = token.unwrap() {
                    for browser in ["another", BROWSER, BROWSER] {
                        codes.open(&token, browser, now).await.unwrap();
                    }
                }
            }
        }
        assert_eq!(codes.store.accounts().await.unwrap().len(), 3);
        assert_eq!(given(&codes).await, 3 * FIFTY.micro());
    }

    #[tokio::test]
    async fn a_sign_up_opens_one_account_with_an_owner_and_the_sign_up_link_works_only_once() {
        on_each_ledger(async |store| {
            let codes = codes(store);
            let code = Code::new(FIFTY, true, 2, None, NOW);
            let (_, text) = codes.make(&code).await.unwrap();
            let anna = mail(1);
            let sign_up = async || {
                let token = codes.sign_up(&text, (&anna, "Acme"), BROWSER, NOW).await;
                token.unwrap().unwrap()
            };
            let (first, second) = (sign_up().await, sign_up().await);
            assert!(codes.is_link(&first, BROWSER, NOW).await.unwrap());
            for (browser, now) in [("another", NOW), (BROWSER, NOW + LINK_MS)] {
                assert!(codes.open(&first, browser, now).await.unwrap().is_none());
            }
            for (token, opens) in [(&first, true), (&first, false), (&second, true)] {
                let opened = codes.open(token, BROWSER, NOW).await.unwrap();
                assert_eq!(opened.is_some(), opens);
            }
            let account = account_of(&anna);
            let members = codes.members.list(&account).await.unwrap();
            assert_eq!((members.len(), members[0].role), (1, MemberRole::Owner));
            assert_eq!(given(&codes).await, FIFTY.micro());

            // A person whom another owner has removed does not become a member again by a second sign-up.
            let boris = Member {
                mail: mail(2),
                role: MemberRole::Owner,
                added_ms: NOW,
            };
            codes.members.put(&account, &boris, false).await.unwrap();
            let id = anna.person().to_string();
            codes.members.remove(&account, &id, true).await.unwrap();
            let again = sign_up().await;
            assert!(codes.open(&again, BROWSER, NOW).await.unwrap().is_none());
        })
        .await;
    }

    #[tokio::test]
    async fn an_invitation_causes_a_bounded_number_of_emails() {
        on_each_ledger(async |store| {
            let codes = codes(store);
            let code = Code::new(MicroRub::ZERO, true, 1000, None, NOW);
            let (_, text) = codes.make(&code).await.unwrap();
            let mut sent = 0;
            for number in 0..100 {
                for _ in 0..10 {
                    let mail = mail(number);
                    let token = codes.sign_up(&text, (&mail, "x"), BROWSER, NOW).await;
                    sent += usize::from(token.unwrap().is_some());
                }
            }
            assert_eq!(sent, SIGN_UPS_MAX);
        })
        .await;
    }
}
