//! How a command fails, and what the shell learns of it.

use std::process::ExitCode;

/// Why a command did not do what was asked. The texts end in what to do next.
#[derive(Debug)]
pub(super) enum Failure {
    /// 1: the gateway said no, or the process could not go on.
    Refused(String),
    /// 1: the ledger is in breach; the breaches have been printed.
    Breach,
    /// 64: the command or the configuration is wrong.
    Usage(String),
    /// 65: what was given to read is not what it should be.
    Data(String),
    /// 69: the gateway did not answer.
    OutOfReach(String),
}

impl Failure {
    /// Says it, one line for each mistake, and gives the exit code.
    pub(super) fn report(&self) -> ExitCode {
        if let Self::Refused(text) | Self::Usage(text) | Self::Data(text) | Self::OutOfReach(text) =
            self
        {
            for line in text.lines() {
                eprintln!("error: {line}");
            }
        }
        ExitCode::from(self.code())
    }

    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Refused(_) | Self::Breach => 1,
            Self::Usage(_) => USAGE,
            Self::Data(_) => 65,
            Self::OutOfReach(_) => 69,
        }
    }
}

/// `EX_USAGE` of sysexits.h.
pub(super) const USAGE: u8 = 64;
