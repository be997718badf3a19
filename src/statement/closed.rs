//! The record of a closed month. It contains the hash of the month's statement, and all data of the statement that does
//! not come from the journal. The record is a document in the ledger, written with the month's first statement. Every
//! later statement uses the record, so a statement number always has the same hash.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, reserve::ledger::BookError, respond::Language};
use tollgate_ledger::{contract::Documents, statement::Statement};

use super::{About, Document, Month, VERSION};
use crate::{config::SellerConfig, ledger::AnyLedger, text::language::say};

/// The stored record of a closed month.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClosedStatement {
    /// The version of the JSON format that was hashed.
    version: u32,
    pub(super) sha256: String,
    /// The time of the first statement, in Unix milliseconds.
    kept_ms: u64,
    /// The account's name at the time of the first statement.
    name: String,
    language: String,
    seller: Option<Seller>,
}

/// The seller at the time of the first statement. `SellerConfig` does not serialize fields that statements show
/// elsewhere, so this record lists those fields by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seller {
    #[serde(flatten)]
    shown: SellerConfig,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vat_percent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vat_note: Option<String>,
    utc_offset_minutes: i32,
}

impl ClosedStatement {
    /// Creates the record of `document`, the first statement of its closed month.
    pub(crate) fn new(document: &Document, about: &About<'_>, language: Language) -> Self {
        Self {
            version: VERSION,
            sha256: document.sha256(),
            kept_ms: about.now_ms,
            name: about.name.to_owned(),
            language: say(language, "ru", "en").to_owned(),
            seller: about.seller.map(Seller::new),
        }
    }

    /// Returns the record of an account's closed month, if it has been written.
    pub(crate) async fn find(
        store: &AnyLedger,
        account: &AccountId,
        month: Month,
    ) -> Result<Option<Self>, BookError> {
        Ok(store.read_value(&name(account, month)).await?.value)
    }

    /// Writes the record; returns `false` if another gateway has written it first.
    pub(crate) async fn keep(
        &self,
        store: &AnyLedger,
        account: &AccountId,
        month: Month,
    ) -> Result<bool, BookError> {
        store.write_value(&name(account, month), 0, self).await
    }

    /// Returns the seller's details at the time of the first statement.
    pub(crate) fn seller(&self) -> Option<SellerConfig> {
        self.seller.clone().map(Seller::into_config)
    }

    pub(crate) fn language(&self) -> Language {
        match self.language.as_str() {
            "en" => Language::En,
            _ => Language::Ru,
        }
    }

    /// Makes the month's statement again. Returns `None` if the journal, or this version of the program, no longer
    /// yields the same statement.
    pub(crate) fn again(
        &self,
        account: &AccountId,
        month: Month,
        statement: Statement,
    ) -> Option<Document> {
        let seller = self.seller();
        let about = About {
            account,
            name: &self.name,
            month,
            seller: seller.as_ref(),
            // The month was already closed when the record was written, so the current time does not matter.
            now_ms: u64::MAX,
        };
        let document = Document::new(&about, statement);
        (document.sha256() == self.sha256).then_some(document)
    }
}

impl Seller {
    fn new(seller: &SellerConfig) -> Self {
        Self {
            shown: seller.clone(),
            vat_percent: seller.vat_percent.map(|percent| percent.to_string()),
            vat_note: seller.vat_note.clone(),
            utc_offset_minutes: seller.utc_offset_minutes,
        }
    }

    fn into_config(self) -> SellerConfig {
        let percent = self.vat_percent.as_deref();
        SellerConfig {
            vat_percent: percent.and_then(|percent| Decimal::from_str_exact(percent).ok()),
            vat_note: self.vat_note,
            utc_offset_minutes: self.utc_offset_minutes,
            ..self.shown
        }
    }
}

fn name(account: &AccountId, month: Month) -> String {
    format!("statement/{account}/{month}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_a_closed_month_keeps_every_field_of_the_seller() {
        let seller = SellerConfig {
            name: "ООО «Ромашка»".into(),
            inn: Some("7701234567".into()),
            bank: Some("Банк".into()),
            vat_percent: Some(Decimal::new(200, 1)),
            vat_note: None,
            utc_offset_minutes: -570,
            ..SellerConfig::default()
        };
        let note = SellerConfig {
            name: "ИП".into(),
            vat_note: Some("НДС не облагается".into()),
            ..SellerConfig::default()
        };
        for seller in [seller, note] {
            let text = serde_json::to_string(&Seller::new(&seller)).unwrap();
            let read: Seller = serde_json::from_str(&text).unwrap();
            assert_eq!(read.into_config(), seller, "{text}");
        }
    }
}
