//! Why commands fail, and the exit code of each failure. Codes above 63 are those of sysexits.h.

use std::{io, path::Path, process::ExitCode};

/// Why a command failed. Each text ends with what to do next.
#[derive(Debug)]
pub(super) enum Failure {
    /// Exit code 1: the gateway refused the request, or the process could not continue.
    Refused(String),
    /// Exit code 1: the command has found and printed breaches of the books, or differences of a vendor's counts or
    /// prices, or of a statement.
    Found,
    /// Exit code 64: the command line or the configuration is wrong.
    Usage(String),
    /// Exit code 65: an input file has mistakes.
    Data(String),
    /// Exit code 69: the gateway or its ledger did not respond.
    OutOfReach(String),
    /// Exit code 70: the gateway has an internal fault.
    Internal(String),
    /// Exit code 74: a file or standard output could not be read or written.
    Io(String),
    /// Exit code 77: the key is not the gateway's admin key.
    Denied(String),
}

impl Failure {
    /// Creates the failure for a file that cannot be read or written.
    pub(super) fn of_file(path: &Path, error: &io::Error) -> Self {
        Self::Io(format!("{}: {error}", path.display()))
    }

    /// Prints the failure, one line for each mistake, and returns the exit code.
    pub(super) fn report(&self) -> ExitCode {
        for line in self.text().lines() {
            eprintln!("error: {line}");
        }
        ExitCode::from(self.code())
    }

    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Refused(_) | Self::Found => 1,
            Self::Usage(_) => USAGE,
            Self::Data(_) => 65,
            Self::OutOfReach(_) => 69,
            Self::Internal(_) => 70,
            Self::Io(_) => 74,
            Self::Denied(_) => 77,
        }
    }

    /// Returns the text to print; empty if the command has printed the reason already.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Found => "",
            Self::Refused(text)
            | Self::Usage(text)
            | Self::Data(text)
            | Self::OutOfReach(text)
            | Self::Internal(text)
            | Self::Io(text)
            | Self::Denied(text) => text,
        }
    }

    /// Prefixes the failure's text with the place at which the failure happened.
    pub(super) fn at(mut self, place: &str) -> Self {
        match &mut self {
            Self::Found => {}
            Self::Refused(text)
            | Self::Usage(text)
            | Self::Data(text)
            | Self::OutOfReach(text)
            | Self::Internal(text)
            | Self::Io(text)
            | Self::Denied(text) => *text = format!("{place}: {text}"),
        }
        self
    }

    /// Replaces exit code 1 by 70, for a command whose exit code 1 does not mean a refusal.
    pub(super) fn not_one(self) -> Self {
        match self {
            Self::Refused(text) => Self::Internal(text),
            other => other,
        }
    }
}

/// Exit code of a usage mistake, `EX_USAGE` in sysexits.h.
pub(super) const USAGE: u8 = 64;
