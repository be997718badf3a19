//! JSON without building anything: a [`Reader`] that checks what it reads, and a quick look at the strings
//! in bytes that may be no JSON at all.

use std::{borrow::Cow, ops::Range};

use memchr::memchr2;

/// It is no JSON: where the first byte is that cannot stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no JSON at {line}:{column}")]
pub struct NotJson {
    /// Counts from 1.
    pub line: usize,
    /// In bytes; counts from 1.
    pub column: usize,
}

impl NotJson {
    /// The byte at `index` of `json` is wrong, or missing.
    #[cold]
    #[must_use]
    pub fn at(json: &[u8], index: usize) -> Self {
        let end = (index + 1).min(json.len());
        let line = memchr::memrchr(b'\n', &json[..end]).map_or(0, |feed| feed + 1);
        Self {
            line: 1 + memchr::memchr_iter(b'\n', &json[..line]).count(),
            column: end - line,
        }
    }
}

/// Reads a JSON text (RFC 8259) value by value. What was read is JSON; what is behind it is not known yet.
///
/// ```
/// use tollgate_layers::json::{Reader, Value};
///
/// let mut json = Reader::new(r#"{"a": [1, 2], "b": "\u0436"}"#);
/// assert_eq!(json.begin()?, Value::Object);
/// let mut first = true;
/// while let Some(name) = json.key(&mut first)? {
///     match &*name.decoded() {
///         "a" => assert_eq!(json.raw()?, "[1, 2]"),
///         _ => assert!(matches!(json.begin()?, Value::String(text) if text.decoded() == "ж")),
///     }
/// }
/// json.end()?;
/// # Ok::<_, tollgate_layers::json::NotJson>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// A value, or the beginning of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A number as it is written: no type holds all of them.
    Number(&'a str),
    /// A string.
    String(Str<'a>),
    /// The bracket of an array: [`Reader::element`] goes on.
    Array,
    /// The brace of an object: [`Reader::key`] goes on.
    Object,
}

/// A string of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Str<'a> {
    raw: &'a str,
    decoded_bytes: usize,
    is_text: bool,
}

impl<'a> Str<'a> {
    /// Whether it stands for a text: with half a surrogate pair in its escapes it does not.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        self.is_text
    }

    /// Its length in UTF-8. Half a surrogate pair counts as half of its character.
    #[must_use]
    pub const fn decoded_len(&self) -> u64 {
        self.decoded_bytes as u64
    }

    /// What it stands for; what is no text stays as it is written.
    #[inline]
    #[must_use]
    pub fn decoded(&self) -> Cow<'a, str> {
        if self.decoded_bytes == self.raw.len() {
            return Cow::Borrowed(self.raw);
        }
        self.unescaped()
    }

    fn unescaped(&self) -> Cow<'a, str> {
        let quoted = format!("\"{}\"", self.raw);
        serde_json::from_str(&quoted).map_or(Cow::Borrowed(self.raw), Cow::Owned)
    }
}

/// What stands there cannot stand there.
struct Wrong(usize);

/// A string that was passed over: what is between its quotes.
#[derive(Clone, Copy)]
struct Quoted {
    start: usize,
    end: usize,
    /// The escapes, than what they stand for.
    longer_bytes: usize,
    is_text: bool,
}

impl Quoted {
    /// Its quotes, and what its escapes are longer than what they stand for.
    const fn dress_bytes(self) -> usize {
        2 + self.longer_bytes
    }
}

impl<'a> Reader<'a> {
    /// Reads `text` from its beginning.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Up to where it has been read, in bytes.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// What stands here is not what should.
    #[cold]
    #[must_use]
    pub fn fault(&self) -> NotJson {
        NotJson::at(self.text.as_bytes(), self.at)
    }

    /// Reads the next value: whole, or the beginning of an array or an object.
    ///
    /// # Errors
    /// There is none.
    pub fn begin(&mut self) -> Result<Value<'a>, NotJson> {
        self.value().map_err(|wrong| self.wrong(wrong))
    }

    /// An object's next name, up to where its value begins; `None` at the object's end. `first` is true
    /// behind the brace, and changed here.
    ///
    /// # Errors
    /// There is neither.
    #[inline]
    pub fn key(&mut self, first: &mut bool) -> Result<Option<Str<'a>>, NotJson> {
        self.name(std::mem::take(first))
            .map_err(|wrong| self.wrong(wrong))
    }

    /// Whether an array has one more element, which is to be read then. `first` is true behind the
    /// bracket, and changed here.
    ///
    /// # Errors
    /// There is neither a comma nor the array's end.
    #[inline]
    pub fn element(&mut self, first: &mut bool) -> Result<bool, NotJson> {
        let (at, has_more) = more(self.json(), self.at, std::mem::take(first), b']')
            .map_err(|wrong| self.wrong(wrong))?;
        self.at = at;
        Ok(has_more)
    }

    /// Passes over the next value, whatever it is. Says how many bytes it has, where strings count as
    /// what they stand for, and brackets and quotes do not; `None` if it is nested deeper than
    /// `depth_max`.
    ///
    /// # Errors
    /// There is no value.
    pub fn skip(&mut self, depth_max: usize) -> Result<Option<u64>, NotJson> {
        self.pass(depth_max).map_err(|wrong| self.wrong(wrong))
    }

    /// Passes over the next value: it as it is written.
    ///
    /// # Errors
    /// There is no value.
    pub fn raw(&mut self) -> Result<&'a str, NotJson> {
        let (start, _) = peek(self.json(), self.at);
        self.skip(usize::MAX)?;
        Ok(&self.text[start..self.at])
    }

    /// Nothing but blanks is left.
    ///
    /// # Errors
    /// There is more.
    pub fn end(&mut self) -> Result<(), NotJson> {
        (self.at, _) = peek(self.json(), self.at);
        if self.at < self.text.len() {
            return Err(self.fault());
        }
        Ok(())
    }

    /// It ends there.
    #[cold]
    fn wrong(&mut self, Wrong(at): Wrong) -> NotJson {
        self.at = at;
        self.fault()
    }

    const fn json(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// [`Reader::begin`].
    #[inline]
    fn value(&mut self) -> Result<Value<'a>, Wrong> {
        let json = self.json();
        let (at, byte) = peek(json, self.at);
        match byte {
            b'"' => {
                let text = quoted(json, at + 1)?;
                self.at = text.end + 1;
                Ok(Value::String(self.str(text)))
            }
            b'{' => {
                self.at = at + 1;
                Ok(Value::Object)
            }
            b'[' => {
                self.at = at + 1;
                Ok(Value::Array)
            }
            _ => {
                self.at = plain(json, at)?;
                Ok(match byte {
                    b'n' => Value::Null,
                    b't' | b'f' => Value::Boolean(byte == b't'),
                    _ => Value::Number(&self.text[at..self.at]),
                })
            }
        }
    }

    /// [`Reader::key`].
    #[inline]
    fn name(&mut self, first: bool) -> Result<Option<Str<'a>>, Wrong> {
        let json = self.json();
        let (at, has_more) = more(json, self.at, first, b'}')?;
        if !has_more {
            self.at = at;
            return Ok(None);
        }
        let (name, at) = name(json, at)?;
        (self.at, _) = peek(json, at);
        Ok(Some(self.str(name)))
    }

    /// [`Reader::skip`].
    #[inline]
    fn pass(&mut self, depth_max: usize) -> Result<Option<u64>, Wrong> {
        let json = self.json();
        let (mut at, mut byte) = peek(json, self.at);
        let start = at;
        let (mut open, mut dress_bytes) = (Open::default(), 0);
        loop {
            let mut first = false;
            match byte {
                b'"' => {
                    let text = quoted(json, at + 1)?;
                    dress_bytes += text.dress_bytes();
                    at = text.end + 1;
                }
                b'{' | b'[' => {
                    if open.depth == depth_max {
                        self.at = at;
                        return Ok(None);
                    }
                    at += 1;
                    open.push(byte == b'{');
                    dress_bytes += 2;
                    first = true;
                }
                _ => at = plain(json, at)?,
            }
            // On to the next value, over the ends of what ends here.
            loop {
                if open.depth == 0 {
                    self.at = at;
                    return Ok(Some((at - start - dress_bytes) as u64));
                }
                let is_object = open.is_object();
                let end = if is_object { b'}' } else { b']' };
                let (next, has_more) = more(json, at, first, end)?;
                at = next;
                if has_more && is_object {
                    let (name, value) = name(json, at)?;
                    dress_bytes += name.dress_bytes();
                    at = value;
                }
                if has_more {
                    break;
                }
                open.pop();
                first = false;
            }
            (at, byte) = peek(json, at);
        }
    }

    #[inline]
    fn str(&self, text: Quoted) -> Str<'a> {
        let raw = &self.text[text.start..text.end];
        Str {
            raw,
            decoded_bytes: raw.len() - text.longer_bytes,
            is_text: text.is_text,
        }
    }
}

// What follows takes a place and says where it has come to. Inlined, it keeps both out of memory, which is
// half of what it would cost.

/// Where the next byte stands that is no blank, and that byte; zero at the end, which can stand nowhere.
#[inline(always)]
fn peek(json: &[u8], mut at: usize) -> (usize, u8) {
    loop {
        match json.get(at) {
            Some(b' ' | b'\n' | b'\t' | b'\r') => at += 1,
            byte => return (at, byte.copied().unwrap_or_default()),
        }
    }
}

/// Behind this byte, which must be the next that is no blank.
#[inline(always)]
fn expect(json: &[u8], at: usize, byte: u8) -> Result<usize, Wrong> {
    if json.get(at) == Some(&byte) {
        return Ok(at + 1);
    }
    expect_behind_blanks(json, at, byte)
}

#[cold]
fn expect_behind_blanks(json: &[u8], at: usize, byte: u8) -> Result<usize, Wrong> {
    match peek(json, at) {
        (at, next) if next == byte => Ok(at + 1),
        (at, _) => Err(Wrong(at)),
    }
}

/// Whether an array or an object that ends with `end` has one more element or field, and behind what says so.
#[inline(always)]
fn more(json: &[u8], at: usize, first: bool, end: u8) -> Result<(usize, bool), Wrong> {
    match peek(json, at) {
        (at, byte) if byte == end => Ok((at + 1, false)),
        (at, _) if first => Ok((at, true)),
        (at, b',') => Ok((at + 1, true)),
        (at, _) => Err(Wrong(at)),
    }
}

/// A field's name, and where its colon ends.
#[inline(always)]
fn name(json: &[u8], at: usize) -> Result<(Quoted, usize), Wrong> {
    let name = quoted(json, expect(json, at, b'"')?)?;
    let at = expect(json, name.end + 1, b':')?;
    Ok((name, at))
}

/// A string, from behind its opening quote on.
#[inline(always)]
fn quoted(json: &[u8], start: usize) -> Result<Quoted, Wrong> {
    let mut text = Quoted {
        start,
        end: special::<true, NEAR>(json, start),
        longer_bytes: 0,
        is_text: true,
    };
    if json.get(text.end) != Some(&b'"') {
        text = escaped(json, start, text.end)?;
    }
    Ok(text)
}

/// A string that is plain up to `at`. Few have escapes; those that do have many.
#[inline(never)]
fn escaped(json: &[u8], start: usize, mut at: usize) -> Result<Quoted, Wrong> {
    let mut escapes = Escapes::default();
    loop {
        match json.get(at) {
            Some(b'"') => {
                return Ok(Quoted {
                    start,
                    end: at,
                    longer_bytes: escapes.longer_bytes,
                    is_text: escapes.are_text(),
                });
            }
            Some(b'\\') => {}
            _ => return Err(Wrong(at)),
        }
        match json.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                at += 2;
                escapes.longer_bytes += 1;
            }
            Some(b'u') => at = unit(json, at, &mut escapes)?,
            _ => return Err(Wrong(at + 1)),
        }
        at = special::<true, WORDS>(json, at);
    }
}

/// Behind an escape of four digits, whose backslash stands at `begin`.
fn unit(json: &[u8], begin: usize, escapes: &mut Escapes) -> Result<usize, Wrong> {
    let end = begin + 6;
    let mut code = 0;
    for at in begin + 2..end {
        let digit = json
            .get(at)
            .and_then(|byte| char::from(*byte).to_digit(16))
            .ok_or(Wrong(at))?;
        code = code * 16 + digit;
    }
    let half_ends = escapes.half_ends.take();
    escapes.longer_bytes += match code {
        0..0x80 => 5,
        // Each half of a surrogate pair is half of a four-byte character.
        0x80..0x800 | 0xD800..0xE000 => 4,
        _ => 3,
    };
    escapes.halved |= match code {
        0xDC00..0xE000 => half_ends != Some(begin),
        _ => half_ends.is_some(),
    };
    if (0xD800..0xDC00).contains(&code) {
        escapes.half_ends = Some(end);
    }
    Ok(end)
}

/// Behind a value that is no string and has no others in it.
fn plain(json: &[u8], at: usize) -> Result<usize, Wrong> {
    match json.get(at) {
        Some(b'-' | b'0'..=b'9') => number(json, at),
        Some(b't') => word(json, at, b"true"),
        Some(b'f') => word(json, at, b"false"),
        Some(b'n') => word(json, at, b"null"),
        _ => Err(Wrong(at)),
    }
}

fn word(json: &[u8], at: usize, word: &[u8]) -> Result<usize, Wrong> {
    for (at, byte) in (at..).zip(word) {
        if json.get(at) != Some(byte) {
            return Err(Wrong(at));
        }
    }
    Ok(at + word.len())
}

fn number(json: &[u8], mut at: usize) -> Result<usize, Wrong> {
    if json.get(at) == Some(&b'-') {
        at += 1;
    }
    if json.get(at) == Some(&b'0') {
        at += 1;
        if let Some(b'0'..=b'9') = json.get(at) {
            return Err(Wrong(at));
        }
    } else {
        at = digits(json, at)?;
    }
    if json.get(at) == Some(&b'.') {
        at = digits(json, at + 1)?;
    }
    if let Some(b'e' | b'E') = json.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = json.get(at) {
            at += 1;
        }
        at = digits(json, at)?;
    }
    Ok(at)
}

/// One digit at least.
fn digits(json: &[u8], start: usize) -> Result<usize, Wrong> {
    let mut at = start;
    while let Some(b'0'..=b'9') = json.get(at) {
        at += 1;
    }
    if at == start {
        return Err(Wrong(at));
    }
    Ok(at)
}

/// What was escaped in a string.
#[derive(Default)]
struct Escapes {
    /// Than what they stand for.
    longer_bytes: usize,
    /// Where the first half of a surrogate pair has ended, while the second is missing.
    half_ends: Option<usize>,
    /// A half stands alone.
    halved: bool,
}

impl Escapes {
    const fn are_text(&self) -> bool {
        !self.halved && self.half_ends.is_none()
    }
}

/// The arrays and objects that stand open, a bit each, the innermost last.
#[derive(Default)]
struct Open {
    depth: usize,
    objects: u64,
    /// What no longer fits.
    outer: Vec<u64>,
}

impl Open {
    const fn is_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn push(&mut self, is_object: bool) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.outer.push(self.objects);
        }
        self.objects = (self.objects << 1) | u64::from(is_object);
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
        if self.depth.is_multiple_of(64)
            && let Some(objects) = self.outer.pop()
        {
            self.objects = objects;
        }
    }
}

/// The values of an object's fields of these names, as they are written.
///
/// # Errors
/// It is no JSON, no object, or has one of the fields twice.
pub fn members<'a, const N: usize>(
    json: &'a str,
    names: &[&str; N],
) -> Result<[Option<&'a str>; N], NotJson> {
    let mut json = Reader::new(json);
    let mut found = [None; N];
    let begun = expect(json.json(), 0, b'{');
    json.at = begun.map_err(|wrong| json.wrong(wrong))?;
    let mut first = true;
    while let Some(name) = json.key(&mut first)? {
        if !name.is_text() {
            return Err(json.fault());
        }
        let name = name.decoded();
        let Some(index) = names.iter().position(|wanted| **wanted == *name) else {
            json.skip(usize::MAX)?;
            continue;
        };
        if found[index].is_some() {
            return Err(json.fault());
        }
        found[index] = Some(json.raw()?);
    }
    json.end()?;
    Ok(found)
}

/// A string in bytes that may be no JSON at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// What is between its quotes.
    pub text: &'a [u8],
    /// There are escapes in it.
    pub escaped: bool,
    /// Where it ends, with its quote.
    pub end: usize,
}

/// The first string from `at` on.
#[inline]
#[must_use]
pub fn string(json: &[u8], at: usize) -> Option<Found<'_>> {
    // Between strings there is mostly a byte or two.
    let quote = json.get(at..)?.iter().position(|byte| *byte == b'"')?;
    let start = at + quote + 1;
    let mut end = special::<false, NEAR>(json, start);
    let mut escaped = false;
    while *json.get(end)? != b'"' {
        escaped = true;
        end = special::<false, NEAR>(json, end + 2);
    }
    Some(Found {
        text: &json[start..end],
        escaped,
        end: end + 1,
    })
}

/// The UTF-8 length of a JSON string's contents.
#[must_use]
pub fn decoded_len(text: &[u8]) -> u64 {
    let (mut at, mut bytes) = (0, 0);
    while let Some(plain) = memchr::memchr(b'\\', &text[at..]) {
        bytes += plain as u64;
        at += plain + 1;
        let unicode = text.get(at) == Some(&b'u');
        let digits = text.get(at + 1..at + 5).filter(|_| unicode);
        let code = digits
            .and_then(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes += match code {
            None | Some(0..0x80) => 1,
            // Each half of a surrogate pair is half of a four-byte character.
            Some(0x80..0x800 | 0xD800..0xE000) => 2,
            Some(_) => 3,
        };
        at = (at + if code.is_some() { 5 } else { 1 }).min(text.len());
    }
    bytes + (text.len() - at) as u64
}

/// One in each byte of a word.
const ONES: u64 = u64::MAX / 255;
/// The highest bit of each byte of a word.
const HIGH: u64 = ONES << 7;
/// Most names and short values end within so many words: these are looked at where a string is read.
const NEAR: usize = 2;
/// Most strings end within so many words, identifiers too; behind them a faster search is worth its start.
const WORDS: usize = 6;
/// So many bytes are searched for control characters at a time, no more than words were looked at before.
const BLOCK: usize = 32;
const _: () = assert!(BLOCK <= 8 * WORDS);

/// Where the first byte from `at` on stands that means something in a string: a quote, a backslash, and, if
/// they are asked for, control characters. The end, if there is none.
// So many words are looked at in place. All of them would need more registers than there are, wherever a
// string is read.
#[inline(always)]
fn special<const CONTROLS: bool, const IN_PLACE: usize>(json: &[u8], at: usize) -> usize {
    in_words::<CONTROLS>(json, at, 0..IN_PLACE)
        .unwrap_or_else(|| special_beyond::<CONTROLS>(json, at, IN_PLACE))
}

/// The same, where the first words have nothing, or the end is near.
#[inline(never)]
fn special_beyond<const CONTROLS: bool>(json: &[u8], at: usize, words: usize) -> usize {
    if let Some(found) = in_words::<CONTROLS>(json, at, words..WORDS) {
        return found;
    }
    let Some(rest) = json.get(at..) else {
        return json.len();
    };
    let (words, last) = rest.as_chunks::<8>();
    if words.len() < WORDS {
        let found = last
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\') || CONTROLS && *byte < b' ');
        return json.len() - last.len() + found.unwrap_or(last.len());
    }
    let far = &rest[8 * WORDS..];
    let end = 8 * WORDS + memchr2(b'"', b'\\', far).unwrap_or(far.len());
    let control = CONTROLS.then(|| first_control(&rest[..end])).flatten();
    at + control.unwrap_or(end)
}

/// Where the first such byte stands in some of the words from `at` on, if it does.
#[inline(always)]
fn in_words<const CONTROLS: bool>(json: &[u8], at: usize, words: Range<usize>) -> Option<usize> {
    let mut rest = json.get(at + 8 * words.start..)?;
    for index in words {
        let (word, behind) = rest.split_first_chunk::<8>()?;
        let found = specials::<CONTROLS>(u64::from_le_bytes(*word));
        if found != 0 {
            return Some(at + 8 * index + found.trailing_zeros() as usize / 8);
        }
        rest = behind;
    }
    None
}

/// The highest bit of each byte of a word that means something in a string. The lowest bit that is set is
/// right; behind it a borrow may have set others.
#[inline]
const fn specials<const CONTROLS: bool>(word: u64) -> u64 {
    let backslashes = (word ^ (ONES * b'\\' as u64)).wrapping_sub(ONES);
    let others = if CONTROLS {
        // With this bit turned over a quote is a blank, a blank is a quote, and a control character is
        // another: below an exclamation mark is what is looked for, and no more.
        (word ^ (ONES * 2)).wrapping_sub(ONES * b'!' as u64)
    } else {
        (word ^ (ONES * b'"' as u64)).wrapping_sub(ONES)
    };
    (backslashes | others) & !word & HIGH
}

/// Where the first control character stands, in a text whose first [`BLOCK`] bytes are none.
fn first_control(text: &[u8]) -> Option<usize> {
    // The least of all bytes is found in whole vectors, and blocks from the end on leave over what is known.
    let (_, blocks) = text.as_rchunks::<BLOCK>();
    let least = blocks
        .as_flattened()
        .iter()
        .fold(u8::MAX, |least, byte| least.min(*byte));
    if least >= b' ' {
        return None;
    }
    text.iter().position(|byte| *byte < b' ')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    /// Passes over the whole of it.
    fn whole(json: &str) -> Result<u64, NotJson> {
        let mut json = Reader::new(json);
        let bytes = json.skip(usize::MAX)?;
        json.end()?;
        Ok(bytes.expect("nothing is too deep"))
    }

    #[test]
    fn json_is_what_serde_takes_for_it() {
        for json in [
            "",
            " ",
            "{",
            "}",
            "[",
            "]",
            "{}",
            "[]",
            " { } ",
            "[ ]",
            "[1,2]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[,]",
            r#"{"a":1}"#,
            r#"{"a":1,}"#,
            r#"{,"a":1}"#,
            r#"{"a" 1}"#,
            r#"{"a":}"#,
            r#"{a:1}"#,
            r#"{"a":1 "b":2}"#,
            r#"{"a":1,"b":[{},[],"]",{"c":null}]}"#,
            "[}",
            "{]",
            "[[]",
            "{}{}",
            "1 2",
            "null",
            "nul",
            "nulL",
            "true",
            "false",
            "fals",
            "tru e",
            "0",
            "-0",
            "00",
            "01",
            "-",
            "-01",
            "1.",
            "1.5",
            ".5",
            "1.e5",
            "1e",
            "1e+",
            "1E-07",
            "1e400",
            "1.5e+3x",
            "+1",
            "123456789012345678901234567890",
            r#""""#,
            r#"""#,
            r#""a"#,
            r#""\"#,
            r#""\""#,
            r#""\"""#,
            r#""\x""#,
            r#""\/\b\f\n\r\t\\""#,
            r#""\u12""#,
            r#""\u12g4""#,
            r#""\u+123""#,
            r#""\u00e9""#,
            r#""\ud83e\udd80""#,
            r#""\ud83e""#,
            "\"\u{1f}\"",
            "\"\u{7f}\"",
            "\"\n\"",
            "\"ж🦀\"",
            "\u{feff}{}",
            "\u{c}{}",
            "{\"a\"\t:\r\n1}",
            "\u{a0}1",
        ] {
            let known = serde_json::from_str::<&RawValue>(json).is_ok();
            assert_eq!(whole(json).is_ok(), known, "{json:?}");
        }
    }

    #[test]
    fn what_cannot_stand_in_a_string_is_found_wherever_it_stands() {
        for length in 0..200 {
            for (byte, ok) in [
                ("\"", false),
                ("\\n", true),
                ("\u{0}", false),
                ("\u{1f}", false),
                (" ", true),
                ("!", true),
                ("#", true),
                ("\u{7f}", true),
            ] {
                for at in [0, length / 2, length] {
                    let text = format!("\"{}{byte}{}\"", "ж".repeat(at), "x".repeat(length - at));
                    assert_eq!(whole(&text).is_ok(), ok, "{byte:?} at {at} of {length}");
                    let quoted = string(text.as_bytes(), 0).map(|found| found.text.len());
                    let expected = if byte == "\"" { at * 2 } else { text.len() - 2 };
                    assert_eq!(quoted, Some(expected), "{byte:?} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn a_string_is_read_as_serde_reads_it_wherever_in_it_something_stands() {
        // Words of eight bytes are read while there are any: once beyond the string, and once not.
        for behind in ["", ",\"0123456789\""] {
            let places = (0..40).flat_map(|length| (0..=length).map(move |at| (length, at)));
            for (length, at) in places {
                for what in [
                    "x",
                    "ж",
                    "🦀",
                    "\u{7f}",
                    "\u{1}",
                    "\u{1f}",
                    "\n",
                    "\"",
                    "\\",
                    "\\n",
                    "\\\"",
                    "\\\\",
                    "\\u0436",
                    "\\u043",
                    "\\ud83e",
                    "\\ud83e\\udd80",
                ] {
                    let text = format!("\"{}{what}{}\"", "x".repeat(at), "y".repeat(length - at));
                    let known = serde_json::from_str::<String>(&text).ok();

                    let json = format!("[{text}{behind}]");
                    let raw = serde_json::from_str::<&RawValue>(&json).is_ok();
                    assert_eq!(whole(&json).is_ok(), raw, "{json}");

                    let mut reader = Reader { text: &json, at: 1 };
                    let read = match reader.begin() {
                        Ok(Value::String(text)) if text.is_text() && known.is_some() => {
                            Some(text.decoded().into_owned())
                        }
                        _ => None,
                    };
                    assert_eq!(read, known, "{json}");

                    let json = format!("{{{text}:1{}}}", behind.replace("9\"", "9\":2"));
                    let named = match &known {
                        Some(name) => members(&json, &[name.as_str()]) == Ok([Some("1")]),
                        None => members(&json, &["none"]).is_ok(),
                    };
                    assert_eq!(named, known.is_some(), "{json}");
                }
            }
        }
    }

    #[test]
    fn a_string_ends_where_serde_ends_it_wherever_in_it_something_stands() {
        let places = (0..=130).flat_map(|at| [0, 1, 7, 40, 130].map(|behind| (at, behind)));
        for (at, behind) in places {
            for what in [
                "", "ж", "🦀", "\u{7f}", "\u{0}", "\u{1f}", "\n", "\"", "\\n", "\\\"", "\\\\",
                "\\u0436", "\\x",
            ] {
                let text = format!("\"{}{what}{}\"", "x".repeat(at), "ж".repeat(behind));
                for json in [
                    text.clone(),
                    format!("[{text}\n,\"0123456789\"]"),
                    format!("{{{text}\t:1}}"),
                ] {
                    let read = whole(&json);
                    let known = serde_json::from_str::<&RawValue>(&json);
                    assert_eq!(read.is_ok(), known.is_ok(), "{json:?}");
                    if what.starts_with(|first: char| first < ' ') {
                        let fault = NotJson::at(json.as_bytes(), json.find(what).unwrap());
                        assert_eq!(read, Err(fault), "{json:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_string_full_of_escapes_stands_for_what_serde_takes_it_for() {
        for gap in 0..=130 {
            for escape in ["\\n", "\\\"", "\\\\", "\\u0436", "\\ud83e\\udd80"] {
                let plain = "x".repeat(gap % 2) + &"ж".repeat(gap / 2);
                let text = format!("\"{}\"", format!("{plain}{escape}").repeat(4));
                let known: String = serde_json::from_str(&text).unwrap();
                let Ok(Value::String(read)) = Reader::new(&text).begin() else {
                    panic!("{text}");
                };
                assert!(read.is_text(), "{text}");
                assert_eq!(read.decoded(), known, "{text}");
                assert_eq!(read.decoded_len(), known.len() as u64, "{text}");

                let end = text.len() - 1;
                let broken = format!("{}{plain}\u{1}\"", &text[..end]);
                let fault = NotJson::at(broken.as_bytes(), end + plain.len());
                assert_eq!(whole(&broken), Err(fault), "{broken}");
            }
        }
    }

    #[test]
    fn a_fault_is_where_its_byte_is() {
        for (json, line, column) in [
            ("", 1, 0),
            ("{\"a\":1,}", 1, 8),
            ("{\n \"a\" 1}", 2, 6),
            ("[1,\n2", 2, 1),
            ("[nulx]", 1, 5),
            ("{} x", 1, 4),
            ("[1 2]", 1, 4),
            ("[1,]", 1, 4),
            ("[01]", 1, 3),
            ("[1.x]", 1, 4),
            ("{\"a\":1 \"b\":2}", 1, 8),
            ("{1:2}", 1, 2),
            ("[\"a\u{1}\"]", 1, 4),
            ("[\"a\\x\"]", 1, 5),
            ("[\"a\\u12g4\"]", 1, 8),
            ("[\"a", 1, 3),
        ] {
            assert_eq!(whole(json), Err(NotJson { line, column }), "{json:?}");
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_no_text() {
        for (json, decoded) in [
            (r#""\ud83e\udd80""#, Some("🦀")),
            (r#""a\ud83e\udd80\ud83e\udd80b""#, Some("a🦀🦀b")),
            (r#""\ud83e""#, None),
            (r#""\udd80""#, None),
            (r#""\ud83e\ud83e\udd80""#, None),
            (r#""\ud83e\udd80\udd80""#, None),
            (r#""\ud83e\n\udd80""#, None),
            (r#""\ud83ex\udd80""#, None),
            (r#""\ud83e\u0061""#, None),
            (r#""\ud83ex""#, None),
        ] {
            let Ok(Value::String(text)) = Reader::new(json).begin() else {
                panic!("{json}");
            };
            assert_eq!(
                text.is_text().then(|| text.decoded()).as_deref(),
                decoded,
                "{json}"
            );
            assert_eq!(
                serde_json::from_str::<String>(json).ok().as_deref(),
                decoded,
                "{json}"
            );
        }
    }

    #[test]
    fn values_of_any_depth_are_passed_over_up_to_the_depth_that_is_asked_for() {
        for depth in [1, 2, 63, 64, 65, 127, 128, 129, 200, 100_000] {
            let mixed =
                |begin: &str, end: &str| format!("{}{}", begin.repeat(depth), end.repeat(depth));
            for json in [
                mixed("[", "]"),
                mixed("[{\"a\":", "}]").replace(":}", ":1}"),
            ] {
                let nested = json.matches(['[', '{']).count();
                assert!(
                    matches!(Reader::new(&json).skip(nested), Ok(Some(_))),
                    "{nested}"
                );
                assert_eq!(Reader::new(&json).skip(nested - 1), Ok(None), "{nested}");
                assert!(whole(&json[..json.len() - 1]).is_err());
                assert!(whole(&json.replacen(']', "}", 1)).is_err());
            }
        }
    }

    #[test]
    fn fields_are_found_by_what_their_names_stand_for_and_once() {
        let json = r#"{"x":{"a":0},"\u0061" : [1, 2] ,"b":null}"#;
        assert_eq!(
            members(json, &["a", "b", "c"]),
            Ok([Some("[1, 2]"), Some("null"), None])
        );
        for json in [
            r#"{"a":1,"\u0061":2}"#,
            r#"{"\ud800":1}"#,
            r#"{"a":1"#,
            r#"{"a":1} x"#,
            "[1]",
            "null",
        ] {
            assert!(members(json, &["a"]).is_err(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn any_json_is_read_and_weighs_what_its_strings_stand_for(texts in proptest::collection::vec(".{0,60}", 0..4)) {
            let json = serde_json::json!({ "texts": texts }).to_string();
            let bytes: usize = texts.iter().map(String::len).sum();
            // The name, the colon and the commas.
            let around = 6 + texts.len().saturating_sub(1);
            prop_assert_eq!(whole(&json), Ok((bytes + around) as u64));
        }

        #[test]
        fn what_serde_refuses_is_refused(json in "[\\[\\]{},:\"\\\\u0-9a-fe.+\\- \n\u{1}ж]{0,12}") {
            let known = serde_json::from_str::<&RawValue>(&json).is_ok();
            prop_assert_eq!(whole(&json).is_ok(), known);
        }

        #[test]
        fn strings_are_decoded_as_serde_decodes_them(text in "(\\\\u[0-9a-f]{4}|\\\\n|\\\\ud83e|\\\\udd80|[a-zж\"]){0,12}") {
            let json = format!("\"{text}\"");
            let mut reader = Reader::new(&json);
            let read = match reader.begin() {
                Ok(Value::String(text)) if reader.end().is_ok() && text.is_text() => Some(text),
                _ => None,
            };
            let known = serde_json::from_str::<String>(&json).ok();
            prop_assert_eq!(read.map(|text| text.decoded().into_owned()), known.clone());
            prop_assert_eq!(read.map(|text| text.decoded_len()), known.map(|text| text.len() as u64));
        }
    }
}
