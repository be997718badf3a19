//! How a command fails, and what the shell learns of it. The codes above 63 are those of sysexits.h.

use std::process::ExitCode;

/// Why a command did not do what was asked. The texts end in what to do next.
#[derive(Debug)]
pub(super) enum Failure {
    /// 1: the gateway said no, or the process could not go on.
    Refused(String),
    /// 1: the ledger is in breach; the breaches have been printed.
    Breach,
    /// 1: the vendor counts otherwise; the drifts have been printed.
    Drift,
    /// 1: a statement is not what the books say; how has been printed.
    Differs,
    /// 64: the command or the configuration is wrong.
    Usage(String),
    /// 65: what was given to read is not what it should be.
    Data(String),
    /// 69: the gateway did not answer, or its ledger did not.
    OutOfReach(String),
    /// 70: the gateway's own fault.
    Internal(String),
    /// 74: a file or standard output could not be read or written.
    Io(String),
    /// 77: not the gateway's admin key.
    Denied(String),
}

impl Failure {
    /// Says it, one line for each mistake, and gives the exit code.
    pub(super) fn report(&self) -> ExitCode {
        for line in self.text().lines() {
            eprintln!("error: {line}");
        }
        ExitCode::from(self.code())
    }

    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Refused(_) | Self::Breach | Self::Drift | Self::Differs => 1,
            Self::Usage(_) => USAGE,
            Self::Data(_) => 65,
            Self::OutOfReach(_) => 69,
            Self::Internal(_) => 70,
            Self::Io(_) => 74,
            Self::Denied(_) => 77,
        }
    }

    /// What is said; nothing where it has been.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Breach | Self::Drift | Self::Differs => "",
            Self::Refused(text)
            | Self::Usage(text)
            | Self::Data(text)
            | Self::OutOfReach(text)
            | Self::Internal(text)
            | Self::Io(text)
            | Self::Denied(text) => text,
        }
    }

    /// The same, with where it happened.
    pub(super) fn at(self, place: &str) -> Self {
        let said = |text: String| format!("{place}: {text}");
        match self {
            Self::Breach => Self::Breach,
            Self::Drift => Self::Drift,
            Self::Differs => Self::Differs,
            Self::Refused(text) => Self::Refused(said(text)),
            Self::Usage(text) => Self::Usage(said(text)),
            Self::Data(text) => Self::Data(said(text)),
            Self::OutOfReach(text) => Self::OutOfReach(said(text)),
            Self::Internal(text) => Self::Internal(said(text)),
            Self::Io(text) => Self::Io(said(text)),
            Self::Denied(text) => Self::Denied(said(text)),
        }
    }

    /// The same for a command whose exit code 1 means something else than a refusal.
    pub(super) fn not_one(self) -> Self {
        match self {
            Self::Refused(text) => Self::Internal(text),
            other => other,
        }
    }
}

/// `EX_USAGE`.
pub(super) const USAGE: u8 = 64;
