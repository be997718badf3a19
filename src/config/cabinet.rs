//! Checks the section `[cabinet]`.

use super::{
    SmtpConfig,
    check::{Check, web_address},
    raw::RawCabinet,
};

/// The section `[cabinet]`: pages for the members of accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CabinetConfig {
    /// The mail server that sends sign-in links to members.
    pub smtp: SmtpConfig,
    /// URL of the terms that a person accepts when opening an account with an invitation. `None`: nobody can open an
    /// account.
    pub terms_url: Option<String>,
}

impl Check<'_> {
    pub(super) fn cabinet(&mut self, raw: RawCabinet) -> Option<CabinetConfig> {
        let smtp = self.smtp(raw.server, raw.from, raw.ca_file.as_deref(), "cabinet");
        let terms_url = match raw.terms_url {
            None => Some(None),
            Some(url) => {
                let checked = self.keep(web_address(&url), "cabinet.terms_url");
                checked.map(|_| Some(url))
            }
        };
        Some(CabinetConfig {
            smtp: smtp?,
            terms_url: terms_url?,
        })
    }
}
