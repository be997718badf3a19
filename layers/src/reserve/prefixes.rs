//! Remembers how many input tokens a vendor counted for a conversation, to bound the input of the conversation's next
//! call.
//!
//! The vendor's count of a call covers the call's whole request. A later request of the same key may begin with the
//! same turns and be equal in all other fields. The input of that request then has at most the counted tokens plus the
//! bound of the turns that follow. Only hashes and counts are stored; the key of the hash is random for each process.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    ops::Range,
};

use foldhash::{SharedSeed, quality::FoldHasher};
use memchr::memmem::Finder;
use quick_cache::sync::Cache;

use crate::{
    call::{Call, Turn},
    key::KeyId,
};

/// The default number of conversations that are remembered. They need about 3 MB.
pub(super) const PREFIXES_MAX: usize = 32_768;

/// The name of a mark for the vendor's cache. Marks are not hashed, because they are not input and clients move them
/// from turn to turn.
const MARK: &[u8] = b"\"cache_control\"";
/// If the value after [`MARK`] has more bytes than this, it is hashed. Either it is not a mark, or it has a form that
/// clients do not send.
const MARK_BYTES_MAX: usize = 96;
/// The size of the blocks in which a part of a request is hashed, in bytes without cache marks. So marks do not change
/// the hash, and at most one block is copied for each mark.
const BLOCK_BYTES: usize = 1024;

/// The conversations of all keys whose input a vendor has counted.
pub(super) struct Prefixes {
    counts: Cache<u64, Counted>,
    /// A random number for each process, like `shared_seed`, so that nobody can construct two conversations with the
    /// same hash.
    seed: u64,
    shared_seed: SharedSeed,
    mark: Finder<'static>,
}

/// A conversation whose input a vendor has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    /// The number of bytes of the request that were hashed.
    bytes: u64,
    /// The number of input tokens that the vendor counted for this conversation.
    tokens: u64,
}

/// The hash of the complete conversation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    hash: u64,
    bytes: u64,
}

/// The longest beginning of a call's conversation whose input a vendor has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The number of input tokens that the vendor counted for the known turns.
    pub(super) tokens: u64,
    /// The number of bytes of text that the count may not include: cache marks, and the turns after the known turns.
    pub(super) text_bytes: u64,
    /// The number of turns after the known ones.
    pub(super) turns: u64,
}

impl Prefixes {
    /// Creates a memory of at most `count` conversations; `None` if `count` is 0.
    pub(super) fn new(count: usize) -> Option<Self> {
        (count > 0).then(|| Self {
            counts: Cache::new(count),
            seed: random(),
            shared_seed: SharedSeed::from_u64(random()),
            mark: Finder::new(MARK),
        })
    }

    fn hash(&self, value: impl Hash) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared_seed);
        value.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the hash of this call's conversation, and the longest beginning of it that is remembered. `None` if the
    /// parser did not record the positions of turns.
    pub(super) fn read(
        &self,
        key: &KeyId,
        model: &str,
        vendor_model: &str,
        call: &Call,
    ) -> Option<(Prefix, Option<Known>)> {
        let turns = &call.spans.turns;
        let (last, all) = (turns.each.last()?, &turns.all);
        let ceiling = call.spans.max_tokens.clone().unwrap_or_default();
        let name = &call.spans.model;
        let hash = self.hash((key, model, vendor_model));
        let mut hashing = Hashing::new(self, hash);
        // All fields except the turns are hashed first, wherever they are in the body, because they apply to every
        // turn. The model's name and the output limit are left out, because they are not input. The parts that no
        // vendor gets are left out too: for example, Codex sends metadata whose fields are in another order each time.
        let mut skipped = vec![all.clone(), ceiling, name.clone()];
        let cut = call.spans.responses.iter().flat_map(|spans| &spans.cut);
        let is_outside = |cut: &&Range<usize>| cut.end <= all.start || cut.start >= all.end;
        skipped.extend(cut.filter(is_outside).cloned());
        skipped.sort_by_key(|range| range.start);
        let mut at = 0;
        for range in skipped {
            hashing.push(call.body.get(at..range.start)?);
            at = range.end.max(at);
        }
        hashing.push(call.body.get(at..)?);
        let end_of = |turn: &Turn| hashing.turn(&call.body, turn.span.clone());
        let ends: Vec<_> = turns.each.iter().map(end_of).collect::<Option<_>>()?;
        let mut longest_first = std::iter::zip(&turns.each, &ends).enumerate().rev();
        let known = longest_first.find_map(|(index, (turn, end))| {
            let counted = self.counts.get(&end.prefix.hash)?;
            (counted.bytes == end.prefix.bytes).then(|| Known {
                tokens: counted.tokens,
                text_bytes: last.text_bytes.saturating_sub(turn.text_bytes) + end.mark_bytes,
                turns: (turns.each.len() - index - 1) as u64,
            })
        });
        Some((ends.last()?.prefix, known))
    }

    /// Remembers the input tokens that the vendor counted for this conversation.
    pub(super) fn remember(&self, prefix: Prefix, tokens: u64) {
        let counted = Counted {
            bytes: prefix.bytes,
            tokens,
        };
        self.counts.insert(prefix.hash, counted);
    }
}

impl fmt::Debug for Prefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefixes")
            .field("count", &self.counts.len())
            .finish_non_exhaustive()
    }
}

/// Returns random bits from the source with which the standard library seeds its hash maps.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// The state of hashing a request: the hash up to the last added turn.
struct Hashing<'a> {
    prefixes: &'a Prefixes,
    end: TurnEnd,
}

/// The state of hashing at the end of a turn.
#[derive(Clone, Copy)]
struct TurnEnd {
    prefix: Prefix,
    /// The number of bytes of cache marks before the end of this turn. They were not hashed.
    mark_bytes: u64,
}

impl<'a> Hashing<'a> {
    const fn new(prefixes: &'a Prefixes, hash: u64) -> Self {
        let (prefix, mark_bytes) = (Prefix { hash, bytes: 0 }, 0);
        let end = TurnEnd { prefix, mark_bytes };
        Self { prefixes, end }
    }

    fn turn(&mut self, body: &[u8], span: Range<usize>) -> Option<TurnEnd> {
        self.push(body.get(span)?);
        Some(self.end)
    }

    /// Hashes a part of the body, without the cache marks in it.
    fn push(&mut self, part: &[u8]) {
        let (prefixes, mut at, mut open) = (self.prefixes, 0, Vec::new());
        for found in prefixes.mark.find_iter(part) {
            if let Some(mark) = mark_at(part, found).filter(|mark| mark.start >= at) {
                self.push_blocks(&mut open, &part[at..mark.start]);
                self.end.mark_bytes += mark.len() as u64;
                at = mark.end;
            }
        }
        self.push_blocks(&mut open, &part[at..]);
        self.push_block(&open);
    }

    /// Hashes the blocks that `bytes` complete together with the bytes in `open`, and leaves the remaining bytes in
    /// `open`.
    fn push_blocks(&mut self, open: &mut Vec<u8>, mut bytes: &[u8]) {
        if !open.is_empty() {
            let fill = bytes.len().min(BLOCK_BYTES - open.len());
            open.extend_from_slice(&bytes[..fill]);
            bytes = &bytes[fill..];
            if open.len() < BLOCK_BYTES {
                return;
            }
            self.push_block(open);
            open.clear();
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            self.push_block(block);
        }
        open.extend_from_slice(rest);
    }

    fn push_block(&mut self, block: &[u8]) {
        let prefix = &mut self.end.prefix;
        prefix.hash = self.prefixes.hash((prefix.hash, block));
        prefix.bytes += block.len() as u64;
    }
}

/// Returns the range of the mark whose name is at `name`, with one comma next to it. `None` if the bytes are inside a
/// text, or if the value is not a short object without nested values. If such an object is not a mark, leaving it out
/// of the hash does no harm, because its bytes still count as text.
fn mark_at(part: &[u8], name: usize) -> Option<Range<usize>> {
    let blanks = |bytes: &[u8]| bytes.iter().take_while(|b| b.is_ascii_whitespace()).count();
    let before = part[..name].trim_ascii_end();
    let mut at = name + MARK.len();
    at += blanks(&part[at..]);
    at += part[at..].starts_with(b":").then_some(1)?;
    at += blanks(&part[at..]);
    let value = &part[at..part.len().min(at + MARK_BYTES_MAX)];
    let inside = value.strip_prefix(b"{")?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"\"_-:, \n\r\t".contains(byte);
    let length = inside.iter().take_while(|byte| is_plain(byte)).count();
    let end = at
        + 1
        + length
        + inside
            .get(length)
            .filter(|byte| **byte == b'}')
            .map(|_| 1)?;
    match before.last()? {
        b',' => Some(before.len() - 1..end),
        b'{' => {
            let comma = end + blanks(&part[end..]);
            (part.get(comma) == Some(&b',')).then_some(name..comma + 1)
        }
        _ => None,
    }
}

#[cfg(feature = "parse")]
#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::{call::Operation, parse};

    fn call(body: &Value) -> Call {
        parse::call(Operation::Messages, &Bytes::from(body.to_string()), 100).unwrap()
    }

    fn turn(role: &str, text: &str, mark: bool) -> Value {
        let mut part = json!({ "type": "text", "text": text });
        if mark {
            part["cache_control"] = json!({ "type": "ephemeral", "ttl": "1h" });
        }
        json!({ "role": role, "content": [part] })
    }

    fn body(turns: &[Value]) -> Value {
        json!({ "model": "m", "max_tokens": 9, "system": "s".repeat(20_000), "messages": turns })
    }

    fn read(prefixes: &Prefixes, key: &str, body: &Value) -> (Prefix, Option<Known>) {
        let key = key.parse().unwrap();
        prefixes.read(&key, "m", "v", &call(body)).unwrap()
    }

    #[test]
    fn continued_conversation_is_recognised_despite_new_cache_control() {
        let first = [turn("user", "Hello", true)];
        let next = [
            turn("user", "Hello", false),
            turn("assistant", "Hi", false),
            turn("user", "Why?", true),
        ];
        let prefixes = Prefixes::new(10).unwrap();
        let (prefix, known) = read(&prefixes, "k", &body(&first));
        assert_eq!(known, None);
        prefixes.remember(prefix, 5_000);
        let (_, known) = read(&prefixes, "k", &body(&first));
        let mark_bytes = r#","cache_control":{"ttl":"1h","type":"ephemeral"}"#.len() as u64;
        let same = Known {
            tokens: 5_000,
            text_bytes: mark_bytes,
            turns: 0,
        };
        assert_eq!(known, Some(same));

        let (prefix, known) = read(&prefixes, "k", &body(&next));
        let size = call(&body(&next)).input.text_bytes - call(&body(&next[..1])).input.text_bytes;
        let longer = Known {
            tokens: 5_000,
            text_bytes: size,
            turns: 2,
        };
        assert_eq!(known, Some(longer));
        // If several beginnings of the conversation are known, the longest one is used.
        prefixes.remember(prefix, 5_100);
        let (_, known) = read(&prefixes, "k", &body(&next));
        assert_eq!(known.map(|known| known.tokens), Some(5_100));
    }

    #[test]
    fn conversation_is_recognised_despite_other_client_metadata() {
        let prefixes = Prefixes::new(10).unwrap();
        let read = |items: usize, metadata: &str| {
            let item = r#"{"type":"message","role":"user","content":"Hello"}"#;
            let input = vec![item; items].join(",");
            let long = "i".repeat(20_000);
            let body = format!(
                r#"{{"model":"m","instructions":"{long}","input":[{input}],"client_metadata":{metadata}}}"#
            );
            let call = parse::call(Operation::Responses, &Bytes::from(body), 100).unwrap();
            prefixes
                .read(&"k".parse().unwrap(), "m", "v", &call)
                .unwrap()
        };
        let (prefix, known) = read(1, r#"{"a":"1","b":"2"}"#);
        assert_eq!(known, None);
        prefixes.remember(prefix, 50);
        for metadata in [r#"{"b":"2","a":"1"}"#, "{}"] {
            let (_, known) = read(3, metadata);
            let known = known.unwrap();
            assert_eq!((known.tokens, known.turns), (50, 2), "{metadata}");
        }
    }

    #[test]
    fn prefix_hash_does_not_depend_on_where_cache_control_appears() {
        let prefixes = Prefixes::new(10).unwrap();
        let hash = |text: &str| {
            let mut hashing = Hashing::new(&prefixes, 1);
            hashing.push(text.as_bytes());
            let TurnEnd { prefix, mark_bytes } = hashing.end;
            (prefix.hash, prefix.bytes, mark_bytes)
        };
        let mark = r#","cache_control":{"type":"ephemeral"}"#;
        let text = "0123456789abcde".repeat(300);
        let (plain, bytes, _) = hash(&text);
        assert_eq!(bytes, text.len() as u64);
        for places in [&[1][..], &[1023], &[1024], &[1025], &[5, 6, 2048, 4499]] {
            let mut marked = text.clone();
            for place in places.iter().rev() {
                marked.insert_str(*place, mark);
            }
            let mark_bytes = (places.len() * mark.len()) as u64;
            assert_eq!(hash(&marked), (plain, bytes, mark_bytes), "{places:?}");
        }
        assert_ne!(hash(&text[1..]).0, plain);
        assert_ne!(hash(&text.replacen("0123", "0124", 1)).0, plain);
    }

    #[test]
    fn prefix_is_known_only_for_the_same_key_and_with_unchanged_fields_and_turns() {
        let turns = [turn("user", "Hello", false), turn("user", "Why?", false)];
        let prefixes = Prefixes::new(10).unwrap();
        let (prefix, _) = read(&prefixes, "k", &body(&turns[..1]));
        prefixes.remember(prefix, 5_000);
        let known = |key: &str, body: &Value| read(&prefixes, key, body).1.is_some();
        assert!(known("k", &body(&turns)));
        assert!(!known("l", &body(&turns)));
        let other = |name: &str, value: Value| {
            let mut body = body(&turns);
            body[name] = value;
            known("k", &body)
        };
        assert!(other("max_tokens", json!(10)));
        for (name, value) in [
            ("system", json!("t".repeat(20_000))),
            ("tools", json!([{ "name": "f", "input_schema": {} }])),
            (
                "thinking",
                json!({ "type": "enabled", "budget_tokens": 1024 }),
            ),
            ("messages", json!([turn("user", "Hallo", false)])),
            ("messages", json!([turn("assistant", "Hello", false)])),
        ] {
            assert!(!other(name, value), "{name}");
        }
        let key = "k".parse().unwrap();
        for (model, vendor_model) in [("m", "w"), ("n", "v")] {
            let (_, known) = prefixes
                .read(&key, model, vendor_model, &call(&body(&turns)))
                .unwrap();
            assert_eq!(known, None);
        }
    }

    #[test]
    fn bytes_that_only_resemble_cache_control_change_the_prefix_hash() {
        let arguments = |value: &Value| {
            json!({ "role": "assistant", "content": [
                { "type": "tool_use", "id": "t", "name": "f", "input": { "a": 1, "cache_control": value } },
            ] })
        };
        let prefixes = Prefixes::new(10).unwrap();
        let short = body(&[arguments(&json!({ "type": "x" }))]);
        prefixes.remember(read(&prefixes, "k", &short).0, 5_000);
        // Columns: the value of the field, and whether the conversation is recognized although this value differs.
        for (value, is_known) in [
            (json!({ "type": "y" }), true),
            (json!({ "type": "y".repeat(50) }), true),
            (json!({ "type": "y".repeat(500) }), false),
            (json!({ "type": { "a": "b" } }), false),
            (json!("x"), false),
        ] {
            let (_, known) = read(&prefixes, "k", &body(&[arguments(&value)]));
            assert_eq!(known.is_some(), is_known, "{value}");
            if let Some(known) = known {
                assert!(
                    known.text_bytes >= value.to_string().len() as u64,
                    "{value}"
                );
            }
        }
        let text = |text: &str| body(&[turn("user", text, false)]);
        let quoted = r#"{"a":1,"cache_control":{"type":"x"}}"#;
        prefixes.remember(read(&prefixes, "k", &text(quoted)).0, 5_000);
        assert!(read(&prefixes, "k", &text(quoted)).1.is_some());
        assert!(read(&prefixes, "k", &text(r#"{"a":1}"#)).1.is_none());
    }

    #[test]
    fn oldest_remembered_conversations_are_evicted() {
        let prefixes = Prefixes::new(16).unwrap();
        for index in 0..1_000 {
            let prefix = Prefix {
                hash: prefixes.hash(index),
                bytes: 1,
            };
            prefixes.remember(prefix, 1);
        }
        assert!(prefixes.counts.len() <= 32, "{}", prefixes.counts.len());
        assert!(Prefixes::new(0).is_none());
    }
}
