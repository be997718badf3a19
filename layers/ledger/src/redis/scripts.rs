//! The scripts, one file each. A script's first line, `-- with: ...`, names what is put in front of it:
//! functions that it shares with others, and the usual case of what it does, for which nothing else has to
//! be read or built. The server runs a script from its first line each time, and makes all its functions
//! anew.

use crate::conn::{RedisConn, RedisScript};

macro_rules! texts {
    ($($name:ident),+ $(,)?) => {
        [$((stringify!($name), include_str!(concat!("scripts/", stringify!($name), ".lua"))),)+]
    };
}

macro_rules! scripts {
    ($($name:ident),+ $(,)?) => {
        pub(super) struct Scripts {
            $(pub(super) $name: RedisScript,)+
        }

        impl Scripts {
            pub(super) fn new(conn: &RedisConn) -> Self {
                let script = |text: &str| conn.script(&parts_of(text), text);
                Self {
                    $($name: script(include_str!(concat!("scripts/", stringify!($name), ".lua"))),)+
                }
            }
        }

        #[cfg(test)]
        const SCRIPTS: &[(&str, &str)] = &texts![$($name),+];
    };
}

scripts! {
    // What a call needs.
    reserve, settle, release, extend, probe, expire, note_day,
    // What an operator needs.
    create_account, change_account, account, enter, set_key, publish_key, keys, receipt, tariff,
    // What an audit and an export need.
    books, open_and_ended,
    // What a copy from another ledger needs.
    copy_lines,
}

/// What scripts come with, by name. KEYS[1] is the account's hash wherever they use it. The state machine
/// is book.rs: change both or neither.
const PARTS: &[(&str, &str)] = &texts![
    amounts,
    calendar,
    clock,
    expiry,
    holds,
    money,
    reserve_usual,
    settle_usual,
];

/// What a script comes with.
fn parts_of(script: &str) -> String {
    let named = script
        .lines()
        .find_map(|line| line.strip_prefix("-- with: "))
        .unwrap_or_default();
    named
        .split_terminator(", ")
        .map(|name| {
            let part = PARTS.iter().find(|(known, _)| *known == name);
            part.expect("scripts name parts that there are").1
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The functions that a part has.
    fn functions(text: &'static str) -> impl Iterator<Item = &'static str> {
        let lines = text.lines();
        lines.filter_map(|line| line.strip_prefix("local function ")?.split('(').next())
    }

    /// Whether the text calls a function of this name.
    fn calls(text: &str, name: &str) -> bool {
        let call = format!("{name}(");
        text.match_indices(&call).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            !before.is_some_and(|letter| letter.is_alphanumeric() || "_.".contains(letter))
        })
    }

    #[test]
    fn a_script_comes_with_every_function_that_it_calls() {
        for (script, text) in SCRIPTS {
            let whole = format!("{}{text}", parts_of(text));
            for (part, name) in PARTS
                .iter()
                .flat_map(|(part, text)| functions(text).map(move |name| (part, name)))
            {
                let defined = whole.find(&format!("local function {name}("));
                let above = &whole[..defined.unwrap_or(whole.len())];
                assert!(!calls(above, name), "{script}.lua: {name} of {part}.lua");
            }
        }
    }

    #[test]
    fn a_script_comes_with_no_part_that_it_does_not_name() {
        assert_eq!(parts_of("#!lua\nreturn 1\n"), "");
        let both = parts_of("#!lua\n-- with: clock, amounts\nreturn 1\n");
        let text = |name: &str| PARTS.iter().find(|(known, _)| *known == name).unwrap().1;
        assert_eq!(both, format!("{}{}", text("clock"), text("amounts")));
    }
}
