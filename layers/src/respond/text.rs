//! Error texts for callers. They do not contain the request's number, which `respond` appends.

mod errors;
mod problems;

use std::{borrow::Cow, time::Duration};

pub(super) use self::errors::caller;
use super::Language;
use crate::{ceiling::Ceiling, error::Problem, money::MicroRub};

/// A text in Russian, and the same text in English.
type Texts = [Cow<'static, str>; 2];

fn both(russian: impl Into<Cow<'static, str>>, english: impl Into<Cow<'static, str>>) -> Texts {
    [russian.into(), english.into()]
}

/// Returns the advice to a caller whose hold is larger than the free money. The error text gives it in addition to the
/// advice to shorten the request.
fn other_way(held: MicroRub, ceiling: Option<&Ceiling>) -> [&'static str; 2] {
    match ceiling {
        // Waiting helps only if in-flight calls hold money, because they may return it.
        _ if held > MicroRub::ZERO => [
            "дождитесь завершения текущих запросов",
            "wait for the running requests to end",
        ],
        Some(ceiling) if ceiling.resets_on().is_some() => [
            "дождитесь обновления лимита",
            "wait until the ceiling resets",
        ],
        Some(_) => ["попросите увеличить лимит", "ask for a higher ceiling"],
        None => ["пополните баланс", "top up the balance"],
    }
}

/// Formats a non-negative amount as people write it. Russian: `1 000,50 ₽`, with no-break spaces, so that a line never
/// breaks inside the amount. English: `1,000.50 RUB`, in ASCII.
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

/// Returns whether the problem is in a header. Otherwise it is in a field of the body.
fn is_header(field: &str, problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::HeaderMissing | Problem::NotAHost | Problem::NotAnIdempotencyKey
    ) || matches!(field, "host" | "content-length" | "transfer-encoding")
}

/// Returns whether the text is the position of a syntax error, for example `1:14` (line and column).
fn is_position(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b':')
}

/// Joins the paths, for example to `A, B or C`.
fn listed(surfaces: &[&str], or: &str) -> String {
    match surfaces {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} {or} {last}", others.join(", ")),
    }
}

/// Returns the wait as error texts show it: in seconds, rounded up, at least 1.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    u64::try_from(seconds).unwrap_or(u64::MAX)
}

/// Returns a text of a client in the form in which an error text may contain it: without control characters, and cut to
/// 80 characters.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
