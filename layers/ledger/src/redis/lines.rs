//! Parses an account's journal. A stream entry has one line, or is a turn of a lease with a line per call.

use std::{borrow::Cow, collections::HashMap, fmt::Write as _};

use super::booked_of;
use crate::{
    account::{AccountId, GroupId, KeyId},
    conn::RedisFault,
    contract::{Booked, JournalLine, Receipt},
    leases::TurnEnd,
    money::MicroRub,
    number::RequestNumber,
};

/// The kind of an entry that is a turn of a lease. Also the name of its field with a line per call.
pub(super) const CALLS: &str = "calls";
/// The field with the parts of items that calls have in common, one per line: an item's JSON up to the first field that
/// belongs to the call alone. In a call's line, an item is the index of its common part, from 0, and its remaining
/// text.
const SHARED: &str = "shared";
/// The text that begins the call's own part of an item.
const OWN: &str = ",\"usage\":";

/// Returns the lines of an entry: one line, or one line per call for a turn of a lease.
pub(super) fn lines_of(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<Vec<JournalLine>, RedisFault> {
    if fields.get("kind").is_none_or(|kind| kind != CALLS) {
        return Ok(vec![line_of(account, place, fields)?]);
    }
    let receipts = receipts_of_turn(account, place, fields)?;
    Ok(receipts.into_iter().map(JournalLine::Call).collect())
}

/// Returns the receipt of a call, from the entry that the index gives for its number.
pub(super) fn receipt_in_entry(
    account: &AccountId,
    number: RequestNumber,
    fields: &HashMap<String, String>,
) -> Result<Option<Receipt>, RedisFault> {
    if fields.get("kind").is_none_or(|kind| kind != CALLS) {
        return receipt_of(account, number, fields).map(Some);
    }
    let place = number.to_string();
    let mut receipts = receipts_of_turn(account, &place, fields)?.into_iter();
    Ok(receipts.find(|receipt| receipt.number == number))
}

/// A call that a turn of a lease has charged, as written by `turn.lua`.
pub(super) struct TurnLine<'a> {
    number: &'a str,
    /// The amounts of the call: held, cost, charged and lost.
    pub(super) amounts: [MicroRub; 4],
    pub(super) booked: Booked,
    /// The content of the receipt, as JSON.
    pub(super) item: Cow<'a, str>,
}

impl<'a> TurnLine<'a> {
    /// Returns the lines of an entry after its first `read` lines, one by one; `None` for a line that cannot be parsed.
    pub(super) fn of_entry(
        fields: &'a HashMap<String, String>,
        read: usize,
    ) -> Option<impl Iterator<Item = Option<Self>>> {
        let shared = fields.get(SHARED).map_or("", String::as_str);
        let shared: Vec<&str> = shared.split('\n').collect();
        let lines = fields.get(CALLS)?.split('\n').skip(read);
        Some(lines.map(move |line| Self::of(line, &shared)))
    }

    fn of(line: &'a str, shared: &[&str]) -> Option<Self> {
        let mut words = line.splitn(7, ' ');
        let mut word = || words.next();
        let number = word()?;
        let mut amounts = [MicroRub::ZERO; 4];
        for amount in &mut amounts {
            *amount = MicroRub::new(word()?.parse().ok()?);
        }
        Some(Self {
            number,
            amounts,
            booked: booked_of(word()?).ok()?,
            item: whole_item(word()?, shared)?,
        })
    }
}

/// Joins an item's JSON from its two parts. Earlier versions wrote the item in one text.
fn whole_item<'a>(text: &'a str, shared: &[&str]) -> Option<Cow<'a, str>> {
    if text.starts_with('{') {
        return Some(Cow::Borrowed(text));
    }
    let (nth, own) = text.split_once(' ')?;
    let shared = shared.get(nth.parse::<usize>().ok()?)?;
    Some(Cow::Owned([shared, ",", own].concat()))
}

/// Returns the lines about the calls of a lease's turn, as they are if each call is charged its cost, and the parts of
/// items that the calls have in common.
pub(super) fn turn_lines(ends: &[&TurnEnd]) -> serde_json::Result<(String, String)> {
    let (mut lines, mut shared) = (String::new(), Vec::<String>::new());
    for TurnEnd { settlement, .. } in ends {
        if !lines.is_empty() {
            lines.push('\n');
        }
        let (number, held) = (settlement.number, settlement.held.micro());
        let cost = settlement.cost.micro();
        let item = serde_json::to_string(&settlement.item)?;
        // This text cannot occur inside a field's value, where quotes are escaped.
        let (common, own) = item.split_once(OWN).expect("an item has its usage");
        let known = shared.iter().position(|known| known == common);
        let nth = known.unwrap_or_else(|| {
            shared.push(common.to_owned());
            shared.len() - 1
        });
        write!(
            lines,
            "{number} {held} {cost} {cost} 0 held {nth} {}{own}",
            &OWN[1..]
        )
        .expect("writing to a String cannot fail");
    }
    Ok((lines, shared.join("\n")))
}

/// Parses the receipts of all calls that a turn of a lease has charged.
fn receipts_of_turn(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<Vec<Receipt>, RedisFault> {
    let unexpected = |name: &str| {
        RedisFault::Unexpected(format!(
            "journal of {account} at {place}: field {name} is missing or invalid"
        ))
    };
    let field = |name: &str| fields.get(name).ok_or_else(|| unexpected(name));
    let at_ms = field("at")?.parse().map_err(|_| unexpected("at"))?;
    let key: KeyId = field("key")?.parse().map_err(|_| unexpected("key"))?;
    let group = group_in(fields);
    let lines = TurnLine::of_entry(fields, 0).ok_or_else(|| unexpected(CALLS))?;
    let receipts = lines.map(|line| {
        let line = line?;
        let [held_rub, cost_rub, charged_rub, loss_rub] = line.amounts;
        Some(Receipt {
            number: line.number.parse().ok()?,
            at_ms,
            account: account.clone(),
            key: key.clone(),
            group: group.clone().filter(|_| line.booked != Booked::Stale),
            held_rub,
            cost_rub,
            charged_rub,
            loss_rub,
            booked: line.booked,
            item: serde_json::from_str(&line.item).ok()?,
        })
    });
    let receipts: Option<Vec<Receipt>> = receipts.collect();
    receipts.ok_or_else(|| unexpected(CALLS))
}

pub(super) fn line_of(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<JournalLine, RedisFault> {
    let unexpected = |name: &str| {
        RedisFault::Unexpected(format!(
            "journal of {account} at {place}: field {name} is missing or invalid"
        ))
    };
    let field = |name: &str| fields.get(name).ok_or_else(|| unexpected(name));
    match field("kind")?.as_str() {
        "call" => {
            let number: RequestNumber =
                field("number")?.parse().map_err(|_| unexpected("number"))?;
            receipt_of(account, number, fields).map(JournalLine::Call)
        }
        "entry" => Ok(JournalLine::Entry {
            id: field("id")?.clone(),
            at_ms: field("at")?.parse().map_err(|_| unexpected("at"))?,
            account: account.clone(),
            amount_rub: field("amount")?
                .parse()
                .map(MicroRub::new)
                .map_err(|_| unexpected("amount"))?,
            reason: Some(field("reason")?.clone()).filter(|reason| !reason.is_empty()),
        }),
        _ => Err(unexpected("kind")),
    }
}

pub(super) fn receipt_of(
    account: &AccountId,
    number: RequestNumber,
    entry: &HashMap<String, String>,
) -> Result<Receipt, RedisFault> {
    let unexpected = |name: &str| {
        RedisFault::Unexpected(format!(
            "receipt {number}: field {name} is missing or invalid"
        ))
    };
    let field = |name: &str| entry.get(name).ok_or_else(|| unexpected(name));
    let amount = |name: &str| {
        field(name)?
            .parse()
            .map(MicroRub::new)
            .map_err(|_| unexpected(name))
    };
    Ok(Receipt {
        number,
        at_ms: field("at")?.parse().map_err(|_| unexpected("at"))?,
        account: account.clone(),
        key: field("key")?.parse().map_err(|_| unexpected("key"))?,
        group: group_in(entry),
        held_rub: amount("held")?,
        cost_rub: amount("cost")?,
        charged_rub: amount("charged")?,
        loss_rub: amount("loss")?,
        booked: booked_of(field("booked")?)?,
        item: serde_json::from_str(field("item")?).map_err(|_| unexpected("item"))?,
    })
}

/// The group that a line of the journal has charged. An invalid value is ignored, since an existing charge must stay
/// readable.
fn group_in(entry: &HashMap<String, String>) -> Option<GroupId> {
    entry.get("group")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        contract::{Item, Settlement},
        testing::given::{self, acme, micro, settlement},
        usage::{End, Usage},
    };

    fn turn_of(items: &[Item]) -> HashMap<String, String> {
        let ends = items.iter().zip(1..).map(|(item, n)| {
            TurnEnd::of(&Settlement {
                item: item.clone(),
                ..settlement(n, "k1", 5)
            })
        });
        let ends: Vec<TurnEnd> = ends.collect();
        let (lines, shared) = turn_lines(&ends.iter().collect::<Vec<_>>()).unwrap();
        [
            ("kind", CALLS),
            ("at", "5"),
            ("key", "k1"),
            (SHARED, &shared),
            (CALLS, &lines),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    #[test]
    fn receipt_items_round_trip_and_fields_that_they_share_are_written_once() {
        let usual = given::item(5);
        let text = |text: &str| Item {
            session: "s-7".parse().ok(),
            vendor_cost_rub: Some(micro(3)),
            ..Item::new(text, "v", End::VendorCut)
        };
        let items = [
            usual.clone(),
            Item {
                usage: Usage {
                    input: 7,
                    ..usual.usage
                },
                ..usual.clone()
            },
            text("two\nlines, a blank, \",\"usage\":{}\" and }"),
            text(""),
            usual.clone(),
        ];
        let fields = turn_of(&items);
        let read = receipts_of_turn(&acme(), "5-0", &fields).unwrap();
        let read: Vec<Item> = read.into_iter().map(|receipt| receipt.item).collect();
        assert_eq!(read, items);
        assert_eq!(fields[SHARED].split('\n').count(), 3, "{fields:?}");
        assert_eq!(fields[CALLS].matches("\"model\"").count(), 0, "{fields:?}");
    }

    /// Earlier versions wrote the whole item of each call into the lines of a lease's turn.
    #[test]
    fn turn_whose_calls_have_complete_items_is_read() {
        let item = given::item(5);
        let mut fields = turn_of(std::slice::from_ref(&item));
        fields.remove(SHARED);
        let whole = serde_json::to_string(&item).unwrap();
        let (head, _) = fields[CALLS].split_once(" 0 held ").unwrap();
        let line = format!("{head} 0 held {whole}");
        fields.insert(CALLS.to_owned(), line);
        let read = receipts_of_turn(&acme(), "5-0", &fields).unwrap();
        assert_eq!(read[0].item, item);
    }

    #[test]
    fn malformed_call_of_a_turn_is_reported_with_its_line() {
        let good = turn_of(&[given::item(5)]);
        for (name, from, to) in [
            (CALLS, " held 0 ", " held 1 "),
            (CALLS, " held 0 ", " held x "),
            (CALLS, " held 0 ", " held "),
            (SHARED, "{", ""),
        ] {
            let mut fields = good.clone();
            let spoilt = fields[name].replacen(from, to, 1);
            fields.insert(name.to_owned(), spoilt);
            let error = receipts_of_turn(&acme(), "5-0", &fields).unwrap_err();
            assert!(
                error.to_string().contains("at 5-0: field calls is missing"),
                "{error}"
            );
        }
    }

    #[test]
    fn journal_lines_round_trip() {
        let id: AccountId = "acme".parse().unwrap();
        let fields = |reason: &str| {
            [
                ("kind", "entry"),
                ("at", "5"),
                ("id", "p-1"),
                ("amount", "-7"),
                ("reason", reason),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
        };
        for (given, read) in [("", None), ("paid twice", Some("paid twice".to_owned()))] {
            let line = line_of(&id, "5-0", &fields(given)).unwrap();
            let JournalLine::Entry {
                amount_rub, reason, ..
            } = line
            else {
                panic!("{line:?}")
            };
            assert_eq!((amount_rub, reason), (MicroRub::new(-7), read));
        }
        let mut other: HashMap<String, String> = fields("");
        other.insert("kind".into(), "loan".into());
        let error = line_of(&id, "5-0", &other).unwrap_err();
        assert!(
            error.to_string().contains("at 5-0: field kind is missing"),
            "{error}"
        );
    }

    #[test]
    fn receipt_round_trips() {
        let item = Item {
            usage: Usage {
                input: 1,
                cached_input: 2,
                cache_write: 3,
                output: u64::MAX,
                ..Usage::default()
            },
            price: None,
            estimated: true,
            bounded: true,
            session: Some("s-1".parse().unwrap()),
            endpoint: Some(crate::endpoint::Endpoint::Messages),
            timeline: "3 - 1500 5003 200|4 1059 502 vendor_unavailable acme"
                .parse()
                .ok(),
            ..Item::new("m", "v", End::ClientLeft)
        };
        let mut entry: HashMap<String, String> = [
            ("at", "1700000000000"),
            ("key", "k1"),
            ("held", "9007199254740991"),
            ("cost", "5"),
            ("charged", "3"),
            ("loss", "2"),
            ("booked", "late"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        entry.insert("item".into(), serde_json::to_string(&item).unwrap());
        let (account, number) = ("acme".parse().unwrap(), RequestNumber::now_v7());
        let receipt = receipt_of(&account, number, &entry).unwrap();
        assert_eq!(
            (receipt.held_rub, receipt.loss_rub),
            (MicroRub::MAX, MicroRub::new(2))
        );
        assert_eq!((receipt.booked, &receipt.item), (Booked::Late, &item));

        // Fields of a later version's entry that this version does not have are ignored; fields that an earlier version
        // did not write are empty.
        let later = serde_json::to_string(&receipt.item).unwrap();
        let later = later.replacen('{', r#"{"from_later":{"a":[1]},"#, 1);
        entry.insert("item".into(), later);
        entry.insert("from_later".into(), "x".into());
        entry.insert("group".into(), "no id: \u{1}".into());
        let read = receipt_of(&account, number, &entry).unwrap();
        assert_eq!(read, receipt);
        let earlier = serde_json::to_string(&receipt.item).unwrap();
        entry.insert(
            "item".into(),
            earlier.split_once(r#","session""#).unwrap().0.to_owned() + "}",
        );
        let read = receipt_of(&account, number, &entry).unwrap();
        let mut expected = receipt;
        expected.item.session = None;
        expected.item.timeline = None;
        assert_eq!(read, expected);

        entry.insert("group".into(), "g1".into());
        let read = receipt_of(&account, number, &entry).unwrap();
        assert_eq!(read.group, Some("g1".parse().unwrap()));
        assert!(
            serde_json::to_string(&read)
                .unwrap()
                .contains(r#""group":"g1""#)
        );

        entry.remove("loss");
        let error = receipt_of(&account, number, &entry).unwrap_err();
        assert!(
            error.to_string().contains("field loss is missing"),
            "{error}"
        );
    }
}
