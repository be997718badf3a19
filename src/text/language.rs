//! Texts and numbers in the language of a page or document.

use tollgate_layers::respond::Language;

/// Returns the text in the language. Russian is the default.
pub(crate) const fn say(language: Language, ru: &'static str, en: &'static str) -> &'static str {
    match language {
        Language::En => en,
        _ => ru,
    }
}

/// Groups the digits of a number by thousands.
pub(crate) fn grouped(whole: &str, language: Language) -> String {
    thousands(whole, say(language, "\u{202f}", ","))
}

/// Puts `separator` between the thousands of a number.
pub(crate) fn thousands(whole: &str, separator: &str) -> String {
    let mut text = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            text.push_str(separator);
        }
        text.push(digit);
    }
    text
}
