//! The scripts, one file each. All begin with the same prelude.

use crate::redis_conn::{RedisConn, RedisScript};

macro_rules! scripts {
    ($($name:ident),+ $(,)?) => {
        pub(super) struct Scripts {
            $(pub(super) $name: RedisScript,)+
        }

        impl Scripts {
            pub(super) fn new(conn: &RedisConn) -> Self {
                let prelude = include_str!("../lua/prelude.lua");
                Self {
                    $($name: conn.script(prelude, include_str!(concat!("../lua/", stringify!($name), ".lua"))),)+
                }
            }
        }
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
