//! The problems of a field or a header of a request, in Russian and in English.

use super::{Texts, both, is_position, listed};
use crate::{error::Problem, model::ModelKind};

pub(super) fn problem_text(problem: &Problem) -> Texts {
    match problem {
        Problem::NotJson(at) if is_position(at) => both(
            format!("это не JSON, ошибка на месте {at} (строка:знак)"),
            format!("it is not JSON, the error is at {at} (line:column)"),
        ),
        Problem::NotJson(why) => both(
            format!("это не JSON: {why}"),
            format!("it is not JSON: {why}"),
        ),
        Problem::Missing => both("обязательное поле отсутствует", "it is missing"),
        Problem::HeaderMissing => both("обязательный заголовок отсутствует", "it is missing"),
        Problem::NotAnIdempotencyKey => both(
            "передайте его один раз, со значением от 1 до 255 видимых символов ASCII",
            "send this header once, with 1 to 255 visible ASCII characters",
        ),
        Problem::WrongType(expected) => {
            let russian = match *expected {
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
                "cursor" => "значение next из предыдущей страницы",
                "RFC 3339" => "дата или время вида 2026-11-28T10:15:00Z (RFC 3339)",
                "UTF-8" => "текст в UTF-8",
                "an email address, for example name@example.com" => {
                    "адрес почты, например name@example.com"
                }
                other => other,
            };
            let english = match *expected {
                "cursor" => "expected the value of 'next' from the previous page".into(),
                "RFC 3339" => {
                    "expected a date or a time, for example 2026-11-28T10:15:00Z (RFC 3339)".into()
                }
                expected => format!("wrong type, expected {expected}"),
            };
            both(format!("неверное значение, нужно: {russian}"), english)
        }
        Problem::NotOneOf(values) => {
            let russian = match *values {
                "the tool names in 'tools'" => "имена инструментов из «tools»",
                "the configured providers" => "подключённые провайдеры",
                "the account's groups" => "группы счёта",
                "the owner key's group" => "группа ключа владельца",
                other => other,
            };
            both(
                format!("допустимые значения: {russian}"),
                format!("expected one of {values}"),
            )
        }
        Problem::BelowMin(min) => both(
            format!("допустимо не меньше {min}"),
            format!("must be at least {min}"),
        ),
        Problem::AboveMax(max) => both(
            format!("допустимо не больше {max}"),
            format!("must be at most {max}"),
        ),
        Problem::Duplicate => both(
            "указано дважды, оставьте одно значение",
            "it occurs twice, send it once",
        ),
        Problem::TooDeep(levels) => both(
            format!("вложенность больше {levels} уровней"),
            format!("nested deeper than {levels} levels"),
        ),
        Problem::Empty => both("значение пустое", "it is empty"),
        Problem::NothingSaid => both(
            "поставщик этой модели требует непустое сообщение пользователя, добавьте его",
            "the vendor of this model requires a user message that is not empty, add one",
        ),
        Problem::NotKopecks => both(
            "нужна сумма в рублях, больше 0 и с целыми копейками, в кавычках, например \"12.50\"",
            "expected an amount in rubles, above 0 and in whole kopecks, in quotes, for example \"12.50\"",
        ),
        Problem::LessThan(other) => both(
            format!("меньше, чем в поле «{other}»"),
            format!("it is less than '{other}'"),
        ),
        Problem::Contradicts(other) => both(
            format!("противоречит полю «{other}»"),
            format!("it contradicts '{other}'"),
        ),
        Problem::NotAHost => both(
            "нужно имя узла, адрес IPv4 или [IPv6], а если нужен порт, то после него «:порт»",
            "expected a host name, an IPv4 address or an [IPv6] address, with :port after it if a port is needed",
        ),
        Problem::Unsupported => both(
            "сервис не поддерживает эту возможность, уберите её из запроса",
            "the service does not support this feature, remove it from the request",
        ),
        Problem::ThreadUnsupported => both(
            "сервис не хранит беседы, передавайте в запросе все сообщения",
            "the service does not store conversations, send all messages in the request",
        ),
        Problem::StateUnsupported => both(
            "сервис не хранит беседы: уберите поле и передавайте всю беседу в «input»",
            "the service does not store conversations: leave the field out and send the whole conversation in 'input'",
        ),
        Problem::StoreUnsupported => both(
            "сервис не хранит ответы: уберите поле или передайте false",
            "the service does not store responses: leave the field out or send false",
        ),
        Problem::ReferenceUnsupported => both(
            "сервис не хранит элементы беседы: передавайте сами элементы, а не ссылки на них (в клиенте: store: false)",
            "the service does not store items: send the items themselves, not references to them (in the client: \
             store: false)",
        ),
        Problem::ToolUnsupported => both(
            "этот инструмент исполняет поставщик, и цены за него в каталоге нет; уберите его",
            "the vendor runs this tool, and the catalog has no price for it; remove it",
        ),
        Problem::SearchUnsupported => both(
            "этот инструмент исполняет поставщик, и цены за него в каталоге нет; отключите его (в Codex: web_search = \"disabled\")",
            "the vendor runs this tool, and the catalog has no price for it; disable it (in Codex: web_search = \
             \"disabled\")",
        ),
        Problem::SizeUnseen => both(
            "размер этих данных до запроса неизвестен; передайте сами данные, а не ссылку на них",
            "the size of this input is not known before the call; send the data itself, not a reference to it",
        ),
        Problem::NotTranslated => both(
            "формат поставщика этой модели такого не допускает; уберите это или выберите другую модель",
            "the format of this model's vendor has no equivalent of this; remove it or use another model",
        ),
        Problem::Unpriced => both(
            "у модели нет цены за это; уберите это или выберите другую модель",
            "the model has no price for this; remove it or use another model",
        ),
        Problem::ModelOfKind(kind) => {
            let [russian, english] = match kind {
                ModelKind::Embedding => [
                    "эта модель только для эмбеддингов",
                    "this model is only for embeddings",
                ],
                ModelKind::Chat => [
                    "эта модель не для эмбеддингов",
                    "this model is not for embeddings",
                ],
            };
            let surfaces = kind.surfaces();
            let its = match surfaces.len() {
                0 | 1 => "её адрес",
                _ => "её адреса",
            };
            both(
                format!("{russian}, {its}: POST {}", listed(surfaces, "или")),
                format!(
                    "{english}, send the request to POST {}",
                    listed(surfaces, "or")
                ),
            )
        }
        Problem::MixedLifetimes => both(
            "другие метки cache_control этого запроса действуют 5 минут, укажите во всех один и тот же срок (ttl)",
            "other cache_control marks of the request last 5 minutes, use the same lifetime (ttl) in all of them",
        ),
        Problem::InputUnpriced { tokens, max } => both(
            format!(
                "в запросе может быть до {tokens} токенов, а цена этой модели действует до {max} токенов; сократите запрос"
            ),
            format!(
                "the prompt may have up to {tokens} tokens, but this model has a price only for prompts of up to {max} \
             tokens; shorten the prompt"
            ),
        ),
    }
}
