//! Errors that endpoints return, but no layer does.

use http::StatusCode;
use tollgate_layers::error::{CustomError, Language};

/// The reason why an endpoint refused a request, if [`tollgate_layers::Error`] has no variant for it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// 404: no call of this key has a receipt with that number.
    #[error("the key has no receipt with this number")]
    ReceiptUnknown,
    /// 404: the key's catalog lists no model of that name.
    #[error("the key's catalog does not list the model {model:?}")]
    ModelNotListed {
        /// The model name that was requested.
        model: String,
    },
    /// 404: there is no ready-made configuration for a client of that name.
    #[error("no ready-made set-up for the client {client:?}")]
    ClientUnknown {
        /// The client name that was requested.
        client: String,
        /// The names of the available clients, separated by commas.
        known: String,
    },
    /// 403: only an owner key can manage keys.
    #[error("only an owner key can manage keys")]
    OwnerKeyNeeded,
    /// 404: the account has no key of that id, or the holder of the owner key cannot change that key.
    #[error("the account has no key with this id, or the account's owner may not change the key")]
    OwnKeyUnknown,
}

impl CustomError for EndpointError {
    fn status(&self) -> StatusCode {
        match self {
            Self::OwnerKeyNeeded => StatusCode::FORBIDDEN,
            Self::ReceiptUnknown
            | Self::ModelNotListed { .. }
            | Self::ClientUnknown { .. }
            | Self::OwnKeyUnknown => StatusCode::NOT_FOUND,
        }
    }

    fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::FORBIDDEN => "permission_error",
            _ => "not_found_error",
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::ReceiptUnknown => "receipt_not_found",
            Self::ModelNotListed { .. } => "model_not_listed",
            Self::ClientUnknown { .. } => "client_not_found",
            Self::OwnerKeyNeeded => "owner_key_required",
            Self::OwnKeyUnknown => "key_not_found",
        }
    }

    fn text(&self, language: Language) -> String {
        match language {
            Language::En => self.english(),
            // Russian is the default language, so every other language gets the Russian text.
            _ => self.russian(),
        }
    }
}

impl EndpointError {
    fn english(&self) -> String {
        match self {
            Self::ReceiptUnknown => {
                "No receipt has this number: the request is still running, cost nothing, or was sent with another key. \
                 Check the number and the key."
                    .into()
            }
            Self::ModelNotListed { model } => format!(
                "This API key may not use the model '{}'. Check the name against 'GET /v1/models'.",
                shown(model)
            ),
            Self::ClientUnknown { client, known } => format!(
                "There is no ready-made set-up for '{}'. Choose one of these: {known}.",
                shown(client)
            ),
            Self::OwnerKeyNeeded => {
                "An owner key is required, but the request was sent with an ordinary API key. The person who opened the \
                 account has the owner key."
                    .into()
            }
            Self::OwnKeyUnknown => {
                "This account has no key with this id, or the account's owner may not change the key. Check the id.".into()
            }
        }
    }

    fn russian(&self) -> String {
        match self {
            Self::ReceiptUnknown => {
                "Списания с этим номером нет: запрос ещё выполняется, ничего не стоил или отправлен с другим ключом. \
                 Сверьте номер и ключ."
                    .into()
            }
            Self::ModelNotListed { model } => format!(
                "Этому ключу API недоступна модель «{}». Сверьте имя со списком «GET /v1/models».",
                shown(model)
            ),
            Self::ClientUnknown { client, known } => format!(
                "Готовой настройки для «{}» нет. Выберите одну из этих: {known}.",
                shown(client)
            ),
            Self::OwnerKeyNeeded => {
                "Для этого нужен ключ владельца, а передан обычный ключ API. Попросите ключ владельца у того, кто открыл \
                 счёт."
                    .into()
            }
            Self::OwnKeyUnknown => {
                "На этом счёте нет такого ключа, или владелец не может его изменить. Проверьте id."
                    .into()
            }
        }
    }
}

/// Makes a caller's text safe to quote in a refusal: returns at most 80 of its characters, and no control characters.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tollgate_layers::{Error, facts::RequestNumber, respond::Refused};

    use super::*;

    #[test]
    fn each_endpoint_error_has_its_status_and_code_and_its_text_in_both_languages() {
        let model = format!("gpt\n{}", "x".repeat(100));
        let cases = [
            (
                EndpointError::ReceiptUnknown,
                (404, "not_found_error", "receipt_not_found"),
                ("No receipt has this number", "Списания с этим номером нет"),
            ),
            (
                EndpointError::ModelNotListed { model },
                (404, "not_found_error", "model_not_listed"),
                ("may not use the model 'gptxxx", "недоступна модель «gptxxx"),
            ),
            (
                EndpointError::ClientUnknown {
                    client: "emacs".into(),
                    known: "curl, zed".into(),
                },
                (404, "not_found_error", "client_not_found"),
                (
                    "'emacs'. Choose one of these: curl, zed.",
                    "«emacs» нет. Выберите одну из этих: curl, zed.",
                ),
            ),
            (
                EndpointError::OwnerKeyNeeded,
                (403, "permission_error", "owner_key_required"),
                ("An owner key is required", "нужен ключ владельца"),
            ),
            (
                EndpointError::OwnKeyUnknown,
                (404, "not_found_error", "key_not_found"),
                ("has no key with this id", "нет такого ключа"),
            ),
        ];
        for (error, (status, kind, code), (english, russian)) in cases {
            let log = error.to_string();
            let error = Error::custom(error);
            assert_eq!(error.to_string(), log);
            for (language, words) in [(Language::En, english), (Language::Ru, russian)] {
                let refused = Refused::new(&error, RequestNumber::now_v7(), language);
                assert_eq!(refused.status(), status, "{log}");
                assert_eq!((refused.kind(), refused.code()), (kind, code), "{log}");
                let text = refused.text();
                assert!(text.contains(words), "{words}: {text}");
                assert!(!text.contains('\n') && text.len() < 400, "{text}");
                let no_retry = HeaderValue::from_static("false");
                let res = refused.usual();
                assert_eq!(
                    res.headers().get("x-should-retry"),
                    Some(&no_retry),
                    "{log}"
                );
            }
        }
    }
}
