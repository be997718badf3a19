//! Rate classes in addition to the four that every model has.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap,
};

use super::Rate;

/// Declares the classes: a sentence, the variant, its name, its unit, and where it counts without a rate.
macro_rules! classes {
    ($($(#[$about:meta])* $class:ident $name:literal $kind:ident $within:expr;)*) => {
        /// A class of usage that some vendors bill separately from the four classes of [`Usage`](crate::usage::Usage). A
        /// token that is counted here is not counted there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Class {
            $($(#[$about])* $class,)*
        }

        const COUNT: usize = [$($name),*].len();

        impl Class {
            /// All classes, in display order.
            pub const ALL: [Self; COUNT] = [$(Self::$class),*];

            /// Returns the class's name in configuration, catalog, receipts and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$class => $name,)*
                }
            }

            /// Returns the unit in which the class is counted.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$class => Kind::$kind,)*
                }
            }

            /// Returns where usage of the class is counted if a price has no rate for it; `None` for a class that must
            /// have a rate.
            #[must_use]
            pub const fn within(self) -> Option<Within> {
                match self {
                    $(Self::$class => $within,)*
                }
            }
        }
    };
}

classes! {
    /// Input written to a cache that keeps it for one hour.
    CacheWrite1h "cache_write_1h" Input None;
    /// Input written to a cache that keeps it for twelve hours.
    CacheWrite12h "cache_write_12h" Input None;
    /// The tokens of audio input that the vendor read from its cache.
    CachedInputAudio "cached_input_audio" Input Some(Within::Class(Class::InputAudio));
    /// The tokens of image input that the vendor read from its cache.
    CachedInputImage "cached_input_image" Input Some(Within::CachedInput);
    /// The tokens of audio input.
    InputAudio "input_audio" Input None;
    /// The tokens of image input.
    InputImage "input_image" Input Some(Within::Input);
    /// The tokens of audio output.
    OutputAudio "output_audio" Output None;
    /// The tokens of image output.
    OutputImage "output_image" Output None;
    /// The tokens of reasoning, if a price distinguishes them from other output.
    OutputReasoning "output_reasoning" Output Some(Within::Output);
    /// Web searches that the vendor ran for the model. Counted in calls, not in tokens.
    WebSearchCall "web_search_call" Call None;
    /// The call itself, if a price has a fee for it.
    RequestCall "request_call" Call Some(Within::Nothing);
}

/// The unit in which a class is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Input tokens. A class without a rate is charged at the dearest input rate.
    Input,
    /// Output tokens. A class without a rate is charged at the dearest output rate.
    Output,
    /// Calls of a tool that the vendor runs. The rate is per call.
    Call,
}

/// Where usage is counted if a price does not distinguish its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// In ordinary input.
    Input,
    /// In cached input.
    CachedInput,
    /// In ordinary output.
    Output,
    /// In another class.
    Class(Class),
    /// Nowhere: without a rate it is free.
    Nothing,
}

impl Class {
    /// Returns the class with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Returns the largest count of the class in a call that may use `asked`. As in
    /// [`Asked::classes`](super::Asked::classes), a count of tokens only states whether the class may occur.
    pub(super) const fn possible(self, requested: &Counts) -> u64 {
        match self {
            Self::CachedInputAudio => requested.get(Self::InputAudio),
            Self::CachedInputImage => requested.get(Self::InputImage),
            Self::OutputReasoning | Self::RequestCall => 1,
            asked_for => requested.get(asked_for),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value per class. Most classes have the default. As JSON: an object with only the classes that have another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByClass<T>([T; COUNT]);

/// A number for each class, of tokens or of calls.
pub type Counts = ByClass<u64>;

/// Rates by class; `None` for a class that is not sold.
pub type Rates = ByClass<Option<Rate>>;

impl<T: Copy + Default + PartialEq> ByClass<T> {
    /// Returns the value of a class.
    #[must_use]
    pub const fn get(&self, class: Class) -> T {
        self.0[class as usize]
    }

    /// Returns a copy with another value for one class.
    #[must_use]
    pub const fn with(mut self, class: Class, value: T) -> Self {
        self.0[class as usize] = value;
        self
    }

    /// Returns the value of a class, to be changed.
    pub const fn get_mut(&mut self, class: Class) -> &mut T {
        &mut self.0[class as usize]
    }

    /// Returns whether every class has the default value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [T::default(); COUNT]
    }

    /// Returns the classes with another value than the default, in display order.
    pub fn iter(&self) -> impl Iterator<Item = (Class, T)> + '_ {
        Class::ALL
            .into_iter()
            .zip(self.0)
            .filter(|(_, value)| *value != T::default())
    }
}

impl Counts {
    /// Returns the sum of all counts of one unit.
    #[must_use]
    pub fn total(&self, kind: Kind) -> u64 {
        // Most calls use none of these classes, so this is checked first.
        if self.is_empty() {
            return 0;
        }
        Class::ALL
            .into_iter()
            .zip(self.0)
            .filter(|(class, _)| class.kind() == kind)
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }
}

impl<T: Default> Default for ByClass<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| T::default()))
    }
}

impl<T: Copy + Default + PartialEq> FromIterator<(Class, T)> for ByClass<T> {
    fn from_iter<I: IntoIterator<Item = (Class, T)>>(classes: I) -> Self {
        classes
            .into_iter()
            .fold(Self::default(), |all, (class, value)| {
                all.with(class, value)
            })
    }
}

impl<T: Copy + Default + PartialEq + Serialize> Serialize for ByClass<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (class, value) in self.iter() {
            map.serialize_entry(class.name(), &value)?;
        }
        map.end()
    }
}

/// Reads a value per class and ignores classes that a later version has added. Receipts store the amount of money
/// separately.
impl<'de, T: Copy + Default + PartialEq + Deserialize<'de>> Deserialize<'de> for ByClass<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<T>(std::marker::PhantomData<T>);

        impl<'de, T: Copy + Default + PartialEq + Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = ByClass<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of rate classes")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ByClass<T>, A::Error> {
                let mut all = ByClass::default();
                while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    match Class::named(&name) {
                        Some(class) => *all.get_mut(class) = map.next_value()?,
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(all)
            }
        }

        deserializer
            .deserialize_map(Object(std::marker::PhantomData))
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_names_are_parsed_and_indexed_consistently() {
        for (index, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, index);
            assert_eq!(Class::named(class.name()), Some(class));
            assert_eq!(class.to_string(), class.name());
        }
        assert_eq!(Class::named("input"), None);
    }

    #[test]
    fn absent_classes_are_omitted_and_unknown_classes_ignored() {
        let counts = Counts::default()
            .with(Class::WebSearchCall, 2)
            .with(Class::CacheWrite1h, 7);
        let json = r#"{"cache_write_1h":7,"web_search_call":2}"#;
        assert_eq!(serde_json::to_string(&counts).unwrap(), json);
        let later = r#"{"cache_write_1h":7,"smell":{"x":[1]},"web_search_call":2}"#;
        for json in [json, later] {
            assert_eq!(serde_json::from_str::<Counts>(json).unwrap(), counts);
        }
        assert_eq!(
            (counts.total(Kind::Input), counts.total(Kind::Call)),
            (7, 2)
        );
        let rates: Rates = serde_json::from_str(r#"{"input_audio":"1.50"}"#).unwrap();
        assert_eq!(rates.get(Class::InputAudio), Some(Rate::new(1_500_000)));
        assert_eq!(
            serde_json::to_string(&rates).unwrap(),
            r#"{"input_audio":"1.50"}"#
        );
        assert!(serde_json::from_str::<Counts>(r#"{"input_audio":"x"}"#).is_err());
    }
}
