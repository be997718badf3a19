//! The roll-up's sums in Redis. All of them are in one slot, so that one script can write the sums of an account and
//! the sums over all accounts atomically:
//!
//! ```text
//! tg:sums:{sums}                      HASH  v the version; p:<account> the position up to which its journal is in the
//!                                           sums; e:<account> the position up to which its entries are stored below;
//!                                           m the end of the last month that has sums
//! tg:sums:{sums}:keys                 SET   the names of the keys below
//! tg:sums:{sums}:<scope>:<block>      HASH  "<beginning of the period, ms> <words, JSON>" → sums, JSON
//! tg:sums:{sums}:=entries:<account>:<block>  HASH  an entry's position in the journal → the entry, JSON
//! ```
//!
//! Entries are stored here too. In a journal they could be found only by reading the millions of calls between them.
//!
//! A block is a range of 32 hours for hourly sums, and of 32 days for all other sums and for entries. A sum belongs to
//! the block in which its hour, day or month begins. The Redis key of a block expires when the youngest receipts of
//! that range have expired. A block with monthly sums may expire while some receipts of these months still exist. This
//! does no harm: the sums of a month that began before the oldest receipt are not read.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use super::{
    RECEIPT_MS, RedisLedger,
    journal::{self, JournalCursor, JournalRange, RolledPlace, StreamId},
};
use crate::{
    account::AccountId,
    conn::{RedisFault, Result},
    contract::{BookError, JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPart, if_found},
    number::RequestNumber,
    rollup::{
        Change, DAY_MS, HOUR_MS, Marks, Rolled, Rollup, RowId, Scope, Sums, UnrolledLines, Words,
        now_ms,
    },
};

const MARKS: &str = "tg:sums:{sums}";
const KEYS: &str = "tg:sums:{sums}:keys";
/// How many days or hours one block contains.
const BLOCK: u64 = 32;
/// How far the server's clock may be ahead of this machine's clock, in milliseconds.
const CLOCK_AHEAD_MS: u64 = 24 * 3_600_000;
/// How often the deletion of all sums is attempted. An attempt fails if another process writes sums meanwhile.
const TRIES: usize = 10;
/// The largest difference between two consecutive versions. It is small enough that after 2³³ changes a version is
/// still exact as a Lua number, including in the scripts of earlier gateways.
const VERSION_STEP_MAX: u64 = 1 << 20;

const fn block_ms(scope: &Scope) -> u64 {
    match scope {
        Scope::Account(_) | Scope::Days | Scope::Months => BLOCK * DAY_MS,
        Scope::Hours => BLOCK * HOUR_MS,
    }
}

fn block_key(scope: &Scope, block: u64) -> String {
    format!("{MARKS}:{}:{block}", scope.word())
}

fn entries_key(account: &AccountId, block: u64) -> String {
    format!("{MARKS}:=entries:{account}:{block}")
}

fn place_of(id: &RowId) -> Result<(String, String)> {
    let words = serde_json::to_string(&id.words).map_err(|_| unexpected("words"))?;
    let key = block_key(&id.scope, id.at_ms / block_ms(&id.scope));
    Ok((key, format!("{} {words}", id.at_ms)))
}

fn unexpected(what: &str) -> RedisFault {
    RedisFault::Unexpected(format!("sums: {what}"))
}

/// Returns those rows of a block whose periods begin within a time range. Other rows are not parsed.
fn rows_of(block: &HashMap<String, String>, time: &Range<u64>) -> Result<Vec<(u64, Words, Sums)>> {
    let mut rows = Vec::new();
    for (field, sums) in block {
        let (at_ms, words) = field.split_once(' ').ok_or_else(|| unexpected(field))?;
        let at_ms = at_ms.parse().map_err(|_| unexpected(field))?;
        if time.contains(&at_ms) {
            let words = serde_json::from_str(words).map_err(|_| unexpected(field))?;
            let sums = serde_json::from_str(sums).map_err(|_| unexpected(sums))?;
            rows.push((at_ms, words, sums));
        }
    }
    Ok(rows)
}

/// Returns the next version, which is higher by a random amount. If a failover loses a write, another gateway may write
/// after the same version. The random amount makes the two new versions differ, so that sums computed from the lost
/// write are never added to the other gateway's sums.
fn version_after(version: u64) -> u64 {
    let (_, by_chance) = RequestNumber::now_v7().uuid().as_u64_pair();
    version + 1 + by_chance % VERSION_STEP_MAX
}

/// Parses the version, and the positions up to which journals are summed.
fn marks_of(fields: HashMap<String, String>) -> Result<Marks> {
    let mut marks = Marks::default();
    let mut entries = HashMap::new();
    for (name, value) in fields {
        let (kind, account) = name.split_once(':').unwrap_or((&name, ""));
        let account = || account.parse::<AccountId>().map_err(|_| unexpected(&name));
        match kind {
            "v" => marks.version = value.parse().map_err(|_| unexpected(&value))?,
            "p" => drop(marks.places.insert(account()?, value)),
            "e" => drop(entries.insert(account()?, value)),
            "m" => marks.months_end_ms = value.parse().map_err(|_| unexpected(&value))?,
            _ => {}
        }
    }
    marks.entries = Some(entries);
    Ok(marks)
}

impl RedisLedger {
    /// Returns the indexes of the blocks that overlap a time range, without the blocks that have certainly expired.
    fn blocks(scope: &Scope, time: &Range<u64>) -> Range<u64> {
        let now_ms = now_ms();
        let block = block_ms(scope);
        let oldest = now_ms.saturating_sub(RECEIPT_MS) / block;
        let newest = now_ms.saturating_add(CLOCK_AHEAD_MS) / block;
        let first = (time.start / block).max(oldest.saturating_sub(1));
        first..(time.end.div_ceil(block)).min(newest + 1)
    }

    /// Reads the marks and blocks of sums at one moment. The first key is that of the marks.
    async fn marks_and_blocks(
        &self,
        keys: &[String],
        of: String,
    ) -> Result<(Marks, impl Iterator<Item = HashMap<String, String>>)> {
        let script = &self.0.scripts.read_sums;
        let answer: Vec<HashMap<String, String>> = self.ask_patiently(script, keys, &[of]).await?;
        let mut answer = answer.into_iter();
        let marks = marks_of(answer.next().unwrap_or_default())?;
        Ok((marks, answer))
    }

    /// Returns the position up to which each account's journal is summed, in the order of the accounts.
    pub(super) async fn rolled_places(
        &self,
        accounts: &[&AccountId],
    ) -> Result<Vec<Option<RolledPlace>>> {
        let names: Vec<String> = accounts.iter().map(|id| format!("p:{id}")).collect();
        let mut words = vec!["HMGET", MARKS];
        words.extend(names.iter().map(String::as_str));
        let places: Vec<Option<String>> = self.command(&words).await?;
        let places = places.iter();
        places
            .map(|place| place.as_deref().map(str::parse).transpose())
            .collect()
    }
}

impl Rollup for RedisLedger {
    async fn account_ids(&self) -> Result<Vec<AccountId>, BookError> {
        Ok(Self::account_ids(self).await?)
    }

    async fn journals(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> Result<Vec<Option<JournalPage>>, BookError> {
        if let [(account, part)] = parts {
            return Ok(vec![if_found(self.journal_page(account, part).await)?]);
        }
        let helps = parts.iter().any(|(_, part)| RolledPlace::helps(part));
        let rolled = match helps {
            true => {
                let accounts: Vec<&AccountId> = parts.iter().map(|(id, _)| *id).collect();
                self.rolled_places(&accounts).await?
            }
            false => vec![None; parts.len()],
        };
        // In a read of many accounts, a missing account looks like an account without lines. The two need not be
        // distinguished here.
        let pages = self.pages_of(parts, &rolled).await?;
        Ok(pages.into_iter().map(Some).collect())
    }

    async fn marks(&self) -> Result<Marks, BookError> {
        let words = ["HGETALL", MARKS];
        let fields = self.command(&words).await?;
        Ok(marks_of(fields)?)
    }

    async fn rolled(&self, parts: &[(Scope, Range<u64>)]) -> Result<Rolled, BookError> {
        let (mut keys, mut times) = (vec![MARKS.to_owned()], Vec::new());
        for (scope, time) in parts {
            for block in Self::blocks(scope, time) {
                keys.push(block_key(scope, block));
                times.push(time);
            }
        }
        let of = parts.iter().find_map(|(scope, _)| scope.account());
        let of = of.map_or_else(String::new, AccountId::to_string);
        let (marks, blocks) = self.marks_and_blocks(&keys, of).await?;
        let mut rows = Vec::new();
        for (block, time) in blocks.zip(times) {
            rows.extend(rows_of(&block, time)?);
        }
        Ok(Rolled {
            rows,
            places: marks.places,
            months_end_ms: marks.months_end_ms,
        })
    }

    /// Returns the time before which sums have expired, according to the retention of blocks.
    async fn oldest_sums_ms(&self, scope: &Scope) -> Result<Option<u64>, BookError> {
        let blocks = Self::blocks(scope, &(0..u64::MAX));
        Ok(Some(blocks.start * block_ms(scope)))
    }

    fn place_ms(&self, place: &str) -> u64 {
        journal::place_ms(place)
    }

    async fn sums_at(&self, ids: &[RowId]) -> Result<Vec<Option<Sums>>, BookError> {
        let mut requested: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
        for (at, id) in ids.iter().enumerate() {
            let (key, field) = place_of(id)?;
            requested.entry(key).or_default().push((at, field));
        }
        let requested: Vec<(String, Vec<(usize, String)>)> = requested.into_iter().collect();
        let answers = requested.iter().map(|(key, fields)| async move {
            let mut words = vec!["HMGET", key];
            words.extend(fields.iter().map(|(_, field)| field.as_str()));
            let answer: Result<Vec<Option<String>>> = self.command(&words).await;
            answer
        });
        let answers = futures_util::future::join_all(answers).await;
        let mut found = vec![None; ids.len()];
        for ((_, fields), values) in requested.iter().zip(answers) {
            for ((at, _), value) in fields.iter().zip(values?) {
                found[*at] = value
                    .map(|text| serde_json::from_str(&text).map_err(|_| unexpected(&text)))
                    .transpose()?;
            }
        }
        Ok(found)
    }

    async fn unrolled_lines(
        &self,
        account: &AccountId,
        after: Option<&str>,
        before_ms: u64,
    ) -> Result<UnrolledLines, BookError> {
        let Some(last_ms) = before_ms.checked_sub(1) else {
            return Ok(UnrolledLines::default());
        };
        let stretch = JournalRange {
            after: after.map(str::parse::<JournalCursor>).transpose()?,
            behind: None,
            newest_first: false,
            since_ms: 0,
            end: StreamId::last_of(last_ms),
            limit: JOURNAL_LINES_MAX,
        };
        if stretch.is_behind() {
            return Ok(UnrolledLines::default());
        }
        let rolled = after.map(str::parse::<RolledPlace>).transpose()?;
        Ok(self.counted_lines(account, stretch, rolled).await?)
    }

    async fn entries(
        &self,
        account: &AccountId,
        end: &str,
    ) -> Result<Option<Vec<JournalLine>>, BookError> {
        let mut keys = vec![MARKS.to_owned()];
        let blocks = Self::blocks(&Scope::Days, &(0..u64::MAX));
        keys.extend(blocks.map(|block| entries_key(account, block)));
        let (marks, blocks) = self.marks_and_blocks(&keys, account.to_string()).await?;
        let noted = marks.entries.unwrap_or_default().remove(account);
        let Some(after) = noted.filter(|noted| marks.places.get(account) == Some(noted)) else {
            return Ok(None);
        };
        let last: StreamId = end.parse()?;
        let mut entries: Vec<(StreamId, JournalLine)> = Vec::new();
        for (place, line) in blocks.flatten() {
            let place = place.parse()?;
            if place > last {
                continue;
            }
            let line = serde_json::from_str(&line).map_err(|_| unexpected(&line))?;
            entries.push((place, line));
        }
        entries.sort_by_key(|(place, _)| *place);
        let mut entries: Vec<JournalLine> = entries.into_iter().map(|(_, line)| line).collect();
        let mut after = Some(after);
        while let Some(behind) = after {
            let part = JournalPart {
                after: Some(&behind),
                end: Some(end),
                ..JournalPart::whole()
            };
            let page = self.page_of(account, &part, None).await?;
            let lines = page.lines.into_iter();
            entries.extend(lines.filter(|line| matches!(line, JournalLine::Entry { .. })));
            after = page.next;
        }
        Ok(Some(entries))
    }

    async fn change_sums(&self, change: &Change) -> Result<Option<u64>, BookError> {
        let mut blocks: BTreeMap<String, (u64, Vec<String>)> = BTreeMap::new();
        let mut put = |key, at_ms: u64, block_ms: u64, field, value| {
            let forgotten_ms = (at_ms / block_ms + 1) * block_ms + RECEIPT_MS;
            let (_, fields) = blocks
                .entry(key)
                .or_insert_with(|| (forgotten_ms, Vec::new()));
            fields.extend([field, value]);
        };
        for (id, sums) in &change.rows {
            let (key, field) = place_of(id)?;
            let sums = serde_json::to_string(sums).map_err(|_| unexpected("sums"))?;
            put(key, id.at_ms, block_ms(&id.scope), field, sums);
        }
        for (place, line) in &change.entries {
            let JournalLine::Entry { at_ms, account, .. } = line else {
                continue;
            };
            let key = entries_key(account, at_ms / block_ms(&Scope::Days));
            let line = serde_json::to_string(line).map_err(|_| unexpected("entry"))?;
            put(key, *at_ms, block_ms(&Scope::Days), place.clone(), line);
        }
        let places = change.places.iter().map(|place| ("p", place));
        let places = places.chain(change.entry_places.iter().map(|place| ("e", place)));
        let places = places
            .flat_map(|(kind, (account, place))| [format!("{kind}:{account}"), place.clone()]);
        let months_end = change.months_end_ms.iter();
        let months_end = months_end.flat_map(|end_ms| ["m".to_owned(), end_ms.to_string()]);
        let places: Vec<String> = places.chain(months_end).collect();
        let next = version_after(change.version);
        let mut args = [change.version, next, (places.len() / 2) as u64]
            .map(|n| n.to_string())
            .to_vec();
        args.extend(places);
        let mut keys = vec![MARKS.to_owned(), KEYS.to_owned()];
        for (key, (forgotten_ms, fields)) in blocks {
            keys.push(key);
            args.extend([forgotten_ms.to_string(), (fields.len() / 2).to_string()]);
            args.extend(fields);
        }
        let written: bool = self
            .ask_patiently(&self.0.scripts.write_sums, &keys, &args)
            .await?;
        Ok(written.then_some(next))
    }

    async fn clear_sums(&self) -> Result<(), BookError> {
        for _ in 0..TRIES {
            let version = self.marks().await?.version;
            let versions = [version, version_after(version)].map(|version| version.to_string());
            let words = ["SMEMBERS", KEYS];
            let some: Vec<String> = self.command(&words).await?;
            let mut keys = vec![MARKS.to_owned(), KEYS.to_owned()];
            keys.extend(some);
            let cleared: bool = self
                .ask_durably(&self.0.scripts.clear_sums, &keys, &versions)
                .await?;
            if cleared {
                return Ok(());
            }
        }
        Err(RedisFault::Unexpected(
            "other gateways changed the roll-up's sums during every attempt".into(),
        )
        .into())
    }
}
