//! A lease in its gateway's memory, as a pure state machine. It receives times and the ledger's answers, and creates
//! turns: requests about the lease to the ledger.
//!
//! A [`Book`] with one account and one key decides which holds the lease grants. The book's balance is the lease's
//! money minus all charges. The book must never have more money than the lease has in the ledger. Therefore money that
//! the gateway gives back leaves the book before the turn is sent, and money that the ledger adds enters the book after
//! the ledger's answer.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    Now, Step, Turn, TurnAnswer, TurnEnd, Word,
    raises::{Raised, Raises},
    ttl_ms,
};
use crate::{
    BoxError,
    account::{AccountId, KeyId},
    book::{Account, Book, Hashing, KeyBook, Millis},
    ceiling::Ceilings,
    contract::{Adjusted, Adjustment, Hold, Refusal, Reserved, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// The largest number of settlements that one lease turn reports.
pub(crate) const ENDS_MAX: usize = 256;
/// How many of a lease's last turns are remembered by name. For the busiest lease these are the turns of a few seconds,
/// for other leases the turns of several minutes.
const TURN_NAMES_MAX: usize = 4_096;

/// The ledger's result for a settlement, or the reason why the ledger did not answer.
pub(crate) type Acknowledged = Result<Settled, Arc<BoxError>>;

/// The lease's own answer to a hold change, or the receiver of the ledger's answer.
pub(crate) enum Adjusting {
    Done(Adjusted),
    Waits(oneshot::Receiver<Raised>),
}

/// The target size of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// The target for the lease's free money: the money that no in-flight call holds.
    pub(crate) free: MicroRub,
    /// The ledger does not enlarge the lease if the account has less free money than this amount outside its leases.
    pub(crate) short_of: MicroRub,
}

/// The target size of a lease that is being given back: calls keep their holds, and all other money goes back.
pub(crate) const NOTHING: Size = Size {
    free: MicroRub::ZERO,
    short_of: MicroRub::ZERO,
};

pub(crate) struct Lease {
    number: RequestNumber,
    account: AccountId,
    key: KeyId,
    book: Book,
    /// The lease's money in the ledger, according to the ledger's last answer.
    ledger_has: MicroRub,
    /// The name of the last turn that the ledger has answered; empty before the first answer.
    last_turn: String,
    /// The names of the last [`TURN_NAMES_MAX`] turns of this lease, oldest first.
    turn_names: VecDeque<Uuid>,
    /// Set if the lease is lost because the ledger fell back to older data: the name of the lease's last turn in that
    /// data. In this case no other gateway continues the lease.
    fell_back_to: Option<Uuid>,
    state: State,
    /// Settlements that the ledger has not acknowledged, by call. `queue` lists the calls among them whose settlement
    /// has not been put into a turn yet.
    ends: HashMap<RequestNumber, End, Hashing>,
    queue: VecDeque<RequestNumber>,
    raises: Raises,
    /// The turn that was sent but not answered, and the time at which it was created.
    under_way: Option<(Turn, Now)>,
    /// The longest time to live among the holds of the lease's calls.
    ttl: Duration,
    /// How long the lease may grant holds after each turn, in milliseconds.
    grants_ms: u64,
    grants_until: Option<Now>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The ledger has not answered the lease's first turn yet.
    Opening,
    Open,
    /// Another owner has the lease, or the ledger does not have it. The lease grants no more holds, but still reports
    /// settlements of its calls.
    Lost,
    /// The lease was given back, or was never opened.
    Closed,
}

struct End {
    settlement: Arc<Settlement>,
    cover: MicroRub,
    at: Millis,
    /// Tasks that wait for the ledger's result for this settlement.
    waiting: Vec<oneshot::Sender<Acknowledged>>,
}

impl Lease {
    /// Creates a lease. It has no money until the ledger answers its first turn.
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
            last_turn: String::new(),
            turn_names: VecDeque::new(),
            fell_back_to: None,
            state: State::Opening,
            ends: HashMap::default(),
            queue: VecDeque::new(),
            raises: Raises::default(),
            under_way: None,
            ttl: Duration::ZERO,
            grants_ms,
            grants_until: None,
        }
    }

    pub(crate) const fn number(&self) -> RequestNumber {
        self.number
    }

    /// Makes the ledger keep the lease for at least `ttl` after each turn.
    pub(crate) fn lives_for(&mut self, ttl: Duration) {
        self.ttl = self.ttl.max(ttl);
    }

    /// Holds money for a call in memory, if the lease has the full amount. Returns `None` if the ledger must decide.
    pub(crate) fn reserve(&mut self, hold: &Hold, now: Now) -> Option<Result<Reserved, Refusal>> {
        if self.ends.contains_key(&hold.number) {
            return Some(Err(Refusal::Gone));
        }
        let free = self.free();
        // A lease may be empty because its account is suspended. Therefore an empty lease does not even admit free
        // calls: the ledger decides.
        let pays = hold.want <= free && free > MicroRub::ZERO;
        let has = self.may_grant(now) && hold.least <= hold.want && pays;
        if !has && !self.of_account().has_hold(hold.number) {
            return None;
        }
        self.ttl = self.ttl.max(hold.ttl);
        Some(self.book.reserve(hold, now.steady))
    }

    /// Ends a call's hold and queues its settlement. The receiver yields the ledger's result. Returns `None` if the
    /// call has no hold against this lease.
    pub(crate) fn settle(
        &mut self,
        settlement: &Settlement,
        now: Now,
    ) -> Option<oneshot::Receiver<Acknowledged>> {
        let number = settlement.number;
        let (sender, receiver) = oneshot::channel();
        if let Some(end) = self.ends.get_mut(&number) {
            // The settlement was queued before, and the ledger has not acknowledged it yet.
            Arc::make_mut(&mut end.settlement).fresh = settlement.fresh;
            end.waiting.retain(|sender| !sender.is_closed());
            end.waiting.push(sender);
            return Some(receiver);
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
            waiting: vec![sender],
        };
        self.ends.insert(number, end);
        self.queue.push_back(number);
        Some(receiver)
    }

    /// Ends a call's hold without a charge. The ledger need not be informed. Returns whether the call had a hold
    /// against this lease.
    pub(crate) fn release(&mut self, number: RequestNumber, key: &KeyId) -> bool {
        // A call whose settlement is queued cannot be released.
        self.ends.contains_key(&number) || self.book.release_and_forget(number, &self.account, key)
    }

    pub(crate) fn extend(&mut self, number: RequestNumber, ttl: Duration, now: Now) -> bool {
        self.ttl = self.ttl.max(ttl);
        self.book.extend(number, &self.account, ttl, now.steady)
    }

    /// Changes the amount that a call holds. If the lease has enough free money, it decides in memory; otherwise its
    /// next turn requests the increase from the ledger. Returns `None` if the call has no hold against this lease.
    pub(crate) fn adjust(&mut self, adjustment: &Adjustment, now: Now) -> Option<Adjusting> {
        if self.ends.contains_key(&adjustment.number) {
            return Some(Adjusting::Done(Adjusted::Gone));
        }
        if !self.of_account().has_hold(adjustment.number) {
            return None;
        }
        let growth = self.of_account().growth(adjustment);
        let decides = self.may_grant(now) && growth <= self.free();
        if growth == MicroRub::ZERO || decides {
            let adjusted = self.book.adjust(adjustment, now.steady);
            // The book has enough free money for the increase and has no ceilings, so it cannot refuse the change.
            return Some(Adjusting::Done(adjusted.unwrap_or(Adjusted::Gone)));
        }
        if matches!(self.state, State::Lost | State::Closed) {
            return Some(Adjusting::Done(Adjusted::Gone));
        }
        Some(Adjusting::Waits(self.raises.push(adjustment.clone())))
    }

    /// Returns whether a hold change is waiting for the ledger's answer.
    pub(crate) fn has_raises(&self) -> bool {
        !self.raises.is_empty()
    }

    /// Returns whether the call belongs to this lease: it is in flight, or its settlement is not acknowledged yet.
    pub(crate) fn has_call(&self, number: RequestNumber) -> bool {
        self.ends.contains_key(&number) || self.of_account().has_hold(number)
    }

    /// Returns the amount that the lease can grant now; zero if it may not grant.
    pub(crate) fn free(&self) -> MicroRub {
        let account = self.of_account();
        account.balance.minus_or_zero(account.held)
    }

    pub(crate) fn ends_waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns the lease's money in the ledger, according to the ledger's last answer.
    pub(crate) const fn leased(&self) -> MicroRub {
        self.ledger_has
    }

    /// Returns the sum of the holds that in-flight calls have against this lease.
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

    /// Returns whether no call has a hold against the lease and the ledger has acknowledged all settlements.
    pub(crate) fn is_idle(&self) -> bool {
        self.of_account().holds_open() == 0 && self.ends.is_empty()
    }

    /// Returns whether a turn of this lease was sent and is not answered yet.
    pub(crate) const fn has_turn_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Returns how long the ledger keeps the lease after its last turn.
    pub(crate) const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns whether the lease may grant holds in memory at this time.
    pub(crate) fn may_grant(&self, now: Now) -> bool {
        let in_time = |until: Now| now.steady < until.steady && now.wall < until.wall;
        self.is_open() && self.grants_until.is_some_and(in_time)
    }

    /// Returns the next turn to send to the ledger, with the unique name `name`. If an earlier turn is not answered
    /// yet, returns that turn again.
    pub(crate) fn turn(&mut self, size: Size, now: Now, name: Uuid) -> Turn {
        if let Some((turn, _)) = &mut self.under_way {
            // A repeated turn has the same contents, except that its settlements may no longer be marked as fresh.
            for end in &mut turn.ends {
                if let Some(known) = self.ends.get(&end.settlement.number) {
                    end.settlement = Arc::clone(&known.settlement);
                }
            }
            return turn.clone();
        }
        // A hold that has expired belongs to a call whose task no longer exists, so nothing else would end the hold.
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
            ..self.plain_turn(name)
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

    /// Creates a turn that has no effect on the lease and reports no settlements; the caller then adds an effect and
    /// settlements.
    fn plain_turn(&self, name: Uuid) -> Turn {
        Turn {
            before: self.last_turn.clone(),
            this: name.simple().to_string(),
            ttl_ms: ttl_ms(self.ttl).max(self.grants_ms),
            ..Turn::empty(self.number, &self.account, &self.key)
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
        let account = self.book.account(&self.account);
        let account = account.expect("the book of a lease contains the lease's account");
        let growth = self.raises.growth(account);
        // If the lease is not allowed to grant now, the ledger decides on the whole increase, even if the lease has
        // enough free money.
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

    /// Removes from the book an amount that the lease gives back. The lease must not grant this amount any more,
    /// although the ledger has not received the turn yet.
    fn take_out(&mut self, amount: MicroRub) {
        let account = self.of_account_mut();
        account.balance = account.balance.minus_or_zero(amount);
    }

    /// Handles the ledger's answer to a turn; a second answer to the same turn is ignored. Returns when the oldest
    /// settlement in the turn was queued.
    pub(crate) fn answered(&mut self, turn: &Turn, answer: &TurnAnswer) -> Option<Millis> {
        let same = |(under_way, _): &mut (Turn, Now)| under_way.this == turn.this;
        let (turn, made) = self.under_way.take_if(same)?;
        let oldest = self.acknowledge_ends(&turn, answer);
        if turn.step == Step::Tell {
            self.close_if_done();
            return oldest;
        }
        match answer.word {
            Word::Fenced => {
                let last = Uuid::parse_str(&answer.last).ok();
                self.lose(last.filter(|last| self.turn_names.contains(last)));
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

    /// Sends the results of the turn's settlements to the tasks that wait for them. Returns when the oldest of these
    /// settlements was queued.
    fn acknowledge_ends(&mut self, turn: &Turn, answer: &TurnAnswer) -> Option<Millis> {
        let mut oldest: Option<Millis> = None;
        for (end, settled) in turn.ends.iter().zip(&answer.ends) {
            let Some(known) = self.ends.remove(&end.settlement.number) else {
                continue;
            };
            oldest = Some(oldest.map_or(known.at, |oldest| oldest.min(known.at)));
            for sender in known.waiting {
                // The task that waits for this result may have been dropped, so an error of `send` is ignored.
                let _ = sender.send(Ok(*settled));
            }
        }
        oldest
    }

    fn resized(&mut self, turn: &Turn, made: Now, answer: &TurnAnswer) {
        if self.turn_names.len() == TURN_NAMES_MAX {
            self.turn_names.pop_front();
        }
        self.turn_names.extend(Uuid::parse_str(&turn.this));
        self.last_turn.clone_from(&turn.this);
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
            // The lease's money in the ledger contradicts the earlier answers, so the ledger has lost data.
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
        // If the ledger does not let the lease grant holds, only the money that this turn has added is available for
        // hold changes.
        let available = self.grants_until.map_or(gained, |_| self.free());
        let (book, account) = (&mut self.book, &self.account);
        (self.raises).answer_sent(book, account, available, answer, made.steady);
    }

    /// Handles a turn that got no answer. The ledger may have carried it out, so the same turn will be sent again.
    pub(crate) fn unanswered(&mut self, cause: BoxError) {
        let cause = Arc::new(cause);
        if self.under_way.is_none() {
            return;
        }
        // Settlements that were queued for the following turn fail, too: the ledger cannot acknowledge these
        // settlements before it answers again.
        for end in self.ends.values_mut() {
            for sender in end.waiting.drain(..) {
                let _ = sender.send(Err(Arc::clone(&cause)));
            }
        }
        self.raises.answer_all(|| Err(Arc::clone(&cause)));
    }

    fn lose(&mut self, fell_back_to: Option<Uuid>) {
        self.state = State::Lost;
        self.fell_back_to = fell_back_to;
        self.grants_until = None;
        let account = self.of_account_mut();
        account.balance = account.held;
        self.raises.answer_all(|| Ok(Ok(Adjusted::Gone)));
        self.close_if_done();
    }

    /// Closes a lost lease once no call has a hold and all settlements are acknowledged.
    pub(crate) fn close_if_done(&mut self) {
        let lost = self.state == State::Lost && self.under_way.is_none();
        if lost && self.is_idle() {
            self.state = State::Closed;
        }
    }

    /// Returns a turn that gives back the money of a lost lease, if the ledger lost data and may have the lease's money
    /// again. No other gateway would give this money back.
    pub(crate) fn left_behind(&self, name: Uuid) -> Option<Turn> {
        let before = self.fell_back_to.filter(|_| self.is_closed())?;
        Some(Turn {
            step: Step::Close,
            before: before.simple().to_string(),
            ..self.plain_turn(name)
        })
    }

    /// Returns the least money that the ledger must have for this lease, and the exact amount if the last turn was
    /// answered.
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
            .expect("the book of a lease contains the lease's account")
    }

    fn of_account_mut(&mut self) -> &mut Account {
        self.book
            .account_mut(&self.account)
            .expect("the book of a lease contains the lease's account")
    }
}
