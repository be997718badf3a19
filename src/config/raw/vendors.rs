//! Vendors, models, their prices and the customers' price rules.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::rates::RawRates;

/// `[[vendor]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawVendor {
    /// Preset whose settings apply to fields that are not written here, like "deepseek": `tollgate preset list`;
    /// absent: only what is written.
    pub(in crate::config) preset: Option<String>,
    /// Name of the vendor, for routes.
    pub(in crate::config) name: Option<String>,
    /// Format that the vendor speaks: "chat", "messages" or "responses".
    pub(in crate::config) format: Option<String>,
    /// Several formats instead of format: a call uses the caller's own format if it is listed, else the first one.
    pub(in crate::config) formats: Option<Vec<String>>,
    /// Base URL: POST {url}/chat/completions, {url}/v1/messages or {url}/responses.
    pub(in crate::config) url: Option<String>,
    /// Path of calls after url, instead of the format's own; {model} is replaced by the vendor's name of the model, like
    /// "/deployments/{model}/chat/completions"; absent: the format's own.
    pub(in crate::config) path: Option<String>,
    /// Query of calls, like { api-version = "2024-10-21" }.
    pub(in crate::config) query: BTreeMap<String, String>,
    /// Headers of calls, like { OpenAI-Project = "proj_1" }; a value may be a secret.
    pub(in crate::config) headers: BTreeMap<String, String>,
    /// API key at the vendor; a secret.
    pub(in crate::config) key: Option<String>,
    /// Several API keys instead of key, used in turn; secrets.
    pub(in crate::config) keys: Option<Vec<String>>,
    /// How requests are authenticated; absent: by key, in the header of the format.
    pub(in crate::config) login: Option<RawLogin>,
    /// If a client leaves its stream: "cancel" closes the vendor's stream, and the output so far is charged; "drain"
    /// reads it to the end, and all that the vendor counts is charged; "cancel".
    pub(in crate::config) on_disconnect: Option<String>,
    /// Messages vendors: names in the caller's anthropic-beta header that begin with one of these are not forwarded,
    /// because they change the price; ["context-1m"].
    pub(in crate::config) betas_removed: Option<Vec<String>>,
    /// Proxy for connections to the vendor: http://host:port or socks5://host:port; with a password, a secret.
    pub(in crate::config) proxy: Option<String>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(in crate::config) ca_file: Option<String>,
    /// Uses HTTP/2 if the vendor offers it; false.
    pub(in crate::config) http2: Option<bool>,
    /// Maximum number of concurrent calls; 1024.
    pub(in crate::config) connections_max: Option<u64>,
    /// Timeout for connecting; 3.
    pub(in crate::config) connect_seconds: Option<u64>,
    /// Timeout for the head of a streamed answer; 120.
    pub(in crate::config) first_byte_seconds: Option<u64>,
    /// Timeout from the request to the head of an answer that is not streamed, which a vendor sends after the last
    /// token; default: limits.call_seconds.
    pub(in crate::config) plain_seconds: Option<u64>,
    /// How long the head of a stream waits for the first event before the caller gets it; until then an error keeps its
    /// status and the next route can be tried; 0: the caller gets it at once; 30.
    pub(in crate::config) head_seconds: Option<u64>,
    /// Maximum time between two frames of an answer; 120.
    pub(in crate::config) idle_seconds: Option<u64>,
    /// Idle time after which a pooled connection is closed; 50.
    pub(in crate::config) idle_connection_seconds: Option<u64>,
}

/// `vendor.login`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawLogin {
    /// "key"; "none"; "command": a token that a program prints; "oauth": client credentials; "service_account": a key file
    /// of Google or Yandex Cloud; "aws": signed requests; "key".
    pub(in crate::config) kind: Option<String>,
    /// Header that carries the key or token, like "api-key"; default: authorization, or x-api-key for a key of the
    /// messages format.
    pub(in crate::config) header: Option<String>,
    /// Text before the key or token in its header, like "Api-Key "; default: none if header is set or the header is
    /// x-api-key, else "Bearer ".
    pub(in crate::config) prefix: Option<String>,
    /// command, aws: program that prints the token, or keys of AWS as `aws configure export-credentials` does, with its
    /// arguments; run without a shell, for at most 15 seconds.
    pub(in crate::config) command: Option<Vec<String>>,
    /// command, aws: interval at which the program is run again; default: half an hour.
    pub(in crate::config) refresh_seconds: Option<u64>,
    /// oauth: token endpoint. service_account: token endpoint instead of the vendor's. aws: metadata service instead of
    /// http://169.254.169.254.
    pub(in crate::config) url: Option<String>,
    /// oauth: key for Basic authentication at url, like GigaChat's authorization key; a secret.
    pub(in crate::config) basic: Option<String>,
    /// oauth: client id, sent in the body; with client_secret instead of basic.
    pub(in crate::config) client_id: Option<String>,
    /// oauth: client secret, sent in the body; a secret.
    pub(in crate::config) client_secret: Option<String>,
    /// oauth, service_account: scope of the token; default for Google: https://www.googleapis.com/auth/cloud-platform.
    pub(in crate::config) scope: Option<String>,
    /// oauth: field grant_type of the request for a token; "": none; "client_credentials".
    pub(in crate::config) grant_type: Option<String>,
    /// oauth: header that carries a new UUID per request for a token, like "RqUID"; absent: none.
    pub(in crate::config) request_id_header: Option<String>,
    /// service_account: the key file that the vendor issued, in JSON; a secret.
    pub(in crate::config) key_file: Option<String>,
    /// aws: region, like "us-east-1".
    pub(in crate::config) region: Option<String>,
    /// aws: service that requests are signed for; "bedrock".
    pub(in crate::config) service: Option<String>,
    /// aws: id of an access key; absent: keys of command, or of the role of the instance.
    pub(in crate::config) access_key_id: Option<String>,
    /// aws: secret of the access key; a secret.
    pub(in crate::config) secret_access_key: Option<String>,
    /// aws: token of a temporary access key; a secret.
    pub(in crate::config) session_token: Option<String>,
}

/// `[[model]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawModel {
    /// Preset whose id, limits, prices and route apply to fields that are not written here, like "deepseek-flash" or
    /// "deepseek/deepseek-flash"; absent: only what is written.
    pub(in crate::config) preset: Option<String>,
    /// Name that callers put in the field model.
    pub(in crate::config) id: Option<String>,
    /// Name of the model's family, for display.
    pub(in crate::config) family: Option<String>,
    /// "chat" or "embedding"; an embedding model has only a price of input, no output_tokens_max, and vendors of the
    /// format "chat"; "chat".
    pub(in crate::config) kind: Option<String>,
    /// Name shown in lists of models that people choose from; default: the id.
    pub(in crate::config) display_name: Option<String>,
    /// Description shown before the price in lists of models that people choose from; absent: only the price.
    pub(in crate::config) description: Option<String>,
    /// Base prices, in USDT per million tokens unless a class states otherwise.
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Base prices in rubles per million tokens instead of usdt_mtok: they do not follow the exchange rate.
    pub(in crate::config) rub_mtok: Option<RawRates>,
    /// Base prices that apply under conditions. All conditions of a rule must be met. A rule has the same classes as
    /// usdt_mtok.
    pub(in crate::config) price_rules: Vec<RawPriceRule>,
    /// Largest number of output tokens that a call may request.
    pub(in crate::config) output_tokens_max: Option<u64>,
    /// If the money is too short for a call that sets no output limit, the gateway lowers the limit, but not below this
    /// many tokens: then it refuses the call; 256.
    pub(in crate::config) output_tokens_min: Option<u64>,
    /// Output limit of a call that sets none, in tokens; absent: output_tokens_max, so that one call may hold the whole
    /// of a small balance.
    pub(in crate::config) output_tokens_default: Option<u64>,
    /// Largest number of output tokens that the model generates per second, reasoning included, at any of its vendors;
    /// needed for holds that grow; absent: unknown.
    pub(in crate::config) output_tokens_per_second_max: Option<u64>,
    /// "whole": a hold covers the whole output limit from the start; "growing": the hold of a stream covers a part of
    /// the output and is raised ahead of need, and if the money is short, the stream ends as at its output limit. Not
    /// for vendors with on_disconnect = "drain", nor for vendors that bill output after a cancellation; "whole".
    pub(in crate::config) hold: Option<String>,
    /// Context window in tokens, which bounds what a call holds; absent: not known, and calls with documents of unknown
    /// size are refused with 400.
    pub(in crate::config) input_tokens_max: Option<u64>,
    /// Largest input, in tokens, that the model's price applies to, for vendors that bill longer input at other rates: a call
    /// whose input may be longer, by the bound of its hold, is refused with 400; absent: unlimited.
    pub(in crate::config) input_tokens_priced_max: Option<u64>,
    /// Chat vendors: the field for the limit of output tokens that the model accepts, "max_completion_tokens" or
    /// "max_tokens"; "max_completion_tokens".
    pub(in crate::config) output_field: Option<String>,
    /// Role of instructions sent to vendors, "system" or "developer"; absent: the caller's own role if the vendor
    /// speaks the caller's format, else "system".
    pub(in crate::config) system_role: Option<String>,
    /// false: calls translated to the chat or responses format are sent without reasoning_effort (reasoning.effort);
    /// calls in the vendor's own format keep it; true.
    pub(in crate::config) reasoning_effort: Option<bool>,
    /// false: translated calls are sent without temperature, top_p and top_k; calls in the vendor's own format keep
    /// them; true.
    pub(in crate::config) sampling: Option<bool>,
    /// Messages vendors: how translated calls request reasoning, "effort" (output_config.effort), "budget"
    /// (thinking.budget_tokens) or "none" (the model does not reason); "effort".
    pub(in crate::config) thinking: Option<String>,
    /// false: a translated call that requests structured output (a JSON schema) is refused with 400; calls in the
    /// vendor's own format are forwarded; true.
    pub(in crate::config) json_schema: Option<bool>,
    /// true: calls translated from the responses to the chat format keep text.verbosity, as verbosity; false: they are
    /// sent without it; false.
    pub(in crate::config) verbosity: Option<bool>,
    /// Responses vendors. true: if a messages caller requests thinking, they are requested to return a summary of their
    /// reasoning; false: for models that refuse this; true.
    pub(in crate::config) reasoning_summary: Option<bool>,
    /// Responses vendors. true: for callers that can send it back with the next call, they are requested to return
    /// their reasoning, encrypted (include: reasoning.encrypted_content); false: for models that refuse this; true.
    pub(in crate::config) encrypted_reasoning: Option<bool>,
    /// Marks (cache_control) up to which a messages vendor caches a translated call: "auto" adds them if the caller
    /// sets none, "never" forwards only the caller's; cache writes cost the rate cache_write; "auto".
    pub(in crate::config) cache_marks: Option<String>,
    /// true: tools are sent to a chat vendor as functions, as GigaChat requires; false.
    pub(in crate::config) functions: Option<bool>,
    /// Translated calls to chat and responses vendors. true: they carry the caller's prompt_cache_key, or else a hash
    /// of the session; false: they carry none; absent: the caller's own, and the hash only for responses vendors.
    pub(in crate::config) prompt_cache_key: Option<bool>,
    /// Keeps a conversation on its route; false.
    pub(in crate::config) sticky: Option<bool>,
    /// Routes to vendors. A call takes the first route that is healthy, and the next one if that fails before it answers.
    pub(in crate::config) routes: Vec<RawRoute>,
}

/// `model.price_rules[]`: all conditions of a rule must be met
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawPriceRule {
    /// The call has more input tokens than this, counting also those read from and written to the cache; the rule then
    /// prices all tokens of the call.
    pub(in crate::config) above_input_tokens: Option<u64>,
    /// The call ran on this service tier, like "flex". A request for a tier that no rule in model.price_rules names is
    /// refused with 400.
    pub(in crate::config) service_tier: Option<String>,
    /// The call ran at this speed, like "fast". A request for a speed that no rule in model.price_rules names is
    /// refused with 400.
    pub(in crate::config) speed: Option<String>,
    /// The call ran in this region, like "us". A request for a region that no rule in model.price_rules names is
    /// refused with 400.
    pub(in crate::config) inference_geo: Option<String>,
    /// Hours of the day in UTC, like ["01:00-04:00", "06:00-10:00"]: each from its first minute to before its last; a
    /// span may continue after midnight; absent: all hours.
    pub(in crate::config) hours_utc: Vec<String>,
    /// Days in UTC, like ["mon", "tue", "wed", "thu", "fri"]; after midnight the next day counts; absent: all days.
    pub(in crate::config) weekdays: Vec<String>,
    /// The moment of the call that hours_utc and weekdays are compared with: "request" (its arrival), "first_byte" (the
    /// beginning of the vendor's answer) or "end" (the end of the answer); the same in all rules of a list; absent: "request".
    pub(in crate::config) hours_at: Option<String>,
    /// Time at which these prices come into force, for calls whose request arrives then or later, like
    /// "2027-01-01T00:00:00Z"; absent: they are in force already.
    pub(in crate::config) valid_from: Option<String>,
    /// Base prices under these conditions, in USDT per million tokens unless a class states otherwise.
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Base prices in rubles, if the usual price is in rubles.
    pub(in crate::config) rub_mtok: Option<RawRates>,
}

/// `[[account_group]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawAccountGroup {
    /// Name of the group, for price rules.
    pub(in crate::config) name: Option<String>,
    /// Ids of the accounts; they need not exist yet.
    pub(in crate::config) accounts: Vec<String>,
}

/// `[[price_rule]]`: prices of some models for some accounts
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawCustomerRule {
    /// Name of the rule; shown on receipts, also to callers.
    pub(in crate::config) name: Option<String>,
    /// Ids of the accounts, or ["*"] for all. For each model, a rule with the account's id comes first, then a rule
    /// with its group, then "*".
    pub(in crate::config) accounts: Vec<String>,
    /// Groups whose accounts the rule applies to.
    pub(in crate::config) groups: Vec<String>,
    /// Models: ids, prefixes like "gpt-5-*", or "*".
    pub(in crate::config) models: Vec<String>,
    /// Price in rubles = usdt_mtok × rubles per USDT ([rate]) × this multiplier; default: tariff.sell_rate_multiplier. A
    /// rule has a multiplier, or base prices, or both.
    pub(in crate::config) sell_rate_multiplier: Option<String>,
    /// Price in rubles = rub_mtok × this multiplier; default: tariff.sell_rub_multiplier.
    pub(in crate::config) sell_rub_multiplier: Option<String>,
    /// Base prices that replace the models' own, with the same classes, in USDT per million tokens unless a class states
    /// otherwise; default: the models' own.
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Base prices in rubles instead of usdt_mtok, also for models whose own prices are in USDT.
    pub(in crate::config) rub_mtok: Option<RawRates>,
    /// With base prices only: base prices under conditions, which must cover all conditions that the models have.
    pub(in crate::config) price_rules: Vec<RawPriceRule>,
}

/// `model.routes[]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawRoute {
    /// Preset of a model whose name and costs at the vendor apply if they are not written here; absent: only what is
    /// written.
    pub(in crate::config) preset: Option<String>,
    /// Name of the vendor.
    pub(in crate::config) vendor: Option<String>,
    /// The vendor's name of the model; default: the id.
    pub(in crate::config) model: Option<String>,
    /// Share of calls among routes of the same priority; if all weights are equal, calls go to the route with less
    /// load; 1.
    pub(in crate::config) weight: Option<u64>,
    /// Priority; routes with the lowest number are tried first; 0.
    pub(in crate::config) priority: Option<u64>,
    /// The vendor's own prices, in USDT per million tokens, never shown to callers; absent: not known.
    pub(in crate::config) cost_usdt_mtok: Option<RawRates>,
    /// The vendor's own prices in rubles instead of cost_usdt_mtok, whatever the currency of the model's price.
    pub(in crate::config) cost_rub_mtok: Option<RawRates>,
    /// The vendor's own prices under conditions. All conditions of a rule must be met. A rule has the same classes as
    /// cost_usdt_mtok.
    pub(in crate::config) cost_rules: Vec<RawPriceRule>,
    /// Field in which the gateway sends its output limit: "max_completion_tokens" or "max_tokens"; absent: as in the
    /// model.
    pub(in crate::config) output_field: Option<String>,
    /// Role of instructions, "system" or "developer"; absent: as in the model.
    pub(in crate::config) system_role: Option<String>,
    /// false: calls translated to the chat or responses format are sent without reasoning_effort (reasoning.effort);
    /// calls in the vendor's own format keep it; absent: as in the model.
    pub(in crate::config) reasoning_effort: Option<bool>,
    /// false: translated calls are sent without temperature, top_p and top_k; calls in the vendor's own format keep
    /// them; absent: as in the model.
    pub(in crate::config) sampling: Option<bool>,
    /// How thinking is requested: "effort", "budget" or "none"; absent: as in the model.
    pub(in crate::config) thinking: Option<String>,
    /// false: a translated call that requests structured output (a JSON schema) is refused with 400; calls in the
    /// vendor's own format are forwarded; absent: as in the model.
    pub(in crate::config) json_schema: Option<bool>,
    /// true: verbosity is forwarded in the chat format; absent: as in the model.
    pub(in crate::config) verbosity: Option<bool>,
    /// false: a vendor of the responses format is not requested to summarise its reasoning; absent: as in the model.
    pub(in crate::config) reasoning_summary: Option<bool>,
    /// false: a vendor of the responses format is not requested to return its reasoning, encrypted; absent: as in the
    /// model.
    pub(in crate::config) encrypted_reasoning: Option<bool>,
    /// Cache marks for a messages vendor: "auto" or "never"; absent: as in the model.
    pub(in crate::config) cache_marks: Option<String>,
    /// true: tools are sent to a chat vendor as functions, as GigaChat requires; default: the model's.
    pub(in crate::config) functions: Option<bool>,
    /// Translated calls to chat and responses vendors. true: they carry the caller's prompt_cache_key, or else a hash
    /// of the session; false: they carry none; absent: as in the model.
    pub(in crate::config) prompt_cache_key: Option<bool>,
}

/// Settings of a vendor's dialect, of a model or a route. Not `serde(flatten)`, which would accept unknown fields.
pub(in crate::config) struct RawDialect<'a> {
    pub(in crate::config) output_field: Option<&'a str>,
    pub(in crate::config) system_role: Option<&'a str>,
    pub(in crate::config) reasoning_effort: Option<bool>,
    pub(in crate::config) sampling: Option<bool>,
    pub(in crate::config) thinking: Option<&'a str>,
    pub(in crate::config) json_schema: Option<bool>,
    pub(in crate::config) verbosity: Option<bool>,
    pub(in crate::config) reasoning_summary: Option<bool>,
    pub(in crate::config) encrypted_reasoning: Option<bool>,
    pub(in crate::config) cache_marks: Option<&'a str>,
    pub(in crate::config) functions: Option<bool>,
    pub(in crate::config) prompt_cache_key: Option<bool>,
}

impl RawModel {
    pub(in crate::config) fn dialect(&self) -> RawDialect<'_> {
        RawDialect {
            output_field: self.output_field.as_deref(),
            system_role: self.system_role.as_deref(),
            reasoning_effort: self.reasoning_effort,
            sampling: self.sampling,
            thinking: self.thinking.as_deref(),
            json_schema: self.json_schema,
            verbosity: self.verbosity,
            reasoning_summary: self.reasoning_summary,
            encrypted_reasoning: self.encrypted_reasoning,
            cache_marks: self.cache_marks.as_deref(),
            functions: self.functions,
            prompt_cache_key: self.prompt_cache_key,
        }
    }
}

impl RawRoute {
    pub(in crate::config) fn dialect(&self) -> RawDialect<'_> {
        RawDialect {
            output_field: self.output_field.as_deref(),
            system_role: self.system_role.as_deref(),
            reasoning_effort: self.reasoning_effort,
            sampling: self.sampling,
            thinking: self.thinking.as_deref(),
            json_schema: self.json_schema,
            verbosity: self.verbosity,
            reasoning_summary: self.reasoning_summary,
            encrypted_reasoning: self.encrypted_reasoning,
            cache_marks: self.cache_marks.as_deref(),
            functions: self.functions,
            prompt_cache_key: self.prompt_cache_key,
        }
    }
}
