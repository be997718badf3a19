//! Lua scripts. They are called by their SHA-1; the full text is sent only if the server has not cached the script.

use redis::{Cmd, Script, ToRedisArgs};

/// The text and the SHA-1 of a script.
#[derive(Debug)]
pub struct RedisScript {
    code: String,
    sha: String,
}

impl RedisScript {
    /// Builds a script from `prelude`, followed by `script`. If the first line of `script` is `#!lua flags=...`, it
    /// becomes the first line of the built script. This line is removed for servers that do not support it (before
    /// Redis 7.0).
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

    /// Returns the command that runs the script by its SHA-1 (EVALSHA). If the server has not cached the script, it
    /// answers NOSCRIPT.
    pub(super) fn by_name(&self, keys: &[String], args: impl ToRedisArgs) -> Cmd {
        call("EVALSHA", &self.sha, keys, args)
    }

    /// Returns the command that runs the script by its text (EVAL).
    pub(super) fn by_text(&self, keys: &[String], args: impl ToRedisArgs) -> Cmd {
        call("EVAL", &self.code, keys, args)
    }
}

/// The typical size of a script's arguments in bytes: the initial capacity of a command's buffer. The largest argument
/// is the item of a receipt.
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
    fn script_flags_stay_on_the_first_line_but_are_removed_for_old_servers() {
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
