//! Vendors, models, their prices and the customers' price rules.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::rates::RawRates;

/// `[[vendor]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawVendor {
    /// Preset of a vendor, like "deepseek", which supplies all settings that are not written here (`tollgate preset
    /// list` lists the presets). Absent: no preset.
    pub(in crate::config) preset: Option<String>,
    /// Facts of your account that the preset needs, like { resource = "acme-eastus2" }. Each replaces the placeholder with
    /// its name in the preset's settings and in its names of models.
    pub(in crate::config) values: BTreeMap<String, String>,
    /// Name of the vendor, by which routes refer to it.
    pub(in crate::config) name: Option<String>,
    /// Format of the vendor's API: "chat", "messages" or "responses".
    pub(in crate::config) format: Option<String>,
    /// Several formats, instead of format. A call is sent in the caller's own format if it is listed, otherwise in the
    /// first one listed.
    pub(in crate::config) formats: Option<Vec<String>>,
    /// Base URL, to which the gateway appends /chat/completions, /v1/messages or /responses, by format. With several
    /// formats a /v1 at its end is not repeated.
    pub(in crate::config) url: Option<String>,
    /// Path that is appended to url instead of the format's own, like "/deployments/{model}/chat/completions"; {model}
    /// is replaced by the vendor's name of the model. It is only valid for a vendor with a single format. Absent: the
    /// format's own path.
    pub(in crate::config) path: Option<String>,
    /// Query parameters added to each call, like { api-version = "2024-10-21" }; they cannot be secrets.
    pub(in crate::config) query: BTreeMap<String, String>,
    /// Headers added to each call, like { OpenAI-Project = "proj_1" }; a value may be a secret.
    pub(in crate::config) headers: BTreeMap<String, String>,
    /// API key at the vendor; a secret. Not needed if login.kind is given and is not "key".
    pub(in crate::config) key: Option<String>,
    /// Several API keys, instead of key, used in turn; each is a secret.
    pub(in crate::config) keys: Option<Vec<String>>,
    /// How calls are authenticated, if not by a key in the usual header: authorization, or x-api-key in the messages
    /// format. Rows that begin with a kind apply only to a login of that kind.
    pub(in crate::config) login: Option<RawLogin>,
    /// Treatment of a stream whose client disconnects. "cancel": the gateway closes the vendor's stream, and charges
    /// the output so far. "drain": the gateway reads the stream to its end, and charges all that the vendor counts;
    /// "cancel".
    pub(in crate::config) on_disconnect: Option<String>,
    /// Messages format only: beginnings of names in the caller's header anthropic-beta. Names with these beginnings are
    /// not forwarded, because such betas change the price; ["context-1m"].
    pub(in crate::config) betas_removed: Option<Vec<String>>,
    /// Messages format only, for a vendor that expects the name of the model in the path instead of the body:
    /// "vertex-2023-10-16" or "bedrock-2023-05-31". The gateway sends it as the field anthropic_version of the body, in
    /// place of the field model. Absent: the body has the field model.
    pub(in crate::config) anthropic_version: Option<String>,
    /// Proxy for connections to the vendor: http://HOST:PORT or socks5://HOST:PORT. With a password (user:password@
    /// before the host), the whole URL must be a secret. Absent: no proxy.
    pub(in crate::config) proxy: Option<String>,
    /// PEM file with the certificate authorities to trust instead of Mozilla's list.
    pub(in crate::config) ca_file: Option<String>,
    /// true: HTTP/2 is used if the vendor offers it (always, if url begins with http:); false.
    pub(in crate::config) http2: Option<bool>,
    /// Maximum number of calls in flight at the vendor, where a stream counts until it ends. A further call goes to the
    /// model's next route; without another route it gets 503; 1024.
    pub(in crate::config) connections_max: Option<u64>,
    /// Timeout for connecting, including the proxy and TLS; 3.
    pub(in crate::config) connect_seconds: Option<u64>,
    /// Timeout from sending a call to the first byte of a streamed answer; 120.
    pub(in crate::config) first_byte_seconds: Option<u64>,
    /// Timeout from sending a call to the head of an answer that is not streamed, which vendors send only after the
    /// last token. Absent: limits.call_seconds, which applies in any case.
    pub(in crate::config) plain_seconds: Option<u64>,
    /// How long the gateway holds back the head of a stream to wait for the stream's first event. Until then, an error
    /// can be answered with its own status, and the next route can be tried. After this time the caller gets the head;
    /// 0: at once; 30.
    pub(in crate::config) head_seconds: Option<u64>,
    /// Maximum time without a byte in the body of a vendor's answer; then the answer is cut off; 120.
    pub(in crate::config) idle_seconds: Option<u64>,
    /// Time after which an unused connection to the vendor is closed; 50.
    pub(in crate::config) idle_connection_seconds: Option<u64>,
}

/// `vendor.login`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawLogin {
    /// Name of another login of the vendor's preset, like "entra" (`tollgate preset show` lists the logins). Absent: the
    /// preset's usual login.
    pub(in crate::config) preset: Option<String>,
    /// "key": by key or keys; "none": no authentication; "command": by a token that a program prints; "oauth": by a
    /// token for OAuth client credentials; "service_account": by a token for a key file of Google or Yandex Cloud;
    /// "aws": by signatures (AWS Signature Version 4); "key".
    pub(in crate::config) kind: Option<String>,
    /// Header that carries the key or token, like "api-key". Absent: authorization, or x-api-key for a key in the
    /// messages format.
    pub(in crate::config) header: Option<String>,
    /// Text before the key or token in its header, like "Api-Key ". If prefix is given without header, the header is
    /// authorization. Absent: no text if header is given or the header is x-api-key, otherwise "Bearer ".
    pub(in crate::config) prefix: Option<String>,
    /// Kind "command": program and arguments that print the token. Kind "aws", instead of access_key_id: program and
    /// arguments that print keys as `aws configure export-credentials` does. The program runs without a shell, for at
    /// most 15 seconds.
    pub(in crate::config) command: Option<Vec<String>>,
    /// Interval at which the program of command is run again; 1800.
    pub(in crate::config) refresh_seconds: Option<u64>,
    /// Kind "oauth": URL of the token endpoint. Kind "service_account": URL of the token endpoint, absent: the one of
    /// Google or Yandex Cloud. Kind "aws": URL of the metadata service, absent: http://169.254.169.254.
    pub(in crate::config) url: Option<String>,
    /// Kind "oauth": credentials for Basic authentication at url, encoded in base64, like GigaChat's authorization key;
    /// a secret.
    pub(in crate::config) basic: Option<String>,
    /// Kind "oauth", instead of basic: client id, sent with client_secret in the body of the request for a token. It
    /// may be written as a secret.
    pub(in crate::config) client_id: Option<String>,
    /// Kind "oauth": client secret that belongs to client_id; a secret.
    pub(in crate::config) client_secret: Option<String>,
    /// Kinds "oauth" and "service_account": scope of the token. Absent: no scope, or
    /// https://www.googleapis.com/auth/cloud-platform for a key file of Google.
    pub(in crate::config) scope: Option<String>,
    /// Kind "oauth": field grant_type of the request for a token; "": the request has no such field;
    /// "client_credentials".
    pub(in crate::config) grant_type: Option<String>,
    /// Kind "oauth": header that carries a new UUID in each request for a token, like "RqUID". Absent: no such header.
    pub(in crate::config) request_id_header: Option<String>,
    /// Kind "service_account": content of the JSON key file that Google or Yandex Cloud issued; a secret, like
    /// "file:/etc/tollgate/google.json".
    pub(in crate::config) key_file: Option<String>,
    /// Kind "aws": region, like "us-east-1".
    pub(in crate::config) region: Option<String>,
    /// Kind "aws": service for which requests are signed; "bedrock".
    pub(in crate::config) service: Option<String>,
    /// Kind "aws": id of an access key; it may be written as a secret. Absent: the keys that command prints, or without
    /// command those of the EC2 instance's role.
    pub(in crate::config) access_key_id: Option<String>,
    /// Kind "aws": secret part of the access key with access_key_id; a secret.
    pub(in crate::config) secret_access_key: Option<String>,
    /// Kind "aws": session token that belongs to access_key_id, if that is a temporary key; a secret.
    pub(in crate::config) session_token: Option<String>,
}

/// `[[model]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawModel {
    /// Preset of a model, which supplies all settings that are not written here: id, limits, prices, a route. It is
    /// named like "deepseek-flash", or like "deepseek/deepseek-flash" if presets of several vendors have the model.
    /// Absent: no preset.
    pub(in crate::config) preset: Option<String>,
    /// Name of the model, which callers write into the field model of a request.
    pub(in crate::config) id: Option<String>,
    /// Name of the model's family, as the catalog and the page at / show it.
    pub(in crate::config) family: Option<String>,
    /// "chat" or "embedding". An embedding model has a price of input only, no output_tokens_max, and routes only to
    /// vendors with the format "chat"; "chat".
    pub(in crate::config) kind: Option<String>,
    /// Name of the model in GET /v1/models, from which clients make lists for their users, at most 60 characters.
    /// Absent: the id.
    pub(in crate::config) display_name: Option<String>,
    /// Text before the price in GET /v1/models, from which clients make lists for their users, at most 40 characters.
    /// Absent: only the price.
    pub(in crate::config) description: Option<String>,
    /// Base prices, in USDT per million tokens (web_search_call: per search).
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Base prices in rubles per million tokens (web_search_call: per search) instead of usdt_mtok. They do not follow
    /// the exchange rate.
    pub(in crate::config) rub_mtok: Option<RawRates>,
    /// Base prices that replace the usual ones for calls that meet all conditions of a rule; a rule must have exactly the
    /// rate classes of the usual price, in its currency. If a call meets several rules, the one with the most of service_tier, speed and
    /// inference_geo decides, then the one with the fewest hours per week, then the latest valid_from, then the highest
    /// above_input_tokens.
    pub(in crate::config) price_rules: Vec<RawPriceRule>,
    /// Largest output of a call, in tokens. If a request sets a higher limit, the gateway lowers it to this one.
    pub(in crate::config) output_tokens_max: Option<u64>,
    /// If the money is too short for a call that sets no output limit, the gateway lowers the output limit of that call
    /// as far as this many tokens. If the money is too short even for them, the call is refused; 256.
    pub(in crate::config) output_tokens_min: Option<u64>,
    /// Output limit of a call that sets none, in tokens. Absent: output_tokens_max, so that one call may hold the whole
    /// of a small balance.
    pub(in crate::config) output_tokens_default: Option<u64>,
    /// Largest number of output tokens that the model generates per second at any of its vendors, reasoning included.
    /// Without it no hold of the model can grow, neither by hold = "growing" nor by `tollgate key set KEY
    /// --growing-holds`.
    pub(in crate::config) output_tokens_per_second_max: Option<u64>,
    /// "whole": a hold covers the call's whole output limit. "growing": the hold of a stream covers the next part of
    /// its output, and is raised ahead of need; if the money is short, the stream ends as at its output limit. Holds
    /// stay whole for answers that are not streamed, for streams with several choices, audio, images or web searches,
    /// and if a vendor of the model has on_disconnect = "drain" (set that if the vendor bills output after a
    /// cancellation); "whole".
    pub(in crate::config) hold: Option<String>,
    /// Context window in tokens: a hold assumes no more input than this for one call, but the gateway does not refuse
    /// longer input. Absent: unknown, so that a call with a document of unknown size is refused with 400.
    pub(in crate::config) input_tokens_max: Option<u64>,
    /// Largest input, in tokens, to which the usual price applies, if the vendor bills longer input at other rates. A call is
    /// refused with 400 if its input may be longer by the assumption of its hold (ledger.hold), even if the vendor
    /// would count less. Absent: unlimited.
    pub(in crate::config) input_tokens_priced_max: Option<u64>,
    /// Chat vendors: field in which the model accepts the output limit, "max_completion_tokens" or "max_tokens";
    /// "max_completion_tokens".
    pub(in crate::config) output_field: Option<String>,
    /// Chat and responses vendors: role of instructions, "system" or "developer". Absent: the role that a chat or
    /// responses caller sent, but "system" in calls that are translated to the chat format.
    pub(in crate::config) system_role: Option<String>,
    /// false: calls translated to the chat or responses format are sent without reasoning_effort (reasoning.effort);
    /// calls in the vendor's own format keep the field; true.
    pub(in crate::config) reasoning_effort: Option<bool>,
    /// false: translated calls are sent without temperature, top_p and top_k; calls in the vendor's own format keep
    /// these fields; true.
    pub(in crate::config) sampling: Option<bool>,
    /// Messages vendors: field by which translated calls request reasoning, "effort" (output_config.effort), "budget"
    /// (thinking.budget_tokens) or "none" (the model does not reason); "effort".
    pub(in crate::config) thinking: Option<String>,
    /// false: a translated call that requests structured output (a JSON schema) is refused with 400; calls in the
    /// vendor's own format are forwarded; true.
    pub(in crate::config) json_schema: Option<bool>,
    /// Calls translated from the responses to the chat format. true: text.verbosity is sent as verbosity; false: it is
    /// not sent; false.
    pub(in crate::config) verbosity: Option<bool>,
    /// Responses vendors, for messages callers that request thinking. true: the gateway requests a summary of the
    /// reasoning; false: it does not, because the model refuses this; true.
    pub(in crate::config) reasoning_summary: Option<bool>,
    /// Responses vendors, for responses callers, and for messages callers that request thinking. true: the gateway
    /// requests the reasoning in encrypted form (include: reasoning.encrypted_content), so that the caller can send it
    /// back with the next call; false: it does not, because the model refuses this; true.
    pub(in crate::config) encrypted_reasoning: Option<bool>,
    /// Messages vendors, in translated calls: who sets the marks (cache_control) up to which the vendor caches. "auto":
    /// the gateway, if the caller sets none; the cache writes then cost the rate cache_write. "never": only the
    /// caller; "auto".
    pub(in crate::config) cache_marks: Option<String>,
    /// Chat vendors. true: tools are sent in the older form, as functions, which GigaChat requires; false.
    pub(in crate::config) functions: Option<bool>,
    /// Field prompt_cache_key of calls translated to the chat or responses format. true: the caller's value, or a hash
    /// of the caller's key and session if the caller sends none. false: never sent. Absent: true for responses vendors;
    /// for chat vendors only the caller's value.
    pub(in crate::config) prompt_cache_key: Option<bool>,
    /// true: the calls of a conversation stay on one route, whose vendor has cached their beginning; false.
    pub(in crate::config) sticky: Option<bool>,
    /// Routes to vendors, at least one. Of the routes that are available, a call takes one with the lowest priority
    /// number: if the model is sticky, the route of the conversation, otherwise one chosen by weight or load. If the
    /// vendor fails before its answer begins, the call is sent on the next route.
    pub(in crate::config) routes: Vec<RawRoute>,
}

/// `model.price_rules[]`: all conditions of a rule must be met
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawPriceRule {
    /// The call has more input tokens than this, including those read from and written to the cache. The rule then
    /// prices all tokens of the call, not only those above.
    pub(in crate::config) above_input_tokens: Option<u64>,
    /// The vendor served the call on this tier, like "flex", as its answer states; if it states none, the requested
    /// tier counts. Usual tiers, like "auto", "default" and "standard", need no rule. A request for another tier gets
    /// 400 if no price rule for the caller names it.
    pub(in crate::config) service_tier: Option<String>,
    /// The vendor served the call at this speed, like "fast", as its answer states; if it states neither speed nor
    /// region, the requested speed counts. The usual speed, "standard", needs no rule. A request for another speed gets
    /// 400 if no price rule for the caller names it.
    pub(in crate::config) speed: Option<String>,
    /// The vendor served the call in this region, like "us", as its answer states; if it states neither speed nor
    /// region, the requested region counts. The usual region, "global", needs no rule. A request for another region
    /// gets 400 if no price rule for the caller names it.
    pub(in crate::config) inference_geo: Option<String>,
    /// Spans of the day in UTC, like ["01:00-04:00", "22:00-02:00"]. A span begins at its first time and ends just
    /// before its second one, so that 04:00 is outside; it may continue after midnight. Absent: all hours.
    pub(in crate::config) hours_utc: Vec<String>,
    /// Days in UTC, like ["mon", "tue"]. The day of each moment counts: "22:00-02:00" on ["mon"] is Monday from 00:00
    /// to 02:00 and from 22:00 to 24:00. Absent: all days.
    pub(in crate::config) weekdays: Vec<String>,
    /// Moment of the call that hours_utc and weekdays are compared with: "request" (its arrival), "first_byte" (the
    /// beginning of the vendor's answer) or "end" (the end of the answer). All rules of a list that have hours or
    /// weekdays must have the same moment. Absent: "request".
    pub(in crate::config) hours_at: Option<String>,
    /// Time from which the rule applies, like "2027-01-01T00:00:00Z": to calls whose request arrives then or later.
    /// Absent: it applies already.
    pub(in crate::config) valid_from: Option<String>,
    /// Rates of the rule, in USDT per million tokens (web_search_call: per search).
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Rates of the rule in rubles, if the usual price is in rubles.
    pub(in crate::config) rub_mtok: Option<RawRates>,
}

/// `[[account_group]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawAccountGroup {
    /// Name of the group, by which price rules refer to it.
    pub(in crate::config) name: Option<String>,
    /// Ids of the accounts; they need not exist yet.
    pub(in crate::config) accounts: Vec<String>,
}

/// `[[price_rule]]`: prices of some models for some accounts
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawCustomerRule {
    /// Name of the rule, as receipts show it, also to callers.
    pub(in crate::config) name: Option<String>,
    /// Ids of the accounts to which the rule applies, or ["*"] for all. For each account and model the most specific
    /// rule decides: a rule with the account's id before a rule with its group, then "*"; of these, a rule with the
    /// model's id before one with a longer prefix, then a shorter one. Two equally specific rules are an error.
    pub(in crate::config) accounts: Vec<String>,
    /// Names of groups (account_group) to whose accounts the rule applies, in addition to accounts.
    pub(in crate::config) groups: Vec<String>,
    /// Models to which the rule applies: ids, prefixes like "gpt-5-*", or "*" for all.
    pub(in crate::config) models: Vec<String>,
    /// Replaces tariff.sell_rate_multiplier, with at most 6 digits after the point. Absent:
    /// tariff.sell_rate_multiplier.
    pub(in crate::config) sell_rate_multiplier: Option<String>,
    /// Replaces tariff.sell_rub_multiplier. Absent: tariff.sell_rub_multiplier.
    pub(in crate::config) sell_rub_multiplier: Option<String>,
    /// Base prices that replace those of the models, in USDT per million tokens (web_search_call: per search). They
    /// must have exactly the rate classes of each model to which the rule applies: models with other classes need a
    /// rule of their own. Absent: the models' own base prices.
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Base prices in rubles instead of usdt_mtok, also for models whose own prices are in USDT.
    pub(in crate::config) rub_mtok: Option<RawRates>,
    /// Base prices under conditions, in addition to base prices of this rule and only with them. Each condition in the
    /// price_rules of a model to which the rule applies needs a rule here with the same condition. Which rule decides:
    /// as in model.price_rules.
    pub(in crate::config) price_rules: Vec<RawPriceRule>,
}

/// `model.routes[]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawRoute {
    /// Preset of a model, which supplies the settings model, costs and cost_rules of this route if they are
    /// not written here. Absent: no preset.
    pub(in crate::config) preset: Option<String>,
    /// Name of the vendor ([[vendor]]).
    pub(in crate::config) vendor: Option<String>,
    /// The vendor's name of the model. Absent: the id of the model.
    pub(in crate::config) model: Option<String>,
    /// Weight of the route among those of the same priority, which share the calls in proportion to their weights. If
    /// the weights are equal, the load decides instead: the fewer running calls and the sooner the first byte, the
    /// better; 1.
    pub(in crate::config) weight: Option<u64>,
    /// Routes with the lowest number are tried first; 0.
    pub(in crate::config) priority: Option<u64>,
    /// Prices that the vendor charges, in USDT per million tokens (web_search_call: per search); never shown to
    /// callers. Absent: receipts have no vendor_cost_rub and no margin_rub.
    pub(in crate::config) cost_usdt_mtok: Option<RawRates>,
    /// Prices that the vendor charges in rubles, instead of cost_usdt_mtok; they may have another currency than the
    /// model's price.
    pub(in crate::config) cost_rub_mtok: Option<RawRates>,
    /// Prices that the vendor charges instead of the usual ones for calls that meet all conditions of a rule; a rule
    /// must have exactly the rate classes of the usual prices, in their currency. Which rule decides: as in model.price_rules.
    pub(in crate::config) cost_rules: Vec<RawPriceRule>,
    /// Replaces model.output_field for calls on this route. Absent: not replaced.
    pub(in crate::config) output_field: Option<String>,
    /// Replaces model.system_role for calls on this route. Absent: not replaced.
    pub(in crate::config) system_role: Option<String>,
    /// Replaces model.reasoning_effort for calls on this route. Absent: not replaced.
    pub(in crate::config) reasoning_effort: Option<bool>,
    /// Replaces model.sampling for calls on this route. Absent: not replaced.
    pub(in crate::config) sampling: Option<bool>,
    /// Replaces model.thinking for calls on this route. Absent: not replaced.
    pub(in crate::config) thinking: Option<String>,
    /// Replaces model.json_schema for calls on this route. Absent: not replaced.
    pub(in crate::config) json_schema: Option<bool>,
    /// Replaces model.verbosity for calls on this route. Absent: not replaced.
    pub(in crate::config) verbosity: Option<bool>,
    /// Replaces model.reasoning_summary for calls on this route. Absent: not replaced.
    pub(in crate::config) reasoning_summary: Option<bool>,
    /// Replaces model.encrypted_reasoning for calls on this route. Absent: not replaced.
    pub(in crate::config) encrypted_reasoning: Option<bool>,
    /// Replaces model.cache_marks for calls on this route. Absent: not replaced.
    pub(in crate::config) cache_marks: Option<String>,
    /// Replaces model.functions for calls on this route. Absent: not replaced.
    pub(in crate::config) functions: Option<bool>,
    /// Replaces model.prompt_cache_key for calls on this route. Absent: not replaced.
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
