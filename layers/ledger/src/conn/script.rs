//! Scripts by their SHA-1, with the text as the way back.

use redis::{Cmd, Script, ToRedisArgs};

/// A script's text and its SHA-1, which is its name on the server.
#[derive(Debug)]
pub struct RedisScript {
    code: String,
    sha: String,
}

impl RedisScript {
    /// Of two parts. The script's first line may be `#!lua flags=...`, which goes on top, or away for a
    /// server that does not know it (before 7.0).
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

    /// Calls it by name; a server that has not seen it answers NOSCRIPT.
    pub(super) fn by_name(&self, keys: &[String], args: impl ToRedisArgs) -> Cmd {
        call("EVALSHA", &self.sha, keys, args)
    }

    /// Calls it by its text.
    pub(super) fn by_text(&self, keys: &[String], args: impl ToRedisArgs) -> Cmd {
        call("EVAL", &self.code, keys, args)
    }
}

/// What a script's arguments mostly take in bytes: the largest is what stands on a receipt.
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
    fn flags_stand_on_top_or_nowhere() {
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
