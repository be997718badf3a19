//! The scripts, one file each. A script's head names what is put in front of it: `-- with: ...` functions that it
//! shares with others, and `-- usual: ...` a script for the usual case of what it does, for which nothing else has to be
//! read or built: the server runs a script from its first line each time, and makes all its functions anew. That one
//! answers, or leaves everything alone, answers nothing, and the whole script goes on, in the same call.
//!
//! Whenever the usual one answers, the whole one alone would have answered and written the same: `usual` below tries
//! that on a server.

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
            /// `turn`, which a server does not run that is out of memory.
            pub(super) asking_turn: RedisScript,
        }

        impl Scripts {
            pub(super) fn new(conn: &RedisConn) -> Self {
                let script = |text: &str| conn.script(&prelude_of(text), text);
                Self {
                    $($name: script(include_str!(concat!("scripts/", stringify!($name), ".lua"))),)+
                    asking_turn: script(&while_there_is_memory(TURN)),
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
    // What leases need.
    turn, recall, leases,
    // What an operator needs.
    create_account, change_account, account, enter, set_key, publish_key, keys, set_group, groups, receipt, places, tariff,
    // What an audit and an export need.
    books, open_and_ended,
    // What a copy from another ledger needs.
    copy_lines,
    // What those need who pass events on.
    gather, tell, put_note, lease,
    // What the roll-up needs.
    read_sums, write_sums, clear_sums,
}

const TURN: &str = include_str!("scripts/turn.lua");

/// The same script, for a server that has memory.
pub(super) fn while_there_is_memory(script: &str) -> String {
    script.replacen(" flags=allow-oom", "", 1)
}

/// What scripts come with, by name. KEYS[1] is the account's hash wherever they use it. The state machine
/// is book.rs: change both or neither.
const PARTS: &[(&str, &str)] = &texts![
    amounts, calendar, clock, expiry, holds, money, state, telling, turns
];

/// Scripts for usual cases, by name.
const USUAL: &[(&str, &str)] = &texts![reserve_usual, settle_usual];

/// What stands in front of a script: the usual case, if it has one, and the functions that it calls.
fn prelude_of(script: &str) -> String {
    let (mut prelude, mut there) = (String::new(), Vec::new());
    if let Some(usual) = usual_of(script) {
        there = parts_of(usual);
        prelude.extend(there.iter().map(|part| text_of(PARTS, part)));
        prelude.push_str(body_of(usual));
    }
    let others = parts_of(script).into_iter();
    let others = others.filter(|part| !there.contains(part));
    prelude.extend(others.map(|part| text_of(PARTS, part)));
    prelude
}

/// A script with all that it comes with.
#[cfg(test)]
pub(super) fn whole(conn: &RedisConn, text: &str) -> RedisScript {
    conn.script(&prelude_of(text), text)
}

/// The script for its usual case.
fn usual_of(script: &str) -> Option<&'static str> {
    Some(text_of(USUAL, head(script, "-- usual: ")?))
}

/// The names of the functions' files that it comes with.
fn parts_of(script: &str) -> Vec<&str> {
    let named = head(script, "-- with: ").unwrap_or_default();
    named.split_terminator(", ").collect()
}

fn head<'a>(script: &'a str, begins: &str) -> Option<&'a str> {
    script.lines().find_map(|line| line.strip_prefix(begins))
}

/// Without the flags, which the whole script has.
fn body_of(script: &str) -> &str {
    let (_, body) = script
        .split_once('\n')
        .expect("a script for a usual case begins with its flags");
    body
}

fn text_of(texts: &[(&str, &'static str)], name: &str) -> &'static str {
    let found = texts.iter().find(|(known, _)| *known == name);
    found.expect("scripts name files that there are").1
}

#[cfg(test)]
pub(super) mod usual;

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
        for (script, text) in SCRIPTS.iter().chain(USUAL) {
            let whole = format!("{}{text}", prelude_of(text));
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
        assert_eq!(prelude_of("#!lua\nreturn 1\n"), "");
        let both = prelude_of("#!lua\n-- with: clock, amounts\nreturn 1\n");
        let text = |name: &str| text_of(PARTS, name);
        assert_eq!(both, format!("{}{}", text("clock"), text("amounts")));
    }

    #[test]
    fn the_usual_case_goes_before_all_that_it_does_not_need() {
        let usual = text_of(USUAL, "reserve_usual");
        let prelude = prelude_of("#!lua\n-- usual: reserve_usual\n-- with: clock, calendar\n");
        let (calendar, clock) = (text_of(PARTS, "calendar"), text_of(PARTS, "clock"));
        assert_eq!(prelude, format!("{calendar}{}{clock}", body_of(usual)));
    }

    /// Otherwise it would be refused where the whole one is not.
    #[test]
    fn a_usual_case_has_the_flags_of_its_script() {
        for (script, text) in SCRIPTS {
            if let Some(usual) = usual_of(text) {
                assert_eq!(usual.lines().next(), text.lines().next(), "{script}");
            }
        }
    }
}
