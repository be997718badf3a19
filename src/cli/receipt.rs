//! `tollgate receipt`: what a call cost.

use http::Method;
use tollgate_layers::facts::RequestNumber;

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, facts},
};
use crate::admin::NOT_A_NUMBER;

const RECEIPT: &[Cell] = &[
    Cell::text("number", "/number"),
    Cell::text("at", "/at"),
    Cell::text("account", "/account"),
    Cell::text("key", "/key"),
    Cell::text("session", "/session"),
    Cell::text("model", "/model"),
    Cell::text("vendor", "/vendor"),
    Cell::text("end", "/end"),
    Cell::text("input tokens", "/usage/input"),
    Cell::text("cached input tokens", "/usage/cached_input"),
    Cell::text("cache write tokens", "/usage/cache_write"),
    Cell::text("output tokens", "/usage/output"),
    Cell::text("usage estimated", "/estimated"),
    Cell::text("usage bounded", "/bounded"),
    Cell::rubles("input, per million", "/price/input"),
    Cell::rubles("cached input, per million", "/price/cached_input"),
    Cell::rubles("cache write, per million", "/price/cache_write"),
    Cell::rubles("output, per million", "/price/output"),
    Cell::text("price version", "/price/version"),
    Cell::rubles("rate of USDT", "/price/exchange_rate"),
    Cell::rubles("held", "/held_rub"),
    Cell::rubles("cost", "/cost_rub"),
    Cell::rubles("charged", "/charged_rub"),
    Cell::rubles("loss", "/loss_rub"),
    Cell::text("booked", "/booked"),
];

pub(super) async fn receipt(reach: &AdminArgs, number: RequestNumber) -> Result<(), Failure> {
    let answer = Client::new(reach)?
        .call(Method::GET, &format!("/admin/v1/receipts/{number}"), None)
        .await?;
    show::print(reach.json, &answer, |answer| facts(RECEIPT, answer))
}

/// A number may come with the parentheses that it has at the end of an error.
pub(super) fn number(text: &str) -> Result<RequestNumber, String> {
    let bare = text.trim_matches(['(', ')', ' ']);
    bare.parse().map_err(|_| NOT_A_NUMBER.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_receipt_shows_tokens_and_money() {
        let receipt = json!({
            "number": "n", "at": "2027-01-31T00:00:00Z", "estimated": false,
            "bounded": true, "usage": {"input": 10, "output": 3},
            "price": {"input": "26.018751"}, "charged_rub": "0.000361"
        });
        let text = facts(RECEIPT, &receipt);
        assert!(
            text.contains("input tokens        10\n")
                && text.contains("usage estimated     false\n")
                && text.contains("usage bounded       true\n"),
            "{text}"
        );
        assert!(
            text.contains("26.018751 ₽\n") && text.contains("charged             0.000361 ₽\n"),
            "{text}"
        );
    }
}
