//! Tests the scripts for usual cases. If such a script answers, the whole script, on a copy of the same state, answers
//! the same and writes the same to every key. If it does not answer, it has changed nothing.
//!
//! Both scripts run on a server, so `redis-server` must be installed. Text in front of the scripts replaces the
//! server's clock by the test's.

use std::{cell::Cell, time::Duration};

use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};

use super::*;
use crate::{
    conn::{RedisFault, Value},
    money::MicroRub,
    redis::test_server::Server,
};

/// The number of calls, and of keys, is small so that steps affect each other.
const NUMBERS: u8 = 6;
const KEYS: u8 = 3;
const MAX: i64 = MicroRub::MAX.micro();
/// The time at which a run begins: one hour and one minute before a month ends.
const BEGIN_MS: u64 = 1_772_323_200_000 - 3_660_000;
/// The retention of journal lines that the ledger sends with SETTLE. A stream of so few lines is never trimmed.
const RETENTION_MS: u64 = super::super::RECEIPT_MS;
/// By how much the times to live of tombstones and receipts may differ: they begin at the server's clock, not the
/// test's.
const TTL_MS_BETWEEN: i64 = 60_000;
const LIMIT: Duration = Duration::from_secs(10);

/// Lua that replaces the server's time by the script's last argument, in microseconds. New lines get their ids from
/// this time, or after the last line, as on a server whose clock goes back.
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

/// Returns a script with the test's clock: its last argument, in microseconds. Works for whole scripts and usual cases.
pub(in crate::redis) fn with_clock(conn: &RedisConn, text: &'static str) -> RedisScript {
    let parts = parts_of(text).into_iter();
    let parts: String = parts.map(|part| text_of(PARTS, part)).collect();
    // `parts` does not include the script for the usual case, so that this runs the whole script alone.
    conn.script(&format!("{CLOCK}{parts}"), text)
}

/// Makes the account {fast} a copy of {full}, or returns the contents of both accounts: each key's value as text, in
/// order, and its time to live.
const ACCOUNTS: &str = r"
local function keys_of(account)
  local keys = redis.call('KEYS', 'tg:{' .. account .. '}*')
  table.sort(keys)
  return keys
end
if ARGV[1] == 'copy' then
  for _, key in ipairs(keys_of('fast')) do
    redis.call('DEL', key)
  end
  for _, key in ipairs(keys_of('full')) do
    redis.call('COPY', key, (string.gsub(key, '{full}', '{fast}')))
  end
  return 1
end
local function value_of(key)
  local kind, words = redis.call('TYPE', key).ok, {}
  if kind == 'hash' then
    local pairs_of = redis.call('HGETALL', key)
    for i = 1, #pairs_of, 2 do
      words[#words + 1] = pairs_of[i] .. '=' .. pairs_of[i + 1]
    end
    table.sort(words)
  elseif kind == 'zset' then
    words = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'string' then
    words = {redis.call('GET', key)}
  elseif kind == 'stream' then
    for _, line in ipairs(redis.call('XRANGE', key, '-', '+')) do
      words[#words + 1] = line[1] .. ' ' .. table.concat(line[2], ' ')
    end
    local info = redis.call('XINFO', 'STREAM', key)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' or info[i] == 'entries-added' or info[i] == 'length' then
        words[#words + 1] = info[i] .. '=' .. info[i + 1]
      end
    end
  end
  return kind .. ' ' .. table.concat(words, '\n  ')
end
local function seen(account)
  local values, ttls = {}, {}
  for _, key in ipairs(keys_of(account)) do
    values[#values + 1] = (string.gsub(key, '^tg:{%a+}', '')) .. ' ' .. value_of(key)
    ttls[#ttls + 1] = redis.call('PTTL', key)
  end
  return {values, ttls}
end
return {seen('full'), seen('fast')}
";

#[derive(Clone, Debug)]
enum Step {
    Reserve {
        number: u8,
        key: u8,
        want: i64,
        least: i64,
        ttl: u64,
    },
    Settle {
        number: u8,
        key: u8,
        cost: i64,
        fresh: bool,
        /// The amount of the hold according to the caller, if it differs from the result of RESERVE.
        held: Option<i64>,
    },
    /// RESERVE, and then SETTLE for a part of the hold, like most calls.
    Call {
        number: u8,
        want: i64,
        cost: i64,
    },
    Release(u8),
    Extend(u8, u64),
    Expire,
    Enter(i64),
    SetKey {
        key: u8,
        enabled: bool,
        ceilings: [Option<i64>; 3],
    },
    Suspend(bool),
    /// Sets levels of the account, or of a key.
    Levels {
        key: Option<u8>,
        levels: [u16; 2],
    },
    /// Deletes a tombstone, or a receipt's position, as if it had expired.
    Forget(u8, &'static str),
}

fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![
        20 => 0..120i64,
        1 => MAX - 3..=MAX,
        1 => MAX..=i64::MAX,
        1 => -3..0i64,
    ]
}

fn ttl() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 1 => 1..20u64, 3 => Just(900_000), 1 => Just(crate::leases::TTL_MS_MAX)]
}

fn step() -> impl Strategy<Value = Step> {
    // Steps of one number are usually on the same key.
    let call = || {
        let stray = prop_oneof![9 => Just(None), 1 => (0..KEYS).prop_map(Some)];
        (0..NUMBERS, stray).prop_map(|(number, stray)| (number, stray.unwrap_or(number % KEYS)))
    };
    let ceiling = || prop_oneof![5 => Just(None), 1 => (-1..2_000i64).prop_map(Some)];
    let held = prop_oneof![9 => Just(None), 1 => amount().prop_map(Some)];
    prop_oneof![
        10 => (call(), amount(), amount(), ttl(), any::<bool>()).prop_map(
            |((number, key), want, least, ttl, at_most)| Step::Reserve {
                number,
                key,
                want,
                least: if at_most { least.min(want) } else { least },
                ttl,
            }
        ),
        10 => (call(), amount(), any::<bool>(), held).prop_map(
            |((number, key), cost, fresh, held)| Step::Settle { number, key, cost, fresh, held }
        ),
        10 => (0..NUMBERS, 0..100i64, 0..100i64).prop_map(|(number, want, cost)| Step::Call {
            number,
            want,
            cost: cost.min(want),
        }),
        1 => (0..NUMBERS).prop_map(Step::Release),
        1 => (0..NUMBERS, ttl()).prop_map(|(number, ttl)| Step::Extend(number, ttl)),
        1 => Just(Step::Expire),
        2 => prop_oneof![9 => -100..900i64, 1 => Just(MAX)].prop_map(Step::Enter),
        2 => (0..KEYS, prop_oneof![9 => Just(true), 1 => Just(false)], [ceiling(), ceiling(), ceiling()])
            .prop_map(|(key, enabled, ceilings)| Step::SetKey { key, enabled, ceilings }),
        1 => prop_oneof![5 => Just(false), 1 => Just(true)].prop_map(Step::Suspend),
        2 => (prop_oneof![Just(None), (0..KEYS).prop_map(Some)], [1..400u16, 0..400u16])
            .prop_map(|(key, levels)| Step::Levels { key, levels }),
        8 => (0..NUMBERS, prop_oneof![Just(":d:"), Just(":r:")])
            .prop_map(|(number, part)| Step::Forget(number, part)),
    ]
}

/// Microseconds by which the clock advances or, if negative, goes back.
fn pause() -> impl Strategy<Value = i64> {
    let hour = 3_600_000_000i64;
    prop_oneof![
        40 => 0..3_000i64,
        2 => 0..hour,
        1 => prop_oneof![
            2 => hour..30 * hour,
            2 => -2 * hour..0,
            1 => Just(31 * 24 * hour),
        ],
    ]
}

#[test]
fn fast_path_of_a_script_equals_the_whole_script() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    let both = Both::new(&server.conn);
    let (calls, answered) = (Cell::new([0u32; 2]), Cell::new([0u32; 2]));
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(200)
    };
    let steps = proptest::collection::vec((pause(), step()), 1..60);
    let found = TestRunner::new(config).run(&steps, |steps| {
        runtime.block_on(async {
            let _: String = server.ask(&["FLUSHALL"]).await;
            let mut run = Run::begin(&server.conn, &both).await;
            for (pause, step) in steps {
                run.clock_us = run.clock_us.saturating_add_signed(pause);
                run.step(&step).await?;
            }
            let add = |sums: &Cell<[u32; 2]>, more: [u32; 2]| {
                let [a, b] = sums.get();
                sums.set([a + more[0], b + more[1]]);
            };
            add(&calls, run.calls);
            add(&answered, run.answered);
            Ok(())
        })
    });
    if let Err(error) = found {
        panic!("{error}");
    }
    // If the usual script never answered, the comparison would prove nothing.
    for (calls, answered) in calls.get().into_iter().zip(answered.get()) {
        assert!(10 * answered > calls, "{answered} of {calls} were usual");
    }
}

/// The usual and the whole scripts, with the test's clock built in.
struct Both {
    reserve: [RedisScript; 2],
    settle: [RedisScript; 2],
    others: Vec<(&'static str, RedisScript)>,
    accounts: RedisScript,
}

impl Both {
    fn new(conn: &RedisConn) -> Self {
        let script = |text: &'static str| with_clock(conn, text);
        let pair = |usual, whole| {
            [
                script(text_of(USUAL, usual)),
                script(text_of(SCRIPTS, whole)),
            ]
        };
        let names = [
            "create_account",
            "change_account",
            "enter",
            "set_key",
            "release",
            "extend",
            "expire",
        ];
        Self {
            reserve: pair("reserve_usual", "reserve"),
            settle: pair("settle_usual", "settle"),
            others: names
                .map(|name| (name, script(text_of(SCRIPTS, name))))
                .into(),
            accounts: conn.script("", ACCOUNTS),
        }
    }
}

/// The contents of both accounts: values, and times to live.
type Seen = [(Vec<String>, Vec<i64>); 2];

struct Run<'a> {
    conn: &'a RedisConn,
    both: &'a Both,
    clock_us: u64,
    entries: u32,
    records: [String; KEYS as usize],
    /// The amounts held by the calls, by number.
    held: [i64; NUMBERS as usize],
    /// The number of RESERVEs and of SETTLEs. `answered` has how many of them the usual script answered.
    calls: [u32; 2],
    answered: [u32; 2],
}

impl<'a> Run<'a> {
    async fn begin(conn: &'a RedisConn, both: &'a Both) -> Self {
        let mut run = Self {
            conn,
            both,
            clock_us: BEGIN_MS * 1000,
            entries: 0,
            records: Default::default(),
            held: Default::default(),
            calls: [0; 2],
            answered: [0; 2],
        };
        run.other("create_account", &[""], &["acme".into()]).await;
        run.enter(500).await;
        for key in 0..KEYS {
            run.set_key(key, true, [None; 3]).await;
        }
        run
    }

    async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Reserve {
                number,
                key,
                want,
                least,
                ttl,
            } => self.reserve(number, key, [want, least], ttl).await?,
            Step::Settle {
                number,
                key,
                cost,
                fresh,
                held,
            } => self.settle(number, key, cost, fresh, held).await?,
            Step::Call { number, want, cost } => {
                let key = number % KEYS;
                for part in [":d:", ":r:"] {
                    self.forget(number, part).await;
                }
                self.reserve(number, key, [want, want], 900_000).await?;
                self.settle(number, key, cost, true, None).await?;
            }
            Step::Release(number) => {
                let tombstone = format!(":d:{}", text(number));
                let parts = ["", ":x", ":e", ":ex", &tombstone];
                self.other("release", &parts, &[text(number)]).await;
            }
            Step::Extend(number, ttl) => {
                let args = [text(number), ttl.to_string()];
                self.other("extend", &["", ":x"], &args).await;
            }
            Step::Expire => {
                let parts = ["", ":x", ":e", ":ex"];
                self.other("expire", &parts, &["100".into()]).await;
            }
            Step::Enter(amount) => self.enter(amount).await,
            Step::SetKey {
                key,
                enabled,
                ceilings,
            } => self.set_key(key, enabled, ceilings).await,
            Step::Suspend(suspended) => {
                let args = ["s".to_owned(), u8::from(suspended).to_string()];
                self.other("change_account", &[""], &args).await;
            }
            Step::Levels { key, levels } => {
                let field = key.map_or("lo".to_owned(), |key| format!("k{key}.lo"));
                let [low, more] = levels;
                let args = [
                    field,
                    format!("{},{low}", u32::from(low) + 1 + u32::from(more)),
                ];
                self.other("change_account", &[""], &args).await;
            }
            Step::Forget(number, part) => self.forget(number, part).await,
        }
        Ok(())
    }

    async fn reserve(
        &mut self,
        number: u8,
        key: u8,
        [want, least]: [i64; 2],
        ttl: u64,
    ) -> Result<(), TestCaseError> {
        let args = [
            text(number),
            format!("k{key}"),
            want.to_string(),
            least.to_string(),
            ttl.to_string(),
        ];
        let tombstone = format!(":d:{}", text(number));
        let parts = ["", ":x", ":e", ":ex", &tombstone];
        let answer = self.compare(0, &parts, &args).await?;
        if let Ok(Value::Array(amounts)) = answer
            && let [Value::Int(held), Value::Int(_)] = amounts.as_slice()
        {
            self.held[usize::from(number)] = *held;
        }
        Ok(())
    }

    async fn settle(
        &mut self,
        number: u8,
        key: u8,
        cost: i64,
        fresh: bool,
        held: Option<i64>,
    ) -> Result<(), TestCaseError> {
        let said = held.unwrap_or(self.held[usize::from(number)]);
        let args = [
            text(number),
            format!("k{key}"),
            cost.to_string(),
            u8::from(fresh).to_string(),
            said.to_string(),
            r#"{"model":"m"}"#.to_owned(),
            RETENTION_MS.to_string(),
            text(number),
        ];
        let (tombstone, place) = (
            format!(":d:{}", text(number)),
            format!(":r:{}", text(number)),
        );
        let parts = [
            "", ":x", ":e", ":ex", &tombstone, ":j", &place, ":ev", ":n:0", ":n:00",
        ];
        self.compare(1, &parts, &args).await.map(drop)
    }

    async fn forget(&self, number: u8, part: &str) {
        let key = key_of("full", &format!("{part}{}", text(number)));
        let _: i64 = self.conn.command(&["DEL", &key], LIMIT).await.unwrap();
    }

    /// Runs the usual script on a copy of the account, then the whole script. Returns the result of the whole script.
    async fn compare(
        &mut self,
        which: usize,
        parts: &[&str],
        args: &[String],
    ) -> Result<Result<Value, RedisFault>, TestCaseError> {
        let name = ["RESERVE", "SETTLE"][which];
        let [usual, whole] = [&self.both.reserve, &self.both.settle][which];
        let _: i64 = self.accounts("copy").await;
        let [(before, _), _]: Seen = self.accounts("see").await;
        let fast = self.run(usual, "fast", parts, args).await;
        let fast =
            fast.map_err(|fault| TestCaseError::fail(format!("{name} {args:?}: {fault:?}")))?;
        let full = self.run(whole, "full", parts, args).await;
        let [(full_keys, full_ttls), (fast_keys, fast_ttls)]: Seen = self.accounts("see").await;
        self.calls[which] += 1;
        if fast == Value::Nil {
            prop_assert_eq!(
                fast_keys,
                before,
                "not usual, and it wrote: {} {:?}",
                name,
                args
            );
            return Ok(full);
        }
        self.answered[which] += 1;
        prop_assert_eq!(&full_keys, &fast_keys, "{} {:?}", name, args);
        for ((full, fast), key) in full_ttls.iter().zip(&fast_ttls).zip(&fast_keys) {
            let apart = (full - fast).abs();
            prop_assert!(
                apart < TTL_MS_BETWEEN,
                "{name} {args:?}: {key} lives for {full}, {fast} ms"
            );
        }
        let answered = full.as_ref().map(|answer| as_usual(answer.clone()));
        prop_assert_eq!(answered.ok(), Some(fast), "{} {:?}", name, args);
        Ok(full)
    }

    async fn other(&self, name: &str, parts: &[&str], args: &[String]) {
        let found = self.both.others.iter().find(|(known, _)| *known == name);
        // A command that is refused is a valid step too.
        let _ = self.run(&found.unwrap().1, "full", parts, args).await;
    }

    async fn enter(&mut self, amount: i64) {
        self.entries += 1;
        let args = [
            format!("p{}", self.entries),
            amount.to_string(),
            String::new(),
            RETENTION_MS.to_string(),
        ];
        self.other("enter", &["", ":t", ":j", ":ev"], &args).await;
    }

    async fn set_key(&mut self, key: u8, enabled: bool, ceilings: [Option<i64>; 3]) {
        let before = &mut self.records[usize::from(key)];
        let after = r#"{"status":"active"}"#.to_owned();
        let [total, month, day] =
            ceilings.map(|ceiling| ceiling.map_or_else(String::new, |c| c.to_string()));
        let enabled = u8::from(enabled).to_string();
        let before = std::mem::replace(before, after.clone());
        let args = [format!("k{key}"), before, after, enabled, total, month, day];
        self.other("set_key", &["", ":k"], &args).await;
    }

    async fn run(
        &self,
        script: &RedisScript,
        account: &str,
        parts: &[&str],
        args: &[String],
    ) -> Result<Value, RedisFault> {
        let keys: Vec<String> = parts.iter().map(|part| key_of(account, part)).collect();
        let mut args = args.to_vec();
        args.push(self.clock_us.to_string());
        self.conn.eval(script, &keys, &args, LIMIT).await
    }

    async fn accounts<T: crate::conn::Reply>(&self, what: &str) -> T {
        let (keys, args) = ([key_of("full", "")], [what.to_owned()]);
        let answer = self
            .conn
            .eval(&self.both.accounts, &keys, &args, LIMIT)
            .await;
        answer.unwrap()
    }
}

/// The result of the whole SETTLE, converted to what the usual script would return.
fn as_usual(answer: Value) -> Value {
    match &answer {
        Value::Array(words) => match words.as_slice() {
            [
                Value::BulkString(booked),
                charged,
                Value::Int(0),
                Value::Int(0),
            ] if booked == b"held" => charged.clone(),
            _ => answer,
        },
        _ => answer,
    }
}

fn key_of(account: &str, part: &str) -> String {
    format!("tg:{{{account}}}{part}")
}

fn text(number: u8) -> String {
    format!("00000000-0000-7000-8000-0000000000{number:02x}")
}
