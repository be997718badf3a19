//! Asks the user questions on a terminal.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::failure::Failure;
use crate::config::{Preset, sections::VendorArgs};

/// Repeats the question until `parse` accepts the answer.
pub(super) fn ask<T>(
    question: &str,
    parse: impl Fn(&str) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let unreadable = |error: io::Error| Failure::Io(format!("standard input: {error}"));
    loop {
        eprint!("{question}");
        let _ = io::stderr().flush();
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        if read.map_err(unreadable)? == 0 {
            return Err(Failure::Usage(
                "standard input ended before the last answer; nothing was written".into(),
            ));
        }
        match parse(line.trim()) {
            Ok(answer) => return Ok(answer),
            Err(failure) => eprintln!("{}", failure.text()),
        }
    }
}

/// Runs `read` while the terminal does not show what is typed.
pub(super) fn without_echo<T>(read: impl FnOnce() -> T) -> T {
    let stdin = io::stdin();
    let before = tcgetattr(&stdin).ok();
    if let Some(mut silent) = before.clone() {
        silent.local_modes.remove(LocalModes::ECHO);
        let _ = tcsetattr(&stdin, OptionalActions::Now, &silent);
    }
    let answer = read();
    if let Some(before) = before {
        let _ = tcsetattr(&stdin, OptionalActions::Now, &before);
        eprintln!();
    }
    answer
}

/// Asks for each value that the preset needs and the options do not give. Does nothing if standard input is not a
/// terminal.
pub(super) fn ask_values(args: &mut VendorArgs, preset: &Preset) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Ok(());
    }
    let missing = args.missing(preset).map(|(name, _)| name.to_owned());
    for name in missing.collect::<Vec<_>>() {
        let about = &preset.about.values[&name];
        let (title, find, example) = (&about.title, &about.find, &about.example);
        let question = format!("{find}.\nThe {title} (like {example}): ");
        let value = ask(&question, |text| match text {
            "" => Err(Failure::Usage(format!("the preset requires the {title}"))),
            text => Ok(text.to_owned()),
        })?;
        args.values.push((name, value));
    }
    Ok(())
}
