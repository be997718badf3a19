//! A reader that checks what it reads: strict, in one pass, building nothing.

use std::borrow::Cow;

use super::bytes::{NEAR, WORDS, special};

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
    pub(super) text: &'a str,
    pub(super) at: usize,
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

    /// What has been read since it was at `start`.
    #[must_use]
    pub fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
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
    /// what they stand for, without their quotes; `None` if it is nested deeper than `depth_max`.
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
