//! Checks of the amounts in one receipt.

use super::micro;
use crate::contract::{Booked, Receipt};

/// The amounts of a receipt, in micro-rubles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallMoney {
    pub(crate) booked: Booked,
    pub(crate) cost: i128,
    pub(crate) charged: i128,
    pub(crate) loss: i128,
}

impl From<&Receipt> for CallMoney {
    fn from(receipt: &Receipt) -> Self {
        Self {
            booked: receipt.booked,
            cost: micro(receipt.cost_rub),
            charged: micro(receipt.charged_rub),
            loss: micro(receipt.loss_rub),
        }
    }
}

impl CallMoney {
    /// Returns whether the call moved money. The call of a disputed receipt has moved none.
    pub(crate) const fn moved(&self) -> bool {
        matches!(self.booked, Booked::Held | Booked::Late | Booked::Forced)
    }

    /// Returns whether charge plus loss equals the cost, or both are zero if no money moved (I3).
    pub(crate) const fn adds_up(&self) -> bool {
        let (charged, loss) = (self.charged, self.loss);
        let sum = if self.moved() {
            charged + loss == self.cost
        } else {
            charged == 0 && loss == 0
        };
        sum && charged >= 0 && loss >= 0
    }
}
