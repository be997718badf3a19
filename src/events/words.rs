//! Writes events as Russian text, for people who get them by email or in a chat.

use std::fmt::Write as _;

use tollgate_layers::respond::Language;
use tollgate_ledger::{
    account::GroupId,
    happening::{CeilingKind, Event, Happening},
    money::MicroRub,
    statement::to_kopecks,
};

use crate::{statement::money::Kopecks, text::time::for_people};

/// The advice in a message about a low balance.
const TOP_UP: &str = "Пополните баланс, чтобы запросы к моделям не прервались.";

/// Returns a line about the event, for the subject of an email. Times are shown at this UTC offset, as in [`text`].
pub(super) fn subject(event: &Event, utc_offset_minutes: i32) -> String {
    words(event, utc_offset_minutes).0
}

/// Returns the whole message about an event: what happened, which account or key it concerns, what to do, and the
/// event's number.
pub(super) fn text(event: &Event, utc_offset_minutes: i32) -> String {
    let (subject, details) = words(event, utc_offset_minutes);
    let account = event.account.as_ref().map(|id| format!("Счёт: {id}"));
    let key = event.key.as_ref().map(|id| format!("Ключ: {id}"));
    let mut text = format!("{subject}.\n");
    for line in account.into_iter().chain(key).chain(details) {
        text.push_str(&line);
        text.push('\n');
    }
    let at = for_people(event.at_ms, utc_offset_minutes);
    let _ = write!(text, "\n{at} · событие {}\n", event.number);
    text
}

/// The subject of a message, and the further lines of its text.
type Words = (String, Vec<String>);

fn words(event: &Event, utc_offset_minutes: i32) -> Words {
    about_limit(&event.what)
        .or_else(|| about_key(&event.what, utc_offset_minutes))
        .or_else(|| about_entry(&event.what))
        .or_else(|| about_payment(&event.what))
        .or_else(|| about_gateway(&event.what, utc_offset_minutes))
        .unwrap_or_else(|| (format!("Событие {}", event.number), Vec::new()))
}

/// Returns the text about an event of a balance or a ceiling; `None` for other events.
fn about_limit(what: &Happening) -> Option<Words> {
    Some(match what {
        Happening::BalanceLow {
            level_rub,
            balance_rub,
            ..
        } => (
            format!("Заканчиваются средства: осталось {}", rubles(*balance_rub)),
            vec![
                format!("Порог уведомления: {}", rubles(*level_rub)),
                TOP_UP.to_owned(),
            ],
        ),
        Happening::CeilingLow {
            group,
            ceiling,
            ceiling_rub,
            level_rub,
            left_rub,
            ..
        } => {
            let (limit, left) = (limit(*ceiling, group.as_ref()), rubles(*left_rub));
            (
                format!("Заканчивается {limit}: осталось {left}"),
                vec![
                    format!("Лимит: {}", rubles(*ceiling_rub)),
                    format!("Порог уведомления: {}", rubles(*level_rub)),
                    "Увеличьте лимит, чтобы запросы не начали отклоняться.".to_owned(),
                ],
            )
        }
        Happening::CeilingReached {
            group,
            ceiling,
            ceiling_rub,
            left_rub,
            ..
        } => {
            let (max, left) = (rubles(*ceiling_rub), rubles(*left_rub));
            let keys = match group {
                None => "с этим ключом",
                Some(_) => "с ключами этой группы",
            };
            let until = match ceiling {
                CeilingKind::Total => "пока лимит не увеличат",
                _ => "пока лимит не увеличат или он не обновится",
            };
            (
                format!("Исчерпан {}", limit(*ceiling, group.as_ref())),
                vec![
                    format!("Лимит: {max}, осталось {left}"),
                    format!("Запросы {keys} будут отклоняться, {until}."),
                ],
            )
        }
        _ => return None,
    })
}

/// Returns the text about an event of a key that expires; `None` for other events.
fn about_key(what: &Happening, utc_offset_minutes: i32) -> Option<Words> {
    let Happening::KeyExpiring { expires_at_ms } = what else {
        return None;
    };
    let at = for_people(*expires_at_ms, utc_offset_minutes);
    let advice = "После этого запросы с этим ключом будут отклоняться. Выпустите новый ключ.";
    let subject = format!("Срок действия ключа истекает {at}");
    Some((subject, vec![advice.to_owned()]))
}

/// Returns the text about an event of a ledger entry; `None` for other events.
fn about_entry(what: &Happening) -> Option<Words> {
    Some(match what {
        Happening::TopUp {
            entry,
            amount_rub,
            balance_rub,
            ..
        } => (
            format!("Платёж зачислен: {}", rubles(*amount_rub)),
            vec![
                format!("Номер платежа: {}", plain(entry)),
                format!("Баланс: {}", rubles(*balance_rub)),
            ],
        ),
        Happening::Correction {
            entry,
            amount_rub,
            reason,
            balance_rub,
            ..
        } => (
            format!("Корректировка баланса: {}", rubles(*amount_rub)),
            vec![
                format!("Основание: {} ({})", plain(reason), plain(entry)),
                format!("Баланс: {}", rubles(*balance_rub)),
            ],
        ),
        Happening::Debt { entry, debt_rub } => (
            format!("Долг по счёту: {}", rubles(*debt_rub)),
            vec![format!("Возврат: {}", plain(entry))],
        ),
        _ => return None,
    })
}

/// Returns the text about an event of a payment at a provider; `None` for other events.
fn about_payment(what: &Happening) -> Option<Words> {
    Some(match what {
        Happening::PaymentDisputed {
            provider,
            entry,
            dispute,
            amount_rub,
            status,
        } => {
            let how = match status.as_str() {
                "won" => "закрыт в вашу пользу",
                "lost" => "проигран",
                _ => "открыт",
            };
            let (entry, dispute) = (plain(entry), plain(dispute));
            let details = format!("Платёж: {entry}, спор: {dispute} ({})", plain(provider));
            let subject = format!("Спор по платежу {how}: {}", rubles(*amount_rub));
            (subject, vec![details])
        }
        Happening::PaymentReversed {
            provider,
            entry,
            amount_rub,
            reason,
        } => {
            let amount = rubles(*amount_rub);
            (
                format!("Провайдер отменил зачисленный платёж: {amount}"),
                vec![
                    format!("Платёж: {}", plain(entry)),
                    format!("Причина: {} ({})", plain(reason), plain(provider)),
                    "Баланс не изменён. Решите, списывать ли эту сумму.".to_owned(),
                ],
            )
        }
        Happening::AutoTopupFailed {
            provider,
            amount_rub,
            reason,
            off,
            url,
        } => {
            let mut details = vec![format!("Причина: {} ({})", plain(reason), plain(provider))];
            if *off {
                let off = "Автопополнение выключено, с карты больше ничего не списывается.";
                details.push(off.to_owned());
            }
            details.push(match url {
                Some(url) => format!("Оплатить самостоятельно: {}", plain(url)),
                None => TOP_UP.to_owned(),
            });
            let subject = format!("Автопополнение не прошло: {}", rubles(*amount_rub));
            (subject, details)
        }
        _ => return None,
    })
}

/// Returns the text about an event of the gateway itself, for its operators; `None` for other events.
fn about_gateway(what: &Happening, utc_offset_minutes: i32) -> Option<Words> {
    Some(match what {
        // The event does not state whether the vendor fails or an operator has disabled it.
        Happening::VendorOut { vendor } => (
            format!(
                "Поставщику {vendor} больше не отправляются запросы: он отключён или не отвечает"
            ),
            vec!["Проверьте его состояние: tollgate vendor list.".to_owned()],
        ),
        Happening::VendorBack { vendor } => {
            let subject = format!("Поставщику {vendor} снова отправляются запросы");
            (subject, Vec::new())
        }
        Happening::MarginNegative {
            model,
            vendor,
            charged_rub,
            vendor_cost_rub,
            by,
        } => {
            let (charged, cost) = (rubles(*charged_rub), rubles(*vendor_cost_rub));
            (
                format!("Модель {model} продаётся ниже себестоимости"),
                vec![
                    format!("Поставщик: {vendor}, запрос {by}"),
                    format!("Списано {charged}, у поставщика это стоит {cost}"),
                ],
            )
        }
        Happening::AuditBreach { breaches, first } => (
            format!("Аудит нашёл расхождения: {breaches}"),
            vec![
                format!("Первое расхождение: {}", plain(first)),
                "Полный список: tollgate audit.".to_owned(),
            ],
        ),
        Happening::RateStale { since_ms } => {
            let at = for_people(*since_ms, utc_offset_minutes);
            (
                "Курс USDT устарел, запросы к моделям не принимаются".to_owned(),
                vec![
                    format!("Курс последний раз получен {at}"),
                    "Проверьте источники курса: раздел rate.source в конфигурации.".to_owned(),
                ],
            )
        }
        _ => return None,
    })
}

/// Returns the name of a ceiling, for example `дневной лимит ключа`.
fn limit(ceiling: CeilingKind, group: Option<&GroupId>) -> String {
    let period = match ceiling {
        CeilingKind::Total => "общий",
        CeilingKind::Month => "месячный",
        CeilingKind::Day => "дневной",
    };
    match group {
        None => format!("{period} лимит ключа"),
        Some(group) => format!("{period} лимит группы ключей {group}"),
    }
}

/// Writes an amount in Russian style, for example `1 234 567,89 ₽`. It is rounded as in statements, so that messages
/// and statements show the same balance.
fn rubles(amount: MicroRub) -> String {
    let kopecks = Kopecks::new(to_kopecks(amount.micro().into()));
    format!("{}\u{a0}₽", kopecks.for_people(Language::Ru))
}

/// Puts a text that a person has typed into one line, without control characters.
fn plain(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: Happening) -> Event {
        Event {
            number: 7,
            at_ms: 1_795_000_000_000,
            account: Some("acme".parse().unwrap()),
            key: None,
            what,
        }
    }

    #[test]
    fn amounts_in_messages_are_rounded_as_on_statements_and_written_in_russian_style() {
        for (micro, text) in [
            (0, "0,00"),
            (199_999_999, "200,00"),
            (199_994_999, "199,99"),
            (199_995_000, "200,00"),
            (-5_000, "−0,01"),
            (-4_999, "0,00"),
            (1_234_567_891_000, "1\u{a0}234\u{a0}567,89"),
            (-12_500_000, "−12,50"),
            (-1, "0,00"),
        ] {
            assert_eq!(rubles(MicroRub::new(micro)), format!("{text}\u{a0}₽"));
        }
    }

    #[test]
    fn message_about_a_low_balance_states_the_next_step() {
        let low = event(Happening::BalanceLow {
            level_rub: MicroRub::rubles(200),
            balance_rub: MicroRub::new(199_980_000),
            by: "n".into(),
        });
        assert_eq!(
            text(&low, 0),
            "Заканчиваются средства: осталось 199,98\u{a0}₽.\nСчёт: acme\nПорог уведомления: 200,00\u{a0}₽\n\
             Пополните баланс, чтобы запросы к моделям не прервались.\n\n18.11.2026 11:06 UTC · событие 7\n"
        );
    }

    #[test]
    fn message_about_a_failed_card_charge_has_the_reason_and_the_link() {
        let failed = |off, url: Option<&str>| {
            text(
                &event(Happening::AutoTopupFailed {
                    provider: "yookassa".into(),
                    amount_rub: MicroRub::rubles(5000),
                    reason: "bank: insufficient_funds".into(),
                    off,
                    url: url.map(str::to_owned),
                }),
                0,
            )
        };
        assert_eq!(
            failed(true, None),
            "Автопополнение не прошло: 5\u{a0}000,00\u{a0}₽.\nСчёт: acme\nПричина: bank: insufficient_funds (yookassa)\n\
             Автопополнение выключено, с карты больше ничего не списывается.\n\
             Пополните баланс, чтобы запросы к моделям не прервались.\n\n18.11.2026 11:06 UTC · событие 7\n"
        );
        let with_link = failed(false, Some("https://pay.example/1"));
        assert!(with_link.contains("\nОплатить самостоятельно: https://pay.example/1\n"));
        assert!(!with_link.contains("выключено"));
    }

    #[test]
    fn messages_about_disputes_and_reversals_name_the_payment() {
        let disputed = |status: &str| {
            text(
                &event(Happening::PaymentDisputed {
                    provider: "stripe".into(),
                    entry: "stripe:cs_1".into(),
                    dispute: "du_1".into(),
                    amount_rub: MicroRub::rubles(5000),
                    status: status.into(),
                }),
                0,
            )
        };
        for (status, how) in [
            ("inquiry", "открыт"),
            ("open", "открыт"),
            ("won", "закрыт в вашу пользу"),
            ("lost", "проигран"),
        ] {
            let text = disputed(status);
            let first = format!("Спор по платежу {how}: 5\u{a0}000,00\u{a0}₽.\n");
            assert!(text.starts_with(&first), "{text}");
            assert!(
                text.contains("\nПлатёж: stripe:cs_1, спор: du_1 (stripe)\n"),
                "{text}"
            );
        }
        let reversed = text(
            &event(Happening::PaymentReversed {
                provider: "yookassa".into(),
                entry: "yookassa:p-1".into(),
                amount_rub: MicroRub::rubles(10),
                reason: "yoo_money: fraud".into(),
            }),
            0,
        );
        assert!(
            reversed.contains("Причина: yoo_money: fraud (yookassa)\nБаланс не изменён"),
            "{reversed}"
        );
    }

    #[test]
    fn disabled_vendor_is_not_reported_as_failing() {
        let vendor = || "anthropic".to_owned();
        let out = subject(&event(Happening::VendorOut { vendor: vendor() }), 0);
        assert!(out.contains("он отключён или не отвечает"), "{out}");
        let back = subject(&event(Happening::VendorBack { vendor: vendor() }), 0);
        assert_eq!(back, "Поставщику anthropic снова отправляются запросы");
    }

    #[test]
    fn message_about_a_reached_group_ceiling_names_the_group() {
        let low = |group: Option<&str>| {
            subject(
                &event(Happening::CeilingLow {
                    group: group.map(|id| id.parse().unwrap()),
                    ceiling: CeilingKind::Day,
                    ceiling_rub: MicroRub::rubles(500),
                    level_rub: MicroRub::rubles(100),
                    left_rub: MicroRub::rubles(99),
                    by: "n".into(),
                }),
                0,
            )
        };
        let left = "осталось 99,00\u{a0}₽";
        assert_eq!(
            low(None),
            format!("Заканчивается дневной лимит ключа: {left}")
        );
        assert_eq!(
            low(Some("team")),
            format!("Заканчивается дневной лимит группы ключей team: {left}")
        );
    }

    #[test]
    fn line_break_in_free_text_becomes_a_space_in_a_message() {
        let correction = event(Happening::Correction {
            entry: "c".into(),
            amount_rub: MicroRub::rubles(-1),
            reason: "a\nb".into(),
            balance_rub: MicroRub::ZERO,
        });
        assert!(text(&correction, 0).contains("Основание: a b (c)\n"));
    }
}
