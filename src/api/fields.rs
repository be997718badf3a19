//! Parses the values of fields in requests to the admin API, in requests by owner keys, and in imported files. An error
//! describes the valid values; the caller puts the name of the field before it.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use serde_json::Value;
use tollgate_layers::{key::KeyDigest, money::MicroRub};

use crate::text::time::parse_rfc3339_ms;

const REQUESTS_MAX: u32 = 1_000_000;
const CALLS_MAX: u32 = 100_000;
const TOKENS_MAX: u32 = 1_000_000_000;
const PREFIX_LEN_MAX: usize = 16;

/// Parses an amount of rubles from a decimal string. A JSON number is refused, because many programs convert JSON
/// numbers to floats.
pub(crate) fn amount(value: &Value) -> Result<MicroRub, String> {
    let text = value
        .as_str()
        .ok_or("must be a string of decimal rubles, for example \"100.00\"")?;
    text.parse::<MicroRub>().map_err(|error| error.to_string())
}

/// Parses an amount of rubles that must not be negative.
pub(crate) fn ceiling(value: &Value) -> Result<MicroRub, String> {
    match amount(value)? {
        amount if amount < MicroRub::ZERO => Err("must not be negative".into()),
        amount => Ok(amount),
    }
}

/// Parses one line of text that has at most 200 characters and may be empty.
pub(crate) fn line(value: &Value) -> Result<String, String> {
    let text = value.as_str().ok_or("must be a string")?;
    if text.chars().count() > 200 || text.chars().any(char::is_control) {
        return Err("must be one line of at most 200 characters".into());
    }
    if text.chars().any(is_invisible) {
        return Err(
            "must not contain invisible characters, or characters that reverse the direction of text".into(),
        );
    }
    Ok(text.to_owned())
}

/// Returns whether a character is zero-width, bidirectional or a tag (Unicode TR 36). With such characters, two
/// different names can look equal.
const fn is_invisible(letter: char) -> bool {
    matches!(
        letter,
        '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Parses one line of text that must not be empty.
pub(crate) fn words(value: &Value) -> Result<String, String> {
    let text = line(value)?;
    if text.trim().is_empty() || text.trim() != text {
        return Err("must not be empty, nor begin or end with a space".into());
    }
    Ok(text)
}

/// Returns a parser of one of two words, each with the value that it means.
pub(crate) fn either<T: Copy>(
    words: [(&'static str, T); 2],
) -> impl Fn(&Value) -> Result<T, String> {
    move |value| match words.iter().find(|(word, _)| value == word) {
        Some((_, meant)) => Ok(*meant),
        None => Err(format!("must be {:?} or {:?}", words[0].0, words[1].0)),
    }
}

/// Parses an id, such as the id of an account or a key.
pub(crate) fn id<T: std::str::FromStr<Err: fmt::Display>>(value: &Value) -> Result<T, String> {
    let text = value.as_str().ok_or("must be a string")?;
    text.parse::<T>().map_err(|error| error.to_string())
}

/// Parses the SHA-256 digest of a key, written as 64 hexadecimal digits.
pub(crate) fn sha256(value: &Value) -> Result<KeyDigest, String> {
    let text = value.as_str().unwrap_or_default();
    let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.parse() {
        Ok(digest) if hex => Ok(digest),
        _ => Err(
            "must be 64 hexadecimal digits, as `printf %s \"$KEY\" | sha256sum` prints them".into(),
        ),
    }
}

/// Parses the prefix of a key, by which people recognize the key. A prefix has at most `PREFIX_LEN_MAX` characters, so
/// it cannot be a whole key.
pub(crate) fn prefix(value: &Value) -> Result<String, String> {
    let text = words(value)?;
    if text.chars().count() > PREFIX_LEN_MAX {
        return Err(format!(
            "must be the first characters of the key, at most {PREFIX_LEN_MAX} of them"
        ));
    }
    Ok(text)
}

pub(crate) fn address(value: &Value) -> Result<IpNet, String> {
    parse_address(value.as_str().ok_or("must be a string")?)
}

/// Parses a CIDR block or a single address. A block whose host bits are not all zero is refused, because it is
/// ambiguous.
pub(crate) fn parse_address(text: &str) -> Result<IpNet, String> {
    let block = text
        .parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "must be an address such as 203.0.113.7, or a block such as 203.0.113.0/24")?;
    let network = block.trunc();
    if block == network {
        Ok(network)
    } else {
        let address = block.addr();
        Err(format!(
            "{block} has host bits set: send {network} for the whole network, or {address} for that address"
        ))
    }
}

pub(crate) fn requests(value: &Value) -> Result<u32, String> {
    up_to(REQUESTS_MAX, value)
}

pub(crate) fn calls(value: &Value) -> Result<u32, String> {
    up_to(CALLS_MAX, value)
}

pub(crate) fn tokens(value: &Value) -> Result<u32, String> {
    up_to(TOKENS_MAX, value)
}

fn up_to(max: u32, value: &Value) -> Result<u32, String> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| format!("must be a whole number from 1 to {max}"))
}

pub(crate) fn flag(value: &Value) -> Result<bool, String> {
    let flag = value.as_bool();
    flag.ok_or_else(|| "must be true or false".into())
}

/// Returns a parser for times. A time must be after `now_ms`; the parser returns it in Unix milliseconds.
pub(crate) fn time_after(now_ms: u64) -> impl Fn(&Value) -> Result<u64, String> {
    move |value: &Value| match value.as_str().and_then(parse_rfc3339_ms) {
        None => Err(
            "must be a time such as \"2027-01-31T12:00:00Z\", or a date such as \"2027-01-31\""
                .into(),
        ),
        Some(ms) if ms <= now_ms => Err("is in the past".into()),
        Some(ms) => Ok(ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_refused_in_a_one_line_field() {
        for (letter, good) in [
            ('\u{200b}', false),
            ('\u{202e}', false),
            ('\u{2066}', false),
            ('\u{feff}', false),
            ('\u{e0041}', false),
            ('\u{7}', false),
            ('ё', true),
            ('\u{a0}', true),
            ('🦀', true),
        ] {
            let text = Value::String(format!("a{letter}b"));
            assert_eq!(line(&text).is_ok(), good, "{letter:?}");
        }
    }

    #[test]
    fn imported_digest_has_64_digits_and_its_prefix_must_not_be_a_whole_key() {
        let digest = sha256(&("0aB".repeat(21) + "0").into()).unwrap();
        assert_eq!(digest.to_string(), "0ab".repeat(21) + "0");
        for bad in [
            "",
            "0a",
            &"+a".repeat(32),
            &"zz".repeat(32),
            &"é".repeat(32),
        ] {
            assert!(sha256(&bad.into()).is_err(), "{bad}");
        }
        assert!(sha256(&Value::Null).is_err());
        assert_eq!(prefix(&"sk-AbC…".into()).unwrap(), "sk-AbC…");
        assert!(prefix(&"sk-0123456789abcdef".into()).is_err() && prefix(&" ".into()).is_err());
    }

    #[test]
    fn ip_address_or_address_block_is_parsed_as_a_network() {
        for (text, block) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("203.0.113.7", "203.0.113.7/32"),
            ("203.0.113.7/32", "203.0.113.7/32"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(parse_address(text).unwrap().to_string(), block);
        }
        for (text, network, address) in [
            ("10.0.0.5/8", "10.0.0.0/8", "10.0.0.5"),
            ("2001:db8::1/32", "2001:db8::/32", "2001:db8::1"),
        ] {
            let problem = parse_address(text).unwrap_err();
            assert!(
                problem.contains(&format!("send {network} "))
                    && problem.contains(&format!("or {address} ")),
                "{problem}"
            );
        }
    }
}
