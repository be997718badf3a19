//! Events as Russian text, for people who get them by mail or in a chat.

use std::fmt::Write as _;

use tollgate_ledger::{
    happening::{CeilingKind, Event, Happening},
    money::MicroRub,
    statement::to_kopecks,
};

use crate::text::time::for_people;

/// The advice that is sent when the balance is low.
const TOP_UP: &str = "Пополните баланс, чтобы запросы к моделям не прервались.";

/// Returns the event in one line. Times have this UTC offset, as in [`text`].
pub(super) fn subject(event: &Event, utc_offset_minutes: i32) -> String {
    match &event.what {
        Happening::BalanceLow { balance_rub, .. } => {
            format!("Заканчиваются средства: осталось {}", rubles(*balance_rub))
        }
        Happening::CeilingLow {
            group,
            ceiling,
            left_rub,
            ..
        } => {
            let (which, left) = (of_ceiling(*ceiling), rubles(*left_rub));
            match group {
                None => format!("Заканчивается {which} лимит ключа: осталось {left}"),
                Some(group) => {
                    format!("Заканчивается {which} лимит группы ключей {group}: осталось {left}")
                }
            }
        }
        Happening::CeilingReached { group, ceiling, .. } => {
            let which = of_ceiling(*ceiling);
            match group {
                None => format!("Исчерпан {which} лимит ключа"),
                Some(group) => format!("Исчерпан {which} лимит группы ключей {group}"),
            }
        }
        Happening::TopUp { amount_rub, .. } => {
            format!("Платёж зачислен: {}", rubles(*amount_rub))
        }
        Happening::Correction { amount_rub, .. } => {
            format!("Корректировка баланса: {}", rubles(*amount_rub))
        }
        Happening::KeyExpiring { expires_at_ms } => {
            let at = for_people(*expires_at_ms, utc_offset_minutes);
            format!("Срок действия ключа истекает {at}")
        }
        // The event does not distinguish a vendor that fails from a vendor that was disabled.
        Happening::VendorOut { vendor } => {
            format!(
                "Поставщику {vendor} больше не отправляются запросы: он отключён или не отвечает"
            )
        }
        Happening::VendorBack { vendor } => {
            format!("Поставщику {vendor} снова отправляются запросы")
        }
        Happening::MarginNegative { model, .. } => {
            format!("Модель {model} продаётся ниже себестоимости")
        }
        Happening::AuditBreach { breaches, .. } => {
            format!("Аудит нашёл расхождения: {breaches}")
        }
        Happening::RateStale { .. } => {
            "Курс USDT устарел, запросы к моделям не принимаются".to_owned()
        }
        Happening::Debt { debt_rub, .. } => format!("Долг по счёту: {}", rubles(*debt_rub)),
        Happening::PaymentDisputed {
            amount_rub, status, ..
        } => {
            let how = match status.as_str() {
                "won" => "закрыт в вашу пользу",
                "lost" => "проигран",
                _ => "открыт",
            };
            format!("Спор по платежу {how}: {}", rubles(*amount_rub))
        }
        Happening::PaymentReversed { amount_rub, .. } => {
            format!(
                "Провайдер отменил зачисленный платёж: {}",
                rubles(*amount_rub)
            )
        }
        Happening::AutoTopupFailed { amount_rub, .. } => {
            format!("Автопополнение не прошло: {}", rubles(*amount_rub))
        }
        _ => format!("Событие {}", event.number),
    }
}

/// Returns the whole message: what happened, to whom, what to do, and the event's number.
pub(super) fn text(event: &Event, utc_offset_minutes: i32) -> String {
    let mut text = format!("{}.\n", subject(event, utc_offset_minutes));
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    if let Some(account) = &event.account {
        line(format!("Счёт: {account}"));
    }
    if let Some(key) = &event.key {
        line(format!("Ключ: {key}"));
    }
    match &event.what {
        Happening::BalanceLow { level_rub, .. } => {
            line(format!("Порог уведомления: {}", rubles(*level_rub)));
            line(TOP_UP.to_owned());
        }
        Happening::CeilingLow {
            ceiling_rub,
            level_rub,
            ..
        } => {
            line(format!("Лимит: {}", rubles(*ceiling_rub)));
            line(format!("Порог уведомления: {}", rubles(*level_rub)));
            line("Увеличьте лимит, чтобы запросы не начали отклоняться.".to_owned());
        }
        Happening::CeilingReached {
            group,
            ceiling,
            ceiling_rub,
            left_rub,
            ..
        } => {
            line(format!(
                "Лимит: {}, осталось {}",
                rubles(*ceiling_rub),
                rubles(*left_rub)
            ));
            let call_scope = match group {
                None => "с этим ключом",
                Some(_) => "с ключами этой группы",
            };
            let until = match ceiling {
                CeilingKind::Total => "пока лимит не увеличат",
                CeilingKind::Month | CeilingKind::Day => {
                    "пока лимит не увеличат или он не обновится"
                }
            };
            line(format!("Запросы {call_scope} будут отклоняться, {until}."));
        }
        Happening::TopUp {
            entry, balance_rub, ..
        } => {
            line(format!("Номер платежа: {}", plain(entry)));
            line(format!("Баланс: {}", rubles(*balance_rub)));
        }
        Happening::Correction {
            entry,
            reason,
            balance_rub,
            ..
        } => {
            line(format!("Основание: {} ({})", plain(reason), plain(entry)));
            line(format!("Баланс: {}", rubles(*balance_rub)));
        }
        Happening::KeyExpiring { .. } => {
            line("После этого запросы с ним будут отклоняться: выпустите новый ключ.".to_owned());
        }
        Happening::VendorOut { .. } => {
            line("Проверьте его состояние: tollgate vendor list.".to_owned());
        }
        Happening::MarginNegative {
            vendor,
            charged_rub,
            vendor_cost_rub,
            by,
            ..
        } => {
            line(format!("Поставщик: {vendor}, запрос {by}"));
            line(format!(
                "Списано {}, поставщик берёт {}",
                rubles(*charged_rub),
                rubles(*vendor_cost_rub)
            ));
        }
        Happening::AuditBreach { first, .. } => {
            line(format!("Первое: {}", plain(first)));
            line("Все расхождения покажет tollgate audit.".to_owned());
        }
        Happening::RateStale { since_ms } => {
            let at = for_people(*since_ms, utc_offset_minutes);
            line(format!("Последний раз курс получен {at}"));
            line("Проверьте источники курса: раздел rate.source в конфигурации.".to_owned());
        }
        Happening::Debt { entry, .. } => line(format!("Возврат: {}", plain(entry))),
        Happening::PaymentDisputed {
            provider,
            entry,
            dispute,
            ..
        } => line(format!(
            "Платёж: {}, спор: {} ({})",
            plain(entry),
            plain(dispute),
            plain(provider)
        )),
        Happening::PaymentReversed {
            provider,
            entry,
            reason,
            ..
        } => {
            line(format!("Платёж: {}", plain(entry)));
            line(format!("Причина: {} ({})", plain(reason), plain(provider)));
            line("Баланс не изменён: решите, списать ли эту сумму.".to_owned());
        }
        Happening::AutoTopupFailed {
            provider,
            reason,
            off,
            url,
            ..
        } => {
            line(format!("Причина: {} ({})", plain(reason), plain(provider)));
            if *off {
                line("Автопополнение выключено, с карты больше ничего не списывается.".to_owned());
            }
            match url {
                Some(url) => line(format!("Оплатить самостоятельно: {}", plain(url))),
                None => line(TOP_UP.to_owned()),
            }
        }
        _ => {}
    }
    let at = for_people(event.at_ms, utc_offset_minutes);
    let _ = write!(text, "\n{at} · событие {}\n", event.number);
    text
}

fn of_ceiling(ceiling: CeilingKind) -> &'static str {
    match ceiling {
        CeilingKind::Total => "общий",
        CeilingKind::Month => "месячный",
        CeilingKind::Day => "дневной",
    }
}

/// Writes an amount like `1 234 567,89 ₽`, rounded as in statements, so that messages and statements show the same
/// balance.
fn rubles(amount: MicroRub) -> String {
    let kopecks = to_kopecks(amount.micro().into()).unsigned_abs();
    let whole = (kopecks / 100).to_string();
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push('\u{a0}');
        }
        grouped.push(digit);
    }
    let sign = if amount.micro() < 0 && kopecks > 0 {
        "−"
    } else {
        ""
    };
    format!("{sign}{grouped},{:02}\u{a0}₽", kopecks % 100)
}

/// Writes a text that a person typed: in one line, without control characters.
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
    fn amounts_in_messages_are_rounded_like_statements_and_written_in_russian_style() {
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
    fn message_about_a_low_balance_has_the_next_step() {
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
    fn message_about_a_failed_charge_has_the_reason_and_the_link() {
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
