//! How a command fails, and with which exit code. The codes above 63 are those of sysexits.h.

use std::process::ExitCode;

/// Why a command failed. The texts end in what to do next.
#[derive(Debug)]
pub(super) enum Failure {
    /// 1: the gateway refused, or the process could not continue.
    Refused(String),
    /// 1: the ledger is in breach; the breaches have been printed.
    Breach,
    /// 1: the vendor's counts differ from the books, or prices from the vendor's; the differences have been printed.
    Drift,
    /// 1: a statement differs from the books; the differences have been printed.
    Differs,
    /// 64: the command or the configuration is wrong.
    Usage(String),
    /// 65: a file that must be read has mistakes.
    Data(String),
    /// 69: the gateway or its ledger did not answer.
    OutOfReach(String),
    /// 70: the gateway itself has a fault.
    Internal(String),
    /// 74: a file or standard output could not be read or written.
    Io(String),
    /// 77: the key is not the gateway's admin key.
    Denied(String),
}

impl Failure {
    /// Prints the failure, one line for each mistake, and returns the exit code.
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

    /// Returns the text to print; empty if it has been printed already.
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

    /// Puts the place where the failure happened before its text.
    pub(super) fn at(self, place: &str) -> Self {
        let reported = |text: String| format!("{place}: {text}");
        match self {
            Self::Breach => Self::Breach,
            Self::Drift => Self::Drift,
            Self::Differs => Self::Differs,
            Self::Refused(text) => Self::Refused(reported(text)),
            Self::Usage(text) => Self::Usage(reported(text)),
            Self::Data(text) => Self::Data(reported(text)),
            Self::OutOfReach(text) => Self::OutOfReach(reported(text)),
            Self::Internal(text) => Self::Internal(reported(text)),
            Self::Io(text) => Self::Io(reported(text)),
            Self::Denied(text) => Self::Denied(reported(text)),
        }
    }

    /// Replaces exit code 1, for a command whose exit code 1 does not mean a refusal.
    pub(super) fn not_one(self) -> Self {
        match self {
            Self::Refused(text) => Self::Internal(text),
            other => other,
        }
    }
}

/// The exit code `EX_USAGE` of sysexits.h.
pub(super) const USAGE: u8 = 64;
