//! Expiry: ends holds that were neither settled, released nor extended in time.

use std::mem;

use super::{Account, Book, EXPIRED_MS, Expired, Millis};
use crate::account::AccountId;

impl Book {
    /// Ends expired holds, at most `most` of each account. Returns how many holds it ended.
    pub fn expire(&mut self, most: usize, now: Millis) -> usize {
        let (mut count, mut seen) = (0, Vec::new());
        while let Some((at, id)) = self.watched.pop_first() {
            if at > now {
                self.watched.insert((at, id));
                break;
            }
            if let Some(account) = self.accounts.get_mut(&id) {
                account.watched = None;
                count += account.expire(most, now);
            }
            seen.push(id);
        }
        for id in &seen {
            self.watch(id);
        }
        count
    }

    /// Schedules the next check of an account for the time when its first hold expires.
    pub(super) fn watch(&mut self, id: &AccountId) {
        let Some(account) = self.accounts.get_mut(id) else {
            return;
        };
        let due = account.due.first().map(|(due, _)| *due);
        if let Some(at) = mem::replace(&mut account.watched, due) {
            self.watched.remove(&(at, id.clone()));
        }
        if let Some(due) = due {
            self.watched.insert((due, id.clone()));
        }
    }
}

impl Account {
    pub(super) fn expire(&mut self, most: usize, now: Millis) -> usize {
        let mut count = 0;
        while count < most {
            let Some(&(due, number)) = self.due.first() else {
                break;
            };
            if due > now {
                break;
            }
            let Some(open) = self.close(number) else {
                break;
            };
            let expired = Expired {
                key: open.key,
                held: open.held,
                at: now,
            };
            self.expired.insert(number, expired);
            count += 1;
        }
        if count > 0 {
            self.expired
                .retain(|_, expired| now.saturating_sub(expired.at) <= EXPIRED_MS);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::{
        ceiling::Ceilings,
        contract::{Entry, Hold},
        money::MicroRub,
        number::RequestNumber,
    };

    const MINUTE: Duration = Duration::from_secs(60);

    fn id(index: u64) -> AccountId {
        format!("a{index}").parse().unwrap()
    }

    fn hold(account: u64, number: u128, ttl: Duration) -> Hold {
        Hold {
            number: RequestNumber::from_uuid(Uuid::from_u128(number)),
            account: id(account),
            key: "k".parse().unwrap(),
            want: MicroRub::new(10),
            least: MicroRub::new(10),
            ttl,
        }
    }

    fn funded(accounts: u64) -> Book {
        let mut book = Book::default();
        for index in 0..accounts {
            let mut account = Account::default();
            account.set_key(&"k".parse().unwrap(), Ceilings::NONE, true);
            book.restore(&id(index), account);
            let entry = Entry {
                id: "t".into(),
                amount: MicroRub::new(1_000),
                reason: None,
            };
            book.enter(&id(index), &entry).unwrap();
        }
        book
    }

    #[test]
    fn hold_with_a_changed_expiry_time_expires_at_the_new_time() {
        let mut book = funded(4);
        // Account 0 has two holds, of which the second expires first. The hold of account 1 is released at once. The
        // expiry time of account 2's hold is moved to a later time, and the expiry time of account 3's hold to an
        // earlier time.
        book.reserve(&hold(0, 1, 3 * MINUTE), 0).unwrap();
        book.reserve(&hold(0, 2, MINUTE), 0).unwrap();
        book.reserve(&hold(1, 3, MINUTE), 0).unwrap();
        book.release(hold(1, 3, MINUTE).number, &id(1), 0);
        book.reserve(&hold(2, 4, MINUTE), 0).unwrap();
        assert!(book.extend(hold(2, 4, MINUTE).number, &id(2), 2 * MINUTE, 0));
        book.reserve(&hold(3, 5, 3 * MINUTE), 0).unwrap();
        assert!(book.extend(hold(3, 5, MINUTE).number, &id(3), MINUTE, 0));
        let ended = |now: Millis, book: &mut Book| {
            let ended = book.expire(256, now);
            assert_eq!(book.audit().breaches, Vec::<String>::new(), "{now}");
            ended
        };
        assert_eq!(ended(59_999, &mut book), 0);
        assert_eq!(ended(60_000, &mut book), 2);
        assert_eq!(ended(120_000, &mut book), 1);
        // Account 1 has a hold again, so the sweep checks the account again.
        book.reserve(&hold(1, 6, MINUTE), 120_000).unwrap();
        assert_eq!(ended(180_000, &mut book), 2);
        assert_eq!(ended(u64::MAX, &mut book), 0);
        assert!(book.watched.is_empty());
    }

    #[test]
    fn sweep_ends_a_limited_number_of_expired_holds_and_the_next_sweep_ends_the_rest() {
        let mut book = funded(1);
        for number in 0..5 {
            book.reserve(&hold(0, number, MINUTE), 0).unwrap();
        }
        let rounds = [0; 4].map(|_| book.expire(2, 60_000));
        assert_eq!(rounds, [2, 2, 1, 0]);
    }

    #[test]
    fn sweep_of_expired_holds_skips_accounts_without_holds() {
        let mut book = funded(100);
        book.reserve(&hold(7, 1, MINUTE), 0).unwrap();
        book.reserve(&hold(7, 2, 2 * MINUTE), 0).unwrap();
        assert_eq!(book.watched.iter().collect::<Vec<_>>(), [&(60_000, id(7))]);
    }
}
