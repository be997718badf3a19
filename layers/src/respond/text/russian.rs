//! The Russian texts for callers.

use super::{OtherWay, is_header, listed, rubles, shown, whole_seconds};
use crate::{
    ceiling::Ceiling,
    error::{Error, Limit, Problem},
    model::ModelKind,
    respond::Language,
};

/// Returns the text of an error, without the request's number.
pub(super) fn text(error: &Error) -> String {
    match error {
        Error::Custom(custom) => custom.text(Language::Ru),
        Error::PathUnknown => {
            "Такого адреса нет. Проверьте путь запроса и базовый адрес клиента.".into()
        }
        Error::MethodNotAllowed { allow } => {
            format!("Этот адрес не принимает такой метод запроса. Используйте: {allow}.")
        }
        Error::Invalid { field, problem } if field.is_empty() => {
            format!("Неверное тело запроса: {}.", problem_text(problem))
        }
        Error::Invalid { field, problem } if is_header(field, problem) => format!(
            "Неверный запрос, заголовок «{field}»: {}.",
            problem_text(problem)
        ),
        Error::Invalid { field, problem } => {
            format!(
                "Неверный запрос, поле «{field}»: {}.",
                problem_text(problem)
            )
        }
        Error::UriTooLong { bytes_max } => {
            format!("Адрес запроса длиннее {bytes_max} байт. Сократите его.")
        }
        Error::HeadTooLarge {
            headers_max,
            bytes_max,
        } => format!(
            "Заголовки запроса слишком велики: допустимо не больше {headers_max} строк и {bytes_max} байт. Уберите лишние."
        ),
        Error::BodyTooSlow => {
            "Тело запроса передаётся слишком медленно. Проверьте соединение и повторите запрос.".into()
        }
        Error::BodyTooLarge { bytes_max } => {
            format!("Тело запроса больше {bytes_max} байт. Сократите беседу или вложения.")
        }
        Error::ContentType => {
            "Тело запроса должно быть в JSON. Укажите заголовок «content-type: application/json».".into()
        }
        Error::ContentEncoding => {
            "Тело запроса можно сжать только в gzip. Отправьте его так или без сжатия и без заголовка «content-encoding».".into()
        }
        Error::BodyBroken(_) => {
            "Тело запроса пришло не полностью. Проверьте соединение и повторите запрос.".into()
        }
        Error::KeyMissing => {
            "Не передан ключ API. Укажите заголовок «Authorization: Bearer <ключ>».".into()
        }
        Error::KeyMalformed => "Неверный ключ API. Проверьте, что он скопирован целиком.".into(),
        Error::KeyConflict => {
            "Переданы два разных ключа API. Оставьте один: «Authorization: Bearer» или «x-api-key»."
                .into()
        }
        Error::KeyUnknown => "Неизвестный ключ API. Проверьте, что он скопирован целиком и выдан этим сервисом.".into(),
        Error::KeyDisabled => "Ключ API отключён или удалён. Используйте другой ключ.".into(),
        Error::KeyExpired => "Срок действия ключа API истёк. Используйте другой ключ.".into(),
        Error::CeilingUsedUp(ceiling) => {
            let wait = match ceiling.resets_on() {
                Some(_) => "Дождитесь обновления или попросите",
                None => "Попросите",
            };
            let (ceiling, renewed) = ceiling_and_reset(ceiling);
            format!("{ceiling} исчерпан{renewed}. {wait} увеличить лимит.")
        }
        Error::TooManyCalls { most } => format!(
            "У ключа API уже выполняется столько запросов, сколько допустимо одновременно: {most}. Повторите, когда \
             завершится один из них."
        ),
        Error::AccountEmpty => "На балансе компании нет средств. Пополните баланс.".into(),
        Error::AccountSuspended => {
            "Обслуживание компании приостановлено, её баланс недоступен. Обратитесь к администратору сервиса.".into()
        }
        Error::DoesNotFit {
            needs,
            free,
            held,
            ceiling,
            has_output,
        } => {
            let bound = ceiling.as_ref().map_or_else(String::new, |ceiling| {
                let (ceiling, renewed) = ceiling_and_reset(ceiling);
                format!("{ceiling} больше не позволяет{renewed}. ")
            });
            let other_way = match OtherWay::new(*held, ceiling.as_ref()) {
                OtherWay::Wait => "дождитесь завершения текущих запросов",
                OtherWay::Renewal => "дождитесь обновления лимита",
                OtherWay::HigherCeiling => "попросите увеличить лимит",
                OtherWay::TopUp => "пополните баланс",
            };
            let less = match has_output {
                true => "Уменьшите запрос или предел ответа (max_tokens, max_output_tokens)",
                false => "Уменьшите запрос",
            };
            let [needs, free, held] = [needs, free, held].map(|amount| rubles(*amount, Language::Ru));
            format!(
                "Запрос не помещается в остаток: нужно {needs}, свободно {free}, занято резервом текущих запросов \
                 {held}. {bound}{less} либо {other_way}."
            )
        }
        Error::ModelNotAllowed { model } => {
            format!(
                "Этому ключу API не разрешена модель «{}». Выберите другую из списка «GET /v1/models» или попросите \
                 разрешить эту.",
                shown(model)
            )
        }
        Error::OwnerKey => {
            "Это ключ владельца: он только управляет ключами счёта. Для запросов к моделям используйте обычный ключ API."
                .into()
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
            "Запрос с этим «Idempotency-Key» уже выполнен, но его ответ не сохранён. Чтобы выполнить запрос ещё раз и \
             ещё раз заплатить за него, передайте новый ключ идемпотентности."
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
            "Поставщик модели ограничил частоту запросов. Повторите позже, увеличивая паузу между попытками.".into()
        }
        Error::ModelUnknown { model, similar } => {
            let similar = similar
                .as_ref()
                .map_or_else(String::new, |similar| format!(" Похожая: «{similar}»."));
            format!("Нет модели «{}».{similar} Сверьте имя с каталогом.", shown(model))
        }
        Error::PriceUnavailable => "Цены сейчас недоступны, поэтому запрос не выполнен. Повторите его позже.".into(),
        Error::LedgerUnavailable(_) => "Учёт баланса временно недоступен. Повторите запрос позже.".into(),
        Error::Overloaded => "Сервис перегружен. Повторите запрос позже.".into(),
        Error::Draining => "Сервис перезапускается. Повторите запрос через несколько секунд.".into(),
        Error::VendorUnavailable(_)
        | Error::VendorKeyRefused { .. }
        | Error::RoutesOut { .. } => {
            "Поставщик модели сейчас недоступен. Повторите запрос позже или выберите другую модель.".into()
        }
        // Clients search for the vendor's words, some of them only at the beginning, so these words come first.
        Error::VendorRefused { text, too_long: false, .. } => format!("{text} — отказ поставщика модели."),
        Error::VendorRefused { text, .. } => format!(
            "{text} — отказ поставщика модели. Запрос вместе с ответом не помещается в контекст модели: сократите его \
             или предел ответа."
        ),
        Error::VendorBroken(_) => {
            "Поставщик модели ответил с ошибкой. Повторите запрос или выберите другую модель.".into()
        }
        Error::AnswerTooLong(_) => {
            "Ответ модели длиннее, чем может передать сервис. Уменьшите предел ответа или получайте его потоком: \
             \"stream\": true."
                .into()
        }
        Error::VendorTimeout { .. } => {
            "Поставщик модели не ответил вовремя. Повторите запрос позже или выберите другую модель.".into()
        }
        Error::Internal(_) => {
            "Внутренняя ошибка сервиса. Повторите запрос. Если ошибка повторится, сообщите в поддержку номер запроса.".into()
        }
    }
}

/// Returns the name of a spending ceiling, and the text about when it resets.
fn ceiling_and_reset(ceiling: &Ceiling) -> (&'static str, String) {
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
        .map(|date| format!(", обновится {} в 00:00 UTC", russian_date(&date)));
    (name, renewed.unwrap_or_default())
}

/// Formats `2026-03-01` as `01.03.2026`.
fn russian_date(date: &str) -> String {
    date.rsplit('-').collect::<Vec<_>>().join(".")
}

fn problem_text(problem: &Problem) -> String {
    match problem {
        Problem::NotJson(why) => format!("это не JSON, ошибка на месте {why} (строка:знак)"),
        Problem::Missing => "обязательное поле отсутствует".into(),
        Problem::HeaderMissing => "обязательный заголовок отсутствует".into(),
        Problem::NotAnIdempotencyKey => {
            "нужен один такой заголовок, от 1 до 255 видимых символов ASCII".into()
        }
        Problem::WrongType(expected) => format!(
            "неверное значение, нужно: {}",
            match *expected {
                "string" => "строка",
                "integer" => "целое число от 1",
                "integer from 0" => "целое число от 0",
                "boolean" => "true или false",
                "object" => "объект",
                "array" => "массив",
                "string or array" => "строка или массив",
                "string or object" => "строка или объект",
                "string, array or object" => "строка, массив или объект",
                "string or array of strings" => "строка или массив строк",
                "string with a JSON object in it" => "строка с объектом JSON",
                "array of objects" => "массив объектов",
                "array of strings" => "массив строк",
                "number" => "число",
                "cursor" => "next из предыдущей страницы",
                "RFC 3339" => "дата или время вида 2026-11-28T10:15:00Z (RFC 3339)",
                "UTF-8" => "текст в UTF-8",
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
        Problem::BelowMin(min) => format!("допустимо не меньше {min}"),
        Problem::AboveMax(max) => format!("допустимо не больше {max}"),
        Problem::Duplicate => "поле указано дважды, оставьте одно".into(),
        Problem::TooDeep(levels) => format!("вложенность больше {levels} уровней"),
        Problem::Empty => "значение пустое".into(),
        Problem::NothingSaid => {
            "поставщику этой модели нужно непустое сообщение пользователя, добавьте его".into()
        }
        Problem::NotKopecks => {
            "нужны рубли с целыми копейками, больше 0, десятичным числом в кавычках: \"12.50\"".into()
        }
        Problem::LessThan(other) => format!("меньше, чем в поле «{other}»"),
        Problem::Contradicts(other) => format!("противоречит полю «{other}»"),
        Problem::NotAHost => {
            "нужно имя узла, IPv4 или [IPv6], при необходимости с :портом".into()
        }
        Problem::Unsupported => "эта возможность не поддерживается сервисом, уберите её из запроса".into(),
        Problem::ThreadUnsupported => {
            "сервис не хранит беседы, передавайте в запросе все сообщения".into()
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
            "этот инструмент исполняет поставщик, и цены за него в каталоге нет; уберите его".into()
        }
        Problem::SearchUnsupported => {
            "этот инструмент исполняет поставщик, и цены за него в каталоге нет (в Codex: web_search = \"disabled\")"
                .into()
        }
        Problem::SizeUnseen => {
            "объём этих данных не виден заранее, передавайте сами данные".into()
        }
        Problem::NotTranslated => "в формате поставщика этой модели такого нет; уберите это или выберите другую модель".into(),
        Problem::Unpriced => "для этого у модели нет цены; уберите это или выберите другую модель".into(),
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
            "другие метки cache_control этого запроса живут 5 минут, укажите один срок на весь запрос"
                .into()
        }
        Problem::InputUnpriced { tokens, max } => format!(
            "запрос может занять до {tokens} токенов, а цена этой модели действует до {max}; сократите его"
        ),
    }
}
