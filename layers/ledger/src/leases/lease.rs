//! A lease as its gateway has it: pure, times in, turns out.
//!
//! What it grants is decided by a [`Book`] of one account and one key, whose balance is what the lease has and nobody
//! was charged for. So that the ledger never has less in the lease than this book grants from: what is given back leaves
//! the book before the ledger is told, what is got more comes into it when the ledger has answered.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Now, Step, Turn, TurnAnswer, TurnEnd, Word, ttl_ms};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    book::{Account, Book, Hashing, KeyBook, Millis},
    ceiling::Ceilings,
    contract::{Hold, Refusal, Reserved, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// Ends that are told in one turn.
pub(crate) const ENDS_MAX: usize = 256;
/// Turns whose words are remembered: those of some seconds of the busiest lease, of minutes of others.
const WORDS_MAX: usize = 4_096;

/// What the ledger said of an end, or why it was not heard.
pub(crate) type Told = Result<Settled, Arc<BoxError>>;

/// How large a lease is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Beside what running calls hold.
    pub(crate) free: MicroRub,
    /// With less than this free in the ledger nobody gets more.
    pub(crate) short_of: MicroRub,
}

/// One that is to be given back as its calls end.
pub(crate) const NOTHING: Size = Size {
    free: MicroRub::ZERO,
    short_of: MicroRub::ZERO,
};

pub(crate) struct Lease {
    number: RequestNumber,
    account: AccountId,
    key: KeyId,
    book: Book,
    /// What the ledger has in it, as far as it has answered.
    ledger_has: MicroRub,
    word: String,
    /// Those of its turns so far, oldest first.
    words: VecDeque<Uuid>,
    /// Of a lease that is lost: the turn of ours that the ledger has fallen back to. So nobody else goes on with it.
    fell_back_to: Option<Uuid>,
    state: State,
    /// Ends that the ledger has not acknowledged, and those of them that are in no turn yet.
    ends: HashMap<RequestNumber, End, Hashing>,
    queue: VecDeque<RequestNumber>,
    /// A turn whose answer has not been heard, and when it was made.
    under_way: Option<(Turn, Now)>,
    /// The longest time that any of its holds has asked for.
    ttl: Duration,
    /// How long after a turn something may be granted.
    grants_ms: u64,
    grants_until: Option<Now>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The ledger has not said yes.
    Opening,
    Open,
    /// It is another's, or none's: nothing is granted, and its ends are told.
    Lost,
    /// Given back, or never got.
    Closed,
}

struct End {
    settlement: Arc<Settlement>,
    cover: MicroRub,
    at: Millis,
    heard: Vec<oneshot::Sender<Told>>,
}

impl Lease {
    /// One that has nothing until the ledger has answered its first turn.
    pub(crate) fn new(
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        grants_ms: u64,
    ) -> Self {
        let mut book = Book::default();
        let nothing = (MicroRub::ZERO, MicroRub::ZERO);
        let mut of_account = Account::restored(false, nothing.0, nothing.1, HashMap::new());
        of_account.restore_key(key.clone(), KeyBook::default());
        of_account.set_key(key, Ceilings::NONE, true);
        book.restore(account, of_account);
        Self {
            number,
            account: account.clone(),
            key: key.clone(),
            book,
            ledger_has: MicroRub::ZERO,
            word: String::new(),
            words: VecDeque::new(),
            fell_back_to: None,
            state: State::Opening,
            ends: HashMap::default(),
            queue: VecDeque::new(),
            under_way: None,
            ttl: Duration::ZERO,
            grants_ms,
            grants_until: None,
        }
    }

    pub(crate) const fn number(&self) -> RequestNumber {
        self.number
    }

    /// It lives so long at least after a turn.
    pub(crate) fn lives_for(&mut self, ttl: Duration) {
        self.ttl = self.ttl.max(ttl);
    }

    /// Holds money for a call, where the lease has all that it wants. `None`: the ledger is to be asked.
    pub(crate) fn reserve(&mut self, hold: &Hold, now: Now) -> Option<Result<Reserved, Refusal>> {
        if self.ends.contains_key(&hold.number) {
            return Some(Err(Refusal::Gone));
        }
        let free = self.free();
        // An empty lease says nothing of its account, and so nothing of a call that costs nothing either.
        let pays = hold.want <= free && free > MicroRub::ZERO;
        let has = self.may_grant(now) && hold.least <= hold.want && pays;
        if !has && !self.of_account().knows(hold.number) {
            return None;
        }
        self.ttl = self.ttl.max(hold.ttl);
        Some(self.book.reserve(hold, now.steady))
    }

    /// Ends a call with a charge. Says what the ledger says, once it does; `None` where the call is not the lease's.
    pub(crate) fn settle(
        &mut self,
        settlement: &Settlement,
        now: Now,
    ) -> Option<oneshot::Receiver<Told>> {
        let number = settlement.number;
        let (heard, hears) = oneshot::channel();
        if let Some(end) = self.ends.get_mut(&number) {
            // Told before, and not answered.
            Arc::make_mut(&mut end.settlement).fresh = settlement.fresh;
            end.heard.retain(|heard| !heard.is_closed());
            end.heard.push(heard);
            return Some(hears);
        }
        let cover = self.book.settle_and_forget(
            number,
            &self.account,
            &settlement.key,
            settlement.cost,
            now.steady,
        )?;
        let end = End {
            settlement: Arc::new(settlement.clone()),
            cover,
            at: now.steady,
            heard: vec![heard],
        };
        self.ends.insert(number, end);
        self.queue.push_back(number);
        Some(hears)
    }

    /// Ends a call without a charge: the ledger never heard of it. Says whether it was the lease's.
    pub(crate) fn release(&mut self, number: RequestNumber, key: &KeyId) -> bool {
        // One that was charged stays charged.
        self.ends.contains_key(&number) || self.book.release_and_forget(number, &self.account, key)
    }

    pub(crate) fn extend(&mut self, number: RequestNumber, ttl: Duration, now: Now) -> bool {
        self.ttl = self.ttl.max(ttl);
        self.book.extend(number, &self.account, ttl, now.steady)
    }

    /// Whether a call that has not ended, or whose end has not been acknowledged, is the lease's.
    pub(crate) fn knows(&self, number: RequestNumber) -> bool {
        self.ends.contains_key(&number) || self.of_account().knows(number)
    }

    /// What may be granted from it if anything may.
    pub(crate) fn free(&self) -> MicroRub {
        let account = self.of_account();
        account.balance.minus_or_zero(account.held)
    }

    pub(crate) fn ends_waiting(&self) -> usize {
        self.queue.len()
    }

    /// What the ledger has in it, as far as it has answered.
    pub(crate) const fn leased(&self) -> MicroRub {
        self.ledger_has
    }

    /// What its running calls hold.
    pub(crate) fn held_by_calls(&self) -> MicroRub {
        self.of_account().held
    }

    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub(crate) const fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    /// Whether no call holds anything of it, and none has ended that the ledger has not heard of.
    pub(crate) fn is_idle(&self) -> bool {
        self.of_account().holds_open() == 0 && self.ends.is_empty()
    }

    /// Whether a turn was made whose answer has not been heard.
    pub(crate) const fn has_turn_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// For how long the ledger keeps it without a turn.
    pub(crate) const fn ttl(&self) -> Duration {
        self.ttl
    }

    fn may_grant(&self, now: Now) -> bool {
        self.state == State::Open
            && self
                .grants_until
                .is_some_and(|until| now.steady < until.steady && now.wall < until.wall)
    }

    /// What the ledger is to be told next, under a word that no turn had; the same again as long as it has not answered.
    pub(crate) fn turn(&mut self, size: Size, now: Now, word: Uuid) -> Turn {
        if let Some((turn, _)) = &mut self.under_way {
            // What a turn tells first it tells again, save how old its ends are.
            for end in &mut turn.ends {
                if let Some(known) = self.ends.get(&end.settlement.number) {
                    end.settlement = Arc::clone(&known.settlement);
                }
            }
            return turn.clone();
        }
        // Holds whose owners forgot them.
        self.book.expire(usize::MAX, now.steady);
        let count = self.queue.len().min(ENDS_MAX);
        let ends = self.queue.drain(..count).filter_map(|number| {
            let end = self.ends.get(&number)?;
            Some(TurnEnd {
                settlement: Arc::clone(&end.settlement),
                cover: end.cover,
            })
        });
        let ends: Vec<TurnEnd> = ends.collect();
        let mut turn = Turn {
            short_of: size.short_of,
            ends,
            ..self.plain_turn(word)
        };
        match self.state {
            State::Opening => {
                turn.step = Step::Open;
                turn.more = size.free;
                turn.grants_ms = self.grants_ms;
            }
            State::Open => self.resize(&mut turn, size),
            State::Lost | State::Closed => {}
        }
        self.under_way = Some((turn.clone(), now));
        turn
    }

    /// One that asks for nothing.
    fn plain_turn(&self, word: Uuid) -> Turn {
        Turn {
            lease: self.number,
            account: self.account.clone(),
            key: self.key.clone(),
            step: Step::Tell,
            before: self.word.clone(),
            this: word.simple().to_string(),
            give: MicroRub::ZERO,
            more: MicroRub::ZERO,
            short_of: MicroRub::ZERO,
            ttl_ms: ttl_ms(self.ttl).max(self.grants_ms),
            grants_ms: 0,
            ends: Vec::new(),
        }
    }

    fn resize(&mut self, turn: &mut Turn, size: Size) {
        let free = self.free();
        if size == NOTHING {
            self.grants_until = None;
        }
        if size == NOTHING && self.of_account().holds_open() == 0 && self.queue.is_empty() {
            turn.step = Step::Close;
            self.take_out(free);
            return;
        }
        turn.step = Step::GoOn;
        if size.free < free {
            turn.give = free.minus_or_zero(size.free);
            self.take_out(turn.give);
        } else {
            turn.more = size.free.minus_or_zero(free);
        }
        if size != NOTHING {
            turn.grants_ms = self.grants_ms;
        }
    }

    /// What is given back is granted to nobody from here on, whether the ledger has heard of it or not.
    fn take_out(&mut self, amount: MicroRub) {
        let account = self.of_account_mut();
        account.balance = account.balance.minus_or_zero(amount);
    }

    /// The ledger has answered a turn. Of one that was answered before nothing is learnt. Says since when the oldest
    /// of its ends had waited.
    pub(crate) fn answered(&mut self, turn: &Turn, answer: &TurnAnswer) -> Option<Millis> {
        let same = |(under_way, _): &mut (Turn, Now)| under_way.this == turn.this;
        let (turn, made) = self.under_way.take_if(same)?;
        let oldest = self.heard(&turn, answer);
        if turn.step == Step::Tell {
            self.close_if_done();
            return oldest;
        }
        match answer.word {
            Word::Fenced => {
                let last = Uuid::parse_str(&answer.last).ok();
                self.lose(last.filter(|last| self.words.contains(last)));
            }
            Word::Gone => self.lose(None),
            Word::Short | Word::Refused
                if turn.step == Step::Open && answer.left == MicroRub::ZERO =>
            {
                self.state = State::Closed;
            }
            Word::Done | Word::Refused | Word::Short => self.resized(&turn, made, answer),
        }
        oldest
    }

    /// Tells those who wait what became of a turn's ends.
    fn heard(&mut self, turn: &Turn, answer: &TurnAnswer) -> Option<Millis> {
        let mut oldest: Option<Millis> = None;
        for (end, settled) in turn.ends.iter().zip(&answer.ends) {
            let Some(known) = self.ends.remove(&end.settlement.number) else {
                continue;
            };
            oldest = Some(oldest.map_or(known.at, |oldest| oldest.min(known.at)));
            for heard in known.heard {
                // Whoever asked may have gone.
                let _ = heard.send(Ok(*settled));
            }
        }
        oldest
    }

    fn resized(&mut self, turn: &Turn, made: Now, answer: &TurnAnswer) {
        if self.words.len() == WORDS_MAX {
            self.words.pop_front();
        }
        self.words.extend(Uuid::parse_str(&turn.this));
        self.word.clone_from(&turn.this);
        let covers = turn.ends.iter().map(|end| end.cover);
        let covers = covers.fold(MicroRub::ZERO, MicroRub::plus_or_max);
        let after_ends = self.ledger_has.minus_or_zero(covers);
        let expected = if turn.step == Step::Close {
            MicroRub::ZERO
        } else {
            after_ends.minus_or_zero(turn.give)
        };
        let gained = answer.left.minus_or_zero(expected);
        self.ledger_has = answer.left;
        if answer.left < expected || gained > turn.more {
            // It has lost what it had acknowledged.
            return self.lose(Uuid::parse_str(&turn.this).ok());
        }
        let account = self.of_account_mut();
        account.balance = account.balance.plus_or_max(gained);
        self.state = if turn.step == Step::Close {
            State::Closed
        } else {
            State::Open
        };
        self.grants_until = match answer.word {
            Word::Done if turn.grants_ms > 0 => Some(Now {
                steady: made.steady.saturating_add(turn.grants_ms),
                wall: made.wall.saturating_add(turn.grants_ms),
            }),
            _ => None,
        };
    }

    /// Nobody knows whether the turn under way was done: it is told again.
    pub(crate) fn unanswered(&mut self, cause: BoxError) {
        let cause = Arc::new(cause);
        if self.under_way.is_none() {
            return;
        }
        // Those that wait for the turn after it hear so too: they are not acknowledged sooner.
        for end in self.ends.values_mut() {
            for heard in end.heard.drain(..) {
                let _ = heard.send(Err(Arc::clone(&cause)));
            }
        }
    }

    fn lose(&mut self, fell_back_to: Option<Uuid>) {
        self.state = State::Lost;
        self.fell_back_to = fell_back_to;
        self.grants_until = None;
        let account = self.of_account_mut();
        account.balance = account.held;
        self.close_if_done();
    }

    /// One that is lost ends with its last call.
    pub(crate) fn close_if_done(&mut self) {
        let lost = self.state == State::Lost && self.under_way.is_none();
        if lost && self.is_idle() {
            self.state = State::Closed;
        }
    }

    /// The turn that gives back what the ledger still has in it, where it fell back and nobody else can.
    pub(crate) fn left_behind(&self, word: Uuid) -> Option<Turn> {
        let before = self.fell_back_to.filter(|_| self.is_closed())?;
        Some(Turn {
            step: Step::Close,
            before: before.simple().to_string(),
            ..self.plain_turn(word)
        })
    }

    /// What the ledger must have in the lease at least; and exactly, where its last turn was answered.
    #[cfg(test)]
    pub(crate) fn must_be_there(&self) -> (i64, Option<i64>) {
        let ends = self.ends.values();
        let covers: i64 = ends.map(|end| end.cover.micro()).sum();
        let told: i64 = self.under_way.as_ref().map_or(0, |(turn, _)| {
            turn.ends.iter().map(|end| end.cover.micro()).sum()
        });
        let has = self.of_account().balance.micro() + covers;
        let exact = self.under_way.is_none() && self.state == State::Open;
        (has - told, exact.then_some(has))
    }

    fn of_account(&self) -> &Account {
        self.book
            .account(&self.account)
            .expect("the book was made with its account")
    }

    fn of_account_mut(&mut self) -> &mut Account {
        self.book
            .account_mut(&self.account)
            .expect("the book was made with its account")
    }
}
