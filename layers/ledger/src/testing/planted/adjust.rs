//! How the ledger with planted bugs changes holds.

use tokio::task::yield_now;

use super::{Account, GAP, Planted, bugs::Bug};
use crate::{
    contract::{Adjusted, Adjustment, Hold, LedgerError, Refusal},
    money::MicroRub,
    testing::given::HOUR,
};

impl Planted {
    /// Changes a hold. A planted bug that concerns hold changes takes effect here.
    pub(super) async fn adjust_hold(
        &self,
        adjustment: &Adjustment,
    ) -> Result<Adjusted, LedgerError> {
        let (id, number) = (&adjustment.account, adjustment.number);
        yield_now().await;
        if self.has(Bug::AdjustDroppedWithoutTheHold) {
            self.remove_for_a_moment(id, number).await;
        }
        if self.has(Bug::AdjustDroppedAfterTakingMoney) {
            self.misplace(id, adjustment.amount).await;
        }
        let check = |account: &mut Account| self.to_adjust(account, adjustment);
        let set = |account: &mut Account, amount| Ok(self.set_amount(account, adjustment, amount));
        let unlocked =
            self.has(Bug::GrowthChecksBeforeItLocks) || self.has(Bug::AdjustChecksBeforeItLocks);
        let answer = if unlocked {
            let checked = self.on(id, check);
            std::thread::sleep(GAP);
            checked.and_then(|checked| match checked {
                Ok(amount) => self.on(id, |account| set(account, amount)),
                Err(answer) => Some(answer),
            })
        } else {
            self.on(id, |account| match check(account) {
                Ok(amount) => set(account, amount),
                Err(answer) => answer,
            })
        };
        answer
            .unwrap_or(Ok(Adjusted::Gone))
            .map_err(LedgerError::Refused)
    }

    /// Returns the new amount of the hold, or the answer if the hold does not change.
    fn to_adjust(
        &self,
        account: &mut Account,
        adjustment: &Adjustment,
    ) -> Result<MicroRub, Result<Adjusted, Refusal>> {
        let (key, amount) = (&adjustment.key, adjustment.amount);
        let open = account.open.get(&adjustment.number);
        let any_key = self.has(Bug::AnotherKeyAdjusts);
        let Some(open) = open.filter(|open| open.hold.key == *key || any_key) else {
            let revives = self.has(Bug::AdjustHoldsAgain);
            return match revives && account.ended.contains_key(&adjustment.number) {
                true => Ok(amount),
                false => Err(Ok(Adjusted::Gone)),
            };
        };
        let held = open.held;
        let is_older = adjustment.sequence <= open.adjusted;
        let is_ignored = amount == MicroRub::ZERO && self.has(Bug::AdjustNeedsAnAmount);
        if (is_older && !self.has(Bug::OlderAdjustmentCounts)) || is_ignored {
            return Err(Ok(Adjusted::Held(held)));
        }
        if amount <= held {
            if self.has(Bug::AdjustKeepsTheMoney) {
                account.lost = account.lost.plus_or_max(held.minus_or_zero(amount));
            }
            return Ok(amount);
        }
        let more = match self.has(Bug::GrowthCountsItsOwnHold) {
            true => amount,
            false => amount.minus_or_zero(held),
        };
        if account.free() < more && !self.has(Bug::ExpiredHoldsKeepOthersSmall) {
            self.sweep(account);
        }
        let free = account.free();
        if more <= free || self.has(Bug::GrowthIsNotChecked) {
            return Ok(amount);
        }
        if self.has(Bug::GrowthIsGrantedInPart) {
            return Ok(held.plus_or_max(free));
        }
        if self.has(Bug::RefusedGrowthTakesMoney) {
            account.lost = account.lost.plus_or_max(more);
        }
        Err(Err(Refusal::DoesNotFit {
            free,
            held: account.held(|other| other.key == *key),
            ceiling: None,
        }))
    }

    fn set_amount(
        &self,
        account: &mut Account,
        adjustment: &Adjustment,
        amount: MicroRub,
    ) -> Adjusted {
        let revives = self.has(Bug::AdjustHoldsAgain) || self.has(Bug::AdjustChecksBeforeItLocks);
        if !account.open.contains_key(&adjustment.number) && revives {
            let (number, account_id) = (adjustment.number, adjustment.account.clone());
            let hold = Hold::new(number, account_id, adjustment.key.clone(), amount, HOUR);
            self.take(account, &hold, amount);
        }
        let Some(open) = account.open.get_mut(&adjustment.number) else {
            return Adjusted::Gone;
        };
        (open.held, open.adjusted) = (amount, adjustment.sequence);
        Adjusted::Held(amount)
    }
}
