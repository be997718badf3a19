//! Endpoints for codes: promo codes, which credit an account, and invitations, which open an account.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::Value;
use tollgate_layers::money::MicroRub;

use super::{
    Admin, Answer, Right,
    fields::Fields,
    now_ms, ok,
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    api::fields,
    codes::{Code, CodeId, Codes, USES_MAX},
    text::time::rfc3339,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/codes" => list_codes;
    post "/admin/v1/codes" => create_code .needs(Right::Money);
    delete "/admin/v1/codes/{code}" => remove_code .needs(Right::Money);
};

const FIELDS: &[&str] = &["amount_rub", "opens_account", "uses_max", "expires_at"];

#[derive(Serialize)]
struct CodeAnswer<'a> {
    id: &'a str,
    /// The code itself; present only in the response to the request that created it.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    amount_rub: MicroRub,
    opens_account: bool,
    uses_max: u32,
    used_by: &'a [tollgate_layers::key::AccountId],
    expires_at: Option<String>,
    created_at: String,
}

impl<'a> CodeAnswer<'a> {
    fn new(id: &'a CodeId, code: &'a Code) -> Self {
        Self {
            id: id.as_str(),
            code: None,
            amount_rub: code.amount_rub,
            opens_account: code.opens_account,
            uses_max: code.uses_max,
            used_by: &code.used_by,
            expires_at: code.until_ms.map(rfc3339),
            created_at: rfc3339(code.made_ms),
        }
    }
}

impl Admin {
    fn codes(&self) -> Codes {
        Codes::new(self.store.clone(), self.members())
    }

    async fn list_codes(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let codes = self.codes().list().await.or_refuse("codes")?;
        let codes = codes.iter().map(|(id, code)| CodeAnswer::new(id, code));
        let codes: Vec<_> = codes.collect();
        ok(&BTreeMap::from([("codes", codes)]))
    }

    async fn create_code(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let who = request.who();
        let mut fields = Fields::parse(&request.body().await?, FIELDS)?;
        let now_ms = now_ms();
        let amount = fields.required("amount_rub", fields::ceiling)?;
        let opens = fields.optional("opens_account", fields::flag)?;
        let uses = fields.optional("uses_max", uses)?;
        let until = fields.optional("expires_at", fields::time_after(now_ms))?;
        let opens = opens.unwrap_or(false);
        if amount == MicroRub::ZERO && !opens {
            return Err(Refusal::invalid("amount_rub", "must not be 0"));
        }
        let code = Code::new(amount, opens, uses.unwrap_or(1), until, now_ms);
        let (id, text) = self.codes().make(&code).await.or_refuse("codes")?;
        tracing::info!(
            target: "audit", who = who.name(), what = "code.create", code = id.as_str(), amount_rub = %amount,
            opens_account = opens, uses_max = code.uses_max
        );
        ok(&CodeAnswer {
            code: Some(text),
            ..CodeAnswer::new(&id, &code)
        })
    }

    async fn remove_code(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let named = request.named().to_owned();
        let none = || Refusal::NotFound(format!("no invitation or promo code has the id {named}"));
        let id: CodeId = named.parse().map_err(|()| none())?;
        let removed = self.codes().remove(&id).await.or_refuse("codes")?;
        let code = removed.ok_or_else(none)?;
        tracing::info!(target: "audit", who = request.who().name(), what = "code.remove", code = id.as_str());
        ok(&CodeAnswer::new(&id, &code))
    }
}

fn uses(value: &Value) -> Result<u32, String> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=USES_MAX).contains(number));
    number.ok_or_else(|| format!("must be a whole number from 1 to {USES_MAX}"))
}
