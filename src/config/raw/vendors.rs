//! Shape of the configuration tables for vendors, models and price rules.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::rates::RawRates;

/// The section `[[vendor]]`: a vendor to which the gateway sends calls.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawVendor {
    /// Name of a vendor preset, for example "deepseek". The preset supplies all settings of the vendor that are not
    /// written here (`tollgate preset list` lists the presets). Absent: no preset is used.
    pub(in crate::config) preset: Option<String>,
    /// Values that the preset leaves open because they depend on your account at the vendor, for example { resource =
    /// "acme-eastus2" }. Each value replaces the placeholder with the same name, for example {resource}, in the
    /// settings and model names of the preset.
    pub(in crate::config) values: BTreeMap<String, String>,
    /// Name of the vendor. Routes refer to the vendor by this name.
    pub(in crate::config) name: Option<String>,
    /// Format of the vendor's API: "chat" (Chat Completions), "messages" or "responses".
    pub(in crate::config) format: Option<String>,
    /// List of formats, instead of format, for a vendor that serves several. The gateway sends a call in the caller's
    /// format if the list contains it, otherwise in the first format of the list.
    pub(in crate::config) formats: Option<Vec<String>>,
    /// Base URL of the vendor's API, to which the gateway appends /chat/completions, /v1/messages or /responses,
    /// depending on the format. For a vendor with several formats and a base URL that ends in /v1, the gateway appends
    /// /messages instead of /v1/messages.
    pub(in crate::config) url: Option<String>,
    /// Path that is appended to url instead of the format's standard path, for example
    /// "/deployments/{model}/chat/completions". The gateway replaces {model} by the vendor's name of the model. A path
    /// is valid only for a vendor with a single format. Absent: the format's standard path.
    pub(in crate::config) path: Option<String>,
    /// Query parameters that the gateway adds to each call, for example { api-version = "2024-10-21" }. They cannot be
    /// secrets.
    pub(in crate::config) query: BTreeMap<String, String>,
    /// Headers that the gateway adds to each call, for example { OpenAI-Project = "proj_1" }. A value may be a secret
    /// ("${NAME}" or "file:/path").
    pub(in crate::config) headers: BTreeMap<String, String>,
    /// The gateway's API key at the vendor. Must be a secret ("${NAME}" or "file:/path"). It is not needed if
    /// login.kind is other than "key".
    pub(in crate::config) key: Option<String>,
    /// List of API keys at the vendor, instead of key. The gateway uses them in turn. Each must be a secret ("${NAME}"
    /// or "file:/path").
    pub(in crate::config) keys: Option<Vec<String>>,
    /// How the gateway authenticates its calls to the vendor. Absent: by key or keys, in the header authorization, or
    /// x-api-key in the Messages format.
    pub(in crate::config) login: Option<RawLogin>,
    /// Treatment of a stream if the caller disconnects. "cancel": the gateway closes the vendor's stream, and charges
    /// the output so far. "drain": the gateway reads the vendor's stream to the end, and charges everything that the
    /// vendor counts. Default: "cancel".
    pub(in crate::config) on_disconnect: Option<String>,
    /// Only for the Messages format: prefixes of beta names that the gateway removes from the caller's header
    /// anthropic-beta, because these betas change the price. Default: ["context-1m"].
    pub(in crate::config) betas_removed: Option<Vec<String>>,
    /// Only for vendors that use the Messages format and expect the model name in the path: "vertex-2023-10-16" or
    /// "bedrock-2023-05-31". The gateway sends this value in the body's field anthropic_version, and omits the field
    /// model. Absent: the body has the field model.
    pub(in crate::config) anthropic_version: Option<String>,
    /// URL of the proxy for connections to the vendor: http://HOST:PORT or socks5://HOST:PORT. If it contains a
    /// password (user:password@ before the host), the whole URL must be a secret ("${NAME}" or "file:/path"). Absent:
    /// the gateway connects to the vendor directly.
    pub(in crate::config) proxy: Option<String>,
    /// PEM file with the certificate authorities that the gateway trusts for this vendor instead of Mozilla's list.
    pub(in crate::config) ca_file: Option<String>,
    /// true: the gateway uses HTTP/2 if the vendor offers it, and always if url begins with http:. false: HTTP/1.1.
    /// Default: false.
    pub(in crate::config) http2: Option<bool>,
    /// Maximum number of calls in flight at the vendor. A stream counts until it ends. A further call is sent on the
    /// model's next route. If the model has no other route, the call gets 503. Default: 1024.
    pub(in crate::config) connections_max: Option<u64>,
    /// Timeout, in seconds, for connecting to the vendor, including the proxy and the TLS handshake. Default: 3.
    pub(in crate::config) connect_seconds: Option<u64>,
    /// Timeout, in seconds, from sending a call until the first byte of the body of a streamed response. Default: 120.
    pub(in crate::config) first_byte_seconds: Option<u64>,
    /// Timeout, in seconds, from sending a call until the head of a response that is not streamed. Vendors send this
    /// head only when they have generated the last token. limits.call_seconds applies too. Absent: only
    /// limits.call_seconds applies.
    pub(in crate::config) plain_seconds: Option<u64>,
    /// How long, in seconds, the gateway waits for the first event of a stream before it sends the response head to the
    /// caller. If the vendor fails in this time, the gateway can still try the next route, or return the error with its
    /// own status. 0: the head is sent immediately. Default: 30.
    pub(in crate::config) head_seconds: Option<u64>,
    /// Maximum time, in seconds, without a byte in the body of a vendor's response. After this time the gateway cuts
    /// the response off. Default: 120.
    pub(in crate::config) idle_seconds: Option<u64>,
    /// Time, in seconds, after which the gateway closes an unused connection to the vendor. Default: 50.
    pub(in crate::config) idle_connection_seconds: Option<u64>,
}

/// The table `vendor.login`: how the gateway authenticates at the vendor.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawLogin {
    /// Name of an alternative login that the vendor's preset offers, for example "entra" (`tollgate preset show` lists
    /// the logins). Absent: the preset's default login.
    pub(in crate::config) preset: Option<String>,
    /// How the gateway authenticates. "key": with an API key (key or keys). "none": no authentication. "command": with
    /// a token that a program prints. "oauth": with a token for OAuth client credentials. "service_account": with a
    /// token for a key file of Google or Yandex Cloud. "aws": with signatures (AWS Signature Version 4). Default:
    /// "key".
    pub(in crate::config) kind: Option<String>,
    /// Name of the header that carries the key or token, for example "api-key". Absent: x-api-key for an API key in the
    /// Messages format, otherwise authorization.
    pub(in crate::config) header: Option<String>,
    /// Text before the key or token in its header, for example "Api-Key ". If prefix is given without header, the
    /// header is authorization. Absent: no text if header is given or the header is x-api-key, otherwise "Bearer ".
    pub(in crate::config) prefix: Option<String>,
    /// Program and arguments. Kind "command": the program prints the token. Kind "aws", instead of access_key_id: the
    /// program prints keys in the form of `aws configure export-credentials`. The program runs without a shell, for at
    /// most 15 seconds.
    pub(in crate::config) command: Option<Vec<String>>,
    /// Interval, in seconds, at which the gateway runs command again. Kind "aws": it applies only if the printed keys
    /// have no Expiration. Default: 1800.
    pub(in crate::config) refresh_seconds: Option<u64>,
    /// URL from which the gateway requests tokens or keys. Kind "oauth": the token endpoint, which must be given. Kind
    /// "service_account": the token endpoint; absent: that of Google or Yandex Cloud. Kind "aws": the instance metadata
    /// service; absent: http://169.254.169.254.
    pub(in crate::config) url: Option<String>,
    /// Only for kind "oauth": credentials for Basic authentication at url, in base64, for example GigaChat's
    /// authorization key. Must be a secret ("${NAME}" or "file:/path").
    pub(in crate::config) basic: Option<String>,
    /// Only for kind "oauth", instead of basic: client id, sent with client_secret in the body of the token request. It
    /// may be a secret ("${NAME}" or "file:/path").
    pub(in crate::config) client_id: Option<String>,
    /// Only for kind "oauth": client secret that belongs to client_id. Must be a secret ("${NAME}" or "file:/path").
    pub(in crate::config) client_secret: Option<String>,
    /// Only for kinds "oauth" and "service_account": scope of the token. Absent:
    /// https://www.googleapis.com/auth/cloud-platform for a key file of Google, otherwise no scope.
    pub(in crate::config) scope: Option<String>,
    /// Only for kind "oauth": value of the field grant_type in the token request. "": the request has no such field.
    /// Default: "client_credentials".
    pub(in crate::config) grant_type: Option<String>,
    /// Only for kind "oauth": name of a header that carries a new UUID in each token request, for example "RqUID".
    /// Absent: the request has no such header.
    pub(in crate::config) request_id_header: Option<String>,
    /// Only for kind "service_account": the JSON key file that Google or Yandex Cloud issued. Must be a secret, for
    /// example "file:/etc/tollgate/google.json".
    pub(in crate::config) key_file: Option<String>,
    /// Only for kind "aws": AWS region of the vendor, for example "us-east-1".
    pub(in crate::config) region: Option<String>,
    /// Only for kind "aws": name of the AWS service in the signature. Default: "bedrock".
    pub(in crate::config) service: Option<String>,
    /// Only for kind "aws": id of an access key. It may be a secret ("${NAME}" or "file:/path"). Absent: the gateway
    /// uses the keys that command prints. Without command, it uses the keys of the EC2 instance's role.
    pub(in crate::config) access_key_id: Option<String>,
    /// Only for kind "aws": secret access key that belongs to access_key_id. Must be a secret ("${NAME}" or
    /// "file:/path").
    pub(in crate::config) secret_access_key: Option<String>,
    /// Only for kind "aws": session token that belongs to access_key_id if this is a temporary key. Must be a secret
    /// ("${NAME}" or "file:/path").
    pub(in crate::config) session_token: Option<String>,
}

/// The section `[[model]]`: a model that callers can call.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawModel {
    /// Name of a model preset, for example "deepseek-flash", or "deepseek/deepseek-flash" if the presets of several
    /// vendors contain the model. The preset supplies all settings of the model that are not written here: id, limits,
    /// prices and a route. Absent: no preset is used.
    pub(in crate::config) preset: Option<String>,
    /// Id of the model, which callers write into the field model of a request.
    pub(in crate::config) id: Option<String>,
    /// Name of the model's family, as the catalog and the page at / show it.
    pub(in crate::config) family: Option<String>,
    /// Kind of the model: "chat" or "embedding". An embedding model has only an input price and no output_tokens_max,
    /// and its vendors must use the format "chat". Default: "chat".
    pub(in crate::config) kind: Option<String>,
    /// Name of the model in GET /v1/models, which clients show in their model lists. It has at most 60 characters.
    /// Absent: the id of the model.
    pub(in crate::config) display_name: Option<String>,
    /// Text before the price in the model's description in GET /v1/models, which clients show in their model lists. It
    /// has at most 40 characters. Absent: the description contains only the price.
    pub(in crate::config) description: Option<String>,
    /// Base prices in USDT per million tokens (web_search_call: in USDT per search).
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Base prices in rubles per million tokens (web_search_call: in rubles per search), instead of usdt_mtok. Prices
    /// in rubles do not depend on the exchange rate.
    pub(in crate::config) rub_mtok: Option<RawRates>,
    /// Price rules of the model. The prices of a rule replace the base prices (usdt_mtok or rub_mtok) for calls that
    /// meet all conditions of the rule. A rule must have exactly the rate classes of the base prices, in the same
    /// currency. If a call meets several rules, one rule applies: the rule that has the most of the conditions
    /// service_tier, speed and inference_geo; among equals, the rule with the fewest hours per week, then with the
    /// latest valid_from, then with the highest above_input_tokens.
    pub(in crate::config) price_rules: Vec<RawPriceRule>,
    /// Maximum number of output tokens of a call. If a request sets a higher output limit, the gateway lowers it to
    /// this number.
    pub(in crate::config) output_tokens_max: Option<u64>,
    /// Smallest output limit, in tokens, that the gateway sets for a call without an output limit. If the account's
    /// free money does not cover the default limit, the gateway lowers the limit to what the money covers, but not
    /// below this number. If the money does not cover even this, the call is refused. Default: 256.
    pub(in crate::config) output_tokens_min: Option<u64>,
    /// Output limit, in tokens, for a call that sets no output limit. Absent: output_tokens_max, so that the hold of
    /// one call may reserve all of a small balance.
    pub(in crate::config) output_tokens_default: Option<u64>,
    /// Maximum number of output tokens, reasoning included, that any vendor of the model generates per second in one
    /// call. Growing holds need this number. Absent: the model's holds never grow, neither with hold = "growing" nor
    /// with `tollgate key set KEY --growing-holds`.
    pub(in crate::config) output_tokens_per_second_max: Option<u64>,
    /// How much output a hold covers. "whole": the hold covers the whole output limit of a call. "growing": the hold of
    /// a stream covers the next part of the output, and the gateway raises it before that part is used up. If the money
    /// does not suffice, the stream ends as if it had reached its output limit. Only streams of one choice with text
    /// output alone and without web searches have a growing hold, and only if no vendor of the model has on_disconnect
    /// = "drain". All other calls have a whole hold. Set on_disconnect = "drain" at a vendor that bills output after a
    /// cancellation. Default: "whole".
    pub(in crate::config) hold: Option<String>,
    /// Context window of the model, in tokens. A hold assumes at most this much input for one call. The gateway does
    /// not refuse longer input. Absent: the context window is unknown, and a call with a document of unknown size gets
    /// 400.
    pub(in crate::config) input_tokens_max: Option<u64>,
    /// Maximum number of input tokens for which the model has prices. Set it if the vendor bills longer input at other
    /// prices and no price rule (above_input_tokens) has these prices. A call gets 400 if its hold assumes more input
    /// tokens (ledger.hold), even if the vendor would count fewer. Absent: unlimited.
    pub(in crate::config) input_tokens_priced_max: Option<u64>,
    /// For vendors that use the Chat Completions format: name of the request field with the output limit,
    /// "max_completion_tokens" or "max_tokens". Default: "max_completion_tokens".
    pub(in crate::config) output_field: Option<String>,
    /// For vendors that use the Chat Completions or Responses format: role in which the model expects instructions,
    /// "system" or "developer". Absent: "system" in calls translated to the Chat Completions format, otherwise the role
    /// that the caller sent.
    pub(in crate::config) system_role: Option<String>,
    /// Whether the model accepts reasoning_effort (in the Responses format: reasoning.effort). false: the gateway omits
    /// the field from calls translated to the Chat Completions or Responses format. Calls that are not translated keep
    /// the field. Default: true.
    pub(in crate::config) reasoning_effort: Option<bool>,
    /// Whether the model accepts temperature, top_p and top_k. false: the gateway omits these fields from translated
    /// calls. Calls that are not translated keep them. Default: true.
    pub(in crate::config) sampling: Option<bool>,
    /// For vendors that use the Messages format: field by which translated calls request reasoning, "effort"
    /// (output_config.effort), "budget" (thinking.budget_tokens) or "none" (the model does not reason). Default:
    /// "effort".
    pub(in crate::config) thinking: Option<String>,
    /// Whether the model supports structured output (a JSON schema). false: a translated call that requests it gets
    /// 400. Calls that are not translated are forwarded unchanged. Default: true.
    pub(in crate::config) json_schema: Option<bool>,
    /// For calls translated from the Responses to the Chat Completions format: whether the gateway sends text.verbosity
    /// as the field verbosity. false: the gateway omits it. Default: false.
    pub(in crate::config) verbosity: Option<bool>,
    /// For calls translated from the Messages to the Responses format that request thinking. true: the gateway requests
    /// a reasoning summary from the vendor. false: the gateway requests no summary. Set false for a model that refuses
    /// such requests. Default: true.
    pub(in crate::config) reasoning_summary: Option<bool>,
    /// For vendors that use the Responses format. true: the gateway requests encrypted reasoning (include:
    /// reasoning.encrypted_content), which the caller can send back with the next call. It does so in calls in the
    /// Responses format, and in calls in the Messages format that request thinking. false: the gateway does not request
    /// it. Set false for a model that refuses such requests. Default: true.
    pub(in crate::config) encrypted_reasoning: Option<bool>,
    /// For calls translated to the Messages format: who sets the marks (cache_control) up to which the vendor caches
    /// the prompt. "auto": if the caller sets none, the gateway sets them, and cache writes are charged at the price
    /// cache_write. "never": only the caller sets them. Default: "auto".
    pub(in crate::config) cache_marks: Option<String>,
    /// For vendors that use the Chat Completions format: whether the gateway sends tools in their older form, as
    /// functions. GigaChat requires this form. Default: false.
    pub(in crate::config) functions: Option<bool>,
    /// Whether the gateway sends prompt_cache_key in calls translated to the Chat Completions or Responses format.
    /// true: the gateway sends the caller's value. If the caller sends none, but a session id (for example in the
    /// header x-session-id), the gateway sends a hash of the caller's key and this id. false: the gateway never sends
    /// the field. Absent: as with true for vendors that use the Responses format. For vendors that use the Chat
    /// Completions format, the gateway sends only the caller's value.
    pub(in crate::config) prompt_cache_key: Option<bool>,
    /// Whether the gateway sends all calls of a conversation on the same route, because the vendor of this route has
    /// cached the beginning of the conversation. Default: false.
    pub(in crate::config) sticky: Option<bool>,
    /// Routes to vendors, at least one. The gateway sends a call on an available route with the lowest priority number.
    /// Among several such routes, it takes the conversation's route if the model is sticky, otherwise a route chosen by
    /// weight or load. If the vendor fails before the response begins, the gateway sends the call on the next route.
    pub(in crate::config) routes: Vec<RawRoute>,
}

/// A table in a list of price rules, for example `model.price_rules`: prices for calls that meet all its conditions.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawPriceRule {
    /// Condition: the call has more input tokens than this number, including tokens read from and written to the
    /// vendor's cache. The rule then prices all tokens of the call, not only those above this number.
    pub(in crate::config) above_input_tokens: Option<u64>,
    /// Condition: the vendor served the call on this service tier, for example "flex". The gateway takes the tier from
    /// the vendor's response, or from the request if the response states none. The standard tiers, for example "auto",
    /// "default" and "standard", need no rule. A request for any other tier gets 400, unless a rule that applies to the
    /// caller (in model.price_rules or price_rule.price_rules) names that tier.
    pub(in crate::config) service_tier: Option<String>,
    /// Condition: the vendor served the call at this speed, for example "fast". The gateway takes the speed from the
    /// vendor's response, or from the request if the response states neither speed nor region. The speed "standard"
    /// needs no rule. A request for any other speed gets 400, unless a rule that applies to the caller (in
    /// model.price_rules or price_rule.price_rules) names that speed.
    pub(in crate::config) speed: Option<String>,
    /// Condition: the vendor served the call in this region, for example "us". The gateway takes the region from the
    /// vendor's response, or from the request if the response states neither speed nor region. The region "global"
    /// needs no rule. A request for any other region gets 400, unless a rule that applies to the caller (in
    /// model.price_rules or price_rule.price_rules) names that region.
    pub(in crate::config) inference_geo: Option<String>,
    /// Condition: the call is in one of these daily spans, in UTC, for example ["01:00-04:00", "22:00-02:00"]. The
    /// start of a span is inclusive, the end is exclusive. A span may continue after midnight. Absent: all hours.
    pub(in crate::config) hours_utc: Vec<String>,
    /// Condition: the call is on one of these weekdays, in UTC, for example ["mon", "tue"]. If a span of hours_utc
    /// continues after midnight, each of its two parts counts only on a listed weekday: "22:00-02:00" with ["mon"] is
    /// Monday from 00:00 to 02:00 and from 22:00 to 24:00. Absent: all days.
    pub(in crate::config) weekdays: Vec<String>,
    /// Moment of a call that decides whether the call is within hours_utc and weekdays: "request" (the request
    /// arrives), "first_byte" (the vendor's response begins) or "end" (the response ends). All rules with hours_utc or
    /// weekdays in the same list must have the same hours_at. Absent: "request".
    pub(in crate::config) hours_at: Option<String>,
    /// Condition: the request arrives at this time or later, for example "2027-01-01T00:00:00Z". Absent: the rule
    /// applies at any time.
    pub(in crate::config) valid_from: Option<String>,
    /// Prices of the rule in USDT per million tokens (web_search_call: in USDT per search).
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Prices of the rule in rubles per million tokens (web_search_call: in rubles per search), if the prices that the
    /// rule replaces are in rubles.
    pub(in crate::config) rub_mtok: Option<RawRates>,
}

/// The section `[[account_group]]`: a named group of accounts.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawAccountGroup {
    /// Name of the account group. Price rules refer to the group by this name.
    pub(in crate::config) name: Option<String>,
    /// Ids of the accounts in the group. The accounts need not exist yet.
    pub(in crate::config) accounts: Vec<String>,
}

/// The section `[[price_rule]]`: prices of some models for some accounts.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawCustomerRule {
    /// Name of the price rule, as receipts show it to operators and callers.
    pub(in crate::config) name: Option<String>,
    /// Ids of the accounts to which the rule applies, or ["*"] for all accounts. For each account and model, only the
    /// most specific rule applies. A rule with the account's id precedes a rule with a group of the account, and a rule
    /// with a group precedes a rule with "*". If this decides nothing, a rule with the model's id precedes a rule with
    /// a model prefix, and a longer prefix precedes a shorter one. If two rules are equally specific, the configuration
    /// is invalid.
    pub(in crate::config) accounts: Vec<String>,
    /// Names of account groups ([[account_group]]). The rule applies to the accounts of these groups, in addition to
    /// the ids in accounts.
    pub(in crate::config) groups: Vec<String>,
    /// Models to which the rule applies: model ids, prefixes such as "gpt-5-*", or "*" for all models.
    pub(in crate::config) models: Vec<String>,
    /// Multiplier that replaces tariff.sell_rate_multiplier under this rule, with at most 6 digits after the point. A
    /// rule needs at least one of sell_rate_multiplier, sell_rub_multiplier, usdt_mtok and rub_mtok. Absent:
    /// tariff.sell_rate_multiplier applies.
    pub(in crate::config) sell_rate_multiplier: Option<String>,
    /// Multiplier that replaces tariff.sell_rub_multiplier under this rule, with at most 6 digits after the point.
    /// Absent: tariff.sell_rub_multiplier applies.
    pub(in crate::config) sell_rub_multiplier: Option<String>,
    /// Base prices that replace the models' own base prices under this rule, in USDT per million tokens
    /// (web_search_call: in USDT per search). They must have exactly the rate classes of every model to which the rule
    /// applies. Models with different classes need separate rules. Absent: the models' own base prices apply.
    pub(in crate::config) usdt_mtok: Option<RawRates>,
    /// Base prices in rubles per million tokens (web_search_call: in rubles per search), instead of usdt_mtok. They are
    /// valid even for models whose own base prices are in USDT.
    pub(in crate::config) rub_mtok: Option<RawRates>,
    /// Prices under conditions, which replace this rule's base prices for calls that meet all conditions. They are
    /// valid only if this rule has usdt_mtok or rub_mtok. If a model to which the rule applies has a price rule
    /// (model.price_rules), this list must contain a rule with the same conditions. If a call meets several rules, the
    /// order of model.price_rules decides.
    pub(in crate::config) price_rules: Vec<RawPriceRule>,
}

/// A table in the list `model.routes`: a route of a model to a vendor.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawRoute {
    /// Name of a model preset. The preset supplies this route's model, costs and cost_rules if they are not written
    /// here. Absent: no preset is used.
    pub(in crate::config) preset: Option<String>,
    /// Name of the vendor ([[vendor]]) to which this route sends calls.
    pub(in crate::config) vendor: Option<String>,
    /// The vendor's name for the model. Absent: the id of the model.
    pub(in crate::config) model: Option<String>,
    /// Weight of the route. Routes with the same priority share the calls in proportion to their weights. If all their
    /// weights are equal, the gateway prefers a route with fewer calls in flight and a shorter time to the first byte.
    /// Default: 1.
    pub(in crate::config) weight: Option<u64>,
    /// Priority of the route. The gateway tries routes with the lowest number first. Default: 0.
    pub(in crate::config) priority: Option<u64>,
    /// Prices that the vendor charges the operator, in USDT per million tokens (web_search_call: in USDT per search).
    /// Callers never see them. Absent: receipts have no vendor_cost_rub and no margin_rub.
    pub(in crate::config) cost_usdt_mtok: Option<RawRates>,
    /// Prices that the vendor charges the operator, in rubles per million tokens (web_search_call: in rubles per
    /// search), instead of cost_usdt_mtok. Their currency may differ from the currency of the model's base prices.
    pub(in crate::config) cost_rub_mtok: Option<RawRates>,
    /// Cost rules: prices that the vendor charges instead of cost_usdt_mtok or cost_rub_mtok for calls that meet all
    /// conditions of a rule. A rule must have exactly the rate classes of these costs, in the same currency. If a call
    /// meets several rules, the order of model.price_rules decides.
    pub(in crate::config) cost_rules: Vec<RawPriceRule>,
    /// Replaces model.output_field for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) output_field: Option<String>,
    /// Replaces model.system_role for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) system_role: Option<String>,
    /// Replaces model.reasoning_effort for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) reasoning_effort: Option<bool>,
    /// Replaces model.sampling for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) sampling: Option<bool>,
    /// Replaces model.thinking for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) thinking: Option<String>,
    /// Replaces model.json_schema for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) json_schema: Option<bool>,
    /// Replaces model.verbosity for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) verbosity: Option<bool>,
    /// Replaces model.reasoning_summary for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) reasoning_summary: Option<bool>,
    /// Replaces model.encrypted_reasoning for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) encrypted_reasoning: Option<bool>,
    /// Replaces model.cache_marks for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) cache_marks: Option<String>,
    /// Replaces model.functions for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) functions: Option<bool>,
    /// Replaces model.prompt_cache_key for calls on this route. Absent: the model's setting applies.
    pub(in crate::config) prompt_cache_key: Option<bool>,
}

/// The dialect settings of a model or a route: how requests must be written for the vendor. The tables repeat these
/// fields instead of `serde(flatten)`, which would accept unknown fields.
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

/// Implements `dialect` for tables that have all dialect settings as fields.
macro_rules! dialect {
    ($($table:ident),*) => {
        $(impl $table {
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
        })*
    };
}

dialect!(RawModel, RawRoute);
