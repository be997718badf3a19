//! The texts of errors for callers, each in Russian and in English.

use super::{both, is_header, other_way, problems::problem_text, rubles, shown, whole_seconds};
use crate::{
    ceiling::Ceiling,
    error::{Error, Limit},
    respond::Language,
};

/// Returns the error's text for people in `language`. The text does not contain the cause, which is only logged.
pub(in crate::respond) fn caller(error: &Error, language: Language) -> String {
    let [russian, english] = match error {
        Error::Custom(custom) => return custom.text(language),
        Error::PathUnknown => both(
            "Такого адреса нет. Проверьте путь запроса и базовый адрес клиента.",
            "No such path. Check the request's path and the client's base address.",
        ),
        Error::MethodNotAllowed { allow } => both(
            format!("Этот адрес не принимает такой метод запроса. Используйте: {allow}."),
            format!("This path does not accept the method of the request. Use: {allow}."),
        ),
        Error::Invalid { field, problem } => {
            let place = match field.is_empty() {
                true => [
                    "Неверное тело запроса".into(),
                    "Invalid request body".into(),
                ],
                false if is_header(field, problem) => [
                    format!("Неверный запрос, заголовок «{field}»"),
                    format!("Invalid request, header '{field}'"),
                ],
                false => [
                    format!("Неверный запрос, поле «{field}»"),
                    format!("Invalid request, field '{field}'"),
                ],
            };
            let [russian, english] = problem_text(problem);
            both(
                format!("{}: {russian}.", place[0]),
                format!("{}: {english}.", place[1]),
            )
        }
        Error::UriTooLong { bytes_max } => both(
            format!("Адрес запроса длиннее {bytes_max} байт. Сократите его."),
            format!("The request's address is longer than {bytes_max} bytes. Shorten it."),
        ),
        Error::HeadTooLarge {
            headers_max,
            bytes_max,
        } => both(
            format!(
                "Заголовки запроса слишком велики: допустимо не больше {headers_max} строк и {bytes_max} байт. Уберите лишние."
            ),
            format!(
                "The request's headers are too large: at most {headers_max} lines and {bytes_max} bytes. Remove some."
            ),
        ),
        Error::BodyTooSlow => both(
            "Тело запроса передаётся слишком медленно. Проверьте соединение и повторите запрос.",
            "The request body arrives too slowly. Check the connection and try again.",
        ),
        Error::BodyTooLarge { bytes_max } => both(
            format!("Тело запроса больше {bytes_max} байт. Сократите беседу или вложения."),
            format!(
                "The request body is larger than {bytes_max} bytes. Shorten the conversation or its attachments."
            ),
        ),
        Error::ContentType => both(
            "Тело запроса должно быть в JSON. Укажите заголовок «content-type: application/json».",
            "The request body must be JSON. Send 'content-type: application/json'.",
        ),
        Error::ContentEncoding => both(
            "Тело запроса можно сжать только в gzip. Сожмите его в gzip или отправьте без сжатия и без заголовка «content-encoding».",
            "A request body may be compressed only with gzip. Use gzip, or send the body uncompressed and without the header 'content-encoding'.",
        ),
        Error::BodyBroken(_) => both(
            "Тело запроса пришло не полностью. Проверьте соединение и повторите запрос.",
            "The request body is incomplete. Check the connection and try again.",
        ),
        Error::KeyMissing => both(
            "Не передан ключ API. Укажите заголовок «Authorization: Bearer <ключ>».",
            "No API key. Send 'Authorization: Bearer <key>'.",
        ),
        Error::KeyMalformed => both(
            "Неверный ключ API. Проверьте, что он скопирован целиком.",
            "Malformed API key. Check that all of it was copied.",
        ),
        Error::KeyConflict => both(
            "Переданы два разных ключа API. Оставьте один: «Authorization: Bearer» или «x-api-key».",
            "Two different API keys. Send one: 'Authorization: Bearer' or 'x-api-key'.",
        ),
        Error::KeyUnknown => both(
            "Неизвестный ключ API. Проверьте, что он скопирован целиком и выдан этим сервисом.",
            "Unknown API key. Check that all of it was copied and that this service issued it.",
        ),
        Error::KeyDisabled => both(
            "Ключ API отключён или удалён. Используйте другой ключ.",
            "The API key is disabled or deleted. Use another one.",
        ),
        Error::KeyExpired => both(
            "Срок действия ключа API истёк. Используйте другой ключ.",
            "The API key has expired. Use another one.",
        ),
        Error::CeilingUsedUp(ceiling) => {
            let remedy = match ceiling.resets_on() {
                Some(_) => [
                    "Дождитесь обновления или попросите увеличить лимит.",
                    "Wait until it resets, or ask for a higher ceiling.",
                ],
                None => ["Попросите увеличить лимит.", "Ask for a higher ceiling."],
            };
            let [russian, english] = ceiling_and_reset(ceiling);
            both(
                format!("{} исчерпан{}. {}", russian.0, russian.1, remedy[0]),
                format!("{} is used up{}. {}", english.0, english.1, remedy[1]),
            )
        }
        Error::TooManyCalls { most } => both(
            format!(
                "Достигнут предел одновременных запросов ключа API: {most}. Повторите, когда завершится один из них."
            ),
            format!(
                "The API key has reached its limit of concurrent requests, {most}. Try again when one of them has ended."
            ),
        ),
        Error::AccountEmpty => both(
            "На балансе компании нет средств. Пополните баланс.",
            "The company's balance has no funds. Top it up.",
        ),
        Error::AccountSuspended => both(
            "Обслуживание компании приостановлено, её баланс недоступен. Обратитесь к администратору сервиса.",
            "The company is suspended, so its balance is not available. Contact the service's administrator.",
        ),
        Error::DoesNotFit {
            needs,
            free,
            held,
            ceiling,
            has_output,
        } => {
            let [russian_ceiling, english_ceiling] = match ceiling.as_ref().map(ceiling_and_reset) {
                Some([russian, english]) => [
                    format!("{} был бы превышен{}. ", russian.0, russian.1),
                    format!("{} would be exceeded{}. ", english.0, english.1),
                ],
                None => Default::default(),
            };
            let [russian_way, english_way] = other_way(*held, ceiling.as_ref());
            let [russian_limit, english_limit] = match has_output {
                true => [
                    ", уменьшите предел ответа (max_tokens, max_output_tokens)",
                    ", lower its output limit (max_tokens, max_output_tokens),",
                ],
                false => [""; 2],
            };
            let [needs, free, held] = [needs, free, held].map(|amount| rubles(*amount, language));
            both(
                format!(
                    "Запрос не помещается в остаток: нужно {needs}, свободно {free}, занято резервом текущих запросов \
                     {held}. {russian_ceiling}Сократите запрос{russian_limit} либо {russian_way}."
                ),
                format!(
                    "The request does not fit into what is left: it needs {needs}, {free} is free, the key's running \
                     requests hold {held}. {english_ceiling}Shorten the request{english_limit} or {english_way}."
                ),
            )
        }
        Error::ModelNotAllowed { model } => both(
            format!(
                "Этому ключу API не разрешена модель «{}». Выберите другую из списка «GET /v1/models» или попросите \
                 разрешить эту.",
                shown(model)
            ),
            format!(
                "This API key may not use the model '{}'. Choose another model from 'GET /v1/models', or ask for \
                 this model to be allowed.",
                shown(model)
            ),
        ),
        Error::OwnerKey => both(
            "Это ключ владельца: он только управляет ключами счёта. Для запросов к моделям используйте обычный ключ API.",
            "This is an owner key: it only manages the account's keys. Use an ordinary API key for models.",
        ),
        Error::AddressNotAllowed { address } => {
            let address = address.map_or_else(String::new, |address| format!(" {address}"));
            both(
                format!(
                    "Этот ключ API нельзя использовать с вашего адреса{address}. Используйте другой ключ или попросите \
                     разрешить адрес."
                ),
                format!(
                    "This API key may not be used from your address{address}. Use another key, or ask for the address to be \
                     allowed."
                ),
            )
        }
        Error::IdempotencyKeyInUse { .. } => both(
            "Запрос с этим «Idempotency-Key» ещё выполняется. Повторите его позже с тем же ключом идемпотентности.",
            "A request with this 'Idempotency-Key' is still running. Send it again later with the same idempotency key.",
        ),
        Error::IdempotentAnswerGone => both(
            "Запрос с этим «Idempotency-Key» уже выполнен, но его ответ не сохранён. Чтобы выполнить запрос ещё раз и \
             ещё раз заплатить за него, передайте новый ключ идемпотентности.",
            "A request with this 'Idempotency-Key' has already run, but its answer is not stored. To run it again and \
             pay for it again, send a new idempotency key.",
        ),
        Error::IdempotencyKeyReused => both(
            "Этот «Idempotency-Key» уже использован для другого запроса. Для нового запроса передайте новый ключ \
             идемпотентности.",
            "This 'Idempotency-Key' was used for another request. Send a new idempotency key with a new request.",
        ),
        Error::TooManyRequests {
            limit: Limit::Requests,
            ..
        } => both(
            "Слишком много запросов. Повторите позже, увеличивая паузу между попытками.",
            "Too many requests. Try again later, waiting longer each time.",
        ),
        Error::TooManyRequests { limit, retry_after } => {
            let [russian, english] = match limit {
                Limit::Requests => ["запросов", "requests"],
                Limit::KeyRequestsPerSecond => ["запросов в секунду", "requests per second"],
                Limit::KeyRequestsPerMinute => ["запросов в минуту", "requests per minute"],
                Limit::KeyTokensPerMinute => ["токенов в минуту", "tokens per minute"],
            };
            let seconds = whole_seconds(*retry_after);
            both(
                format!(
                    "Слишком много {russian} для этого ключа API. Повторите через {seconds} с."
                ),
                format!("Too many {english} for this API key. Try again in {seconds} s."),
            )
        }
        Error::VendorLimit { .. } => both(
            "Поставщик модели ограничил частоту запросов. Повторите позже, увеличивая паузу между попытками.",
            "The model's vendor limits the rate of requests. Try again later, waiting longer each time.",
        ),
        Error::ModelUnknown { model, similar } => {
            let [russian, english] = match similar {
                Some(similar) => [
                    format!(" Похожее имя: «{similar}»."),
                    format!(" Did you mean '{similar}'?"),
                ],
                None => Default::default(),
            };
            let model = shown(model);
            both(
                format!("Нет модели «{model}».{russian} Сверьте имя с каталогом."),
                format!(
                    "There is no model '{model}'.{english} Check the name against the catalog."
                ),
            )
        }
        Error::PriceUnavailable => both(
            "Цены сейчас недоступны, поэтому запрос не выполнен. Повторите его позже.",
            "Prices are not available now, so the request was not run. Try again later.",
        ),
        Error::LedgerUnavailable(_) => both(
            "Учёт баланса временно недоступен. Повторите запрос позже.",
            "The balance cannot be checked now: the ledger is not available. Try again later.",
        ),
        Error::Overloaded => both(
            "Сервис перегружен. Повторите запрос позже.",
            "The service is overloaded. Try again later.",
        ),
        Error::Draining => both(
            "Сервис перезапускается. Повторите запрос через несколько секунд.",
            "The service is restarting. Try again in a few seconds.",
        ),
        Error::VendorUnavailable(_) | Error::VendorKeyRefused { .. } | Error::RoutesOut { .. } => {
            both(
                "Поставщик модели сейчас недоступен. Повторите запрос позже или выберите другую модель.",
                "The model's vendor is not available now. Try again later, or use another model.",
            )
        }
        // Clients search for the vendor's words, some clients only at the beginning of the text. So the text begins
        // with these words.
        Error::VendorRefused {
            text,
            too_long: false,
            ..
        } => both(
            format!("{text} — отказ поставщика модели."),
            format!("{text} — refused by the model's vendor."),
        ),
        Error::VendorRefused { text, .. } => both(
            format!(
                "{text} — отказ поставщика модели. Запрос вместе с ответом не помещается в контекст модели: сократите \
             запрос или уменьшите предел ответа."
            ),
            format!(
                "{text} — refused by the model's vendor. The request and its answer do not fit into the model's context: \
             shorten the request, or lower its output limit."
            ),
        ),
        Error::VendorBroken(_) => both(
            "Поставщик модели ответил с ошибкой. Повторите запрос или выберите другую модель.",
            "The model's vendor answered with an error. Try again, or use another model.",
        ),
        Error::AnswerTooLong(_) => both(
            "Ответ модели длиннее, чем может передать сервис. Уменьшите предел ответа или получайте его потоком: \
             \"stream\": true.",
            "The model's answer is too long to be sent in one piece. Lower the request's output limit, or request a \
             stream: \"stream\": true.",
        ),
        Error::VendorTimeout { .. } => both(
            "Поставщик модели не ответил вовремя. Повторите запрос позже или выберите другую модель.",
            "The model's vendor did not answer in time. Try again later, or use another model.",
        ),
        Error::Internal(_) => both(
            "Внутренняя ошибка сервиса. Повторите запрос. Если ошибка повторится, сообщите в поддержку номер запроса.",
            "Internal error in the service. Try again. If the error persists, send the request's number to support.",
        ),
    };
    match language {
        Language::Ru => russian.into_owned(),
        Language::En => english.into_owned(),
    }
}

/// Returns the name of a spending ceiling, and a clause with the date on which the ceiling resets.
fn ceiling_and_reset(ceiling: &Ceiling) -> [(&'static str, String); 2] {
    let [russian, english] = match ceiling {
        Ceiling::Total => ["Лимит расходов ключа API", "The API key's spending ceiling"],
        Ceiling::Month { .. } => [
            "Месячный лимит расходов ключа API",
            "The API key's monthly spending ceiling",
        ],
        Ceiling::Day { .. } => [
            "Дневной лимит расходов ключа API",
            "The API key's daily spending ceiling",
        ],
        Ceiling::GroupTotal => [
            "Общий лимит расходов группы ключей",
            "The spending ceiling of the API key's group",
        ],
        Ceiling::GroupMonth { .. } => [
            "Месячный лимит расходов группы ключей",
            "The monthly spending ceiling of the API key's group",
        ],
        Ceiling::GroupDay { .. } => [
            "Дневной лимит расходов группы ключей",
            "The daily spending ceiling of the API key's group",
        ],
    };
    let [russian_reset, english_reset] = match ceiling.resets_on() {
        Some(date) => {
            // The date is `2026-03-01`, which in Russian is `01.03.2026`.
            let russian = date.rsplit('-').collect::<Vec<_>>().join(".");
            [
                format!("; он обновится {russian} в 00:00 UTC"),
                format!("; it resets on {date} at 00:00 UTC"),
            ]
        }
        None => Default::default(),
    };
    [(russian, russian_reset), (english, english_reset)]
}
