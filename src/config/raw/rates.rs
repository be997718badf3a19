//! Shape of price tables, for example `usdt_mtok`: one field per rate class.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_layers::price::Class;

/// Defines [`RawRates`] with the four rate classes that every price table has and the further classes listed in the
/// call.
macro_rules! raw_rates {
    ($($(#[$about:meta])* $field:ident: $class:ident,)*) => {
        /// Prices by rate class, in the currency that the table's name states (usdt or rub)
        #[derive(Clone, Default, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields, expecting = "a table")]
        pub(in crate::config) struct RawRates {
            /// Price of input that no other class of this table covers.
            pub(in crate::config) input: Option<String>,
            /// Price of input read from the vendor's cache.
            pub(in crate::config) cached_input: Option<String>,
            /// Price of output, including reasoning that has no separate price.
            pub(in crate::config) output: Option<String>,
            /// Price of input written to the vendor's cache for the vendor's default lifetime.
            pub(in crate::config) cache_write: Option<String>,
            $($(#[$about])* pub(in crate::config) $field: Option<String>,)*
        }

        impl RawRates {
            /// Returns the given rates of the further classes, without `input`, `cached_input`, `output` and
            /// `cache_write`.
            pub(in crate::config) fn further(&self) -> impl Iterator<Item = (Class, &str)> {
                let rates = [$((Class::$class, self.$field.as_deref())),*];
                rates.into_iter().filter_map(|(class, rate)| Some((class, rate?)))
            }
        }
    };
}

raw_rates! {
    /// Price of input written to the vendor's cache for one hour (cache_control.ttl "1h"). If the model has no such
    /// price and a vendor of the model uses the caller's format, a request for this lifetime gets 400. If no vendor of
    /// the model uses the caller's format, the input is cached for the vendor's default lifetime, or not at all.
    cache_write_1h: CacheWrite1h,
    /// Price of input written to the vendor's cache for twelve hours (prompt_cache_options.ttl "12h"). If the model has
    /// no such price and a vendor of the model uses the caller's format, a request for this lifetime gets 400. If no
    /// vendor of the model uses the caller's format, the lifetime is omitted.
    cache_write_12h: CacheWrite12h,
    /// Price of audio input read from the vendor's cache, if the vendor counts it separately. Absent: the price of
    /// input_audio.
    cached_input_audio: CachedInputAudio,
    /// Price of image input read from the vendor's cache, if the vendor counts it separately. Absent: the price of
    /// cached_input.
    cached_input_image: CachedInputImage,
    /// Price of audio input (input_audio in a request). If the model has no such price, a call with audio gets 400.
    input_audio: InputAudio,
    /// Price of image input. Absent: the price of input.
    input_image: InputImage,
    /// Price of audio output (modalities and audio in a request). If the model has no such price, a call that requests
    /// audio gets 400.
    output_audio: OutputAudio,
    /// Price of image output (modalities in a request). If the model has no such price, a call that requests images
    /// gets 400.
    output_image: OutputImage,
    /// Price of reasoning, if the vendor counts reasoning separately within the output. Absent: the price of output.
    output_reasoning: OutputReasoning,
    /// Price of one web search that the vendor runs. If the model has no such price, a call with a web search tool gets
    /// 400.
    web_search_call: WebSearchCall,
    /// Fee for each charged call (per call, not per million), in addition to the price of its tokens. Absent: no fee.
    request_call: RequestCall,
}
