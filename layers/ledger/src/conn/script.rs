//! Lua scripts, called by their SHA-1, with the full text as a fallback.

use redis::{Cmd, Script, ToRedisArgs};

/// A script's text, and its SHA-1. A server that has cached the script runs it by its SHA-1.
#[derive(Debug)]
pub struct RedisScript {
    code: String,
    sha: String,
}

impl RedisScript {
    /// Builds a script from two parts. If the first line of `script` is `#!lua flags=...`, it becomes the first line of
    /// the combined text. For a server that does not support such a line (before 7.0) it is removed.
    pub(super) fn new(prelude: &str, script: &str, flags_known: bool) -> Self {
        let code = match script.split_once('\n') {
            Some((flags, body)) if flags.starts_with("#!") && flags_known => {
                format!("{flags}\n{prelude}{body}")
            }
            Some((flags, body)) if flags.starts_with("#!") => format!("{prelude}{body}"),
            _ => format!("{prelude}{script}"),
        };
        let sha = Script::new(&code).get_hash().to_owned();
        Self { code, sha }
    }

    /// The command that runs the script by its SHA-1 (EVALSHA). A server that has not cached the script returns
    /// NOSCRIPT.
    pub(super) fn by_name(&self, keys: &[String], args: impl ToRedisArgs) -> Cmd {
        call("EVALSHA", &self.sha, keys, args)
    }

    /// The command that runs the script by its source (EVAL).
    pub(super) fn by_text(&self, keys: &[String], args: impl ToRedisArgs) -> Cmd {
        call("EVAL", &self.code, keys, args)
    }
}

/// The usual size of a script's arguments in bytes, so that a command's buffer is allocated once. The largest argument
/// is a receipt's item.
const ARGS_SIZE: usize = 768;

fn call(name: &str, script: &str, keys: &[String], args: impl ToRedisArgs) -> Cmd {
    let size = keys.iter().map(String::len).sum::<usize>() + name.len() + script.len() + ARGS_SIZE;
    let mut command = Cmd::with_capacity(keys.len() + args.num_of_args() + 3, size);
    command.arg(name);
    command.arg(script).arg(keys.len()).arg(keys).arg(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_flags_are_on_the_first_line_or_absent() {
        let script = "#!lua flags=allow-oom\nreturn 1";
        assert_eq!(
            RedisScript::new("local a = 1\n", script, true).code,
            "#!lua flags=allow-oom\nlocal a = 1\nreturn 1"
        );
        assert_eq!(
            RedisScript::new("local a = 1\n", script, false).code,
            "local a = 1\nreturn 1"
        );
        assert_eq!(RedisScript::new("", "return 1\n", true).code, "return 1\n");
    }
}
