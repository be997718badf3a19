//! How a call ended, and why the gateway stopped it.

use serde::{Deserialize, Serialize};

/// How a call ended; stored in its receipt. The enum is not `#[non_exhaustive]`, because code must decide for every
/// variant who pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The response was complete.
    Finished,
    /// The client disconnected before the response ended.
    ClientLeft,
    /// The vendor's response broke off.
    VendorCut,
    /// The vendor reported an error within its response.
    VendorError,
    /// The gateway was killed. The call was charged according to its last checkpoint.
    GatewayStopped,
}

impl End {
    /// Returns the name of the variant in receipts, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::ClientLeft => "client_left",
            Self::VendorCut => "vendor_cut",
            Self::VendorError => "vendor_error",
            Self::GatewayStopped => "gateway_stopped",
        }
    }
}

/// Why a growing hold could not be raised, so that the gateway stopped its call. Stored in the call's receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    /// The account's balance does not cover a larger hold.
    Balance,
    /// A ceiling of the key or of its group does not allow a larger hold.
    Ceiling,
    /// The key was disabled or deleted.
    KeyDisabled,
    /// The account was suspended.
    AccountSuspended,
    /// The ledger did not answer in time.
    Ledger,
}

impl StoppedBy {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::Balance,
        Self::Ceiling,
        Self::KeyDisabled,
        Self::AccountSuspended,
        Self::Ledger,
    ];

    /// Returns the name of the reason in receipts and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Balance => "balance",
            Self::Ceiling => "ceiling",
            Self::KeyDisabled => "key_disabled",
            Self::AccountSuspended => "account_suspended",
            Self::Ledger => "ledger",
        }
    }

    /// Returns the reason with the name `word`, if there is one.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }

    /// Reads the reason from a stored receipt. An unknown reason, which a later version wrote, becomes `None`, so that
    /// the receipt stays readable.
    #[cfg(feature = "settle")]
    pub(crate) fn stored<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Self>, D::Error> {
        let word: Option<String> = Option::deserialize(deserializer)?;
        Ok(word.and_then(|word| Self::from_word(&word)))
    }
}
