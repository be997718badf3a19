//! The Lua scripts, one file each. A script begins with a line `-- with: ...`, which names files of shared functions.
//! This module inserts these files before the script.

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
            /// `turn.lua` without the flag `allow-oom`: a server that is out of memory refuses to run this script.
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
    // Scripts for calls.
    reserve, settle, release, extend, adjust, probe, expire, note_day,
    // Scripts for leases.
    turn, recall, leases,
    // Scripts for operators' commands.
    create_account, change_account, account, enter, set_key, publish_key, keys, set_group, groups, receipt, places, tariff,
    // Scripts for audits and exports.
    books, open_and_ended,
    // The script for copies of another ledger.
    copy_lines,
    // Scripts for consumers of events.
    gather, emit_once, compare_and_swap, lead,
    // Scripts for the roll-up.
    read_sums, write_sums, clear_sums,
}

const TURN: &str = include_str!("scripts/turn.lua");

/// Removes the flag that allows a script to run on a server that is out of memory.
pub(super) fn while_there_is_memory(script: &str) -> String {
    script.replacen(" flags=allow-oom", "", 1)
}

/// The files of shared functions, by name. In each of these files, KEYS[1] is the hash of the account. Together with
/// the scripts they implement the same state machine as the module `book`: change the Lua files and the module
/// together.
const PARTS: &[(&str, &str)] = &texts![
    amounts, calendar, clock, events, expiry, holds, journal, money, state, turns
];

/// Returns the text to insert before a script: the shared functions that it calls.
fn prelude_of(script: &str) -> String {
    let parts = parts_of(script).into_iter();
    parts.map(|part| text_of(PARTS, part)).collect()
}

/// Builds a script with its shared functions.
#[cfg(test)]
pub(super) fn whole(conn: &RedisConn, text: &str) -> RedisScript {
    conn.script(&prelude_of(text), text)
}

/// Builds a script that uses the test's clock: the last argument is the time in microseconds.
#[cfg(test)]
pub(super) fn with_clock(conn: &RedisConn, text: &str) -> RedisScript {
    conn.script(&format!("{CLOCK}{}", prelude_of(text)), text)
}

/// Lua that replaces the server's clock by the last argument of the script, in microseconds. Ids of new stream entries
/// are based on this time, but never decrease, as on a server whose clock is set back.
#[cfg(test)]
const CLOCK: &str = r"
local server, clock_us = redis, tonumber(table.remove(ARGV))
local redis = {call = function(name, ...)
  if name == 'TIME' then
    return {string.format('%.0f', math.floor(clock_us / 1000000)), string.format('%.0f', clock_us % 1000000)}
  elseif name == 'XADD' then
    local words = {...}
    for i, word in ipairs(words) do
      if word == '*' then
        local last = server.call('XREVRANGE', words[1], '+', '-', 'COUNT', 1)[1]
        local last_ms = last and tonumber(string.match(last[1], '^%d+')) or 0
        words[i] = string.format('%.0f-*', math.max(last_ms, math.floor(clock_us / 1000)))
        break
      end
    end
    return server.call(name, unpack(words))
  end
  return server.call(name, ...)
end}
";

/// Returns the files of shared functions that a script names in its `-- with:` line.
fn parts_of(script: &str) -> Vec<&str> {
    let named = script
        .lines()
        .find_map(|line| line.strip_prefix("-- with: "));
    named.unwrap_or_default().split_terminator(", ").collect()
}

fn text_of(texts: &[(&str, &'static str)], name: &str) -> &'static str {
    let found = texts.iter().find(|(known, _)| *known == name);
    found.expect("scripts name only existing files").1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(text: &'static str) -> impl Iterator<Item = &'static str> {
        let lines = text.lines();
        lines.filter_map(|line| line.strip_prefix("local function ")?.split('(').next())
    }

    fn calls(text: &str, name: &str) -> bool {
        let call = format!("{name}(");
        text.match_indices(&call).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            !before.is_some_and(|letter| letter.is_alphanumeric() || "_.".contains(letter))
        })
    }

    #[test]
    fn script_includes_every_function_that_it_calls() {
        for (script, text) in SCRIPTS {
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
    fn lua_script_includes_only_the_files_that_its_with_comment_names() {
        assert_eq!(prelude_of("#!lua\nreturn 1\n"), "");
        let both = prelude_of("#!lua\n-- with: clock, amounts\nreturn 1\n");
        let text = |name: &str| text_of(PARTS, name);
        assert_eq!(both, format!("{}{}", text("clock"), text("amounts")));
    }
}
