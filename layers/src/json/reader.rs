//! A strict JSON reader. It reads the text once and builds no values.

use std::borrow::Cow;

use super::bytes::{NEAR, WORDS, special};

/// The error for a text that is not JSON, with the position of the first invalid byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at line {line}, column {column}")]
pub struct NotJson {
    /// The line of the first invalid byte, counted from 1.
    pub line: usize,
    /// The column of the first invalid byte, in bytes counted from 1.
    pub column: usize,
}

impl NotJson {
    /// Creates the error for the byte at `index` of `json`, which is invalid or missing.
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

/// Reads a JSON text (RFC 8259) value by value. The text before the current position is valid. The text after it is not
/// checked yet.
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

/// A complete value, or the beginning of an array or object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The literal `null`.
    Null,
    /// The literal `true` or `false`.
    Boolean(bool),
    /// A number as written in the text, because no Rust type holds all JSON numbers.
    Number(&'a str),
    /// A string, which is decoded only when its text is requested.
    String(Str<'a>),
    /// The opening bracket of an array, whose elements are read with [`Reader::element`].
    Array,
    /// The opening brace of an object, whose fields are read with [`Reader::key`].
    Object,
}

/// A string in a JSON text, not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Str<'a> {
    raw: &'a str,
    decoded_bytes: usize,
    is_text: bool,
}

impl<'a> Str<'a> {
    /// Returns whether the string can be decoded, which is not the case if it contains the escape of a lone surrogate.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        self.is_text
    }

    /// Returns the text between the quotes, with its escapes not decoded.
    #[must_use]
    pub const fn raw(&self) -> &'a str {
        self.raw
    }

    /// Returns the length of the decoded string in UTF-8 bytes. A lone surrogate counts as half of a four-byte
    /// character.
    #[must_use]
    pub const fn decoded_len(&self) -> u64 {
        self.decoded_bytes as u64
    }

    /// Returns the decoded string. If the string has a lone surrogate, returns its text with the escapes.
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

/// The byte offset of a syntax error.
struct Wrong(usize);

/// A string that was skipped: its position, how much shorter it becomes when it is decoded, and whether it can be
/// decoded.
#[derive(Clone, Copy)]
struct Quoted {
    start: usize,
    end: usize,
    /// The number of bytes by which the string's escapes are longer than the characters that they encode.
    longer_bytes: usize,
    is_text: bool,
}

impl Quoted {
    /// Returns the number of bytes that decoding removes: the two quotes, and the bytes by which escapes are longer
    /// than the characters that they encode.
    const fn dress_bytes(self) -> usize {
        2 + self.longer_bytes
    }
}

impl<'a> Reader<'a> {
    /// Creates a reader at the beginning of `text`.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the current position, in bytes from the beginning of the text.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Returns the text between `start` and the current position.
    #[must_use]
    pub fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// Returns an error at the current position, for a value that the caller does not accept there.
    #[cold]
    #[must_use]
    pub fn fault(&self) -> NotJson {
        NotJson::at(self.text.as_bytes(), self.at)
    }

    /// Reads the next value completely. If it is an array or an object, reads only its opening bracket or brace.
    ///
    /// # Errors
    /// [`NotJson`] if no valid value follows.
    pub fn begin(&mut self) -> Result<Value<'a>, NotJson> {
        self.value().map_err(|wrong| self.wrong(wrong))
    }

    /// Reads the name of an object's next field, up to the beginning of its value. Returns `None` at the end of the
    /// object. `first` must be true directly after the opening brace, and is set to false.
    ///
    /// # Errors
    /// [`NotJson`] if neither a name nor the end of the object follows.
    #[inline]
    pub fn key(&mut self, first: &mut bool) -> Result<Option<Str<'a>>, NotJson> {
        self.name(std::mem::take(first))
            .map_err(|wrong| self.wrong(wrong))
    }

    /// Returns whether the array has another element, which the caller must then read. `first` must be true directly
    /// after the opening bracket, and is set to false.
    ///
    /// # Errors
    /// [`NotJson`] if neither a comma nor the end of the array follows.
    #[inline]
    pub fn element(&mut self, first: &mut bool) -> Result<bool, NotJson> {
        let (at, has_more) = more(self.json(), self.at, std::mem::take(first), b']')
            .map_err(|wrong| self.wrong(wrong))?;
        self.at = at;
        Ok(has_more)
    }

    /// Skips the next value. Returns its length in bytes; each string in it counts as decoded and without its quotes.
    /// Returns `None` if the value is nested deeper than `depth_max`.
    ///
    /// # Errors
    /// [`NotJson`] if no valid value follows.
    pub fn skip(&mut self, depth_max: usize) -> Result<Option<u64>, NotJson> {
        self.pass(depth_max).map_err(|wrong| self.wrong(wrong))
    }

    /// Skips the next value, and returns its text as written.
    ///
    /// # Errors
    /// [`NotJson`] if no valid value follows.
    pub fn raw(&mut self) -> Result<&'a str, NotJson> {
        let (start, _) = peek(self.json(), self.at);
        self.skip(usize::MAX)?;
        Ok(&self.text[start..self.at])
    }

    /// Checks that only whitespace follows the current position.
    ///
    /// # Errors
    /// [`NotJson`] if anything other than whitespace follows.
    pub fn end(&mut self) -> Result<(), NotJson> {
        (self.at, _) = peek(self.json(), self.at);
        if self.at < self.text.len() {
            return Err(self.fault());
        }
        Ok(())
    }

    /// Sets the current position to that of the syntax error, and returns the error.
    #[cold]
    fn wrong(&mut self, Wrong(at): Wrong) -> NotJson {
        self.at = at;
        self.fault()
    }

    const fn json(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// Reads the next value, as [`Reader::begin`] documents it.
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

    /// Reads a field's name, as [`Reader::key`] documents it.
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

    /// Skips a value, as [`Reader::skip`] documents it.
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
            // This loop closes the arrays and objects that end here, up to the next value.
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

// The following functions take a position and return the new position. If they are inlined, the text and the position
// stay in registers, which halves the time.

/// Returns the next byte that is not whitespace, and its position. At the end of the text the byte is 0, which is not
/// valid at any place.
#[inline(always)]
fn peek(json: &[u8], mut at: usize) -> (usize, u8) {
    loop {
        match json.get(at) {
            Some(b' ' | b'\n' | b'\t' | b'\r') => at += 1,
            byte => return (at, byte.copied().unwrap_or_default()),
        }
    }
}

/// Returns the position after the next byte that is not whitespace, which must be `byte`.
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

/// Returns whether another element or field follows in an array or object that ends with the byte `end`, and the
/// position after the comma or after `end`.
#[inline(always)]
fn more(json: &[u8], at: usize, first: bool, end: u8) -> Result<(usize, bool), Wrong> {
    match peek(json, at) {
        (at, byte) if byte == end => Ok((at + 1, false)),
        (at, _) if first => Ok((at, true)),
        (at, b',') => Ok((at + 1, true)),
        (at, _) => Err(Wrong(at)),
    }
}

/// Reads a field's name, and returns the position after its colon.
#[inline(always)]
fn name(json: &[u8], at: usize) -> Result<(Quoted, usize), Wrong> {
    let name = quoted(json, expect(json, at, b'"')?)?;
    let at = expect(json, name.end + 1, b':')?;
    Ok((name, at))
}

/// Reads a string, starting after its opening quote.
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

/// Reads a string that has no escapes before `at`. Few strings have escapes, but a string with escapes usually has
/// many.
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
                    is_text: !escapes.halved && escapes.half_ends.is_none(),
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

/// Returns the position after an escape with four hexadecimal digits (`\uXXXX`), whose backslash is at `begin`.
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
        // Each half of a surrogate pair counts as half of a four-byte character.
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

/// Returns the position after a number, a boolean or null.
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

/// Skips at least one digit, and returns the position after the digits.
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

/// Counts how much shorter a string becomes when its escapes are decoded, and detects lone surrogates.
#[derive(Default)]
struct Escapes {
    /// The number of bytes by which the escapes are longer than the characters that they encode.
    longer_bytes: usize,
    /// The position after the escape of a high surrogate, at which the escape of a low surrogate must follow.
    half_ends: Option<usize>,
    /// Whether the string has a lone surrogate.
    halved: bool,
}

/// A stack of the open arrays and objects, with one bit for each. The lowest bit is the innermost.
#[derive(Default)]
struct Open {
    depth: usize,
    objects: u64,
    /// The bits of outer levels, which do not fit into one word.
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

/// Returns the values of an object's fields with these names, as written in the text.
///
/// # Errors
/// [`NotJson`] if the text is not JSON, is not an object, or has one of the fields twice.
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
