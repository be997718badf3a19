//! One pass over a body: checks what we read, weighs what we do not, and names what is wrong.
//!
//! serde_json does the JSON. A [`Place`] says what may stand somewhere; [`At`] knows where that is, so
//! that an error names its field, and how deep, so that nothing nests further than it may.

use std::{
    cell::{Cell, RefCell},
    fmt,
    ops::Range,
};

use serde::{
    Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::DEPTH_MAX;
use crate::{
    call::InputSize,
    error::{Error, Problem},
    json::{decoded_len, string},
};

/// What one pass gathers.
#[derive(Debug)]
pub(super) struct Cx<'a> {
    body: &'a [u8],
    pub(super) messages_max: u64,
    size: Cell<InputSize>,
    refused: RefCell<Option<(String, Problem)>>,
}

impl<'a> Cx<'a> {
    pub(super) fn new(body: &'a [u8], messages_max: u64) -> Self {
        Self {
            body,
            messages_max,
            size: Cell::default(),
            refused: RefCell::default(),
        }
    }

    /// Reads the whole body as `place`.
    pub(super) fn read<P: Place<'a>>(&self, place: P) -> Result<P::Value, Error> {
        let mut json = serde_json::Deserializer::from_slice(self.body);
        let value = At {
            cx: self,
            path: &Path::Root,
        }
        .seed(place)
        .deserialize(&mut json);
        value
            .and_then(|value| json.end().map(|()| value))
            .map_err(|error| self.error(&error))
    }

    fn error(&self, error: &serde_json::Error) -> Error {
        match self.refused.take() {
            Some((field, problem)) => Error::invalid(field, problem),
            None => Error::invalid(
                "",
                Problem::NotJson(format!("{}:{}", error.line(), error.column())),
            ),
        }
    }

    pub(super) fn size(&self) -> InputSize {
        self.size.get()
    }

    pub(super) fn weigh(&self, change: impl FnOnce(&mut InputSize)) {
        let mut size = self.size.get();
        change(&mut size);
        self.size.set(size);
    }

    /// Just behind the body's opening brace.
    pub(super) fn opening(&self) -> usize {
        memchr::memchr(b'{', self.body).map_or(0, |brace| brace + 1)
    }

    /// Where a raw value stands in the body.
    pub(super) fn span(&self, raw: &RawValue) -> Range<usize> {
        let start = raw.get().as_ptr() as usize - self.body.as_ptr() as usize;
        start..start + raw.get().len()
    }
}

/// The way to a value.
#[derive(Debug)]
pub(super) enum Path<'a> {
    Root,
    Key(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl Path<'_> {
    fn depth(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Key(parent, _) | Self::Index(parent, _) => 1 + parent.depth(),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Path::Root, key) => f.write_str(key),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// A place in the body that is being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    pub(super) cx: &'a Cx<'a>,
    path: &'a Path<'a>,
}

impl<'a> At<'a> {
    pub(super) fn seed<P>(self, place: P) -> Seed<'a, P> {
        Seed { at: self, place }
    }

    /// Notes what is wrong here. serde's own error is only the way out.
    pub(super) fn refuse<E: de::Error>(self, problem: Problem) -> E {
        self.refuse_at(None, problem)
    }

    /// Notes what is wrong with a field of the object here.
    pub(super) fn refuse_field<E: de::Error>(self, field: &str, problem: Problem) -> E {
        self.refuse_at(Some(field), problem)
    }

    fn refuse_at<E: de::Error>(self, field: Option<&str>, problem: Problem) -> E {
        let path = match field {
            None => self.path.to_string(),
            Some(field) => Path::Key(self.path, field).to_string(),
        };
        self.cx.refused.borrow_mut().get_or_insert((path, problem));
        E::custom("refused")
    }

    /// Reads the value of the field whose name was just read.
    pub(super) fn field<'de, A: MapAccess<'de>, P: Place<'de>>(
        self,
        key: &str,
        map: &mut A,
        place: P,
    ) -> Result<P::Value, A::Error> {
        map.next_value_seed(
            At {
                cx: self.cx,
                path: &Path::Key(self.path, key),
            }
            .seed(place),
        )
    }

    /// Reads the field's value as it stands, to know where it stands.
    pub(super) fn raw<'de, A: MapAccess<'de>>(
        self,
        map: &mut A,
    ) -> Result<&'de RawValue, A::Error> {
        map.next_value()
    }

    /// Weighs the field's value, whatever it is, without reading it: even a number that no type holds
    /// stays as it was sent.
    pub(super) fn weigh_field<'de, A: MapAccess<'de>>(
        self,
        key: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let raw = self.raw(map)?.get().as_bytes();
        // One string, as most of what is long: where it ends is known.
        if let [b'"', text @ .., b'"'] = raw {
            self.cx.weigh(|size| size.text_bytes += decoded_len(text));
            return Ok(());
        }
        let (mut at, mut depth, mut bytes) = (0, self.path.depth() + 1, 0);
        while let Some(byte) = raw.get(at) {
            match byte {
                b'"' => {
                    let Some((text, end)) = string(raw, at) else {
                        break;
                    };
                    bytes += decoded_len(text);
                    at = end;
                    continue;
                }
                b'[' | b'{' if depth >= DEPTH_MAX => {
                    return Err(self.refuse_field(key, Problem::TooDeep(DEPTH_MAX)));
                }
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                _ => bytes += 1,
            }
            at += 1;
        }
        self.cx.weigh(|size| size.text_bytes += bytes);
        Ok(())
    }

    /// Reads a raw value of the field `key` again as `place`.
    pub(super) fn reread<'de, P: Place<'de>, E: de::Error>(
        self,
        key: &str,
        raw: &'de RawValue,
        place: P,
    ) -> Result<P::Value, E> {
        let at = At {
            cx: self.cx,
            path: &Path::Key(self.path, key),
        };
        at.seed(place)
            .deserialize(&mut serde_json::Deserializer::from_str(raw.get()))
            .map_err(E::custom)
    }
}

/// What may stand at a place. What is not overridden is of the wrong type.
pub(super) trait Place<'de>: Sized {
    type Value;
    const EXPECTED: &'static str;

    fn null<E: de::Error>(self, at: At<'_>) -> Result<Self::Value, E> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn boolean<E: de::Error>(self, at: At<'_>, _: bool) -> Result<Self::Value, E> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    /// A number that is no unsigned integer is `None`.
    fn number<E: de::Error>(self, at: At<'_>, _: Option<u64>) -> Result<Self::Value, E> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn string<E: de::Error>(self, at: At<'_>, _: &str) -> Result<Self::Value, E> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn array<A: SeqAccess<'de>>(self, at: At<'_>, _: A) -> Result<Self::Value, A::Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
    fn object<A: MapAccess<'de>>(self, at: At<'_>, _: A) -> Result<Self::Value, A::Error> {
        Err(at.refuse(Problem::WrongType(Self::EXPECTED)))
    }
}

/// A [`Place`] as serde wants it.
#[derive(Debug)]
pub(super) struct Seed<'a, P> {
    at: At<'a>,
    place: P,
}

impl<'de, P: Place<'de>> DeserializeSeed<'de> for Seed<'_, P> {
    type Value = P::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<P::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, P: Place<'de>> Visitor<'de> for Seed<'_, P> {
    type Value = P::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(P::EXPECTED)
    }
    fn visit_unit<E: de::Error>(self) -> Result<P::Value, E> {
        self.place.null(self.at)
    }
    fn visit_bool<E: de::Error>(self, value: bool) -> Result<P::Value, E> {
        self.place.boolean(self.at, value)
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<P::Value, E> {
        self.place.number(self.at, Some(value))
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<P::Value, E> {
        self.place.number(self.at, u64::try_from(value).ok())
    }
    fn visit_f64<E: de::Error>(self, _: f64) -> Result<P::Value, E> {
        self.place.number(self.at, None)
    }
    fn visit_str<E: de::Error>(self, value: &str) -> Result<P::Value, E> {
        self.place.string(self.at, value)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<P::Value, A::Error> {
        if self.at.path.depth() >= DEPTH_MAX {
            return Err(self.at.refuse(Problem::TooDeep(DEPTH_MAX)));
        }
        self.place.array(self.at, seq)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<P::Value, A::Error> {
        if self.at.path.depth() >= DEPTH_MAX {
            return Err(self.at.refuse(Problem::TooDeep(DEPTH_MAX)));
        }
        self.place.object(self.at, map)
    }
}

/// Reads every element of an array as the place that `each` makes; says how many there were.
pub(super) fn elements<'de, A: SeqAccess<'de>, P: Place<'de>>(
    at: At<'_>,
    mut seq: A,
    mut each: impl FnMut() -> P,
) -> Result<u64, A::Error> {
    let mut count = 0;
    loop {
        let path = Path::Index(at.path, count);
        if seq
            .next_element_seed(
                At {
                    cx: at.cx,
                    path: &path,
                }
                .seed(each()),
            )?
            .is_none()
        {
            return Ok(count as u64);
        }
        count += 1;
    }
}

/// An object's next name. `None` where there is none left.
pub(super) fn next_key<'de, A: MapAccess<'de>>(
    map: &mut A,
) -> Result<Option<std::borrow::Cow<'de, str>>, A::Error> {
    map.next_key_seed(Name)
}

#[derive(Debug)]
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = std::borrow::Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = std::borrow::Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }
    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(value.into())
    }
    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(value.to_owned().into())
    }
}

/// Which names of an object were seen: one that we read may stand there once, however it is escaped.
#[derive(Debug)]
pub(super) struct Once {
    names: &'static [&'static str],
    seen: u64,
}

impl Once {
    /// Up to 64 names.
    pub(super) const fn new(names: &'static [&'static str]) -> Self {
        Self { names, seen: 0 }
    }

    pub(super) fn check<E: de::Error>(&mut self, at: At<'_>, key: &str) -> Result<(), E> {
        let Some(index) = self.names.iter().position(|name| *name == key) else {
            // Some vendors match names without case, and the last one wins: such a name would say
            // something else to them than to us.
            return match self.names.iter().any(|name| folds_to(key, name)) {
                true => Err(at.refuse_field(key, Problem::Unsupported)),
                false => Ok(()),
            };
        };
        if self.seen & 1 << index != 0 {
            return Err(at.refuse_field(key, Problem::Duplicate));
        }
        self.seen |= 1 << index;
        Ok(())
    }
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

impl<T, F: FnOnce(&str) -> T> Place<'_> for Text<F> {
    type Value = T;
    const EXPECTED: &'static str = "string";

    fn string<E: de::Error>(self, _: At<'_>, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
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

impl Place<'_> for Count {
    type Value = Option<u64>;
    const EXPECTED: &'static str = "integer";

    fn null<E: de::Error>(self, _: At<'_>) -> Result<Option<u64>, E> {
        Ok(None)
    }
    fn number<E: de::Error>(self, at: At<'_>, value: Option<u64>) -> Result<Option<u64>, E> {
        match value {
            None => Err(at.refuse(Problem::WrongType(Self::EXPECTED))),
            Some(0) => Err(at.refuse(Problem::BelowMin(1))),
            Some(value) if value > self.max => Err(at.refuse(Problem::AboveMax(self.max))),
            Some(value) => Ok(Some(value)),
        }
    }
}

/// A boolean, or null for false.
#[derive(Debug)]
pub(super) struct Flag;

impl Place<'_> for Flag {
    type Value = bool;
    const EXPECTED: &'static str = "boolean";

    fn null<E: de::Error>(self, _: At<'_>) -> Result<bool, E> {
        Ok(false)
    }
    fn boolean<E: de::Error>(self, _: At<'_>, value: bool) -> Result<bool, E> {
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

impl<'de> Place<'de> for OnlyDefault {
    type Value = ();
    const EXPECTED: &'static str = "nothing";

    fn null<E: de::Error>(self, _: At<'_>) -> Result<(), E> {
        Ok(())
    }
    fn boolean<E: de::Error>(self, at: At<'_>, _: bool) -> Result<(), E> {
        Err(at.refuse(self.otherwise))
    }
    fn number<E: de::Error>(self, at: At<'_>, _: Option<u64>) -> Result<(), E> {
        Err(at.refuse(self.otherwise))
    }
    fn string<E: de::Error>(self, at: At<'_>, text: &str) -> Result<(), E> {
        if self.allowed.contains(&text) {
            Ok(())
        } else {
            Err(at.refuse(self.otherwise))
        }
    }
    fn array<A: SeqAccess<'de>>(self, at: At<'_>, seq: A) -> Result<(), A::Error> {
        let Self { allowed, otherwise } = self;
        elements(at, seq, || Self {
            allowed,
            otherwise: otherwise.clone(),
        })
        .map(drop)
    }
    fn object<A: MapAccess<'de>>(self, at: At<'_>, _: A) -> Result<(), A::Error> {
        Err(at.refuse(self.otherwise))
    }
}
