//! Hold changes for which a lease has too little money. The lease's next turn requests the missing money from the
//! ledger.

use std::{collections::VecDeque, mem, sync::Arc};

use tokio::sync::oneshot;

use super::TurnAnswer;
use crate::{
    BoxError,
    account::AccountId,
    book::{Account, Book, Millis},
    contract::{Adjusted, Adjustment, Refusal},
    money::MicroRub,
};

/// The ledger's answer to a hold change, or the reason why the ledger did not answer.
pub(crate) type Raised = Result<Result<Adjusted, Refusal>, Arc<BoxError>>;

/// Hold changes on which the ledger must decide, oldest first.
#[derive(Default)]
pub(super) struct Raises {
    waiting: VecDeque<Raise>,
    /// How many of the first changes are part of the turn that was sent but not answered.
    sent: usize,
}

struct Raise {
    adjustment: Adjustment,
    sender: oneshot::Sender<Raised>,
}

impl Raises {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a hold change, and returns the receiver of the ledger's answer.
    pub(super) fn push(&mut self, adjustment: Adjustment) -> oneshot::Receiver<Raised> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.push_back(Raise { adjustment, sender });
        receiver
    }

    /// Returns the sum of the increases, which the lease's next turn requests.
    pub(super) fn growth(&mut self, account: &Account) -> MicroRub {
        // A closed receiver means that the caller has disconnected. The call then needs no larger hold, and its change
        // is dropped.
        self.waiting.retain(|raise| !raise.sender.is_closed());
        self.sent = self.waiting.len();
        let growths = (self.waiting.iter()).map(|raise| account.growth(&raise.adjustment));
        growths.fold(MicroRub::ZERO, MicroRub::plus_or_max)
    }

    /// Answers the hold changes that the turn requested, in order. If an increase fits into the remainder of
    /// `available`, the lease's book grants it. Otherwise it is refused with the reason from the ledger's answer.
    pub(super) fn answer_sent(
        &mut self,
        book: &mut Book,
        account: &AccountId,
        mut available: MicroRub,
        turn: &TurnAnswer,
        now: Millis,
    ) {
        let sent = mem::take(&mut self.sent).min(self.waiting.len());
        for Raise { adjustment, sender } in self.waiting.drain(..sent) {
            let account = book.account(account);
            let account = account.expect("the book of a lease contains the lease's account");
            let growth = account.growth(&adjustment);
            let answer = if growth <= available {
                available = available.minus_or_zero(growth);
                book.adjust(&adjustment, now)
            } else {
                let does_not_fit = |ceiling| Refusal::DoesNotFit {
                    free: available.plus_or_max(turn.free),
                    held: account.held,
                    ceiling,
                };
                Err(match turn.refusal {
                    None => does_not_fit(None),
                    Some(Refusal::DoesNotFit { ceiling, .. }) => does_not_fit(ceiling),
                    Some(refusal) => refusal,
                })
            };
            // The caller may have disconnected, so the receiver may be gone.
            let _ = sender.send(Ok(answer));
        }
    }

    /// Gives the same answer to all hold changes.
    pub(super) fn answer_all(&mut self, answer: impl Fn() -> Raised) {
        self.sent = 0;
        for raise in self.waiting.drain(..) {
            let _ = raise.sender.send(answer());
        }
    }
}
