//! What a caller reads. The number is added by the caller of this module.

use super::Language;
use crate::error::{Error, Problem};

/// The text for people, in their language, without the cause: that is for the log.
pub(super) fn caller(error: &Error, language: Language) -> String {
    match language {
        Language::Ru => russian(error),
        Language::En => english(error),
    }
}

fn russian(error: &Error) -> String {
    match error {
        Error::PathUnknown => {
            "Такого адреса нет. Проверьте путь запроса и базовый адрес клиента.".into()
        }
        Error::MethodNotAllowed { allow } => {
            format!("Метод не поддерживается этим адресом. Допустимо: {allow}.")
        }
        Error::Invalid { field, problem } if field.is_empty() => {
            format!("Неверное тело запроса: {}.", russian_problem(problem))
        }
        Error::Invalid {
            field,
            problem: problem @ Problem::HeaderMissing,
        } => format!(
            "Неверный запрос, заголовок «{field}»: {}.",
            russian_problem(problem)
        ),
        Error::Invalid { field, problem } => {
            format!(
                "Неверный запрос, поле «{field}»: {}.",
                russian_problem(problem)
            )
        }
        Error::UriTooLong { bytes_max } => {
            format!("Адрес запроса длиннее допустимых {bytes_max} байт.")
        }
        Error::HeadTooLarge {
            headers_max,
            bytes_max,
        } => format!(
            "Слишком много заголовков или они слишком велики: допустимо {headers_max} строк и {bytes_max} байт."
        ),
        Error::BodyTooSlow => "Тело запроса передаётся слишком медленно.".into(),
        Error::BodyTooLarge { bytes_max } => {
            format!("Тело запроса больше допустимых {bytes_max} байт.")
        }
        Error::ContentType => {
            "Неподдерживаемый тип тела. Нужен заголовок «content-type: application/json».".into()
        }
        Error::ContentEncoding => {
            "Сжатые запросы не принимаются. Уберите заголовок «content-encoding».".into()
        }
        Error::BodyBroken(_) => "Тело запроса оборвалось.".into(),
        Error::KeyMissing => {
            "Не передан ключ API. Укажите заголовок «Authorization: Bearer <ключ>».".into()
        }
        Error::KeyMalformed => "Неверный ключ API: проверьте, что он скопирован целиком.".into(),
        Error::KeyConflict => {
            "Переданы два разных ключа API. Оставьте один: «Authorization: Bearer» или «x-api-key»."
                .into()
        }
        Error::KeyUnknown => "Неизвестный ключ API.".into(),
        Error::KeyDisabled => "Ключ API отключён или удалён.".into(),
        Error::KeyExpired => "Срок действия ключа API истёк.".into(),
        Error::CeilingUsedUp => "Лимит расходов ключа API исчерпан.".into(),
        Error::AccountEmpty => "На балансе компании нет средств. Пополните баланс.".into(),
        Error::AccountSuspended => {
            "Обслуживание компании приостановлено, её баланс недоступен. Обратитесь к администратору.".into()
        }
        Error::DoesNotFit { needs, free, held } => format!(
            "Запрос не помещается в остаток: нужно {needs} ₽, свободно {free} ₽, занято текущими запросами ключа \
             {held} ₽. Уменьшите max_tokens или дождитесь завершения текущих запросов."
        ),
        Error::ModelNotAllowed { model } => {
            format!("Этому ключу API не разрешена модель «{}».", shown(model))
        }
        Error::AddressNotAllowed => "Этот ключ API нельзя использовать с вашего адреса.".into(),
        Error::TooManyRequests { .. } => {
            "Слишком много запросов. Повторите позже, увеличивая паузу между попытками.".into()
        }
        Error::VendorLimit { .. } => {
            "Поставщик модели ограничил частоту запросов. Повторите позже, увеличивая паузу.".into()
        }
        Error::ModelUnknown { model } => {
            format!("Нет модели «{}». Сверьте имя с каталогом.", shown(model))
        }
        Error::PriceUnavailable => "Цены сейчас недоступны. Повторите позже.".into(),
        Error::LedgerUnavailable(_) => "Учёт средств временно недоступен. Повторите позже.".into(),
        Error::Overloaded => "Сервис перегружен. Повторите позже.".into(),
        Error::Draining => "Сервис перезапускается. Повторите запрос.".into(),
        Error::VendorUnavailable(_)
        | Error::VendorKeyRefused { .. }
        | Error::RoutesOut { .. } => {
            "Поставщик модели сейчас недоступен. Повторите позже.".into()
        }
        Error::VendorRefused { text, .. } => format!("Поставщик модели отклонил запрос: {text}"),
        Error::VendorBroken(_) => "Поставщик модели ответил с ошибкой.".into(),
        Error::VendorTimeout { .. } => "Поставщик модели не ответил вовремя.".into(),
        Error::Internal(_) => "Внутренняя ошибка сервиса.".into(),
    }
}

fn russian_problem(problem: &Problem) -> String {
    match problem {
        Problem::NotJson(why) => format!("это не JSON (строка и знак: {why})"),
        Problem::Missing => "обязательное поле отсутствует".into(),
        Problem::HeaderMissing => "обязательный заголовок отсутствует".into(),
        Problem::WrongType(expected) => format!(
            "неверный тип, нужно: {}",
            match *expected {
                "string" => "строка",
                "integer" => "целое число от 1",
                "boolean" => "true или false",
                "object" => "объект",
                "array" => "массив",
                "string or array" => "строка или массив",
                "string or array of strings" => "строка или массив строк",
                "string with a JSON object in it" => "строка с объектом JSON",
                "array of objects" => "массив объектов",
                "number" => "число",
                other => other,
            }
        ),
        Problem::NotOneOf(values) => format!(
            "допустимые значения: {}",
            match *values {
                "the names in tools" => "имена из tools",
                other => other,
            }
        ),
        Problem::BelowMin(min) => format!("значение меньше {min}"),
        Problem::AboveMax(max) => format!("больше допустимого: {max}"),
        Problem::Duplicate => "поле указано дважды".into(),
        Problem::TooDeep(levels) => format!("вложенность больше {levels} уровней"),
        Problem::Empty => "значение пустое".into(),
        Problem::Contradicts(other) => format!("противоречит полю «{other}»"),
        Problem::Unsupported => "эта возможность не поддерживается сервисом".into(),
        Problem::ThreadUnsupported => {
            "беседы на стороне сервиса не поддерживаются, передавайте все сообщения целиком".into()
        }
        Problem::NotTranslated => "в формате поставщика этой модели такого нет".into(),
    }
}

fn english(error: &Error) -> String {
    match error {
        Error::PathUnknown => {
            "No such path. Check the request's path and the client's base address.".into()
        }
        Error::MethodNotAllowed { allow } => format!("Method not allowed here. Allowed: {allow}."),
        Error::Invalid { field, problem } if field.is_empty() => {
            format!("Invalid request body: {}.", english_problem(problem))
        }
        Error::Invalid {
            field,
            problem: problem @ Problem::HeaderMissing,
        } => format!(
            "Invalid request, header '{field}': {}.",
            english_problem(problem)
        ),
        Error::Invalid { field, problem } => format!(
            "Invalid request, field '{field}': {}.",
            english_problem(problem)
        ),
        Error::UriTooLong { bytes_max } => {
            format!("The request's address is longer than {bytes_max} bytes.")
        }
        Error::HeadTooLarge {
            headers_max,
            bytes_max,
        } => format!(
            "Too many headers, or too large ones: {headers_max} lines and {bytes_max} bytes are allowed."
        ),
        Error::BodyTooSlow => "The request body comes too slowly.".into(),
        Error::BodyTooLarge { bytes_max } => {
            format!("The request body is larger than {bytes_max} bytes.")
        }
        Error::ContentType => {
            "Unsupported body type. Send 'content-type: application/json'.".into()
        }
        Error::ContentEncoding => {
            "Compressed requests are not taken. Drop the 'content-encoding' header.".into()
        }
        Error::BodyBroken(_) => "The request body broke off.".into(),
        Error::KeyMissing => "No API key. Send 'Authorization: Bearer <key>'.".into(),
        Error::KeyMalformed => "Malformed API key: check that all of it was copied.".into(),
        Error::KeyConflict => {
            "Two different API keys. Send one: 'Authorization: Bearer' or 'x-api-key'.".into()
        }
        Error::KeyUnknown => "Unknown API key.".into(),
        Error::KeyDisabled => "The API key is disabled or deleted.".into(),
        Error::KeyExpired => "The API key has expired.".into(),
        Error::CeilingUsedUp => "The API key's spending ceiling is used up.".into(),
        Error::AccountEmpty => "The company's balance has no funds. Top it up.".into(),
        Error::AccountSuspended => "The balance is not available: the company is suspended.".into(),
        Error::DoesNotFit { needs, free, held } => format!(
            "The request does not fit into what is left: it needs {needs} RUB, {free} RUB are free, the key's \
             running calls hold {held} RUB. Lower max_tokens or wait for the running calls."
        ),
        Error::ModelNotAllowed { model } => {
            format!("This API key may not use the model '{}'.", shown(model))
        }
        Error::AddressNotAllowed => "This API key may not be used from your address.".into(),
        Error::TooManyRequests { .. } => {
            "Too many requests. Try again later, waiting longer each time.".into()
        }
        Error::VendorLimit { .. } => {
            "The model's vendor limits requests. Try again later, waiting longer.".into()
        }
        Error::ModelUnknown { model } => format!(
            "No model '{}'. Check the name against the catalog.",
            shown(model)
        ),
        Error::PriceUnavailable => "Prices are not available now. Try again later.".into(),
        Error::LedgerUnavailable(_) => {
            "Accounting is out of reach for now. Try again later.".into()
        }
        Error::Overloaded => "The service is overloaded. Try again later.".into(),
        Error::Draining => "The service is restarting. Try again.".into(),
        Error::VendorUnavailable(_) | Error::VendorKeyRefused { .. } | Error::RoutesOut { .. } => {
            "The model's vendor is not available now. Try again later.".into()
        }
        Error::VendorRefused { text, .. } => {
            format!("The model's vendor refused the request: {text}")
        }
        Error::VendorBroken(_) => "The model's vendor answered with an error.".into(),
        Error::VendorTimeout { .. } => "The model's vendor did not answer in time.".into(),
        Error::Internal(_) => "Internal error of the service.".into(),
    }
}

fn english_problem(problem: &Problem) -> String {
    match problem {
        Problem::NotJson(why) => format!("it is not JSON ({why})"),
        Problem::Missing | Problem::HeaderMissing => "it is required".into(),
        Problem::WrongType(expected) => format!("wrong type, expected {expected}"),
        Problem::NotOneOf(values) => format!("expected one of {values}"),
        Problem::BelowMin(min) => format!("less than {min}"),
        Problem::AboveMax(max) => format!("more than {max}"),
        Problem::Duplicate => "it stands there twice".into(),
        Problem::TooDeep(levels) => format!("nested deeper than {levels} levels"),
        Problem::Empty => "it is empty".into(),
        Problem::Contradicts(other) => format!("it contradicts '{other}'"),
        Problem::Unsupported => "the service does not support this".into(),
        Problem::ThreadUnsupported => "threads are not supported, send all messages".into(),
        Problem::NotTranslated => "the vendor of this model has nothing like it".into(),
    }
}

/// A client's text inside ours: short, and without control characters.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
