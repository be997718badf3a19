//! A lease as its gateway sees it. A pure state machine: its input is times and the ledger's answers, its output is
//! turns of the lease, which are requests to the ledger.
//!
//! A [`Book`] of one account and one key decides what the lease grants. The book's balance is the part of the lease's
//! money that was not charged for any call. The ledger must never have less money in the lease than the book grants
//! from. So an amount that the gateway gives back leaves the book before the turn is sent, and an added amount enters
//! the book after the ledger's answer.

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
    contract::{Adjusted, Adjustment, Hold, Refusal, Reserved, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// The largest number of ends of calls that one turn of a lease reports.
pub(crate) const ENDS_MAX: usize = 256;
/// The largest number of past turns of a lease whose names are stored. For the busiest lease these are the turns of a
/// few seconds, for other leases those of minutes.
const WORDS_MAX: usize = 4_096;

/// The ledger's result for the end of a call, or the reason why the ledger has not answered.
pub(crate) type Acknowledged = Result<Settled, Arc<BoxError>>;
/// The ledger's answer to a change of a hold, or the reason why the ledger has not answered.
pub(crate) type Raised = Result<Result<Adjusted, Refusal>, Arc<BoxError>>;

/// The lease's answer to a change of a hold, or the receiver of the ledger's answer.
pub(crate) enum Adjusting {
    Done(Adjusted),
    Waits(oneshot::Receiver<Raised>),
}

/// A change of a hold that the ledger must decide, and the sender of its answer.
struct Raise {
    adjustment: Adjustment,
    answered_to: oneshot::Sender<Raised>,
}

/// The size that a lease should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Free money in the lease, in addition to what running calls hold.
    pub(crate) free: MicroRub,
    /// If the account has less free money outside the lease than this, the ledger does not enlarge the lease.
    pub(crate) short_of: MicroRub,
}

/// The size of a lease that its gateway gives back as its calls end.
pub(crate) const NOTHING: Size = Size {
    free: MicroRub::ZERO,
    short_of: MicroRub::ZERO,
};

pub(crate) struct Lease {
    number: RequestNumber,
    account: AccountId,
    key: KeyId,
    book: Book,
    /// The amount that the ledger has in the lease, according to its last answer.
    ledger_has: MicroRub,
    word: String,
    /// The names of the last turns of this lease, oldest first.
    words: VecDeque<Uuid>,
    /// The name of this lease's last turn in the ledger, if the lease is lost because the ledger fell back to older
    /// data. If set, no other gateway continues the lease.
    fell_back_to: Option<Uuid>,
    state: State,
    /// Ends of calls that the ledger has not acknowledged. `queue` has the numbers of the calls whose ends no turn of
    /// the lease has reported yet.
    ends: HashMap<RequestNumber, End, Hashing>,
    queue: VecDeque<RequestNumber>,
    /// Changes of holds that the ledger must decide, oldest first. The first `raises_sent` of these changes are in the
    /// lease's turn that has no answer yet.
    raises: VecDeque<Raise>,
    raises_sent: usize,
    /// The turn of the lease that has no answer yet, and when this turn was made.
    under_way: Option<(Turn, Now)>,
    /// The longest time to live of any hold of the lease's calls.
    ttl: Duration,
    /// How long after a turn of the lease it may grant holds, in milliseconds.
    grants_ms: u64,
    grants_until: Option<Now>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The ledger has not yet answered the turn that opens the lease.
    Opening,
    Open,
    /// Another owner has the lease, or the ledger does not have it. The lease grants nothing; the ends of its calls are
    /// still reported.
    Lost,
    /// The lease was given back, or was never opened.
    Closed,
}

struct End {
    settlement: Arc<Settlement>,
    cover: MicroRub,
    at: Millis,
    answered_to: Vec<oneshot::Sender<Acknowledged>>,
}

impl Lease {
    /// Creates a lease that has no money until the ledger has answered its first turn.
    pub(crate) fn new(
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        grants_ms: u64,
    ) -> Self {
        let mut book = Book::default();
        let zero = MicroRub::ZERO;
        let mut of_account = Account::restored(false, zero, zero, HashMap::new());
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
            raises: VecDeque::new(),
            raises_sent: 0,
            under_way: None,
            ttl: Duration::ZERO,
            grants_ms,
            grants_until: None,
        }
    }

    pub(crate) const fn number(&self) -> RequestNumber {
        self.number
    }

    /// Makes the ledger keep the lease for at least this long after each turn of the lease.
    pub(crate) fn lives_for(&mut self, ttl: Duration) {
        self.ttl = self.ttl.max(ttl);
    }

    /// Holds money for a call if the lease has the whole amount that the call requests. Returns `None` if the ledger
    /// must decide.
    pub(crate) fn reserve(&mut self, hold: &Hold, now: Now) -> Option<Result<Reserved, Refusal>> {
        if self.ends.contains_key(&hold.number) {
            return Some(Err(Refusal::Gone));
        }
        let free = self.free();
        // If a lease has no money, it does not follow that its account is active. So the ledger decides even about free
        // calls.
        let pays = hold.want <= free && free > MicroRub::ZERO;
        let has = self.may_grant(now) && hold.least <= hold.want && pays;
        if !has && !self.of_account().knows(hold.number) {
            return None;
        }
        self.ttl = self.ttl.max(hold.ttl);
        Some(self.book.reserve(hold, now.steady))
    }

    /// Ends a call with a charge. The receiver yields the ledger's result; `None` if the call is not held from this
    /// lease.
    pub(crate) fn settle(
        &mut self,
        settlement: &Settlement,
        now: Now,
    ) -> Option<oneshot::Receiver<Acknowledged>> {
        let number = settlement.number;
        let (answered_to, hears) = oneshot::channel();
        if let Some(end) = self.ends.get_mut(&number) {
            // The call's end was sent before, but the ledger has not acknowledged it.
            Arc::make_mut(&mut end.settlement).fresh = settlement.fresh;
            end.answered_to
                .retain(|answered_to| !answered_to.is_closed());
            end.answered_to.push(answered_to);
            return Some(hears);
        }
        let cover = self.book.settle_and_forget(
            number,
            &self.account,
            &settlement.key,
            settlement.cost,
            now.steady,
        )?;
        let (settlement, at) = (Arc::new(settlement.clone()), now.steady);
        let end = End {
            settlement,
            cover,
            at,
            answered_to: vec![answered_to],
        };
        self.ends.insert(number, end);
        self.queue.push_back(number);
        Some(hears)
    }

    /// Ends a call without a charge and without a message to the ledger. Returns whether the call was held from this
    /// lease.
    pub(crate) fn release(&mut self, number: RequestNumber, key: &KeyId) -> bool {
        // A call that was charged cannot be released.
        self.ends.contains_key(&number) || self.book.release_and_forget(number, &self.account, key)
    }

    pub(crate) fn extend(&mut self, number: RequestNumber, ttl: Duration, now: Now) -> bool {
        self.ttl = self.ttl.max(ttl);
        self.book.extend(number, &self.account, ttl, now.steady)
    }

    /// Changes the amount that a call holds. The lease decides by itself if it has enough money; otherwise its next
    /// turn requests the increase from the ledger. `None` if the call is not held from this lease.
    pub(crate) fn adjust(&mut self, adjustment: &Adjustment, now: Now) -> Option<Adjusting> {
        if self.ends.contains_key(&adjustment.number) {
            return Some(Adjusting::Done(Adjusted::Gone));
        }
        if !self.of_account().knows(adjustment.number) {
            return None;
        }
        let growth = self.of_account().growth(adjustment);
        let decides = self.may_grant(now) && growth <= self.free();
        if growth == MicroRub::ZERO || decides {
            let adjusted = self.book.adjust(adjustment, now.steady);
            // The lease's book has no ceilings, and it has enough free money for the increase, so it cannot refuse the
            // change.
            return Some(Adjusting::Done(adjusted.unwrap_or(Adjusted::Gone)));
        }
        if matches!(self.state, State::Lost | State::Closed) {
            return Some(Adjusting::Done(Adjusted::Gone));
        }
        let (answered_to, hears) = oneshot::channel();
        let adjustment = adjustment.clone();
        self.raises.push_back(Raise {
            adjustment,
            answered_to,
        });
        Some(Adjusting::Waits(hears))
    }

    /// Returns whether a change of a hold waits for the ledger's answer.
    pub(crate) fn has_raises(&self) -> bool {
        !self.raises.is_empty()
    }

    /// Returns whether the call belongs to this lease: it runs, or the ledger has not acknowledged its end.
    pub(crate) fn knows(&self, number: RequestNumber) -> bool {
        self.ends.contains_key(&number) || self.of_account().knows(number)
    }

    /// The amount that the lease can grant now; zero if it may not grant.
    pub(crate) fn free(&self) -> MicroRub {
        let account = self.of_account();
        account.balance.minus_or_zero(account.held)
    }

    pub(crate) fn ends_waiting(&self) -> usize {
        self.queue.len()
    }

    /// The amount that the ledger has in the lease, according to its last answer.
    pub(crate) const fn leased(&self) -> MicroRub {
        self.ledger_has
    }

    /// Returns the amount that the lease's running calls hold.
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

    /// Returns whether no call holds money of the lease, and the ledger has acknowledged all ends.
    pub(crate) fn is_idle(&self) -> bool {
        self.of_account().holds_open() == 0 && self.ends.is_empty()
    }

    /// Returns whether a turn of the lease was sent and is not answered yet.
    pub(crate) const fn has_turn_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns how long the ledger keeps the lease if it receives no turn of the lease.
    pub(crate) const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns whether the lease may grant holds by itself.
    pub(crate) fn may_grant(&self, now: Now) -> bool {
        let in_time = |until: Now| now.steady < until.steady && now.wall < until.wall;
        self.is_open() && self.grants_until.is_some_and(in_time)
    }

    /// The lease's next turn to send to the ledger. `word` is the turn's unique name. While a turn has no answer, this
    /// turn is returned again.
    pub(crate) fn turn(&mut self, size: Size, now: Now, word: Uuid) -> Turn {
        if let Some((turn, _)) = &mut self.under_way {
            // A repeated turn of the lease has the same contents, except that the ends of calls in it may no longer be
            // fresh.
            for end in &mut turn.ends {
                if let Some(known) = self.ends.get(&end.settlement.number) {
                    end.settlement = Arc::clone(&known.settlement);
                }
            }
            return turn.clone();
        }
        // Ends expired holds: the tasks of their calls no longer exist and cannot end them.
        self.book.expire(usize::MAX, now.steady);
        let count = self.queue.len().min(ENDS_MAX);
        let ends = self.queue.drain(..count).filter_map(|number| {
            let end = self.ends.get(&number)?;
            Some(TurnEnd {
                settlement: Arc::clone(&end.settlement),
                cover: end.cover,
            })
        });
        let mut turn = Turn {
            short_of: size.short_of,
            ends: ends.collect(),
            ..self.plain_turn(word)
        };
        match self.state {
            State::Opening => {
                turn.step = Step::Open;
                turn.more = size.free;
                turn.grants_ms = self.grants_ms;
            }
            State::Open => self.resize(&mut turn, size, now),
            State::Lost | State::Closed => {}
        }
        self.under_way = Some((turn.clone(), now));
        turn
    }

    /// Creates a turn of the lease that reports ends of calls and changes nothing else.
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
            raise: MicroRub::ZERO,
            short_of: MicroRub::ZERO,
            ttl_ms: ttl_ms(self.ttl).max(self.grants_ms),
            grants_ms: 0,
            ends: Vec::new(),
        }
    }

    fn resize(&mut self, turn: &mut Turn, size: Size, now: Now) {
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
        let growth = self.growth();
        // While the lease may not grant, the ledger decides on the whole increase, even if the lease has enough free
        // money.
        let own = match self.may_grant(now) {
            true => free.min(growth),
            false => MicroRub::ZERO,
        };
        turn.raise = growth.minus_or_zero(own);
        let free = free.minus_or_zero(own);
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

    /// The sum of the increases of holds that wait for the ledger. The lease's next turn requests this sum.
    fn growth(&mut self) -> MicroRub {
        // A call whose caller has disconnected needs no larger hold, so its requested change is dropped.
        self.raises.retain(|raise| !raise.answered_to.is_closed());
        self.raises_sent = self.raises.len();
        let account = self.of_account();
        let raises = self.raises.iter();
        let growths = raises.map(|raise| account.growth(&raise.adjustment));
        growths.fold(MicroRub::ZERO, MicroRub::plus_or_max)
    }

    /// Answers the changes of holds that the lease's turn requested, in order. An increase is granted if it fits into
    /// the rest of `available`. Otherwise it is refused for the reason in the ledger's answer.
    fn raise(&mut self, mut available: MicroRub, turn: &TurnAnswer, now: Millis) {
        for _ in 0..std::mem::take(&mut self.raises_sent) {
            let Some(Raise {
                adjustment,
                answered_to,
            }) = self.raises.pop_front()
            else {
                return;
            };
            let growth = self.of_account().growth(&adjustment);
            let answer = if growth <= available {
                available = available.minus_or_zero(growth);
                self.book.adjust(&adjustment, now)
            } else {
                let does_not_fit = |ceiling| Refusal::DoesNotFit {
                    free: available.plus_or_max(turn.free),
                    held: self.held_by_calls(),
                    ceiling,
                };
                Err(match turn.refusal {
                    None => does_not_fit(None),
                    Some(Refusal::DoesNotFit { ceiling, .. }) => does_not_fit(ceiling),
                    Some(refusal) => refusal,
                })
            };
            // The caller may have disconnected, so the receiver may be gone.
            let _ = answered_to.send(Ok(answer));
        }
    }

    /// Removes from the lease's book an amount that the lease gives back. From then on the lease must not grant this
    /// amount, even if the ledger has not received the turn that gives it back.
    fn take_out(&mut self, amount: MicroRub) {
        let account = self.of_account_mut();
        account.balance = account.balance.minus_or_zero(amount);
    }

    /// Handles the ledger's answer to a turn of the lease. Ignores a second answer to the same turn. Returns the time
    /// at which the oldest end of a call in the turn was queued.
    pub(crate) fn answered(&mut self, turn: &Turn, answer: &TurnAnswer) -> Option<Millis> {
        let same = |(under_way, _): &mut (Turn, Now)| under_way.this == turn.this;
        let (turn, made) = self.under_way.take_if(same)?;
        let oldest = self.answered_to(&turn, answer);
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

    /// A turn of the lease has reported ends of calls. Sends the results of these ends to the tasks that wait for them.
    fn answered_to(&mut self, turn: &Turn, answer: &TurnAnswer) -> Option<Millis> {
        let mut oldest: Option<Millis> = None;
        for (end, settled) in turn.ends.iter().zip(&answer.ends) {
            let Some(known) = self.ends.remove(&end.settlement.number) else {
                continue;
            };
            oldest = Some(oldest.map_or(known.at, |oldest| oldest.min(known.at)));
            for answered_to in known.answered_to {
                // The waiting task may have been dropped.
                let _ = answered_to.send(Ok(*settled));
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
        let (state, expected) = match turn.step {
            Step::Close => (State::Closed, MicroRub::ZERO),
            _ => (State::Open, after_ends.minus_or_zero(turn.give)),
        };
        let gained = answer.left.minus_or_zero(expected);
        self.ledger_has = answer.left;
        if answer.left < expected || gained > turn.more.plus_or_max(turn.raise) {
            // The ledger reports an amount in the lease that contradicts its last answers, so the ledger has lost data.
            return self.lose(Uuid::parse_str(&turn.this).ok());
        }
        let account = self.of_account_mut();
        account.balance = account.balance.plus_or_max(gained);
        self.state = state;
        self.grants_until = match answer.word {
            Word::Done if turn.grants_ms > 0 => Some(Now {
                steady: made.steady.saturating_add(turn.grants_ms),
                wall: made.wall.saturating_add(turn.grants_ms),
            }),
            _ => None,
        };
        // Money that was in the lease before this turn may be granted only if the ledger lets the lease grant again.
        let available = self.grants_until.map_or(gained, |_| self.free());
        self.raise(available, answer, made.steady);
    }

    /// Handles a turn of the lease that got no answer. The ledger may or may not have carried out the turn, so the turn
    /// is sent again.
    pub(crate) fn unanswered(&mut self, cause: BoxError) {
        let cause = Arc::new(cause);
        if self.under_way.is_none() {
            return;
        }
        // Ends of calls that wait for the lease's following turn fail too: the ledger cannot acknowledge them before it
        // answers again.
        for end in self.ends.values_mut() {
            for answered_to in end.answered_to.drain(..) {
                let _ = answered_to.send(Err(Arc::clone(&cause)));
            }
        }
        self.answer_raises(|| Err(Arc::clone(&cause)));
    }

    /// Gives the same answer to all changes of holds that wait.
    fn answer_raises(&mut self, answer: impl Fn() -> Raised) {
        self.raises_sent = 0;
        for raise in self.raises.drain(..) {
            let _ = raise.answered_to.send(answer());
        }
    }

    fn lose(&mut self, fell_back_to: Option<Uuid>) {
        self.state = State::Lost;
        self.fell_back_to = fell_back_to;
        self.grants_until = None;
        let account = self.of_account_mut();
        account.balance = account.held;
        self.answer_raises(|| Ok(Ok(Adjusted::Gone)));
        self.close_if_done();
    }

    /// Closes a lost lease after its last call.
    pub(crate) fn close_if_done(&mut self) {
        let lost = self.state == State::Lost && self.under_way.is_none();
        if lost && self.is_idle() {
            self.state = State::Closed;
        }
    }

    /// The turn that gives back money of a lost lease, if the ledger still has the money because it fell back to older
    /// data. No other owner can give that money back.
    pub(crate) fn left_behind(&self, word: Uuid) -> Option<Turn> {
        let before = self.fell_back_to.filter(|_| self.is_closed())?;
        Some(Turn {
            step: Step::Close,
            before: before.simple().to_string(),
            ..self.plain_turn(word)
        })
    }

    /// The least money that the ledger must have in the lease, and the exact amount if the last turn was answered.
    #[cfg(test)]
    pub(crate) fn must_be_there(&self) -> (i64, Option<i64>) {
        let ends = self.ends.values();
        let covers: i64 = ends.map(|end| end.cover.micro()).sum();
        let acknowledged = self.under_way.iter().flat_map(|(turn, _)| &turn.ends);
        let acknowledged: i64 = acknowledged.map(|end| end.cover.micro()).sum();
        let has = self.of_account().balance.micro() + covers;
        let exact = self.under_way.is_none() && self.state == State::Open;
        (has - acknowledged, exact.then_some(has))
    }

    fn of_account(&self) -> &Account {
        self.book
            .account(&self.account)
            .expect("the lease's book has its account")
    }

    fn of_account_mut(&mut self) -> &mut Account {
        self.book
            .account_mut(&self.account)
            .expect("the lease's book has its account")
    }
}
