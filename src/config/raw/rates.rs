//! Tables of prices: the only list of the configuration's rate classes.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_layers::price::Class;

/// Declares the fields of a price table beyond the four that every price has.
macro_rules! raw_rates {
    ($($(#[$about:meta])* $field:ident: $class:ident,)*) => {
        /// Prices by rate class, in the currency of the table's name
        #[derive(Clone, Default, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields, expecting = "a table")]
        pub(in crate::config) struct RawRates {
            /// Ordinary input, per million tokens like the other rates of this table.
            pub(in crate::config) input: Option<String>,
            /// Input read from the vendor's cache.
            pub(in crate::config) cached_input: Option<String>,
            /// Output, including reasoning without a rate of its own.
            pub(in crate::config) output: Option<String>,
            /// Input written to the vendor's cache.
            pub(in crate::config) cache_write: Option<String>,
            $($(#[$about])* pub(in crate::config) $field: Option<String>,)*
        }

        impl RawRates {
            /// Returns the rates of the classes beyond the first four.
            pub(in crate::config) fn further(&self) -> impl Iterator<Item = (Class, &str)> {
                let rates = [$((Class::$class, self.$field.as_deref())),*];
                rates.into_iter().filter_map(|(class, rate)| Some((class, rate?)))
            }
        }
    };
}

raw_rates! {
    /// Input written to the vendor's cache for one hour (cache_control.ttl "1h"). If the model has no such rate, a call
    /// that requests it is refused with 400, or translated without it.
    cache_write_1h: CacheWrite1h,
    /// Input written to the vendor's cache for twelve hours (prompt_cache_options.ttl "12h"). If the model has no such
    /// rate, a call that requests it is refused with 400.
    cache_write_12h: CacheWrite12h,
    /// Audio input (input_audio); absent: a call with it is refused with 400.
    input_audio: InputAudio,
    /// Image input; absent: priced as other input.
    input_image: InputImage,
    /// Audio output (modalities, audio); absent: a call that requests it is refused with 400.
    output_audio: OutputAudio,
    /// Image output (modalities); absent: a call that requests it is refused with 400.
    output_image: OutputImage,
    /// Each web search that the vendor runs, not a million. If the model has no such rate, a call with such a tool is
    /// refused with 400.
    web_search_call: WebSearchCall,
}
