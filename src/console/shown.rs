//! Formats amounts, counts and times for the pages.
//!
//! An amount is shown with two decimals, and its exact value is in the HTML attribute `title`. An amount below a kopeck
//! is shown exactly. Times are in UTC, like the days of reports and ceilings.

use std::fmt;

use askama::filters::HtmlSafe;
use tollgate_layers::respond::Language;

use super::views::micro;
use crate::{
    text::language::{grouped, say},
    text::{rubles::Rubles, time::parse_rfc3339_ms},
};

/// The number of micro-rubles in a kopeck.
const KOPECK: u128 = 10_000;
const MONTHS: [[&str; 2]; 12] = [
    ["янв", "Jan"],
    ["фев", "Feb"],
    ["мар", "Mar"],
    ["апр", "Apr"],
    ["мая", "May"],
    ["июн", "Jun"],
    ["июл", "Jul"],
    ["авг", "Aug"],
    ["сен", "Sep"],
    ["окт", "Oct"],
    ["ноя", "Nov"],
    ["дек", "Dec"],
];

/// Markup made of digits, letters and fixed tags, which needs no escaping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Safe(String);

impl fmt::Display for Safe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Safe {}

/// Formats an amount of rubles, without the unit.
pub(crate) fn rubles(amount: &impl fmt::Display, language: Language) -> Safe {
    let exact = amount.to_string();
    let micro = micro(&exact);
    let short = short(micro, language);
    let whole = decimal(micro, language);
    Safe(match short == whole {
        true => short,
        false => format!("<span title=\"{whole}\">{short}</span>"),
    })
}

/// Formats an amount of rubles as plain text: with two decimals, or with all decimals if the amount is below a kopeck.
pub(crate) fn short(micro: i128, language: Language) -> String {
    let size = micro.unsigned_abs();
    let rounded = match size < KOPECK {
        true => size,
        false => size.saturating_add(KOPECK / 2) / KOPECK * KOPECK,
    };
    let rounded = i128::try_from(rounded).unwrap_or(i128::MAX);
    decimal(rounded * micro.signum(), language)
}

/// Formats a change in percent, with its sign.
pub(super) fn change(percent: i128) -> String {
    let sign = match percent.signum() {
        1 => "+",
        -1 => "−",
        _ => "",
    };
    format!("{sign}{}\u{a0}%", percent.unsigned_abs())
}

/// Formats an amount with all of its decimals, at least two.
fn decimal(micro: i128, language: Language) -> String {
    let text = Rubles(micro).to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, "00"));
    let (sign, digits) = match whole.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", whole),
    };
    let point = say(language, ",", ".");
    format!("{sign}{}{point}{fraction}", grouped(digits, language))
}

/// Formats a decimal number or percentage with all of its digits, in the form of the page's language. Other text is
/// returned unchanged.
pub(crate) fn exact(number: &impl fmt::Display, language: Language) -> String {
    let text = number.to_string();
    if let Some(percent) = text.strip_suffix(" %") {
        return format!("{} %", exact(&percent, language));
    }
    let (sign, size) = match text.strip_prefix('-') {
        Some(size) => ("-", size),
        None => ("", &*text),
    };
    let (whole, fraction) = size.split_once('.').unwrap_or((size, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return text;
    }
    let point = match fraction {
        "" => "",
        _ => say(language, ",", "."),
    };
    format!("{sign}{}{point}{fraction}", grouped(whole, language))
}

/// Formats a whole number, grouped by thousands.
pub(crate) fn count(number: u64, language: Language) -> Safe {
    Safe(grouped(&number.to_string(), language))
}

/// Formats an RFC 3339 time, a day or a month: `29 Nov 2026, 07:15:04`. Any other text is returned without markup.
pub(crate) fn moment(at: &str, language: Language) -> Safe {
    let Some((date, time)) = parse_rfc3339_ms(at).and(at.split_at_checked(10)) else {
        let month = day(at, language);
        let is_plain = |char: &char| char.is_alphanumeric() || *char == ' ';
        return Safe(month.chars().filter(is_plain).collect());
    };
    let time = time.get(1..9).unwrap_or_default();
    let apart = if time.is_empty() { "" } else { ", " };
    let shown = format!("{}{apart}{time}", day(date, language));
    Safe(format!("<time datetime=\"{at}\">{shown}</time>"))
}

/// Formats an RFC 3339 date: `29 Nov 2026`.
pub(crate) fn day(date: &str, language: Language) -> String {
    let (year, month) = (date.get(..4), date.get(5..7));
    let month = month.and_then(|month| month.parse::<usize>().ok());
    let name = month.and_then(|month| month_name(month, language));
    match (year, name, date.get(8..10)) {
        (Some(year), Some(month), Some(day)) => {
            format!("{}\u{a0}{month} {year}", day.trim_start_matches('0'))
        }
        // Without a day, only the Russian name of May has another form.
        (Some(year), Some("мая"), None) => format!("май {year}"),
        (Some(year), Some(month), None) => format!("{month} {year}"),
        _ => date.to_owned(),
    }
}

/// Returns the short name of a month; January is 1.
fn month_name(month: usize, language: Language) -> Option<&'static str> {
    let [ru, en] = MONTHS.get(month.wrapping_sub(1))?;
    Some(say(language, ru, en))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_shown_to_the_kopeck_with_the_exact_value_in_the_title() {
        for (amount, ru, en) in [
            ("1234.50", "1\u{202f}234,50", "1,234.50"),
            ("100.00", "100,00", "100.00"),
            (
                "1234567.895",
                "<span title=\"1\u{202f}234\u{202f}567,895\">1\u{202f}234\u{202f}567,90</span>",
                "<span title=\"1,234,567.895\">1,234,567.90</span>",
            ),
            (
                "-0.015",
                "<span title=\"-0,015\">-0,02</span>",
                "<span title=\"-0.015\">-0.02</span>",
            ),
            // An amount below a kopeck is not shown as zero.
            ("0.000859", "0,000859", "0.000859"),
            ("0.00", "0,00", "0.00"),
        ] {
            assert_eq!(rubles(&amount, Language::Ru).to_string(), ru);
            assert_eq!(rubles(&amount, Language::En).to_string(), en);
        }
        assert_eq!(
            count(1_234_567, Language::Ru).to_string(),
            "1\u{202f}234\u{202f}567"
        );
        assert_eq!(count(999, Language::En).to_string(), "999");
    }

    #[test]
    fn exact_amounts_keep_every_digit() {
        for (number, ru, en) in [
            ("0.000859", "0,000859", "0.000859"),
            ("-1234.5", "-1\u{202f}234,5", "-1,234.5"),
            ("90.1234567890", "90,1234567890", "90.1234567890"),
            ("104", "104", "104"),
            ("30.4 %", "30,4 %", "30.4 %"),
            ("—", "—", "—"),
            ("<b>", "<b>", "<b>"),
        ] {
            assert_eq!(exact(&number, Language::Ru), ru);
            assert_eq!(exact(&number, Language::En), en);
        }
    }

    #[test]
    fn times_are_shown_with_the_name_of_the_month() {
        let at = "2026-11-09T07:15:04.123Z";
        assert_eq!(
            moment(at, Language::En).to_string(),
            "<time datetime=\"2026-11-09T07:15:04.123Z\">9\u{a0}Nov 2026, 07:15:04</time>"
        );
        assert!(
            moment(at, Language::Ru)
                .to_string()
                .contains(">9\u{a0}ноя 2026, 07:15:04<")
        );
        assert_eq!(moment("2026-11", Language::En).to_string(), "Nov 2026");
        assert_eq!(day("2026-05", Language::Ru), "май 2026");
        assert_eq!(day("2026-05-09", Language::Ru), "9\u{a0}мая 2026");
        assert_eq!(moment("<b>soon", Language::En).to_string(), "bsoon");
    }
}
