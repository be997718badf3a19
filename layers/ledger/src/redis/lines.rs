//! Parses the journal of an account. A stream entry contains one line, or, if it is a lease turn, one line per call.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt::{self, Write as _},
    str::FromStr,
};

use super::booked_of;
use crate::{
    account::{AccountId, GroupId, KeyId},
    conn::{RedisFault, Result},
    contract::{Booked, JournalLine, Receipt},
    leases::TurnEnd,
    money::MicroRub,
    number::RequestNumber,
};

/// The kind of a stream entry that is a lease turn. The field with its lines has the same name.
pub(super) const CALLS: &str = "calls";
/// The field with the parts of items that several calls share, one part per line. A shared part is the JSON of an item
/// up to the first field that differs between calls. The line of a call contains the index of its shared part, from 0,
/// and the remaining JSON.
const SHARED: &str = "shared";
/// The text with which the unshared part of an item begins.
const OWN: &str = ",\"usage\":";

/// The fields of a stream entry, and the entry's position for error texts.
pub(super) struct EntryFields<'a, P> {
    fields: &'a HashMap<String, String>,
    place: P,
}

impl<'a, P: fmt::Display> EntryFields<'a, P> {
    pub(super) const fn new(fields: &'a HashMap<String, String>, place: P) -> Self {
        Self { fields, place }
    }

    pub(super) fn unexpected(&self, name: &str) -> RedisFault {
        RedisFault::Unexpected(format!(
            "{}: field {name} is missing or invalid",
            self.place
        ))
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.fields.get(name).map(String::as_str)
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str> {
        self.get(name).ok_or_else(|| self.unexpected(name))
    }

    pub(super) fn parsed<T: FromStr>(&self, name: &str) -> Result<T> {
        let parsed = self.text(name)?.parse();
        parsed.map_err(|_| self.unexpected(name))
    }

    pub(super) fn amount(&self, name: &str) -> Result<MicroRub> {
        self.parsed(name).map(MicroRub::new)
    }

    pub(super) fn booked(&self) -> Result<Booked> {
        booked_of(self.text("booked")?)
    }
}

/// Returns whether a stream entry is a lease turn, which has one line per call.
fn is_turn(fields: &HashMap<String, String>) -> bool {
    fields.get("kind").is_some_and(|kind| kind == CALLS)
}

pub(super) fn in_journal<'a>(account: &'a AccountId, place: &'a str) -> impl fmt::Display + 'a {
    fmt::from_fn(move |f| write!(f, "journal of account {account} at position {place}"))
}

/// Returns the journal lines of a stream entry: one line, or one line per call if the entry is a lease turn.
pub(super) fn lines_of(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<Vec<JournalLine>> {
    if !is_turn(fields) {
        return Ok(vec![line_of(account, place, fields)?]);
    }
    let receipts = receipts_of_turn(account, place, fields)?;
    Ok(receipts.into_iter().map(JournalLine::Call).collect())
}

/// Returns a call's receipt from the stream entry at which the index of receipts points for the call.
pub(super) fn receipt_in_entry(
    account: &AccountId,
    number: RequestNumber,
    fields: &HashMap<String, String>,
) -> Result<Option<Receipt>> {
    if !is_turn(fields) {
        return receipt_of(account, number, fields).map(Some);
    }
    let place = number.to_string();
    let mut receipts = receipts_of_turn(account, &place, fields)?.into_iter();
    Ok(receipts.find(|receipt| receipt.number == number))
}

/// A call that a lease turn has charged, in the form that `turn.lua` writes.
pub(super) struct TurnLine<'a> {
    number: &'a str,
    /// The amounts of the call: held, cost, charged, loss.
    pub(super) amounts: [MicroRub; 4],
    pub(super) booked: Booked,
    /// The content of the receipt (an item), as JSON.
    pub(super) item: Cow<'a, str>,
}

impl<'a> TurnLine<'a> {
    /// Iterates over the lines of a stream entry, except its first `read` lines; `None` for a line that cannot be
    /// parsed.
    pub(super) fn of_entry(
        fields: &'a HashMap<String, String>,
        read: usize,
    ) -> Option<impl Iterator<Item = Option<Self>>> {
        let shared = fields.get(SHARED).map_or("", String::as_str);
        let shared: Vec<&str> = shared.split('\n').collect();
        let lines = fields.get(CALLS)?.split('\n').skip(read);
        Some(lines.map(move |line| Self::parse(line, &shared)))
    }

    fn parse(line: &'a str, shared: &[&str]) -> Option<Self> {
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

/// Joins the JSON of an item from its two parts. Earlier versions wrote the item as one text.
fn whole_item<'a>(text: &'a str, shared: &[&str]) -> Option<Cow<'a, str>> {
    if text.starts_with('{') {
        return Some(Cow::Borrowed(text));
    }
    let (nth, own) = text.split_once(' ')?;
    let shared = shared.get(nth.parse::<usize>().ok()?)?;
    Some(Cow::Owned([shared, ",", own].concat()))
}

/// Returns two texts: one line per call of a lease turn, as written if the call is charged its full cost, and the parts
/// of items that several calls share.
pub(super) fn turn_lines(ends: &[&TurnEnd]) -> serde_json::Result<(String, String)> {
    let (mut lines, mut shared) = (String::new(), Vec::<String>::new());
    for TurnEnd { settlement, .. } in ends {
        if !lines.is_empty() {
            lines.push('\n');
        }
        let (number, held) = (settlement.number, settlement.held.micro());
        let cost = settlement.cost.micro();
        let item = serde_json::to_string(&settlement.item)?;
        // The text `OWN` cannot occur in the value of a field, because quotes in values are escaped.
        let (common, own) = item
            .split_once(OWN)
            .expect("the JSON of an item contains its usage");
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

/// Parses the receipts of all calls that a lease turn has charged.
fn receipts_of_turn(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<Vec<Receipt>> {
    let entry = EntryFields::new(fields, in_journal(account, place));
    let at_ms = entry.parsed("at")?;
    let key: KeyId = entry.parsed("key")?;
    let group = group_in(fields);
    let lines = TurnLine::of_entry(fields, 0).ok_or_else(|| entry.unexpected(CALLS))?;
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
    receipts.ok_or_else(|| entry.unexpected(CALLS))
}

pub(super) fn line_of(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<JournalLine> {
    let entry = EntryFields::new(fields, in_journal(account, place));
    match entry.text("kind")? {
        "call" => receipt_of(account, entry.parsed("number")?, fields).map(JournalLine::Call),
        "entry" => Ok(JournalLine::Entry {
            id: entry.text("id")?.to_owned(),
            at_ms: entry.parsed("at")?,
            account: account.clone(),
            amount_rub: entry.amount("amount")?,
            reason: Some(entry.text("reason")?.to_owned()).filter(|reason| !reason.is_empty()),
        }),
        _ => Err(entry.unexpected("kind")),
    }
}

pub(super) fn receipt_of(
    account: &AccountId,
    number: RequestNumber,
    fields: &HashMap<String, String>,
) -> Result<Receipt> {
    let place = format_args!("receipt {number}");
    let entry = EntryFields::new(fields, place);
    let item = serde_json::from_str(entry.text("item")?);
    Ok(Receipt {
        number,
        at_ms: entry.parsed("at")?,
        account: account.clone(),
        key: entry.parsed("key")?,
        group: group_in(fields),
        held_rub: entry.amount("held")?,
        cost_rub: entry.amount("cost")?,
        charged_rub: entry.amount("charged")?,
        loss_rub: entry.amount("loss")?,
        booked: entry.booked()?,
        item: item.map_err(|_| entry.unexpected("item"))?,
    })
}

/// Returns the group whose spending includes the charge of a journal line. An invalid value is ignored: the charge
/// exists, so its receipt must stay readable.
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
            TurnEnd::from_settlement(&Settlement {
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
    fn items_of_a_lease_turn_are_read_back_unchanged_and_their_shared_fields_are_written_once() {
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

    /// Earlier versions wrote the full item of each call into the lines of a lease turn.
    #[test]
    fn lease_turn_with_full_items_of_an_earlier_version_is_read() {
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
    fn error_for_a_malformed_call_of_a_lease_turn_names_the_journal_position() {
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
                error
                    .to_string()
                    .contains("at position 5-0: field calls is missing"),
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
            error
                .to_string()
                .contains("at position 5-0: field kind is missing"),
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

        // Unknown fields, which a later version wrote, are ignored. Missing fields, which an earlier version did not
        // write, are empty.
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
