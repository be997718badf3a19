//! One pass over a body: checks what we read, weighs what we do not, and names what is wrong.
//!
//! A [`Reader`] does the JSON. A [`Shape`] says what may stand somewhere; [`At`] knows where that is, so
//! that an error names its field, and how deep, so that nothing nests further than it may.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    ops::Range,
};

use memchr::memmem;

use super::DEPTH_MAX;
use crate::{
    call::{Ask, Asks, InputSize},
    error::{Error, Problem},
    json::{NotJson, Reader, Str, Value},
    path::Path,
    price::Label,
};

/// What one pass gathers.
#[derive(Debug)]
pub(super) struct Cx {
    pub(super) messages_max: u64,
    size: Cell<InputSize>,
    asks: RefCell<Option<Box<Asks>>>,
    has_thinking: Cell<bool>,
}

impl Cx {
    pub(super) fn new(messages_max: u64) -> Self {
        Self {
            messages_max,
            size: Cell::default(),
            asks: RefCell::default(),
            has_thinking: Cell::default(),
        }
    }

    /// Reads the whole body as `place`.
    pub(super) fn read<P: Shape>(&self, body: &[u8], place: P) -> Result<P::Value, Error> {
        let text = simdutf8::compat::from_utf8(body)
            .map_err(|error| not_json(NotJson::at(body, error.valid_up_to())))?;
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

    /// A turn has thinking.
    pub(super) fn thought(&self) {
        self.has_thinking.set(true);
    }

    pub(super) fn has_thinking(&self) -> bool {
        self.has_thinking.get()
    }

    pub(super) fn size(&self) -> InputSize {
        self.size.get()
    }

    /// What was asked for that is billed apart.
    pub(super) fn asks(&self) -> Option<Box<Asks>> {
        self.asks.take()
    }

    pub(super) fn weigh(&self, change: impl FnOnce(&mut InputSize)) {
        let mut size = self.size.get();
        change(&mut size);
        self.size.set(size);
    }
}

#[cold]
fn not_json(NotJson { line, column }: NotJson) -> Error {
    Error::invalid("", Problem::NotJson(format!("{line}:{column}")))
}

/// A place in the body that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    pub(super) cx: &'a Cx,
    path: &'a Path<'a>,
    /// Arrays and objects around it.
    depth: usize,
}

impl At<'_> {
    /// What is wrong here.
    #[cold]
    pub(super) fn refuse(self, problem: Problem) -> Error {
        self.path.refuse(problem)
    }

    /// What is wrong with a field of the object here.
    #[cold]
    pub(super) fn refuse_field(self, field: &str, problem: Problem) -> Error {
        Path::Key(self.path, field).refuse(problem)
    }

    /// Reads the value of the field whose name was just read.
    pub(super) fn field<P: Shape>(
        self,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<P::Value, Error> {
        let at = At {
            cx: self.cx,
            path: &Path::Key(self.path, key),
            depth: self.depth + 1,
        };
        at.value(object.json, place)
    }

    /// Reads it, and says where in the body it stands.
    pub(super) fn field_span<P: Shape>(
        self,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(Range<usize>, P::Value), Error> {
        let start = object.at();
        let value = self.field(key, object, place)?;
        Ok((start..object.at(), value))
    }

    /// Weighs the field's value, whatever it is, without reading it: even a number that no type holds
    /// stays as it was sent.
    pub(super) fn weigh_field(self, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        let depth_max = DEPTH_MAX - (self.depth + 1);
        match object.json.skip(depth_max).map_err(not_json)? {
            Some(bytes) => {
                self.cx.weigh(|size| size.text_bytes += bytes);
                Ok(())
            }
            None => Err(self.refuse_field(key, Problem::TooDeep(DEPTH_MAX))),
        }
    }

    /// Weighs a field's name, of an object that some vendors hand to the model as it stands.
    pub(super) fn weigh_name(self, key: &str) {
        self.cx.weigh(|size| size.text_bytes += key.len() as u64);
    }

    /// Weighs the field's value as it is written, escapes and all, if that is more: another format has it inside of a
    /// text, where what an escape is written with is text.
    pub(super) fn weigh_written(self, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
        let (before, start) = (self.cx.size().text_bytes, object.at());
        self.weigh_field(key, object)?;
        let written = before + (object.at() - start) as u64;
        self.cx
            .weigh(|size| size.text_bytes = size.text_bytes.max(written));
        Ok(())
    }

    /// Weighs the field's value so, and then reads it too. As `place` it weighs nothing.
    pub(super) fn weigh_and_read<P: Shape<Value = ()>>(
        self,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(), Error> {
        self.weigh_and_read_if(|_| true, key, object, place)
    }

    /// The same, where it is only worth reading if it has this name in it, however that is escaped: few values do, and
    /// the others, which may be large, are not read twice.
    pub(super) fn weigh_and_read_if_it_names<P: Shape<Value = ()>>(
        self,
        name: &str,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(), Error> {
        let may_name = |value: &str| {
            has_in_any_case(value, name) || memmem::find(value.as_bytes(), b"\\u").is_some()
        };
        self.weigh_and_read_if(may_name, key, object, place)
    }

    fn weigh_and_read_if<P: Shape<Value = ()>>(
        self,
        worth: impl FnOnce(&str) -> bool,
        key: &str,
        object: &mut Object<'_, '_>,
        place: P,
    ) -> Result<(), Error> {
        let mut json = object.json.clone();
        self.weigh_field(key, object)?;
        if !worth(object.json.since(json.at())) {
            return Ok(());
        }
        let size = self.cx.size();
        let again = &mut Object {
            json: &mut json,
            first: false,
        };
        self.field(key, again, place)?;
        self.cx.weigh(|weighed| *weighed = size);
        Ok(())
    }

    /// Notes what is asked for here that is billed apart.
    pub(super) fn ask(self, ask: Ask) {
        let mut asks = self.cx.asks.borrow_mut();
        let asks = asks.get_or_insert_default();
        asks.add(ask, || self.path.to_string());
    }

    /// The same of a field of the object here.
    pub(super) fn ask_field(self, field: &str, ask: Ask) {
        let mut asks = self.cx.asks.borrow_mut();
        let asks = asks.get_or_insert_default();
        asks.add(ask, || Path::Key(self.path, field).to_string());
    }

    fn value<P: Shape>(self, json: &mut Reader<'_>, place: P) -> Result<P::Value, Error> {
        // Looked at where it is: each move of it would be a copy of all its words.
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
            Ok(Value::Object) => place.object(self, Object { json, first: true }),
            Err(error) => Err(not_json(*error)),
        }
    }
}

/// What may stand at a place. What is not overridden is of the wrong type.
pub(super) trait Shape: Sized {
    type Value;
    const EXPECTED: &'static str;

    fn null(self, at: At<'_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn boolean(self, at: At<'_>, _: bool) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    /// A number as it is written.
    fn number(self, at: At<'_>, _: &str) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn string(self, at: At<'_>, _: &Str<'_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    /// Behind the bracket: see [`elements`].
    fn array(self, at: At<'_>, _: &mut Reader<'_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn object(self, at: At<'_>, _: Object<'_, '_>) -> Result<Self::Value, Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
}

/// Reads every element of an array as the place that `each` makes; says how many there were.
pub(super) fn elements<P: Shape>(
    at: At<'_>,
    json: &mut Reader<'_>,
    mut each: impl FnMut() -> P,
) -> Result<u64, Error> {
    let (mut first, mut count) = (true, 0);
    while json.element(&mut first).map_err(not_json)? {
        let element = At {
            cx: at.cx,
            path: &Path::Index(at.path, count),
            depth: at.depth + 1,
        };
        element.value(json, each())?;
        count += 1;
    }
    Ok(count as u64)
}

/// Reads them so, and hands each with where in the body it stands to `seen`.
pub(super) fn spanned_elements<P: Shape>(
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

/// What has to be cut out of an array so that some of its elements are gone, and a comma stands between any two others.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    cuts: Vec<Range<usize>>,
    /// Where the last element ends that stays.
    kept: Option<usize>,
    /// What goes and has nothing in front of it that stays.
    leading: Option<Range<usize>>,
}

impl Cuts {
    /// The next element stands there, and goes or stays.
    pub(super) fn element(&mut self, span: Range<usize>, goes: bool) {
        match (goes, self.kept, &mut self.leading) {
            // With the comma in front of it.
            (true, Some(kept), _) => match self.cuts.last_mut() {
                Some(cut) if cut.start == kept => cut.end = span.end,
                _ => self.cuts.push(kept..span.end),
            },
            (true, None, Some(leading)) => leading.end = span.end,
            (true, None, leading) => *leading = Some(span),
            (false, ..) => {
                if let Some(leading) = self.leading.take() {
                    self.cuts.push(leading.start..span.start);
                }
                self.kept = Some(span.end);
            }
        }
    }

    /// All of it, in order.
    pub(super) fn done(mut self) -> Vec<Range<usize>> {
        self.cuts.extend(self.leading);
        self.cuts
    }
}

/// An object that is being read, field by field.
#[derive(Debug)]
pub(super) struct Object<'r, 'a> {
    json: &'r mut Reader<'a>,
    first: bool,
}

impl<'a> Object<'_, 'a> {
    /// The next name, whose value must be read then. `None` where there is none left.
    pub(super) fn next_key(&mut self) -> Result<Option<Cow<'a, str>>, Error> {
        match &self.json.key(&mut self.first) {
            Ok(None) => Ok(None),
            Ok(Some(name)) if name.is_text() => Ok(Some(name.decoded())),
            Ok(Some(_)) => Err(not_json(self.json.fault())),
            Err(error) => Err(not_json(*error)),
        }
    }

    /// How far the body has been read, in bytes: just behind the brace at first, and then at a name's value,
    /// or its end.
    pub(super) fn at(&self) -> usize {
        self.json.at()
    }
}

/// Which names of an object were seen: one that we read may stand there once, however it is escaped.
#[derive(Debug)]
pub(super) struct Once {
    names: &'static [&'static str],
    /// A bit for each letter that one of the names begins with.
    initials: u32,
    seen: u64,
}

impl Once {
    /// Up to 64 names.
    pub(super) const fn new(names: &'static [&'static str]) -> Self {
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

    /// The bit of a letter, small or capital.
    const fn initial(letter: u8) -> u32 {
        1 << (letter % 32)
    }

    /// Most names of most objects begin as none of ours does, and need no closer look.
    #[inline]
    pub(super) fn check(&mut self, at: At<'_>, key: &str) -> Result<(), Error> {
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

    /// Some vendors match names without case, and the last one wins: such a name would say something else
    /// to them than to us.
    fn check_unread(&self, at: At<'_>, key: &str) -> Result<(), Error> {
        if folds(key) && self.names.iter().any(|name| folds_to(key, name)) {
            return Err(at.refuse_field(key, Problem::Unsupported));
        }
        Ok(())
    }
}

/// Whether a name may be another once its case is folded: our names have small ASCII letters alone.
fn folds(key: &str) -> bool {
    key.bytes()
        .any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii())
}

/// Whether this name, which has an underscore, stands in a text. Some vendors match names without their case.
fn has_in_any_case(text: &str, name: &str) -> bool {
    // An underscore has no case, so the search is for that.
    let at = name.find('_').unwrap_or_default();
    memchr::memchr_iter(b'_', text.as_bytes()).any(|found| {
        let start = found.checked_sub(at);
        let word = start.and_then(|start| text.as_bytes().get(start..start + name.len()));
        word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    })
}

/// Whether a name is another but for the case of its letters. Two letters beyond ASCII fold into it.
fn folds_to(key: &str, name: &str) -> bool {
    let folded = key.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(name.chars())
}

/// A string, handed to a function.
#[derive(Debug)]
pub(super) struct Text<F>(pub(super) F);

impl<T, F: FnOnce(&str) -> T> Shape for Text<F> {
    type Value = T;
    const EXPECTED: &'static str = "string";

    fn string(self, _: At<'_>, text: &Str<'_>) -> Result<T, Error> {
        Ok((self.0)(&text.decoded()))
    }
}

/// Something, or null, which is as good as absent.
#[derive(Debug)]
pub(super) struct OrNull<P>(pub(super) P);

impl<P: Shape> Shape for OrNull<P> {
    type Value = Option<P::Value>;
    const EXPECTED: &'static str = P::EXPECTED;

    fn null(self, _: At<'_>) -> Result<Self::Value, Error> {
        Ok(None)
    }
    fn boolean(self, at: At<'_>, value: bool) -> Result<Self::Value, Error> {
        self.0.boolean(at, value).map(Some)
    }
    fn number(self, at: At<'_>, number: &str) -> Result<Self::Value, Error> {
        self.0.number(at, number).map(Some)
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<Self::Value, Error> {
        self.0.string(at, text).map(Some)
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<Self::Value, Error> {
        self.0.array(at, json).map(Some)
    }
    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<Self::Value, Error> {
        self.0.object(at, object).map(Some)
    }
}

/// An integer from 1 on, or null.
#[derive(Debug)]
pub(super) struct Count {
    pub(super) max: u64,
}

impl Count {
    /// A ceiling on output tokens.
    pub(super) const TOKENS: Self = Self {
        max: u32::MAX as u64,
    };
}

impl Shape for Count {
    type Value = Option<u64>;
    const EXPECTED: &'static str = "integer";

    fn null(self, _: At<'_>) -> Result<Option<u64>, Error> {
        Ok(None)
    }
    fn number(self, at: At<'_>, number: &str) -> Result<Option<u64>, Error> {
        match number.parse::<u64>() {
            Err(_) => Err(at.refuse(Problem::WrongType(Self::EXPECTED))),
            Ok(0) => Err(at.refuse(Problem::BelowMin(1))),
            Ok(value) if value > self.max => Err(at.refuse(Problem::AboveMax(self.max))),
            Ok(value) => Ok(Some(value)),
        }
    }
}

/// A boolean, or null for false.
#[derive(Debug)]
pub(super) struct Flag;

impl Shape for Flag {
    type Value = bool;
    const EXPECTED: &'static str = "boolean";

    fn null(self, _: At<'_>) -> Result<bool, Error> {
        Ok(false)
    }
    fn boolean(self, _: At<'_>, value: bool) -> Result<bool, Error> {
        Ok(value)
    }
}

/// One of the strings that keep the price what it is, null, or an empty array; anything else is
/// refused: it would bring costs that nobody can see when the hold is made.
#[derive(Debug)]
pub(super) struct OnlyDefault {
    pub(super) allowed: &'static [&'static str],
    pub(super) otherwise: Problem,
}

impl OnlyDefault {
    /// One of `allowed`; anything else is unsupported.
    pub(super) const fn of(allowed: &'static [&'static str]) -> Self {
        Self {
            allowed,
            otherwise: Problem::Unsupported,
        }
    }
}

/// Nothing, or null. Anything else is refused as it is, whatever is in it.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Problem);

impl Shape for Refused {
    type Value = ();
    const EXPECTED: &'static str = "nothing";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn boolean(self, at: At<'_>, _: bool) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
    fn number(self, at: At<'_>, _: &str) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
    fn string(self, at: At<'_>, _: &Str<'_>) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
    fn array(self, at: At<'_>, _: &mut Reader<'_>) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
    fn object(self, at: At<'_>, _: Object<'_, '_>) -> Result<(), Error> {
        Err(at.refuse(self.0))
    }
}

/// False, or null, which is as good.
#[derive(Debug)]
pub(super) struct Off(pub(super) Problem);

impl Shape for Off {
    type Value = ();
    const EXPECTED: &'static str = "boolean";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn boolean(self, at: At<'_>, value: bool) -> Result<(), Error> {
        match value {
            false => Ok(()),
            true => Err(at.refuse(self.0)),
        }
    }
}

/// A word for how the call is to be served: what every call gets, or what the model may have a price for.
#[derive(Debug)]
pub(super) struct Word {
    /// What keeps the price what it is.
    pub(super) usual: &'static [&'static str],
    pub(super) ask: fn(Label) -> Ask,
}

impl Shape for Word {
    type Value = ();
    const EXPECTED: &'static str = "string";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        let word = text.decoded();
        if !self.usual.contains(&&*word) {
            at.ask((self.ask)(Label::new(&word)));
        }
        Ok(())
    }
}

impl Shape for OnlyDefault {
    type Value = ();
    const EXPECTED: &'static str = "nothing";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn boolean(self, at: At<'_>, _: bool) -> Result<(), Error> {
        Err(at.refuse(self.otherwise))
    }
    fn number(self, at: At<'_>, _: &str) -> Result<(), Error> {
        Err(at.refuse(self.otherwise))
    }
    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        if self.allowed.contains(&&*text.decoded()) {
            Ok(())
        } else {
            Err(at.refuse(self.otherwise))
        }
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        let Self { allowed, otherwise } = self;
        elements(at, json, || Self {
            allowed,
            otherwise: otherwise.clone(),
        })
        .map(drop)
    }
    fn object(self, at: At<'_>, _: Object<'_, '_>) -> Result<(), Error> {
        Err(at.refuse(self.otherwise))
    }
}
