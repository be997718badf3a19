//! The ledger operations that serve calls.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{Adjusted, Adjustment, Hold, LedgerError, Reserved, Settled, Settlement};
use crate::{
    account::{AccountId, KeyId},
    number::RequestNumber,
};

/// The ledger operations that serve calls. Every operation is idempotent: repeating it with the same request number has
/// no further effect.
pub trait Ledger: Send + Sync + 'static {
    /// Makes a hold. It checks and changes the account and the key in one atomic step.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] with the reason, if the money cannot be held. [`LedgerError::Unavailable`] if the
    /// ledger does not respond. The money may be held even then, so release the hold.
    fn reserve(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send;

    /// Charges the cost of a call and ends its hold.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not respond. The call may have been charged; settle it again,
    /// which does not charge it twice.
    fn settle(
        &self,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled, LedgerError>> + Send;

    /// Charges several calls, and returns the results of [`Ledger::settle`] in the order of the calls. A ledger
    /// overrides this method if settling calls together costs less than settling each of them.
    fn settle_all(
        &self,
        settlements: &[Settlement],
    ) -> impl Future<Output = Vec<Result<Settled, LedgerError>>> + Send {
        join_all(settlements.iter().map(|call| self.settle(call)))
    }

    /// Ends a call's hold without a charge. If a request to hold money for this call arrives later, it is refused.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not respond. The hold may have ended; release it again.
    fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Sets the expiry time of a hold to `ttl` from now. Returns whether the hold still existed.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not respond.
    fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, LedgerError>> + Send;

    /// Changes the amount that an in-flight call holds, in one atomic step over the account and the key. A decrease is
    /// always granted. An increase is granted in full or refused, by the rules of a new hold.
    ///
    /// The default changes nothing and returns [`Adjusted::Unsupported`]: a call keeps the amount of its first hold.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if an increase does not fit; the hold is then unchanged. [`LedgerError::Unavailable`]
    /// if the ledger does not respond; the hold may have changed. After an error, repeat the request, or send another
    /// change with a higher number.
    fn adjust(
        &self,
        adjustment: &Adjustment,
    ) -> impl Future<Output = Result<Adjusted, LedgerError>> + Send {
        let _ = adjustment;
        std::future::ready(Ok(Adjusted::Unsupported))
    }

    /// Checks whether the key could hold any money at all. Reports the refusals of [`Ledger::reserve`] that do not
    /// depend on the amount, for example a suspended account.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] with the reason, if the key can hold nothing; [`LedgerError::Unavailable`] if the
    /// ledger does not respond.
    fn probe(
        &self,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Ends holds whose expiry time has passed. One call ends a limited number of them, and returns how many.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not respond.
    fn expire(&self) -> impl Future<Output = Result<usize, LedgerError>> + Send;

    /// Returns the number of the lease from which this process granted the call's hold, or `None` if the hold is not
    /// part of a lease. If another process settles the call, the settlement must contain the lease's number.
    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        let _ = (number, key);
        None
    }

    /// Stores on this machine what in-flight calls have cost so far. If this process dies, the next process on this
    /// machine charges each of these calls its stored cost. A later checkpoint of a call replaces the earlier one;
    /// settling or releasing the call deletes it. A ledger that cannot store checkpoints does nothing.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the checkpoints could not be stored.
    fn checkpoint(
        &self,
        running: &[Settlement],
    ) -> impl Future<Output = Result<(), LedgerError>> + Send {
        let _ = running;
        std::future::ready(Ok(()))
    }
}

/// Implements methods of [`Ledger`] by calling the same methods of the value in the `Arc`.
macro_rules! forward {
    ($(fn $name:ident(&self $(, $arg:ident: $kind:ty)*) -> $answer:ty;)*) => {
        $(fn $name(&self $(, $arg: $kind)*) -> impl Future<Output = $answer> + Send {
            L::$name(self $(, $arg)*)
        })*
    };
}

/// Lets several owners share a ledger whose type is not `Clone`, or whose clones have separate money.
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
