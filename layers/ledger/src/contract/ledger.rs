//! The trait of a ledger for calls.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{Adjusted, Adjustment, Hold, LedgerError, Reserved, Settled, Settlement};
use crate::{
    account::{AccountId, KeyId},
    number::RequestNumber,
};

/// The ledger operations that a call needs. Every operation is idempotent by the call's number.
pub trait Ledger: Send + Sync + 'static {
    /// Holds money, atomically over the account and the key.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] with the reason, if the money cannot be held. [`LedgerError::Unavailable`] if the
    /// ledger does not answer: the money may be held nevertheless, so release the hold.
    fn reserve(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send;

    /// Charges a call and ends its hold.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not answer: the call may have been charged, so settle it again.
    fn settle(
        &self,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled, LedgerError>> + Send;

    /// Charges calls that ended at about the same time. Returns the results of [`Ledger::settle`] in the same order. A
    /// ledger overrides this method if settling many calls together is cheaper.
    fn settle_all(
        &self,
        settlements: &[Settlement],
    ) -> impl Future<Output = Vec<Result<Settled, LedgerError>>> + Send {
        join_all(settlements.iter().map(|call| self.settle(call)))
    }

    /// Ends a hold without a charge. A request for a hold under this number that arrives later is refused.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not answer: the hold may have ended, so release it again.
    fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Sets a hold's expiry to `ttl` from now. Returns whether the hold still existed.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not answer.
    fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, LedgerError>> + Send;

    /// Changes the amount that a running call holds, atomically over the account and the key. A smaller amount is
    /// always granted. A larger amount is granted in full or refused, by the same rules as a new hold.
    ///
    /// The default changes nothing and returns [`Adjusted::Unsupported`], so that calls keep the amount of their first
    /// hold.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if a larger amount does not fit: the hold is unchanged. [`LedgerError::Unavailable`] if
    /// the ledger does not answer: the hold may have changed. Repeat the request, or make another change with a higher
    /// number.
    fn adjust(
        &self,
        adjustment: &Adjustment,
    ) -> impl Future<Output = Result<Adjusted, LedgerError>> + Send {
        let _ = adjustment;
        std::future::ready(Ok(Adjusted::Unsupported))
    }

    /// Returns whether the key could hold any amount. Checks for the refusals of [`Ledger::reserve`] that do not depend
    /// on an amount.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] with the reason, if the key can hold nothing; [`LedgerError::Unavailable`] if the
    /// ledger does not answer.
    fn probe(
        &self,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Ends expired holds, a limited number per call, and returns how many it ended.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not answer.
    fn expire(&self) -> impl Future<Output = Result<usize, LedgerError>> + Send;

    /// Returns the number of the lease from which this process holds the call's money. `None` if the money is not held
    /// from a lease. If another process settles the call, its settlement must contain this number.
    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        let _ = (number, key);
        None
    }

    /// Records on this machine what running calls would cost if the process died now. After a crash, the next process
    /// settles each call at that cost. A later checkpoint of a call replaces the earlier one; settling or releasing the
    /// call deletes it.
    /// Does nothing for a ledger that cannot store checkpoints.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the checkpoints were not stored.
    fn checkpoint(
        &self,
        running: &[Settlement],
    ) -> impl Future<Output = Result<(), LedgerError>> + Send {
        let _ = running;
        std::future::ready(Ok(()))
    }
}

/// Implements methods by the same methods of the shared ledger.
macro_rules! forward {
    ($(fn $name:ident(&self $(, $arg:ident: $kind:ty)*) -> $answer:ty;)*) => {
        $(fn $name(&self $(, $arg: $kind)*) -> impl Future<Output = $answer> + Send {
            L::$name(self $(, $arg)*)
        })*
    };
}

/// Makes a ledger type shareable whose clones do not share the money.
impl<L: Ledger> Ledger for Arc<L> {
    forward! {
        fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError>;
        fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError>;
        fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>>;
        fn release(&self, number: RequestNumber, account: &AccountId, key: &KeyId) -> Result<(), LedgerError>;
        fn extend(&self, number: RequestNumber, account: &AccountId, ttl: Duration) -> Result<bool, LedgerError>;
        fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError>;
        fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError>;
        fn expire(&self) -> Result<usize, LedgerError>;
        fn checkpoint(&self, running: &[Settlement]) -> Result<(), LedgerError>;
    }

    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        L::lease_of(self, number, key)
    }
}
