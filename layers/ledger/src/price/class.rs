//! Rate classes that a model may have in addition to the four rate classes that every model has.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap,
};

use super::Rate;

/// Declares the classes, one per row: documentation, variant, name, unit, and the class that takes the usage if a price
/// has no rate for this class.
macro_rules! classes {
    ($($(#[$about:meta])* $class:ident $name:literal $kind:ident $within:expr;)*) => {
        /// A class of usage that some vendors bill separately from the four classes of [`Usage`](crate::usage::Usage).
        /// A token that is counted in one of these classes is not also counted in one of the four.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Class {
            $($(#[$about])* $class,)*
        }

        const COUNT: usize = [$($name),*].len();

        impl Class {
            /// All classes, in the order in which they are displayed.
            pub const ALL: [Self; COUNT] = [$(Self::$class),*];

            /// Returns the name of the class, as it appears in configuration, catalog, receipts and metrics.
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

            /// Returns the class that takes the usage of this class if a price has no rate for this class. `None` if
            /// every price of a model that uses this class must have a rate for it.
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
    /// Input tokens that the vendor writes to a cache entry that lives for one hour.
    CacheWrite1h "cache_write_1h" Input None;
    /// Input tokens that the vendor writes to a cache entry that lives for twelve hours.
    CacheWrite12h "cache_write_12h" Input None;
    /// Tokens of audio input that the vendor read from its cache.
    CachedInputAudio "cached_input_audio" Input Some(Within::Class(Class::InputAudio));
    /// Tokens of image input that the vendor read from its cache.
    CachedInputImage "cached_input_image" Input Some(Within::CachedInput);
    /// Tokens of audio input that was not read from the vendor's cache.
    InputAudio "input_audio" Input None;
    /// Tokens of image input that was not read from the vendor's cache.
    InputImage "input_image" Input Some(Within::Input);
    /// Tokens of audio output.
    OutputAudio "output_audio" Output None;
    /// Tokens of image output.
    OutputImage "output_image" Output None;
    /// Reasoning tokens, if a price has a separate rate for them.
    OutputReasoning "output_reasoning" Output Some(Within::Output);
    /// Web searches that the vendor ran for the model; counted in searches, not in tokens.
    WebSearchCall "web_search_call" Call None;
    /// The call itself, for prices that have a fee per call.
    RequestCall "request_call" Call Some(Within::Nothing);
}

/// The unit in which a class is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Input tokens. If a price has no rate for such a class, its tokens are charged at the highest input rate of the
    /// price.
    Input,
    /// Output tokens. If a price has no rate for such a class, its tokens are charged at the highest output rate of the
    /// price.
    Output,
    /// Calls, or uses of a tool that the vendor runs. The rate is per call or use, not per million tokens.
    Call,
}

/// The class that takes the usage of another class for which a price has no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// Ordinary input (`Usage::input`).
    Input,
    /// Input from the vendor's cache (`Usage::cached_input`).
    CachedInput,
    /// Ordinary output (`Usage::output`).
    Output,
    /// Another class of [`Class`].
    Class(Class),
    /// No class: if the price has no rate, the usage is free.
    Nothing,
}

impl Class {
    /// Returns the class with the name `name`, if there is such a class.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Returns the largest count of this class that a call can have if it requests the counts `requested`. A count of
    /// tokens has no upper bound here: as in [`Extras::classes`](super::Extras::classes), any count but zero only means
    /// that the class may occur.
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

/// A value per class. Most classes have the default value. The JSON form is an object that contains only the classes
/// with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByClass<T>([T; COUNT]);

/// How many tokens or uses each class has.
pub type Counts = ByClass<u64>;

/// The rate of each class; `None` for a class without a rate.
pub type Rates = ByClass<Option<Rate>>;

impl<T: Copy + Default + PartialEq> ByClass<T> {
    /// Returns the value of the class `class`.
    #[must_use]
    pub const fn get(&self, class: Class) -> T {
        self.0[class as usize]
    }

    /// Returns a copy in which the class `class` has the value `value`.
    #[must_use]
    pub const fn with(mut self, class: Class, value: T) -> Self {
        self.0[class as usize] = value;
        self
    }

    /// Returns a mutable reference to the value of the class `class`.
    pub const fn get_mut(&mut self, class: Class) -> &mut T {
        &mut self.0[class as usize]
    }

    /// Returns whether every class has the default value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [T::default(); COUNT]
    }

    /// Returns the classes whose value is not the default, in display order.
    pub fn iter(&self) -> impl Iterator<Item = (Class, T)> + '_ {
        Class::ALL
            .into_iter()
            .zip(self.0)
            .filter(|(_, value)| *value != T::default())
    }
}

impl Counts {
    /// Returns the sum of the counts of all classes with the unit `kind`.
    #[must_use]
    pub fn total(&self, kind: Kind) -> u64 {
        // Fast path: most calls use none of these classes.
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

/// Reads a value per class and skips class names that this version does not know. Skipping them is safe in receipts,
/// which store the amount of money separately.
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
    fn each_rate_class_has_a_distinct_name_that_is_parsed_back() {
        for (index, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, index);
            assert_eq!(Class::named(class.name()), Some(class));
            assert_eq!(class.to_string(), class.name());
        }
        assert_eq!(Class::named("input"), None);
    }

    #[test]
    fn written_json_omits_rate_classes_with_default_values_and_read_json_may_have_unknown_ones() {
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
