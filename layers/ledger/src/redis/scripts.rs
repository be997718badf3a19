//! The Lua scripts, one file each. The head of a script names the text that this module puts in front of it. `-- with:
//! ...` names files of shared functions. `-- usual: ...` names a shorter script for the usual case, which needs no
//! other function: the server runs a script from its first line each time, and creates all its functions again. The
//! shorter script either answers, or changes nothing and returns nothing; then the whole script continues, in the same
//! call.
//!
//! If the usual script answers, the whole script would have answered and written the same. The module `usual` below
//! tests that on a server.

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
            /// `turn` without `allow-oom`: a server that is out of memory refuses this script.
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
    // Scripts that serve calls.
    reserve, settle, release, extend, adjust, probe, expire, note_day,
    // Scripts that serve leases.
    turn, recall, leases,
    // Scripts that serve operators' commands.
    create_account, change_account, account, enter, set_key, publish_key, keys, set_group, groups, receipt, places, tariff,
    // Scripts that serve an audit and an export.
    books, open_and_ended,
    // A script for copies from another ledger.
    copy_lines,
    // Scripts that serve consumers of events.
    gather, tell, put_note, lease,
    // Scripts of the roll-up.
    read_sums, write_sums, clear_sums,
}

const TURN: &str = include_str!("scripts/turn.lua");

/// Removes the flag that lets a script run on a server that is out of memory.
pub(super) fn while_there_is_memory(script: &str) -> String {
    script.replacen(" flags=allow-oom", "", 1)
}

/// The files of shared functions, by name. In all of them KEYS[1] is the account's hash. They implement the same state
/// machine as the module `book`; change both or neither.
const PARTS: &[(&str, &str)] = &texts![
    amounts, calendar, clock, expiry, holds, journal, money, state, telling, turns
];

/// Scripts that handle only the usual case, by the name in the head of a script.
const USUAL: &[(&str, &str)] = &texts![reserve_usual, settle_usual];

/// Returns the text in front of a script: its usual case, if it has one, and the functions that it calls.
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

/// Builds a script with the text that belongs in front of it.
#[cfg(test)]
pub(super) fn whole(conn: &RedisConn, text: &str) -> RedisScript {
    conn.script(&prelude_of(text), text)
}

/// Returns the script for the usual case of a script, if it has one.
fn usual_of(script: &str) -> Option<&'static str> {
    Some(text_of(USUAL, head(script, "-- usual: ")?))
}

/// Returns the names of the files of shared functions that a script names in its head.
fn parts_of(script: &str) -> Vec<&str> {
    let named = head(script, "-- with: ").unwrap_or_default();
    named.split_terminator(", ").collect()
}

fn head<'a>(script: &'a str, begins: &str) -> Option<&'a str> {
    script.lines().find_map(|line| line.strip_prefix(begins))
}

/// Returns a script without its line of flags, since the whole script has the same flags.
fn body_of(script: &str) -> &str {
    let (_, body) = script
        .split_once('\n')
        .expect("a script for a usual case begins with its flags");
    body
}

fn text_of(texts: &[(&str, &'static str)], name: &str) -> &'static str {
    let found = texts.iter().find(|(known, _)| *known == name);
    found.expect("scripts name only existing files").1
}

#[cfg(test)]
pub(super) mod usual;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the functions that a file defines.
    fn functions(text: &'static str) -> impl Iterator<Item = &'static str> {
        let lines = text.lines();
        lines.filter_map(|line| line.strip_prefix("local function ")?.split('(').next())
    }

    /// Returns whether the text calls a function of this name.
    fn calls(text: &str, name: &str) -> bool {
        let call = format!("{name}(");
        text.match_indices(&call).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            !before.is_some_and(|letter| letter.is_alphanumeric() || "_.".contains(letter))
        })
    }

    #[test]
    fn script_includes_every_function_that_it_calls() {
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
    fn script_includes_only_the_parts_that_it_names() {
        assert_eq!(prelude_of("#!lua\nreturn 1\n"), "");
        let both = prelude_of("#!lua\n-- with: clock, amounts\nreturn 1\n");
        let text = |name: &str| text_of(PARTS, name);
        assert_eq!(both, format!("{}{}", text("clock"), text("amounts")));
    }

    #[test]
    fn fast_path_comes_before_everything_it_does_not_need() {
        let usual = text_of(USUAL, "reserve_usual");
        let prelude = prelude_of("#!lua\n-- usual: reserve_usual\n-- with: clock, calendar\n");
        let (calendar, clock) = (text_of(PARTS, "calendar"), text_of(PARTS, "clock"));
        assert_eq!(prelude, format!("{calendar}{}{clock}", body_of(usual)));
    }

    /// If the flags differed, Redis would refuse some calls of the whole script alone.
    #[test]
    fn fast_path_script_declares_the_flags_of_the_full_script() {
        for (script, text) in SCRIPTS {
            if let Some(usual) = usual_of(text) {
                assert_eq!(usual.lines().next(), text.lines().next(), "{script}");
            }
        }
    }
}
