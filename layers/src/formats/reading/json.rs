//! Parses a body in one pass. Checks the fields that the gateway reads, counts all others as input, and names invalid
//! fields in errors.
//!
//! A [`Reader`] splits the JSON into tokens. A [`Shape`] defines which values a place in the body accepts. [`At`] has
//! the path of the place, so that an error can name the field, and the depth of the place, so that nesting is bounded.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    ops::Range,
};

use memchr::memmem;

use super::DEPTH_MAX;
pub(crate) use super::shapes::{
    ArrayWith, Count, Each, Field, Flag, ObjectWith, Off, OnlyDefault, OrNull, Refused, StringWith,
    Text, Word,
};
use crate::{
    call::{Ask, Asks, InputSize, Turn, Turns},
    error::{Error, Problem},
    json::{NotJson, Reader, Str, Value},
    path::Path,
    text_sample::{Sampler, TextSample},
};

/// The results of reading one body. They are collected while the body is read.
#[derive(Debug, Default)]
pub(crate) struct Cx {
    pub(crate) messages_max: u64,
    size: RefCell<InputSize>,
    sampler: RefCell<Sampler>,
    asks: RefCell<Option<Box<Asks>>>,
    has_thinking: Cell<bool>,
    may_shorten: Cell<bool>,
    turns: RefCell<Turns>,
    /// Whether the positions of turns are recorded. They are not recorded in a short body, which can quickly be read
    /// again.
    is_long: Cell<bool>,
}

/// The minimum number of bytes of a body whose turns' positions are recorded.
const LONG_BYTES: usize = 16 << 10;

impl Cx {
    pub(crate) fn new(messages_max: u64) -> Self {
        Self {
            messages_max,
            ..Self::default()
        }
    }

    /// Reads the whole body as a value that `place` accepts.
    pub(crate) fn read<P: Shape>(&self, body: &[u8], place: P) -> Result<P::Value, Error> {
        let text = simdutf8::compat::from_utf8(body)
            .map_err(|error| not_json(NotJson::at(body, error.valid_up_to())))?;
        self.sampler.replace(Sampler::for_body(body.len()));
        self.is_long.set(body.len() >= LONG_BYTES);
        let mut json = Reader::new(text);
        let at = At {
            cx: self,
            path: &Path::Root,
            depth: 0,
        };
        let mut read = at.value(&mut json, place);
        if read.is_ok()
            && let Err(error) = json.end()
        {
            read = Err(not_json(error));
        }
        read
    }

    /// Records that the conversation contains thinking, which may be a capsule.
    pub(crate) fn thought(&self) {
        self.has_thinking.set(true);
    }

    pub(crate) fn has_thinking(&self) -> bool {
        self.has_thinking.get()
    }

    /// Records the byte range of the next turn of the conversation, if the body is long.
    pub(crate) fn turn(&self, span: Range<usize>) {
        if self.is_long.get() {
            let text_bytes = self.size().text_bytes;
            let turn = Turn { span, text_bytes };
            self.turns.borrow_mut().each.push(turn);
        }
    }

    /// Records that the vendor may leave turns out. Then the vendor's token count of this call cannot be used to bound
    /// the tokens of a longer conversation.
    pub(crate) fn shortens(&self) {
        self.may_shorten.set(true);
    }

    /// Returns the recorded turns. `all` is the range of the array that contains them. Called after the whole body was
    /// read.
    pub(crate) fn turns(&self, all: Range<usize>) -> Turns {
        match self.may_shorten.get() {
            true => Turns::default(),
            false => Turns {
                all,
                ..self.turns.take()
            },
        }
    }

    pub(crate) fn size(&self) -> InputSize {
        *self.size.borrow()
    }

    /// Returns the requested features that are billed separately.
    pub(crate) fn asks(&self) -> Option<Box<Asks>> {
        self.asks.take()
    }

    /// Returns the samples of all texts that were read.
    pub(crate) fn texts(&self) -> TextSample {
        self.sampler.take().into()
    }

    /// Counts the text of a document, and adds the samples that were taken of it.
    pub(crate) fn add_document_text(&self, bytes: u64, sampler: Sampler) {
        self.weigh(|size| size.text_bytes += bytes);
        self.sampler.borrow_mut().append(sampler);
    }

    pub(crate) fn weigh(&self, change: impl FnOnce(&mut InputSize)) {
        change(&mut self.size.borrow_mut());
    }
}

#[cold]
fn not_json(NotJson { line, column }: NotJson) -> Error {
    Error::invalid("", Problem::NotJson(format!("{line}:{column}")))
}

/// A place in the body. The reader is at the value of this place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) cx: &'a Cx,
    path: &'a Path<'a>,
    /// The number of arrays and objects that contain this place.
    depth: usize,
}

impl At<'_> {
    /// Creates a 400 error that names this place.
    #[cold]
    pub(crate) fn refuse(self, problem: Problem) -> Error {
        self.path.refuse(problem)
    }

    /// Creates a 400 error that names a field of the object at this place.
    #[cold]
    pub(crate) fn refuse_field(self, field: &str, problem: Problem) -> Error {
        Path::Key(self.path, field).refuse(problem)
    }

    /// Counts a text as input, and takes samples of it.
    pub(crate) fn weigh_text(self, text: &Str<'_>) {
        self.cx.sampler.borrow_mut().push(text.raw());
        self.cx.weigh(|size| size.text_bytes += text.decoded_len());
    }

    /// Counts a field's name as input, because some vendors show the model the whole object as written.
    pub(crate) fn weigh_name(self, key: &str) {
        self.cx.weigh(|size| size.add_unsampled(key.len() as u64));
    }

    /// Records that this place requests a feature that is billed separately.
    pub(crate) fn ask(self, ask: Ask) {
        let mut asks = self.cx.asks.borrow_mut();
        let asks = asks.get_or_insert_default();
        asks.add(ask, || self.path.to_string());
    }

    /// Records that a field of the object at this place requests a feature that is billed separately.
    pub(crate) fn ask_field(self, field: &str, ask: Ask) {
        let mut asks = self.cx.asks.borrow_mut();
        let asks = asks.get_or_insert_default();
        asks.add(ask, || Path::Key(self.path, field).to_string());
    }

    fn value<P: Shape>(self, json: &mut Reader<'_>, place: P) -> Result<P::Value, Error> {
        // The value is matched by reference, because each move would copy the whole value.
        match &json.begin() {
            Ok(Value::Null) => place.null(self),
            Ok(Value::Boolean(value)) => place.boolean(self, *value),
            Ok(Value::Number(number)) => place.number(self, number),
            Ok(Value::String(text)) if text.is_text() => place.string(self, text),
            Ok(Value::String(_)) => Err(not_json(json.fault())),
            Ok(Value::Array | Value::Object) if self.depth >= DEPTH_MAX => {
                Err(self.refuse(Problem::TooDeep(DEPTH_MAX)))
            }
            Ok(Value::Array) => place.array(self, json),
            Ok(Value::Object) => place.object(
                self,
                Object {
                    at: self,
                    json,
                    first: true,
                },
            ),
            Err(error) => Err(not_json(*error)),
        }
    }
}

/// The values that a place in the body accepts. Each method handles one type of value, and rejects it by default.
pub(crate) trait Shape: Sized {
    type Value;
    const EXPECTED: &'static str;
    /// The result for null; `None` if the place does not accept null.
    const NULL: Option<Self::Value> = None;

    /// Handles a value of a type for which the place has no method of its own.
    fn unexpected(self, at: At<'_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn null(self, at: At<'_>) -> Result<Self::Value, Error> {
        Self::NULL.ok_or_else(|| at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn boolean(self, at: At<'_>, _: bool) -> Result<Self::Value, Error> {
        self.unexpected(at)
    }
    /// Reads a number, given as written in the body.
    fn number(self, at: At<'_>, _: &str) -> Result<Self::Value, Error> {
        self.unexpected(at)
    }
    fn string(self, at: At<'_>, _: &Str<'_>) -> Result<Self::Value, Error> {
        self.unexpected(at)
    }
    /// Reads an array. Called after the opening bracket; the implementation reads the elements with [`elements`].
    fn array(self, at: At<'_>, _: &mut Reader<'_>) -> Result<Self::Value, Error> {
        self.unexpected(at)
    }
    fn object(self, at: At<'_>, _: Object<'_, '_>) -> Result<Self::Value, Error> {
        self.unexpected(at)
    }
}

/// Reads the elements of an array, each with the shape that `each` returns. Returns the number of elements.
pub(crate) fn elements<P: Shape>(
    at: At<'_>,
    json: &mut Reader<'_>,
    each: impl FnMut() -> P,
) -> Result<u64, Error> {
    spanned_elements(at, json, each, |_, _| {})
}

/// Reads the elements of an array, and passes each value, with its byte range in the body, to `seen`.
pub(crate) fn spanned_elements<P: Shape>(
    at: At<'_>,
    json: &mut Reader<'_>,
    mut each: impl FnMut() -> P,
    mut seen: impl FnMut(Range<usize>, P::Value),
) -> Result<u64, Error> {
    let (mut first, mut count) = (true, 0);
    while json.element(&mut first).map_err(not_json)? {
        let start = json.at();
        let element = At {
            cx: at.cx,
            path: &Path::Index(at.path, count),
            depth: at.depth + 1,
        };
        let value = element.value(json, each())?;
        seen(start..json.at(), value);
        count += 1;
    }
    Ok(count as u64)
}

/// Computes the byte ranges to cut out of an array in order to remove some of its elements. The remaining elements are
/// separated by single commas.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    cuts: Vec<Range<usize>>,
    /// The end of the last element so far that is kept.
    stored: Option<usize>,
    /// The range of the elements to remove that precede the first element that is kept.
    leading: Option<Range<usize>>,
}

impl Cuts {
    /// Adds the next element. `goes` is whether it is to be removed.
    pub(crate) fn element(&mut self, span: Range<usize>, goes: bool) {
        match (goes, self.stored, &mut self.leading) {
            // The comma before a removed element is removed too.
            (true, Some(stored), _) => match self.cuts.last_mut() {
                Some(cut) if cut.start == stored => cut.end = span.end,
                _ => self.cuts.push(stored..span.end),
            },
            (true, None, Some(leading)) => leading.end = span.end,
            (true, None, leading) => *leading = Some(span),
            (false, ..) => {
                if let Some(leading) = self.leading.take() {
                    self.cuts.push(leading.start..span.start);
                }
                self.stored = Some(span.end);
            }
        }
    }

    /// Returns the ranges to cut out, in order.
    pub(crate) fn done(mut self) -> Vec<Range<usize>> {
        self.cuts.extend(self.leading);
        self.cuts
    }
}

/// An object whose fields are being read one after another.
#[derive(Debug)]
pub(crate) struct Object<'r, 'a> {
    /// The place of the object.
    pub(super) at: At<'r>,
    json: &'r mut Reader<'a>,
    first: bool,
}

impl<'a> Object<'_, 'a> {
    /// Returns the next name, whose value the caller must then read. `None` at the end of the object.
    pub(crate) fn next_key(&mut self) -> Result<Option<Cow<'a, str>>, Error> {
        match &self.json.key(&mut self.first) {
            Ok(None) => Ok(None),
            Ok(Some(name)) if name.is_text() => Ok(Some(name.decoded())),
            Ok(Some(_)) => Err(not_json(self.json.fault())),
            Err(error) => Err(not_json(*error)),
        }
    }

    /// Returns the reader's offset in the body: after the opening brace, at the start of a value, or at the end of a
    /// value.
    pub(crate) fn offset(&self) -> usize {
        self.json.at()
    }

    /// Reads the value of the field whose name was just read.
    pub(crate) fn field<P: Shape>(&mut self, key: &str, place: P) -> Result<P::Value, Error> {
        let at = At {
            cx: self.at.cx,
            path: &Path::Key(self.at.path, key),
            depth: self.at.depth + 1,
        };
        at.value(self.json, place)
    }

    /// Reads the value of the field, and also returns the value's byte range in the body.
    pub(crate) fn field_span<P: Shape>(
        &mut self,
        key: &str,
        place: P,
    ) -> Result<(Range<usize>, P::Value), Error> {
        let start = self.offset();
        let value = self.field(key, place)?;
        Ok((start..self.offset(), value))
    }

    /// Reads a maximum number of output tokens. Returns the value's byte range in the body, and the number unless the
    /// value is null.
    pub(crate) fn tokens_span(
        &mut self,
        key: &str,
    ) -> Result<(Option<Range<usize>>, Option<u64>), Error> {
        let (span, tokens) = self.field_span(key, Count::TOKENS)?;
        Ok((Some(span), tokens))
    }

    /// Counts the field's value as input without decoding it. Because the value is forwarded as written, even a number
    /// that fits no type is accepted.
    pub(crate) fn weigh_field(&mut self, key: &str) -> Result<(), Error> {
        let value = self.weigh_proof(key)?;
        self.at.cx.sampler.borrow_mut().push(value);
        Ok(())
    }

    /// Counts a value that the model does not read as text, for example the signature of reasoning. The hold covers it,
    /// but an estimate leaves it out.
    pub(crate) fn weigh_proof(&mut self, key: &str) -> Result<&'a str, Error> {
        let (depth_max, start) = (DEPTH_MAX - (self.at.depth + 1), self.offset());
        match self.json.skip(depth_max).map_err(not_json)? {
            Some(bytes) => {
                self.at.cx.weigh(|size| size.text_bytes += bytes);
                Ok(self.json.since(start))
            }
            None => Err(self.at.refuse_field(key, Problem::TooDeep(DEPTH_MAX))),
        }
    }

    /// Counts the field's value with or without its escapes, whichever is longer. Translation to another format may put
    /// the value into a string, in which the characters of an escape are text.
    pub(crate) fn weigh_written(&mut self, key: &str) -> Result<(), Error> {
        let (before, start) = (self.at.cx.size().text_bytes, self.offset());
        self.weigh_field(key)?;
        let written = before + (self.offset() - start) as u64;
        self.at
            .cx
            .weigh(|size| size.text_bytes = size.text_bytes.max(written));
        Ok(())
    }

    /// Counts the field's value as input, and then reads it as `place` does, without counting it again.
    pub(crate) fn weigh_and_read<P: Shape>(&mut self, key: &str, place: P) -> Result<(), Error> {
        self.weigh_and_read_if(|_| true, key, place)
    }

    /// Like [`At::weigh_and_read`], but reads the value only if it may contain this name, in any spelling with escapes.
    /// Few values contain the name, so the other values, which may be large, are not read twice.
    pub(crate) fn weigh_and_read_if_it_names<P: Shape>(
        &mut self,
        name: &str,
        key: &str,
        place: P,
    ) -> Result<(), Error> {
        let may_name = |value: &str| {
            has_in_any_case(value, name) || memmem::find(value.as_bytes(), b"\\u").is_some()
        };
        self.weigh_and_read_if(may_name, key, place)
    }

    fn weigh_and_read_if<P: Shape>(
        &mut self,
        worth: impl FnOnce(&str) -> bool,
        key: &str,
        place: P,
    ) -> Result<(), Error> {
        let mut json = self.json.clone();
        self.weigh_field(key)?;
        if !worth(self.json.since(json.at())) {
            return Ok(());
        }
        let size = self.at.cx.size();
        let mut again = Object {
            at: self.at,
            json: &mut json,
            first: false,
        };
        let sampler = self.at.cx.sampler.take();
        again.field(key, place)?;
        self.at.cx.sampler.replace(sampler);
        self.at.cx.weigh(|weighed| *weighed = size);
        Ok(())
    }
}

/// Checks the names in an object. A name that the parser reads may occur only once, in any spelling with escapes.
#[derive(Debug)]
pub(crate) struct Once {
    pub(super) names: &'static [&'static str],
    /// A set of bits, with one bit for the first letter of each name.
    initials: u32,
    seen: u64,
}

impl Once {
    /// Creates a check of at most 64 names.
    pub(crate) const fn new(names: &'static [&'static str]) -> Self {
        assert!(names.len() <= u64::BITS as usize);
        let (mut initials, mut index) = (0, 0);
        while index < names.len() {
            initials |= Self::initial(names[index].as_bytes()[0]);
            index += 1;
        }
        Self {
            names,
            initials,
            seen: 0,
        }
    }

    /// Returns the bit of a letter; upper and lower case have the same bit.
    const fn initial(letter: u8) -> u32 {
        1 << (letter % 32)
    }

    /// Returns the next name of the object, as [`Object::next_key`] does, and checks it. Always inlined, because moving the
    /// name out of a call makes the parser 6 % slower.
    #[inline(always)]
    pub(crate) fn next_key<'a>(
        &mut self,
        at: At<'_>,
        object: &mut Object<'_, 'a>,
    ) -> Result<Option<Cow<'a, str>>, Error> {
        let key = object.next_key()?;
        if let Some(key) = &key {
            self.check(at, key)?;
        }
        Ok(key)
    }

    /// Checks a name. Most names in a body begin with a letter with which none of the checked names begins, so they are
    /// not compared.
    #[inline]
    fn check(&mut self, at: At<'_>, key: &str) -> Result<(), Error> {
        match key.as_bytes().first() {
            Some(byte) if !byte.is_ascii() || self.initials & Self::initial(*byte) != 0 => {
                self.check_name(at, key)
            }
            _ => Ok(()),
        }
    }

    fn check_name(&mut self, at: At<'_>, key: &str) -> Result<(), Error> {
        let Some(index) = self.names.iter().position(|name| *name == key) else {
            return self.check_unread(at, key);
        };
        if self.seen & 1 << index != 0 {
            return Err(at.refuse_field(key, Problem::Duplicate));
        }
        self.seen |= 1 << index;
        Ok(())
    }

    /// Rejects a name that differs only in case from a name that the parser reads. Some vendors ignore case and use the
    /// last occurrence of a name, so they would use a value that was not checked here.
    fn check_unread(&self, at: At<'_>, key: &str) -> Result<(), Error> {
        if folds(key) && self.names.iter().any(|name| folds_to(key, name)) {
            return Err(at.refuse_field(key, Problem::Unsupported));
        }
        Ok(())
    }
}

/// Returns whether folding the case changes `key`. The names that the parser reads are lower-case ASCII.
fn folds(key: &str) -> bool {
    key.bytes()
        .any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii())
}

/// Returns whether `name` occurs in a text in any case, because some vendors ignore case. `name` must contain an
/// underscore.
fn has_in_any_case(text: &str, name: &str) -> bool {
    // An underscore has no case, so a search for underscores finds every spelling of the name.
    let at = name.find('_').unwrap_or_default();
    memchr::memchr_iter(b'_', text.as_bytes()).any(|found| {
        let start = found.checked_sub(at);
        let word = start.and_then(|start| text.as_bytes().get(start..start + name.len()));
        word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// Returns whether `key` equals `name` if case is ignored. Two characters outside ASCII fold to ASCII letters: the long
/// s (U+017F) and the Kelvin sign (U+212A).
pub(crate) fn folds_to(key: &str, name: &str) -> bool {
    let folded = key.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(name.chars())
}
