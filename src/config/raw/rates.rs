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
            /// Input that no other rate of this table covers.
            pub(in crate::config) input: Option<String>,
            /// Input read from the vendor's cache.
            pub(in crate::config) cached_input: Option<String>,
            /// Output, including reasoning without a rate of its own.
            pub(in crate::config) output: Option<String>,
            /// Input written to the vendor's cache for the vendor's usual time.
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
    /// Input written to the vendor's cache for one hour (cache_control.ttl "1h"). If the model's price has no such rate,
    /// a request for it gets 400 if a vendor of the model speaks the caller's format; otherwise the call is translated,
    /// with the usual time or without the mark.
    cache_write_1h: CacheWrite1h,
    /// Input written to the vendor's cache for twelve hours (prompt_cache_options.ttl "12h"). If the model's price has
    /// no such rate, a request for it gets 400 if a vendor of the model speaks the caller's format; otherwise the call
    /// is translated without it.
    cache_write_12h: CacheWrite12h,
    /// Audio input read from the vendor's cache, if the vendor counts it separately. Absent: the rate of input_audio.
    cached_input_audio: CachedInputAudio,
    /// Image input read from the vendor's cache, if the vendor counts it separately. Absent: the rate of cached_input.
    cached_input_image: CachedInputImage,
    /// Audio input (input_audio). If the model's price has no such rate, a call with audio is refused with 400.
    input_audio: InputAudio,
    /// Image input. Absent: the rate of input.
    input_image: InputImage,
    /// Audio output (modalities, audio). If the model's price has no such rate, a call that requests audio is refused
    /// with 400.
    output_audio: OutputAudio,
    /// Image output (modalities). If the model's price has no such rate, a call that requests images is refused with
    /// 400.
    output_image: OutputImage,
    /// Reasoning, if the vendor counts it within the output. Absent: the rate of output.
    output_reasoning: OutputReasoning,
    /// Web searches that the vendor runs, per search. If the model's price has no such rate, a call with such a tool is
    /// refused with 400.
    web_search_call: WebSearchCall,
    /// Fee for each call that is charged, in addition to its tokens. Absent: no fee.
    request_call: RequestCall,
}
