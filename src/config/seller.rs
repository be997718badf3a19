//! Checks the section `[seller]`.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use super::{
    check::{Check, maybe},
    raw::RawSeller,
};

/// Maximum length of a text that statements show in one line, in bytes.
const TEXT_BYTES_MAX: usize = 500;

/// The section `[seller]`: the seller that statements and invoices name, the VAT, and the seller's time zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SellerConfig {
    /// Full name of the seller.
    pub name: String,
    /// Taxpayer number (ИНН) of the seller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inn: Option<String>,
    /// Tax registration code (КПП) of the seller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kpp: Option<String>,
    /// Number of the seller in the register of companies (ОГРН) or of sole traders (ОГРНИП).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ogrn: Option<String>,
    /// Postal address of the seller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Name of the seller's bank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bank: Option<String>,
    /// Code of the seller's bank (БИК).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bik: Option<String>,
    /// Number of the seller's account at the bank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bank_account: Option<String>,
    /// Number of the correspondent account of the seller's bank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correspondent_account: Option<String>,
    /// Contact for customers, as statements show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    /// VAT rate that the prices include, in percent. `None`: no VAT is charged.
    #[serde(skip)]
    pub vat_percent: Option<Decimal>,
    /// Reason why no VAT is charged, as statements show it, for example an article of the law.
    #[serde(skip)]
    pub vat_note: Option<String>,
    /// UTC offset of the seller's time zone, in minutes.
    #[serde(skip)]
    pub utc_offset_minutes: i32,
}

impl Check<'_> {
    pub(super) fn seller(&mut self, raw: RawSeller) -> Option<SellerConfig> {
        let advice = "give the seller's name, or remove the section [seller]";
        let name = self.required(raw.name, "seller.name", advice);
        let name = name.and_then(|name| self.line_of_seller(Some(name), "seller.name"));
        let address = self.line_of_seller(raw.address, "seller.address");
        let bank = self.line_of_seller(raw.bank, "seller.bank");
        let contact = self.line_of_seller(raw.contact, "seller.contact");
        let vat_note = self.line_of_seller(raw.vat_note, "seller.vat_note");
        let inn = self.digits(raw.inn, "seller.inn", &[10, 12]);
        let kpp = self.digits(raw.kpp, "seller.kpp", &[9]);
        let ogrn = self.digits(raw.ogrn, "seller.ogrn", &[13, 15]);
        let bik = self.digits(raw.bik, "seller.bik", &[9]);
        let bank_account = self.digits(raw.bank_account, "seller.bank_account", &[20]);
        let (account, path) = (raw.correspondent_account, "seller.correspondent_account");
        let correspondent_account = self.digits(account, path, &[20]);
        let vat_percent = maybe(raw.vat_percent, |text| {
            self.percent(&text, "seller.vat_percent", 2, 100)
        });
        if vat_percent.flatten().is_some() && vat_note.clone().flatten().is_some() {
            let problem =
                "is a reason why no VAT is charged, but vat_percent is set: remove one of the two";
            self.errors.add("seller.vat_note", problem);
        }
        let offset = raw.utc_offset.as_deref().unwrap_or("+00:00");
        let utc_offset_minutes = minutes(offset).ok_or(
            "must be an offset from UTC in hours and minutes, like \"+03:00\", at most 14 hours",
        );
        let utc_offset_minutes = self.keep(utc_offset_minutes, "seller.utc_offset");
        Some(SellerConfig {
            name: name??,
            inn: inn?,
            kpp: kpp?,
            ogrn: ogrn?,
            address: address?,
            bank: bank?,
            bik: bik?,
            bank_account: bank_account?,
            correspondent_account: correspondent_account?,
            contact: contact?,
            vat_percent: vat_percent?,
            vat_note: vat_note?,
            utc_offset_minutes: utc_offset_minutes?,
        })
    }

    fn line_of_seller(&mut self, text: Option<String>, path: &str) -> Option<Option<String>> {
        maybe(text, |text| {
            let fits = text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
            let problem = format!("must be one line of at most {TEXT_BYTES_MAX} bytes");
            self.keep(fits.then_some(text).ok_or(problem), path)
        })
    }

    fn digits(
        &mut self,
        text: Option<String>,
        path: &str,
        lengths: &[usize],
    ) -> Option<Option<String>> {
        maybe(text, |text| {
            let fits = lengths.contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
            let lengths = lengths.iter().map(usize::to_string).collect::<Vec<_>>();
            let problem = format!("must be {} digits", lengths.join(" or "));
            self.keep(fits.then_some(text).ok_or(problem), path)
        })
    }
}

/// Parses a UTC offset, for example `+03:00`, and returns it in minutes. `None` if it is invalid.
fn minutes(text: &str) -> Option<i32> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text[1..].split_once(':')?;
    let two = |digits: &str| -> Option<i32> {
        let plain = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten()
    };
    let ahead = two(hours)? * 60 + two(minutes).filter(|minutes| *minutes < 60)?;
    (ahead <= 14 * 60).then_some(sign * ahead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{SMALL, parse};

    fn seller(lines: &str) -> Result<SellerConfig, String> {
        let config = parse(&format!("[seller]\n{lines}\n{SMALL}"));
        let config = config.map_err(|errors| errors.to_string())?;
        Ok(SellerConfig::clone(config.live.seller.as_deref().unwrap()))
    }

    #[test]
    fn seller_needs_a_name_and_its_tax_and_bank_numbers_need_the_right_length() {
        let seller_ok = seller(
            "name = \"ООО «Ромашка»\"\ninn = \"7701234567\"\nkpp = \"770101001\"\nogrn = \"1027700000001\"\n\
             address = \"Москва\"\nbank = \"Банк\"\nbik = \"044500001\"\nbank_account = \"40702810900000000001\"\n\
             correspondent_account = \"30101810000000000001\"\ncontact = \"buh@example.com\"\nvat_percent = \"20.0\"\n\
             utc_offset = \"+03:00\"",
        )
        .unwrap();
        assert_eq!(seller_ok.name, "ООО «Ромашка»");
        assert_eq!(seller_ok.vat_percent, Some(Decimal::from(20)));
        assert_eq!(seller_ok.utc_offset_minutes, 180);
        let bare = seller("name = \"n\"").unwrap();
        assert_eq!((bare.vat_percent, bare.utc_offset_minutes), (None, 0));
        assert!(parse(SMALL).unwrap().live.seller.is_none());

        for (lines, says) in [
            ("inn = \"7701234567\"", "seller.name: missing"),
            ("name = \"a\\nb\"", "seller.name: must be one line"),
            (
                "name = \"n\"\ninn = \"12345\"",
                "seller.inn: must be 10 or 12 digits",
            ),
            (
                "name = \"n\"\nkpp = \"77070100x\"",
                "seller.kpp: must be 9 digits",
            ),
            (
                "name = \"n\"\nogrn = \"1\"",
                "seller.ogrn: must be 13 or 15 digits",
            ),
            ("name = \"n\"\nbik = \"\"", "seller.bik: must be 9 digits"),
            (
                "name = \"n\"\nbank_account = \"4\"",
                "seller.bank_account: must be 20 digits",
            ),
            (
                "name = \"n\"\nvat_percent = \"0\"",
                "seller.vat_percent: must be above 0",
            ),
            (
                "name = \"n\"\nvat_percent = \"101\"",
                "seller.vat_percent: must be at most 100",
            ),
            (
                "name = \"n\"\nvat_percent = \"20\"\nvat_note = \"none\"",
                "seller.vat_note: is a reason why no VAT is charged",
            ),
            (
                "name = \"n\"\nutc_offset = \"3\"",
                "seller.utc_offset: must be an offset",
            ),
        ] {
            let errors = seller(lines).unwrap_err();
            assert!(errors.contains(says), "{lines}: {errors}");
        }
    }

    #[test]
    fn utc_offset_is_written_as_hours_and_minutes() {
        for (text, ahead) in [
            ("+00:00", Some(0)),
            ("+03:00", Some(180)),
            ("-09:30", Some(-570)),
            ("+14:00", Some(840)),
            ("+14:01", None),
            ("03:00", None),
            ("+3:00", None),
            ("+03:60", None),
            ("+0a:00", None),
            ("Z", None),
            ("", None),
            ("я03:00", None),
        ] {
            assert_eq!(minutes(text), ahead, "{text}");
        }
    }
}
