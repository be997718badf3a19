//! Events in Russian, for people who get them by mail or in a chat.

use std::fmt::Write as _;

use tollgate_ledger::{
    happening::{CeilingKind, Event, Happening},
    money::MicroRub,
    statement::to_kopecks,
};

use crate::text::time::rfc3339;

/// What happened, in a line.
pub(super) fn subject(event: &Event) -> String {
    match &event.what {
        Happening::BalanceLow { balance_rub, .. } => {
            format!("Заканчиваются средства: осталось {}", rubles(*balance_rub))
        }
        Happening::CeilingLow {
            group, left_rub, ..
        } => {
            let whose = group.as_ref().map_or_else(
                || "ключа".to_owned(),
                |group| format!("группы ключей {group}"),
            );
            let left = rubles(*left_rub);
            format!("Лимит {whose} подходит к концу: осталось {left}")
        }
        Happening::CeilingReached {
            group: Some(group),
            ceiling,
            ..
        } => format!(
            "Лимит группы ключей {group} исчерпан: {}",
            of_ceiling(*ceiling)
        ),
        Happening::CeilingReached { ceiling, .. } => {
            format!("Лимит ключа исчерпан: {}", of_ceiling(*ceiling))
        }
        Happening::TopUp { amount_rub, .. } => {
            format!("Платёж зачислен: {}", rubles(*amount_rub))
        }
        Happening::Correction { amount_rub, .. } => {
            format!("Корректировка баланса: {}", rubles(*amount_rub))
        }
        Happening::KeyExpiring { expires_at_ms } => {
            format!("Срок действия ключа истекает {}", time(*expires_at_ms))
        }
        // The event does not say whether the vendor fails or somebody has taken it out.
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
        Happening::RateStale { .. } => "Курс валюты устарел, продажи остановлены".to_owned(),
        Happening::Debt { debt_rub, .. } => format!("Долг по счёту: {}", rubles(*debt_rub)),
        Happening::AutoTopupFailed { amount_rub, .. } => {
            format!("Автопополнение не прошло: {}", rubles(*amount_rub))
        }
        _ => format!("Событие {}", event.number),
    }
}

/// All of it: what happened, to whom, what to do, and the event's place.
pub(super) fn text(event: &Event) -> String {
    let mut text = format!("{}.\n", subject(event));
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
            line("Пополните счёт, чтобы запросы к моделям не прервались.".to_owned());
        }
        Happening::CeilingLow {
            ceiling,
            ceiling_rub,
            level_rub,
            ..
        } => {
            line(format!(
                "Лимит: {}, {}",
                of_ceiling(*ceiling),
                rubles(*ceiling_rub)
            ));
            line(format!("Порог уведомления: {}", rubles(*level_rub)));
        }
        Happening::CeilingReached {
            group,
            ceiling_rub,
            left_rub,
            ..
        } => {
            line(format!(
                "Лимит: {}, осталось {}",
                rubles(*ceiling_rub),
                rubles(*left_rub)
            ));
            let whose = match group {
                None => "с этим ключом",
                Some(_) => "с ключами этой группы",
            };
            line(format!(
                "Запросы {whose} будут отклоняться, пока лимит не изменят или он не начнётся заново."
            ));
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
        Happening::MarginNegative {
            vendor,
            charged_rub,
            vendor_cost_rub,
            by,
            ..
        } => {
            line(format!("Поставщик: {vendor}, запрос {by}"));
            line(format!(
                "Списано {}, стоит {}",
                rubles(*charged_rub),
                rubles(*vendor_cost_rub)
            ));
        }
        Happening::AuditBreach { first, .. } => line(format!("Первое: {}", plain(first))),
        Happening::RateStale { since_ms } => {
            line(format!("Последний раз курс получен {}", time(*since_ms)));
        }
        Happening::Debt { entry, .. } => line(format!("Возврат: {}", plain(entry))),
        Happening::AutoTopupFailed {
            provider,
            reason,
            off,
            url,
            ..
        } => {
            line(format!("Причина: {} ({})", plain(reason), plain(provider)));
            if *off {
                line("Карта больше не списывается: автопополнение выключено.".to_owned());
            }
            match url {
                Some(url) => line(format!("Оплатить самостоятельно: {}", plain(url))),
                None => {
                    line("Пополните счёт, чтобы запросы к моделям не прервались.".to_owned());
                }
            }
        }
        _ => {}
    }
    let _ = write!(text, "\n{} · событие {}\n", time(event.at_ms), event.number);
    text
}

fn of_ceiling(ceiling: CeilingKind) -> &'static str {
    match ceiling {
        CeilingKind::Total => "общий",
        CeilingKind::Month => "на месяц",
        CeilingKind::Day => "на день",
    }
}

/// `1 234 567,89 ₽`, rounded as statements are, so that both say the same of a balance.
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

/// `23.11.2026 10:15 UTC`.
fn time(ms: u64) -> String {
    let text = rfc3339(ms);
    let (date, time) = text.split_once('T').unwrap_or((&text, ""));
    let mut date: Vec<_> = date.split('-').collect();
    date.reverse();
    format!(
        "{} {} UTC",
        date.join("."),
        time.get(..5).unwrap_or_default()
    )
}

/// One line, whatever somebody has written.
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
    fn amounts_are_rounded_as_statements_are_and_written_as_russians_write_them() {
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
        assert_eq!(time(1_795_000_000_000), "18.11.2026 11:06 UTC");
    }

    #[test]
    fn a_low_balance_says_what_to_do() {
        let low = event(Happening::BalanceLow {
            level_rub: MicroRub::rubles(200),
            balance_rub: MicroRub::new(199_980_000),
            by: "n".into(),
        });
        assert_eq!(
            text(&low),
            "Заканчиваются средства: осталось 199,98\u{a0}₽.\nСчёт: acme\nПорог уведомления: 200,00\u{a0}₽\n\
             Пополните счёт, чтобы запросы к моделям не прервались.\n\n18.11.2026 11:06 UTC · событие 7\n"
        );
    }

    #[test]
    fn a_card_that_was_not_charged_says_why_and_where_to_pay() {
        let failed = |off, url: Option<&str>| {
            text(&event(Happening::AutoTopupFailed {
                provider: "yookassa".into(),
                amount_rub: MicroRub::rubles(5000),
                reason: "bank: insufficient_funds".into(),
                off,
                url: url.map(str::to_owned),
            }))
        };
        assert_eq!(
            failed(true, None),
            "Автопополнение не прошло: 5\u{a0}000,00\u{a0}₽.\nСчёт: acme\nПричина: bank: insufficient_funds (yookassa)\n\
             Карта больше не списывается: автопополнение выключено.\n\
             Пополните счёт, чтобы запросы к моделям не прервались.\n\n18.11.2026 11:06 UTC · событие 7\n"
        );
        let with_link = failed(false, Some("https://pay.example/1"));
        assert!(with_link.contains("\nОплатить самостоятельно: https://pay.example/1\n"));
        assert!(!with_link.contains("выключено"));
    }

    #[test]
    fn a_vendor_that_was_taken_out_is_not_said_to_fail() {
        let vendor = || "anthropic".to_owned();
        let out = subject(&event(Happening::VendorOut { vendor: vendor() }));
        assert!(out.contains("он отключён или не отвечает"), "{out}");
        let back = subject(&event(Happening::VendorBack { vendor: vendor() }));
        assert_eq!(back, "Поставщику anthropic снова отправляются запросы");
    }

    #[test]
    fn a_groups_ceiling_is_told_of_as_the_groups() {
        let low = |group: Option<&str>| {
            subject(&event(Happening::CeilingLow {
                group: group.map(|id| id.parse().unwrap()),
                ceiling: CeilingKind::Day,
                ceiling_rub: MicroRub::rubles(500),
                level_rub: MicroRub::rubles(100),
                left_rub: MicroRub::rubles(99),
                by: "n".into(),
            }))
        };
        let left = "подходит к концу: осталось 99,00\u{a0}₽";
        assert_eq!(low(None), format!("Лимит ключа {left}"));
        assert_eq!(
            low(Some("team")),
            format!("Лимит группы ключей team {left}")
        );
    }

    #[test]
    fn what_somebody_wrote_stays_in_its_line() {
        let correction = event(Happening::Correction {
            entry: "c".into(),
            amount_rub: MicroRub::rubles(-1),
            reason: "a\nb".into(),
            balance_rub: MicroRub::ZERO,
        });
        assert!(text(&correction).contains("Основание: a b (c)\n"));
    }
}
