//! Texts of errors for callers. The request's number is not part of them; `respond` appends it.

mod english;
mod russian;

use std::time::Duration;

use super::Language;
use crate::{
    ceiling::Ceiling,
    error::{Error, Problem},
    money::MicroRub,
};

/// Returns the text for people, in their language. The cause is only logged.
pub(super) fn caller(error: &Error, language: Language) -> String {
    match language {
        Language::Ru => russian::text(error),
        Language::En => english::text(error),
    }
}

/// The recommendation to a caller whose hold is larger than the free money, in addition to making the call smaller.
enum OtherWay {
    Wait,
    Renewal,
    HigherCeiling,
    TopUp,
}

impl OtherWay {
    fn new(held: MicroRub, ceiling: Option<&Ceiling>) -> Self {
        match ceiling {
            // Waiting helps only if running calls hold money, which they may return.
            _ if held > MicroRub::ZERO => Self::Wait,
            Some(ceiling) if ceiling.resets_on().is_some() => Self::Renewal,
            Some(_) => Self::HigherCeiling,
            None => Self::TopUp,
        }
    }
}

/// Formats a non-negative amount as people write it: `1 000,50 ₽` in Russian, without places for a line break, or
/// `1,000.50 RUB` in English, in ASCII.
fn rubles(amount: MicroRub, language: Language) -> String {
    let (thousands, point, unit) = match language {
        Language::Ru => ('\u{202f}', ',', "\u{a0}₽"),
        Language::En => (',', '.', " RUB"),
    };
    let text = amount.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, "00"));
    let mut shown = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            shown.push(thousands);
        }
        shown.push(digit);
    }
    format!("{shown}{point}{fraction}{unit}")
}

/// Returns whether the problem is in a header and not in a field of the body.
fn is_header(field: &str, problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::HeaderMissing | Problem::NotAHost | Problem::NotAnIdempotencyKey
    ) || matches!(field, "host" | "content-length" | "transfer-encoding")
}

/// Lists the paths like `A, B or C`, and returns whether there are several.
fn listed(surfaces: &[&str], or: &str) -> (String, bool) {
    match surfaces {
        [] => (String::new(), false),
        [one] => ((*one).to_owned(), false),
        [others @ .., last] => (format!("{} {or} {last}", others.join(", ")), true),
    }
}

/// Returns the wait as callers get it: in seconds, rounded up, at least one.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    u64::try_from(seconds).unwrap_or(u64::MAX)
}

/// Shortens a text of a client and removes control characters, so that it can be part of the gateway's text.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
