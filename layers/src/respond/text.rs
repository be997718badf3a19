//! What a caller reads. The number is added by the caller of this module.

use std::time::Duration;

use super::Language;
use crate::{
    ceiling::Ceiling,
    error::{Error, Limit, Problem},
    model::ModelKind,
    money::MicroRub,
};

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
        Error::ReceiptUnknown => {
            "Квитанции с таким номером нет: запрос ещё выполняется, ничего не стоил или сделан другим ключом."
                .into()
        }
        Error::ModelNotListed { model } => format!(
            "Среди моделей этого ключа API нет «{}». Сверьте имя со списком «GET /v1/models».",
            shown(model)
        ),
        Error::ClientUnknown { client, known } => format!(
            "Готовой настройки для «{}» нет. Есть для: {known}.",
            shown(client)
        ),
        Error::MethodNotAllowed { allow } => {
            format!("Метод не поддерживается этим адресом. Допустимо: {allow}.")
        }
        Error::Invalid { field, problem } if field.is_empty() => {
            format!("Неверное тело запроса: {}.", russian_problem(problem))
        }
        Error::Invalid { field, problem } if is_header(field, problem) => format!(
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
        Error::BodyTooSlow => {
            "Тело запроса передаётся слишком медленно. Проверьте соединение и повторите запрос.".into()
        }
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
        Error::KeyUnknown => "Неизвестный ключ API: проверьте, что он скопирован целиком и выдан этим сервисом.".into(),
        Error::KeyDisabled => "Ключ API отключён или удалён. Используйте другой ключ.".into(),
        Error::KeyExpired => "Срок действия ключа API истёк. Используйте другой ключ.".into(),
        Error::CeilingUsedUp(ceiling) => {
            let wait = match ceiling.resets_on() {
                Some(_) => "Дождитесь этого или попросите",
                None => "Попросите",
            };
            let (ceiling, renewed) = russian_ceiling(ceiling);
            format!("{ceiling} исчерпан{renewed}. {wait} увеличить лимит.")
        }
        Error::TooManyCalls { most } => format!(
            "У ключа API уже выполняется столько запросов, сколько допустимо одновременно: {most}. Повторите, когда \
             завершится один из них."
        ),
        Error::AccountEmpty => "На балансе компании нет средств. Пополните баланс.".into(),
        Error::AccountSuspended => {
            "Обслуживание компании приостановлено, её баланс недоступен. Обратитесь к администратору.".into()
        }
        Error::DoesNotFit {
            needs,
            free,
            held,
            ceiling,
            has_output,
        } => {
            let bound = ceiling.as_ref().map_or_else(String::new, |ceiling| {
                let (ceiling, renewed) = russian_ceiling(ceiling);
                format!("{ceiling} больше не позволяет{renewed}. ")
            });
            let other_way = match OtherWay::of(*held, ceiling.as_ref()) {
                OtherWay::Wait => "дождитесь завершения текущих запросов",
                OtherWay::Renewal => "дождитесь обновления лимита",
                OtherWay::HigherCeiling => "попросите увеличить лимит",
                OtherWay::TopUp => "пополните баланс",
            };
            let less = match has_output {
                true => "Уменьшите запрос или предел ответа в нём (max_tokens, max_output_tokens)",
                false => "Уменьшите запрос",
            };
            format!(
                "Запрос не помещается в остаток: нужно {needs} ₽, свободно {free} ₽, занято текущими запросами ключа \
                 {held} ₽. {bound}{less} либо {other_way}."
            )
        }
        Error::ModelNotAllowed { model } => {
            format!(
                "Этому ключу API не разрешена модель «{}». Выберите другую из списка «GET /v1/models».",
                shown(model)
            )
        }
        Error::OwnerKey => {
            "Это ключ владельца: он управляет ключами счёта и не вызывает модели. Используйте обычный ключ API."
                .into()
        }
        Error::OwnerKeyNeeded => {
            "Для этого нужен ключ владельца, а это обычный ключ API. Попросите ключ владельца у того, кто открыл счёт."
                .into()
        }
        Error::OwnKeyUnknown => {
            "У этого счёта нет такого ключа, который может изменить владелец: проверьте id.".into()
        }
        Error::AddressNotAllowed { address } => {
            let address = address.map_or_else(String::new, |address| format!(" {address}"));
            format!(
                "Этот ключ API нельзя использовать с вашего адреса{address}. Используйте другой ключ или попросите \
                 разрешить адрес."
            )
        }
        Error::IdempotencyKeyInUse { .. } => {
            "Запрос с этим «Idempotency-Key» ещё выполняется. Повторите его позже с тем же ключом идемпотентности."
                .into()
        }
        Error::IdempotentAnswerGone => {
            "Запрос с этим «Idempotency-Key» уже выполнялся, и его ответ не сохранён. Чтобы выполнить его заново \
             (ещё раз платно), передайте новый ключ идемпотентности."
                .into()
        }
        Error::IdempotencyKeyReused => {
            "Этот «Idempotency-Key» уже использован для другого запроса. Для нового запроса передайте новый ключ \
             идемпотентности."
                .into()
        }
        Error::TooManyRequests { limit, retry_after } => {
            let counted = match limit {
                Limit::Requests => {
                    return "Слишком много запросов. Повторите позже, увеличивая паузу между попытками."
                        .into();
                }
                Limit::KeyRequestsPerSecond => "запросов в секунду",
                Limit::KeyRequestsPerMinute => "запросов в минуту",
                Limit::KeyTokensPerMinute => "токенов в минуту",
            };
            let seconds = whole_seconds(*retry_after);
            format!("Слишком много {counted} для этого ключа API. Повторите через {seconds} с.")
        }
        Error::VendorLimit { .. } => {
            "Поставщик модели ограничил частоту запросов. Повторите позже, увеличивая паузу.".into()
        }
        Error::ModelUnknown { model, similar } => {
            let similar = similar
                .as_ref()
                .map_or_else(String::new, |similar| format!(" Похожая: «{similar}»."));
            format!("Нет модели «{}».{similar} Сверьте имя с каталогом.", shown(model))
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
        // Clients look for the vendor's words, some where the text begins.
        Error::VendorRefused { text, .. } => format!("{text} — отказ поставщика модели."),
        Error::VendorBroken(_) => {
            "Поставщик модели ответил с ошибкой. Повторите запрос или выберите другую модель.".into()
        }
        Error::AnswerTooLong(_) => {
            "Ответ модели длиннее, чем принимает сервис. Попросите ответ короче или потоком: \"stream\": true.".into()
        }
        Error::VendorTimeout { .. } => {
            "Поставщик модели не ответил вовремя. Повторите запрос позже или выберите другую модель.".into()
        }
        Error::Internal(_) => "Внутренняя ошибка сервиса.".into(),
    }
}

/// What helps a call that does not fit, other than to make it smaller.
enum OtherWay {
    Wait,
    Renewal,
    HigherCeiling,
    TopUp,
}

impl OtherWay {
    fn of(held: MicroRub, ceiling: Option<&Ceiling>) -> Self {
        match ceiling {
            // Where nothing runs, there is nothing to wait for.
            _ if held > MicroRub::ZERO => Self::Wait,
            Some(ceiling) if ceiling.resets_on().is_some() => Self::Renewal,
            Some(_) => Self::HigherCeiling,
            None => Self::TopUp,
        }
    }
}

/// The name of a ceiling, and when it begins anew.
fn russian_ceiling(ceiling: &Ceiling) -> (&'static str, String) {
    let name = match ceiling {
        Ceiling::Total => "Лимит расходов ключа API",
        Ceiling::Month { .. } => "Месячный лимит расходов ключа API",
        Ceiling::Day { .. } => "Дневной лимит расходов ключа API",
        Ceiling::GroupTotal => "Общий лимит расходов группы ключей",
        Ceiling::GroupMonth { .. } => "Месячный лимит расходов группы ключей",
        Ceiling::GroupDay { .. } => "Дневной лимит расходов группы ключей",
    };
    let renewed = ceiling
        .resets_on()
        .map(|date| format!(", обновится {date} в 00:00 UTC"));
    (name, renewed.unwrap_or_default())
}

/// Whether it is a header that is wrong, and no field of the body.
fn is_header(field: &str, problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::HeaderMissing | Problem::NotAHost | Problem::NotAnIdempotencyKey
    ) || matches!(field, "host" | "content-length" | "transfer-encoding")
}

fn russian_problem(problem: &Problem) -> String {
    match problem {
        Problem::NotJson(why) => format!("это не JSON (строка и знак: {why})"),
        Problem::Missing => "обязательное поле отсутствует".into(),
        Problem::HeaderMissing => "обязательный заголовок отсутствует".into(),
        Problem::NotAnIdempotencyKey => {
            "нужно от 1 до 255 видимых символов ASCII, один раз".into()
        }
        Problem::WrongType(expected) => format!(
            "неверный тип, нужно: {}",
            match *expected {
                "string" => "строка",
                "integer" => "целое число от 1",
                "integer from 0" => "целое число от 0",
                "boolean" => "true или false",
                "object" => "объект",
                "array" => "массив",
                "string or array" => "строка или массив",
                "string or object" => "строка или объект",
                "string or array of strings" => "строка или массив строк",
                "string with a JSON object in it" => "строка с объектом JSON",
                "array of objects" => "массив объектов",
                "array of strings" => "массив строк",
                "number" => "число",
                "cursor" => "next предыдущей страницы",
                "an address like name@example.com" => "адрес вида name@example.com",
                other => other,
            }
        ),
        Problem::NotOneOf(values) => format!(
            "допустимые значения: {}",
            match *values {
                "the names in tools" => "имена из tools",
                "those that are configured" => "подключённые провайдеры",
                "the groups of the account" => "группы счёта",
                "the group of the owner key" => "группа ключа владельца",
                other => other,
            }
        ),
        Problem::BelowMin(min) => format!("значение меньше {min}"),
        Problem::AboveMax(max) => format!("больше допустимого: {max}"),
        Problem::Duplicate => "поле указано дважды".into(),
        Problem::TooDeep(levels) => format!("вложенность больше {levels} уровней"),
        Problem::Empty => "значение пустое".into(),
        Problem::NothingSaid => {
            "поставщику этой модели нужно непустое сообщение пользователя, а его нет".into()
        }
        Problem::NotKopecks => {
            "нужны рубли с целыми копейками, больше 0, десятичным числом в кавычках: \"12.50\"".into()
        }
        Problem::LessThan(other) => format!("меньше, чем в поле «{other}»"),
        Problem::Contradicts(other) => format!("противоречит полю «{other}»"),
        Problem::NotAHost => {
            "это не адрес узла, нужно: имя, IPv4 или [IPv6] и при необходимости :порт".into()
        }
        Problem::Unsupported => "эта возможность не поддерживается сервисом".into(),
        Problem::ThreadUnsupported => {
            "беседы на стороне сервиса не поддерживаются, передавайте все сообщения целиком".into()
        }
        Problem::StateUnsupported => {
            "сервис ничего не хранит: уберите поле, передавайте всю беседу в «input»".into()
        }
        Problem::StoreUnsupported => {
            "сервис ничего не хранит, уберите поле или передайте false".into()
        }
        Problem::ReferenceUnsupported => {
            "сервис ничего не хранит, передавайте сами элементы (в клиенте: store: false)".into()
        }
        Problem::ToolUnsupported => {
            "этот инструмент исполняет поставщик, и цены за него в каталоге нет".into()
        }
        Problem::SearchUnsupported => {
            "этот инструмент исполняет поставщик, и цены за него в каталоге нет (в Codex: web_search = \"disabled\")"
                .into()
        }
        Problem::SizeUnseen => {
            "объём этих данных не виден заранее, передавайте сами данные".into()
        }
        Problem::NotTranslated => "в формате поставщика этой модели такого нет".into(),
        Problem::Unpriced => "для этого у модели нет цены".into(),
        Problem::ModelOfKind(kind) => {
            let is = match kind {
                ModelKind::Embedding => "эта модель только для эмбеддингов",
                ModelKind::Chat => "эта модель не для эмбеддингов",
            };
            let (surfaces, which) = listed(kind.surfaces(), "или");
            let its = ["её адрес", "её адреса"][usize::from(which)];
            format!("{is}, {its}: POST {surfaces}")
        }
        Problem::MixedLifetimes => {
            "другие метки cache_control запроса живут 5 минут, укажите один срок на весь запрос"
                .into()
        }
        Problem::InputUnpriced { tokens, max } => format!(
            "вход может занять до {tokens} токенов, а цена этой модели действует до {max}; сократите запрос"
        ),
    }
}

/// `A, B or C`, and whether they are several.
fn listed(surfaces: &[&str], or: &str) -> (String, bool) {
    match surfaces {
        [] => (String::new(), false),
        [one] => ((*one).to_owned(), false),
        [others @ .., last] => (format!("{} {or} {last}", others.join(", ")), true),
    }
}

fn english(error: &Error) -> String {
    match error {
        Error::PathUnknown => {
            "No such path. Check the request's path and the client's base address.".into()
        }
        Error::ReceiptUnknown => {
            "No receipt under this number: the call still runs, cost nothing, or was made with another key."
                .into()
        }
        Error::ModelNotListed { model } => format!(
            "This API key has no model '{}'. Check the name against 'GET /v1/models'.",
            shown(model)
        ),
        Error::ClientUnknown { client, known } => format!(
            "There is no set-up for '{}'. There is for: {known}.",
            shown(client)
        ),
        Error::MethodNotAllowed { allow } => format!("Method not allowed here. Allowed: {allow}."),
        Error::Invalid { field, problem } if field.is_empty() => {
            format!("Invalid request body: {}.", english_problem(problem))
        }
        Error::Invalid { field, problem } if is_header(field, problem) => format!(
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
        Error::BodyTooSlow => {
            "The request body comes too slowly. Check the connection and try again.".into()
        }
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
        Error::KeyUnknown => "Unknown API key: check that all of it was copied, and that it is one of this service.".into(),
        Error::KeyDisabled => "The API key is disabled or deleted. Use another one.".into(),
        Error::KeyExpired => "The API key has expired. Use another one.".into(),
        Error::CeilingUsedUp(ceiling) => {
            let wait = match ceiling.resets_on() {
                Some(_) => "Wait for that, or ask",
                None => "Ask",
            };
            let (ceiling, renewed) = english_ceiling(ceiling);
            format!("{ceiling} is used up{renewed}. {wait} for a higher limit.")
        }
        Error::TooManyCalls { most } => format!(
            "As many calls of the API key are running as may be at once: {most}. Try again when one of them has ended."
        ),
        Error::AccountEmpty => "The company's balance has no funds. Top it up.".into(),
        Error::AccountSuspended => "The balance is not available: the company is suspended.".into(),
        Error::DoesNotFit {
            needs,
            free,
            held,
            ceiling,
            has_output,
        } => {
            let bound = ceiling.as_ref().map_or_else(String::new, |ceiling| {
                let (ceiling, renewed) = english_ceiling(ceiling);
                format!("{ceiling} allows no more{renewed}. ")
            });
            let other_way = match OtherWay::of(*held, ceiling.as_ref()) {
                OtherWay::Wait => "wait for the running calls",
                OtherWay::Renewal => "wait until the limit is renewed",
                OtherWay::HigherCeiling => "ask for a higher limit",
                OtherWay::TopUp => "top the balance up",
            };
            let less = match has_output {
                true => {
                    "Shorten the request, lower the limit of its answer (max_tokens, max_output_tokens),"
                }
                false => "Shorten the request",
            };
            format!(
                "The request does not fit into what is left: it needs {needs} RUB, {free} RUB are free, the key's \
                 running calls hold {held} RUB. {bound}{less} or {other_way}."
            )
        }
        Error::ModelNotAllowed { model } => {
            format!(
                "This API key may not use the model '{}'. Choose another one of 'GET /v1/models'.",
                shown(model)
            )
        }
        Error::OwnerKey => {
            "This is an owner key: it looks after the account's keys and calls no models. Use an ordinary API key.".into()
        }
        Error::OwnerKeyNeeded => {
            "This takes an owner key, and this is an ordinary API key. Ask whoever opened the account for the owner key."
                .into()
        }
        Error::OwnKeyUnknown => {
            "This account has no such key that its owner could change: check the id.".into()
        }
        Error::AddressNotAllowed { address } => {
            let address = address.map_or_else(String::new, |address| format!(" {address}"));
            format!(
                "This API key may not be used from your address{address}. Use another key, or ask for the address to be \
                 allowed."
            )
        }
        Error::IdempotencyKeyInUse { .. } => {
            "A call with this 'Idempotency-Key' still runs. Send it again later, with the same idempotency key.".into()
        }
        Error::IdempotentAnswerGone => {
            "A call with this 'Idempotency-Key' was made before, and its answer is not kept. Send a new idempotency key \
             to make it, and pay for it, anew."
                .into()
        }
        Error::IdempotencyKeyReused => {
            "This 'Idempotency-Key' was used for another request. Send a new idempotency key with a new request.".into()
        }
        Error::TooManyRequests { limit, retry_after } => {
            let counted = match limit {
                Limit::Requests => {
                    return "Too many requests. Try again later, waiting longer each time.".into();
                }
                Limit::KeyRequestsPerSecond => "requests per second",
                Limit::KeyRequestsPerMinute => "requests per minute",
                Limit::KeyTokensPerMinute => "tokens per minute",
            };
            let seconds = whole_seconds(*retry_after);
            format!("Too many {counted} for this API key. Try again in {seconds} s.")
        }
        Error::VendorLimit { .. } => {
            "The model's vendor limits requests. Try again later, waiting longer.".into()
        }
        Error::ModelUnknown { model, similar } => {
            let similar = similar
                .as_ref()
                .map_or_else(String::new, |similar| format!(" Did you mean '{similar}'?"));
            format!("No model '{}'.{similar} Check the name against the catalog.", shown(model))
        }
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
            format!("{text} — refused by the model's vendor.")
        }
        Error::VendorBroken(_) => {
            "The model's vendor answered with an error. Try again, or use another model.".into()
        }
        Error::AnswerTooLong(_) => {
            "The model's answer is longer than the service takes. Ask for a shorter one, or for a stream: \"stream\": true.".into()
        }
        Error::VendorTimeout { .. } => {
            "The model's vendor did not answer in time. Try again later, or use another model.".into()
        }
        Error::Internal(_) => "Internal error of the service.".into(),
    }
}

/// The name of a ceiling, and when it begins anew.
fn english_ceiling(ceiling: &Ceiling) -> (&'static str, String) {
    let name = match ceiling {
        Ceiling::Total => "The API key's spending ceiling",
        Ceiling::Month { .. } => "The API key's monthly spending ceiling",
        Ceiling::Day { .. } => "The API key's daily spending ceiling",
        Ceiling::GroupTotal => "The spending ceiling of the API key's group",
        Ceiling::GroupMonth { .. } => "The monthly spending ceiling of the API key's group",
        Ceiling::GroupDay { .. } => "The daily spending ceiling of the API key's group",
    };
    let renewed = ceiling
        .resets_on()
        .map(|date| format!("; it is renewed on {date} at 00:00 UTC"));
    (name, renewed.unwrap_or_default())
}

fn english_problem(problem: &Problem) -> String {
    match problem {
        Problem::NotJson(why) => format!("it is not JSON ({why})"),
        Problem::Missing | Problem::HeaderMissing => "it is missing".into(),
        Problem::NotAnIdempotencyKey => "1 to 255 visible ASCII characters are needed, once".into(),
        Problem::WrongType(expected) => format!("wrong type, expected {expected}"),
        Problem::NotOneOf(values) => format!("expected one of {values}"),
        Problem::BelowMin(min) => format!("less than {min}"),
        Problem::AboveMax(max) => format!("more than {max}"),
        Problem::Duplicate => "it is given twice".into(),
        Problem::TooDeep(levels) => format!("nested deeper than {levels} levels"),
        Problem::Empty => "it is empty".into(),
        Problem::NothingSaid => {
            "the vendor of this model needs a user message that is not empty".into()
        }
        Problem::NotKopecks => {
            "expected rubles above 0 with whole kopecks, a decimal number in quotes: \"12.50\"".into()
        }
        Problem::LessThan(other) => format!("it is less than '{other}'"),
        Problem::Contradicts(other) => format!("it contradicts '{other}'"),
        Problem::NotAHost => "expected a name, IPv4 or [IPv6], and :port where needed".into(),
        Problem::Unsupported => "the service does not support this".into(),
        Problem::ThreadUnsupported => "threads are not supported, send all messages".into(),
        Problem::StateUnsupported => {
            "nothing is kept here: leave the field out, send the whole conversation in 'input'".into()
        }
        Problem::StoreUnsupported => {
            "nothing is kept here, leave the field out or send false".into()
        }
        Problem::ReferenceUnsupported => {
            "nothing is kept here, send the items themselves (in the client: store: false)".into()
        }
        Problem::ToolUnsupported => {
            "the vendor runs this tool, and the catalog has no price for it".into()
        }
        Problem::SearchUnsupported => {
            "the vendor runs this tool, and the catalog has no price for it (in Codex: web_search = \"disabled\")"
                .into()
        }
        Problem::SizeUnseen => {
            "the size of this input cannot be seen beforehand, send the data itself".into()
        }
        Problem::NotTranslated => "the vendor of this model has nothing like it".into(),
        Problem::Unpriced => "the model has no price for this".into(),
        Problem::ModelOfKind(kind) => {
            let is = match kind {
                ModelKind::Embedding => "this model is for embeddings alone",
                ModelKind::Chat => "this model is not for embeddings",
            };
            format!("{is}, it is asked at POST {}", listed(kind.surfaces(), "or").0)
        }
        Problem::MixedLifetimes => {
            "other cache_control marks of the request live 5 minutes, use one lifetime per request"
                .into()
        }
        Problem::InputUnpriced { tokens, max } => format!(
            "the prompt is too long: it may have up to {tokens} tokens, and this model's price covers {max}"
        ),
    }
}

/// A wait as callers are told of it: rounded up, at least one second.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    u64::try_from(seconds).unwrap_or(u64::MAX)
}

/// A client's text inside ours: short, and without control characters.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
