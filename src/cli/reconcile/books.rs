//! Usage at vendors according to the gateway's books: adds up the receipts of an export while the export is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use rust_decimal::Decimal;
use serde::Deserialize;
use tollgate_layers::{
    calendar::day_of,
    facts::RequestNumber,
    price::{CallTimes, Class, Currency, Served},
    reserve::ledger::{Booked, Item, Receipt},
    usage::{End, Usage},
};

use super::{
    amount::Nano,
    names::{Costs, Names},
};
use crate::cli::audit::check_header;

/// Maximum length, in bytes, of a line of an export. Lines of accounts may be longer, because they are not parsed.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of pairs of day and model, to bound memory.
const DAYS_AND_MODELS_MAX: usize = 100_000;
/// Maximum number of receipts that are listed per day and model.
pub(super) const RECEIPTS_NAMED_MAX: usize = 10;
/// Maximum number of vendor names that are remembered, for the warning that lists the vendors in the books.
const VENDORS_MAX: usize = 1000;
/// Suffix of the names of rate classes that are billed per call, not per token.
const PER_CALL: &str = "_call";

/// Returns the rate classes of a call's usage with their counts, under the names of the configuration's rates. The four
/// basic classes are always included, further classes only if the call has them. Only these classes are compared with
/// the vendor's numbers.
pub(super) fn classes_of(usage: &Usage) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let four = [
        ("input", usage.input),
        ("cached_input", usage.cached_input),
        ("cache_write", usage.cache_write),
        ("output", usage.output),
    ];
    let others = usage.classes;
    let others = Class::ALL
        .into_iter()
        .map(move |class| (class.name(), others.get(class)))
        .filter(|(_, count)| *count > 0);
    four.into_iter().chain(others)
}

/// Returns the names of the reasons why a receipt's counts may differ from the vendor's. If receipts state a reason, they
/// use the same name.
fn reasons_for(receipt: &Receipt, costs: Option<&Costs>) -> Vec<&'static str> {
    let item = &receipt.item;
    let (served, times) = (served_as(item), times_of(receipt));
    let input = item.usage.input_total();
    let begun = receipt.number.unix_ms();
    let ended = |end: End| (end.as_str(), item.end == end);
    let over_midnight = begun > 0 && day_of(begun) != day_of(receipt.at_ms);
    let over_hours = costs.is_some_and(|costs| costs.depend_on_moment(input, &served, &times));
    let reasons = [
        // The vendor reported no usage or implausible usage, so the gateway estimated the counts.
        ("estimated", item.estimated),
        // The hold did not cover the vendor's counts, so the receipt's counts are lower.
        ("bounded", item.bounded),
        // The vendor's response broke off before its end.
        ended(End::VendorCut),
        // The vendor sent an error in the middle of the response.
        ended(End::VendorError),
        // The client disconnected, so it is unknown what the vendor generated after that.
        ended(End::ClientLeft),
        // The gateway was killed during the call.
        ended(End::GatewayStopped),
        // The receipt is disputed, so neither this report nor `tollgate usage` counts it.
        (Booked::Stale.as_str(), receipt.booked == Booked::Stale),
        // The vendor may count the call on the day on which the call began.
        (OVER_MIDNIGHT, over_midnight),
        // The vendor's price changed during the call. The vendor and the gateway may have applied the prices of
        // different moments of the call.
        ("over_hours", over_hours),
        // The call ran in a region with its own price. The vendor may list such calls on a separate line of the bill.
        ("regional", !served.inference_geo.is_empty()),
    ];
    let reasons = reasons.into_iter().filter(|(_, applies)| *applies);
    reasons.map(|(name, _)| name).collect()
}

/// The reason that a call began on one day and was booked on the next.
const OVER_MIDNIGHT: &str = "over_midnight";

/// The sums over the receipts of one day and one model.
#[derive(Debug, Default)]
pub(super) struct DayBooks {
    pub(super) calls: u64,
    pub(super) classes: BTreeMap<&'static str, ClassBooks>,
    /// The sum of the vendor costs that the receipts state. In contrast, `classes` has the costs by the configuration's
    /// prices.
    reported: ReportedCost,
    pub(super) suspects: Suspects,
}

/// The sum of the vendor costs on receipts, and the number of receipts that have one.
#[derive(Debug, Default)]
struct ReportedCost {
    calls: u64,
    cost: Nano,
}

impl DayBooks {
    /// Returns the sum of the vendor costs on receipts; `None` if a receipt of the day has no vendor cost.
    pub(super) fn reported_cost(&self) -> Option<Nano> {
        (self.calls > 0 && self.reported.calls == self.calls).then_some(self.reported.cost)
    }
}

/// The usage of one rate class, in tokens or calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassBooks {
    pub(super) count: u64,
    /// The sum, over all calls, of the usage multiplied by the price. Prices are in billionths (of a USDT or of a
    /// ruble) per million tokens.
    nano_per_mtok: i128,
    /// Whether a part of the usage has no known cost.
    unpriced: bool,
}

impl ClassBooks {
    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            nano_per_mtok: self.nano_per_mtok.saturating_add(other.nano_per_mtok),
            unpriced: self.unpriced || other.unpriced,
        }
    }

    /// Returns the cost of this usage at the vendor's prices; `None` if the cost of a part is unknown.
    pub(super) fn cost(&self) -> Option<Nano> {
        (!self.unpriced).then(|| Nano::from_nano_per_mtok(self.nano_per_mtok))
    }
}

/// The receipts of a day and model that may explain why our counts and the vendor's differ.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    pub(super) calls: u64,
    /// The number of receipts that have each reason.
    pub(super) by_reason: BTreeMap<&'static str, u64>,
    /// The receipts with the largest usage, largest first.
    pub(super) largest: Vec<Suspect>,
}

#[derive(Clone, Debug)]
pub(super) struct Suspect {
    tokens: u64,
    pub(super) number: RequestNumber,
    pub(super) reasons: Vec<&'static str>,
    pub(super) usage: Usage,
}

impl Suspects {
    fn add(&mut self, receipt: &Receipt, reasons: &[&'static str]) {
        self.calls += 1;
        for reason in reasons {
            *self.by_reason.entry(reason).or_default() += 1;
        }
        let usage = receipt.item.usage;
        let tokens = classes_of(&usage).fold(0, |sum: u64, (_, count)| sum.saturating_add(count));
        let place = self
            .largest
            .partition_point(|known| (known.tokens, receipt.number) > (tokens, known.number));
        if place < RECEIPTS_NAMED_MAX {
            let suspect = Suspect {
                tokens,
                number: receipt.number,
                reasons: reasons.to_vec(),
                usage,
            };
            self.largest.insert(place, suspect);
            self.largest.truncate(RECEIPTS_NAMED_MAX);
        }
    }
}

/// The sums over an export's receipts, as far as the export has been read.
#[derive(Debug)]
pub(super) struct Books<'a> {
    vendors: &'a BTreeSet<String>,
    names: &'a Names,
    /// The currency in which the vendors bill.
    pub(super) currency: Currency,
    time: Range<u64>,
    pub(super) days: BTreeMap<(u64, String), DayBooks>,
    /// The number of receipts for calls to the compared vendors within the compared period.
    pub(super) calls: u64,
    /// Vendors that receipts name, whether or not they are compared.
    pub(super) vendors_seen: BTreeSet<String>,
    /// The number of accounts whose oldest receipts are gone: their journals do not begin at the account's opening.
    pub(super) journals_cut: u64,
    lines: Lines,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Header,
    Lines,
    End,
}

/// A line of an export, parsed only as far as the comparison needs it.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Header {
        format: String,
        version: u64,
    },
    Call(Box<Receipt>),
    End {
        lines: u64,
    },
    #[serde(other)]
    Other,
}

impl<'a> Books<'a> {
    /// Creates empty sums for the receipts of these vendors within the period `time`, in Unix milliseconds.
    pub(super) fn new(vendors: &'a BTreeSet<String>, names: &'a Names, time: Range<u64>) -> Self {
        Self {
            vendors,
            names,
            currency: names.currency().unwrap_or_default(),
            time,
            days: BTreeMap::new(),
            calls: 0,
            vendors_seen: BTreeSet::new(),
            journals_cut: 0,
            lines: Lines::default(),
            stage: Stage::Header,
        }
    }

    pub(super) const fn lines(&self) -> u64 {
        self.lines.number
    }

    /// Processes the next bytes of an export.
    ///
    /// # Errors
    /// If a line is invalid: the line number, and what is wrong with the line.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), String> {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.lines.push(part)?;
            if part.ends_with(b"\n") {
                let line = self.lines.end();
                self.line(&line)
                    .map_err(|problem| format!("line {}: {problem}", self.lines.number))?;
                self.lines.give_back(line);
            }
        }
        Ok(())
    }

    /// Returns whether the export has been read completely, up to its end line.
    pub(super) fn is_whole(&self) -> bool {
        self.stage == Stage::End && self.lines.is_empty()
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        if self.lines.skipped {
            let cut = memchr::memmem::find(line, br#""journal_complete":false"#);
            self.journals_cut += u64::from(cut.is_some());
            return match self.stage {
                Stage::Lines => Ok(()),
                _ => {
                    Err("the line of an account is before the header or after the end line".into())
                }
            };
        }
        let line: Line = serde_json::from_slice(line)
            .map_err(|error| format!("not a line of an export: {error}"))?;
        match (self.stage, line) {
            (Stage::Header, Line::Header { format, version }) => {
                check_header(&format, version)?;
                self.stage = Stage::Lines;
            }
            (Stage::Lines, Line::Call(receipt)) => return self.receipt(&receipt),
            (Stage::Lines, Line::Other) => {}
            (Stage::Lines, Line::End { lines }) if lines == self.lines.number => {
                self.stage = Stage::End
            }
            (Stage::Lines, Line::End { lines }) => {
                return Err(format!(
                    "the end line counts {lines} lines, but the export has {}: lines were lost or added",
                    self.lines.number
                ));
            }
            _ => {
                return Err(
                    "an export must begin with its only header and end with its only end line"
                        .into(),
                );
            }
        }
        Ok(())
    }

    fn receipt(&mut self, receipt: &Receipt) -> Result<(), String> {
        let item = &receipt.item;
        if !self.vendors_seen.contains(&item.vendor) && self.vendors_seen.len() < VENDORS_MAX {
            self.vendors_seen.insert(item.vendor.clone());
        }
        if !self.vendors.contains(&item.vendor) {
            return Ok(());
        }
        let costs = self.names.costs(&item.vendor, &item.model);
        let reasons = reasons_for(receipt, costs);
        let begun = receipt.number.unix_ms();
        if reasons.contains(&OVER_MIDNIGHT) && self.time.contains(&begun) {
            let books = self.day(day_of(begun), receipt)?;
            books.suspects.add(receipt, &reasons);
        }
        if !self.time.contains(&receipt.at_ms) {
            return Ok(());
        }
        let books = self.day(day_of(receipt.at_ms), receipt)?;
        if !reasons.is_empty() {
            books.suspects.add(receipt, &reasons);
        }
        // A disputed receipt moved no money, and another receipt may have charged the same call.
        if receipt.booked == Booked::Stale {
            return Ok(());
        }
        self.calls += 1;
        let currency = self.currency;
        let books = self.day(day_of(receipt.at_ms), receipt)?;
        books.calls += 1;
        if let Some(cost) = recorded_cost(item, currency) {
            books.reported.calls += 1;
            books.reported.cost += cost;
        }
        let (served, times) = (served_as(item), times_of(receipt));
        let rates = costs.map(|costs| costs.rates(item.usage.input_total(), &served, &times));
        for (class, count) in classes_of(&item.usage).filter(|(_, count)| *count > 0) {
            let sum = books.classes.entry(class).or_default();
            sum.count = sum.count.saturating_add(count);
            match rates.and_then(|rates| rates.get(class)) {
                Some(rate) => {
                    let scale = if class.ends_with(PER_CALL) {
                        1_000_000
                    } else {
                        1
                    };
                    let cost = rate.saturating_mul(scale).saturating_mul(count.into());
                    sum.nano_per_mtok = sum.nano_per_mtok.saturating_add(cost);
                }
                None => sum.unpriced = true,
            }
        }
        Ok(())
    }

    fn day(&mut self, day: u64, receipt: &Receipt) -> Result<&mut DayBooks, String> {
        let model = self
            .names
            .of_receipt(&receipt.item.vendor, &receipt.item.model);
        if self.days.len() >= DAYS_AND_MODELS_MAX {
            return Err(format!(
                "more than {DAYS_AND_MODELS_MAX} pairs of day and model; give a shorter period"
            ));
        }
        Ok(self.days.entry((day, model)).or_default())
    }
}

/// Returns how the vendor served the call of a receipt (such as service tier and region), according to the condition of
/// the price on the receipt.
fn served_as(item: &Item) -> Served {
    let condition = item.price.as_ref().map(|price| price.condition);
    let condition = condition.unwrap_or_default();
    Served {
        service_tier: condition.service_tier,
        speed: condition.speed,
        inference_geo: condition.inference_geo,
    }
}

/// Returns the times of a receipt's call. They decide which price applies if prices depend on the hour.
fn times_of(receipt: &Receipt) -> CallTimes {
    let booked = receipt.at_ms;
    let request_ms = Some(receipt.number.unix_ms()).filter(|ms| *ms > 0);
    let Some((request_ms, line)) = request_ms.zip(receipt.item.timeline.as_ref()) else {
        return CallTimes {
            request_ms: request_ms.unwrap_or(booked),
            ..CallTimes::at(booked)
        };
    };
    let after = |ms: u32| request_ms.saturating_add(ms.into());
    let end_ms = after(line.whole_ms);
    CallTimes {
        request_ms,
        first_byte_ms: line.first_byte_ms.map_or(end_ms, after),
        end_ms,
    }
}

/// Returns the vendor cost on a receipt. Receipts have this cost in rubles; for a vendor that bills in dollars, it is
/// converted with the exchange rate of the receipt's price.
fn recorded_cost(item: &Item, currency: Currency) -> Option<Nano> {
    let rubles = Decimal::new(item.vendor_cost_rub?.micro(), 6);
    let cost = match currency {
        Currency::Rub => rubles,
        Currency::Usdt => {
            let rate: Decimal = item.price.as_ref()?.exchange_rate.parse().ok()?;
            rubles.checked_div(rate)?
        }
    };
    cost.round_dp(9).to_string().parse().ok()
}

/// The line that is being received. The line of an account may be long, because it lists all keys, so only its last
/// bytes are kept.
#[derive(Debug, Default)]
struct Lines {
    number: u64,
    coming: Vec<u8>,
    skipped: bool,
}

impl Lines {
    const ACCOUNT: &[u8] = br#"{"kind":"account","#;
    const KEPT: usize = 64;

    fn push(&mut self, part: &[u8]) -> Result<(), String> {
        if self.coming.is_empty() {
            self.skipped = false;
        }
        self.coming.extend_from_slice(part);
        self.skipped |= self.coming.starts_with(Self::ACCOUNT);
        if self.skipped {
            let surplus = self.coming.len().saturating_sub(Self::KEPT);
            self.coming.drain(..surplus);
        } else if self.coming.len() > LINE_BYTES_MAX {
            return Err(format!(
                "line {}: longer than {LINE_BYTES_MAX} bytes",
                self.number + 1
            ));
        }
        Ok(())
    }

    /// Ends the line: returns its bytes, and begins the next line.
    fn end(&mut self) -> Vec<u8> {
        self.number += 1;
        std::mem::take(&mut self.coming)
    }

    /// Takes the buffer of a processed line back, to reuse it for the next line.
    fn give_back(&mut self, mut line: Vec<u8>) {
        line.clear();
        self.coming = line;
    }

    const fn is_empty(&self) -> bool {
        self.coming.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::names::Routes, *};
    use crate::admin::export::{FORMAT, VERSION};

    /// The day 2026-11-20, as days since 1970. Request numbers in these tests were made on this day.
    const DAY: u64 = 20_777;
    const MS: u64 = DAY * 86_400_000;

    fn number(ms: u64, n: u64) -> String {
        format!("{:08x}-{:04x}-7000-8000-{n:012x}", ms >> 16, ms & 0xffff)
    }

    fn call(n: u64, edit: impl FnOnce(&mut Value)) -> Value {
        let mut call = json!({
            "kind": "call", "number": number(MS + 5, n), "at_ms": MS + 10, "account": "acme", "key": "k1",
            "held_rub": "20.00", "cost_rub": "1.00", "charged_rub": "1.00", "loss_rub": "0.00", "booked": "held",
            "model": "m", "vendor": "v", "usage": {"input": 7, "cached_input": 0, "cache_write": 1, "output": 2},
            "price": null, "estimated": false, "end": "finished",
        });
        edit(&mut call);
        call
    }

    fn export(calls: &[Value]) -> String {
        let mut lines = vec![
            json!({"kind": "header", "format": FORMAT, "version": VERSION, "made_at": "2026-11-21T00:00:00Z"}).to_string(),
            format!("{{\"kind\":\"account\",\"id\":\"acme\",\"name\":\"{}\",\"journal_complete\":false}}", "x".repeat(1000)),
            json!({"kind": "entry", "id": "p1", "at_ms": 1, "account": "acme", "amount_rub": "9.00"}).to_string(),
        ];
        lines.extend(calls.iter().map(Value::to_string));
        lines.push(json!({"kind": "end", "accounts": 1, "lines": lines.len() + 1}).to_string());
        lines.join("\n") + "\n"
    }

    fn names() -> Names {
        let config = "[[model]]\nid = \"m\"\nusdt_mtok = { input = \"2\", output = \"8\" }\n\
                      routes = [ { vendor = \"v\", model = \"vm\" } ]";
        Routes::read(config).unwrap().names(&vendors(), &[])
    }

    fn vendors() -> BTreeSet<String> {
        BTreeSet::from(["v".to_owned()])
    }

    /// Reads an export in pieces of `size` bytes.
    fn read<'a>(
        export: &str,
        size: usize,
        names: &'a Names,
        vendors: &'a BTreeSet<String>,
    ) -> Result<Books<'a>, String> {
        let mut books = Books::new(vendors, names, MS..MS + 86_400_000);
        for piece in export.as_bytes().chunks(size) {
            books.push(piece)?;
        }
        Ok(books)
    }

    #[test]
    fn receipt_sums_do_not_depend_on_the_pieces_in_which_an_export_arrives() {
        let calls = [
            call(1, |_| {}),
            call(2, |call| call["usage"]["output"] = json!(5)),
            call(3, |call| call["vendor"] = json!("other")),
            call(4, |call| call["booked"] = json!("stale")),
            // Call 5 was booked on the day before, and call 6 on the day after.
            call(5, |call| call["at_ms"] = json!(MS - 1)),
            call(6, |call| call["at_ms"] = json!(MS + 86_400_000)),
        ];
        let (names, vendors, export) = (names(), vendors(), export(&calls));
        for size in [1, 7, 64, 1 << 20] {
            let books = read(&export, size, &names, &vendors).unwrap();
            assert!(books.is_whole());
            assert_eq!((books.calls, books.journals_cut, books.lines()), (2, 1, 10));
            let day = &books.days[&(DAY, "vm".to_owned())];
            let count = |class: &str| day.classes[class].count;
            assert_eq!(
                (
                    day.calls,
                    count("input"),
                    count("output"),
                    count("cache_write")
                ),
                (2, 14, 7, 2)
            );
            assert_eq!(day.classes["input"].cost().unwrap().to_string(), "0.000028");
            assert_eq!(day.classes["cache_write"].cost(), None);
            let seen: Vec<_> = books.vendors_seen.iter().collect();
            assert_eq!(seen, ["other", "v"]);
        }
    }

    #[test]
    fn receipts_that_may_differ_from_the_vendors_count_are_listed_with_the_reason() {
        type Edit = fn(&mut Value);
        let cases: [(Edit, &[&str]); 7] = [
            (|call| call["estimated"] = json!(true), &["estimated"]),
            (|call| call["bounded"] = json!(true), &["bounded"]),
            (|call| call["end"] = json!("vendor_cut"), &["vendor_cut"]),
            (
                |call| call["end"] = json!("vendor_error"),
                &["vendor_error"],
            ),
            (
                |call| {
                    call["estimated"] = json!(true);
                    call["end"] = json!("client_left");
                },
                &["estimated", "client_left"],
            ),
            (
                |call| call["end"] = json!("gateway_stopped"),
                &["gateway_stopped"],
            ),
            (|call| call["booked"] = json!("stale"), &["stale"]),
        ];
        let (names, vendors) = (names(), vendors());
        for (edit, reasons) in cases {
            let export = export(&[call(1, |_| {}), call(2, edit)]);
            let books = read(&export, 100, &names, &vendors).unwrap();
            let suspects = &books.days[&(DAY, "vm".to_owned())].suspects;
            assert_eq!(suspects.calls, 1, "{reasons:?}");
            assert_eq!(suspects.largest[0].number.to_string(), number(MS + 5, 2));
            assert_eq!(suspects.largest[0].reasons, reasons);
        }
    }

    #[test]
    fn calls_during_a_price_change_and_regional_calls_are_listed_with_the_reason() {
        let config = "[[model]]\nid = \"m\"\nusdt_mtok = { input = \"2\", output = \"8\" }\n\
                      routes = [ { vendor = \"v\", model = \"vm\" } ]\n\
                      price_rules = [ { hours_utc = [\"00:00-00:01\"], usdt_mtok = { input = \"4\" } } ]";
        let names = Routes::read(config).unwrap().names(&vendors(), &[]);
        let within = call(1, |call| call["at_ms"] = json!(MS + 59_999));
        let over = call(2, |call| call["at_ms"] = json!(MS + 60_000));
        let regional = call(3, |call| {
            call["at_ms"] = json!(MS + 59_999);
            call["price"] = json!({"input": "1", "cached_input": "1", "output": "1", "cache_write": "1", "version": 1,
                "exchange_rate": "90", "condition": {"inference_geo": "us"}});
        });
        let (vendors, export) = (vendors(), export(&[within, over, regional]));
        let books = read(&export, 4096, &names, &vendors).unwrap();
        let suspects = &books.days[&(DAY, "vm".to_owned())].suspects;
        let reasons: BTreeSet<_> = suspects.largest.iter().flat_map(|it| &it.reasons).collect();
        let reasons: Vec<_> = reasons.into_iter().copied().collect();
        assert_eq!(
            (suspects.calls, reasons),
            (2, vec!["over_hours", "regional"])
        );
    }

    #[test]
    fn call_that_crosses_midnight_may_be_counted_on_either_day() {
        let (names, vendors) = (names(), vendors());
        let begun_before = call(1, |call| call["number"] = json!(number(MS - 1, 1)));
        let booked_after = call(2, |call| call["at_ms"] = json!(MS + 86_400_000 + 1));
        let export = export(&[begun_before, booked_after]);
        let books = read(&export, 100, &names, &vendors).unwrap();
        let days: Vec<_> = books.days.keys().map(|(day, _)| *day).collect();
        assert_eq!(days, [DAY]);
        let day = &books.days[&(DAY, "vm".to_owned())];
        // Both calls may be counted on this day: the first was booked on it, and the second began on it and was booked
        // on another day.
        assert_eq!((day.calls, day.suspects.calls), (1, 2));
        assert!(
            day.suspects
                .largest
                .iter()
                .all(|suspect| suspect.reasons == [OVER_MIDNIGHT])
        );
    }

    #[test]
    fn largest_receipts_are_listed_and_the_others_are_only_counted() {
        let calls: Vec<Value> = (0..25)
            .map(|n| {
                call(n, |call| {
                    call["estimated"] = json!(true);
                    call["usage"]["input"] = json!((n * 7) % 25);
                })
            })
            .collect();
        let (names, vendors) = (names(), vendors());
        let books = read(&export(&calls), 4096, &names, &vendors).unwrap();
        let suspects = &books.days[&(DAY, "vm".to_owned())].suspects;
        let named: Vec<u64> = suspects
            .largest
            .iter()
            .map(|suspect| suspect.usage.input)
            .collect();
        assert_eq!(named, [24, 23, 22, 21, 20, 19, 18, 17, 16, 15]);
        assert_eq!((suspects.calls, suspects.by_reason["estimated"]), (25, 25));
    }

    #[test]
    fn incomplete_export_is_rejected_with_a_line_number() {
        let (names, vendors) = (names(), vendors());
        let whole = export(&[call(1, |_| {})]);
        let without = |number: usize| {
            let lines = whole
                .lines()
                .enumerate()
                .filter(|(index, _)| *index != number);
            lines
                .map(|(_, line)| format!("{line}\n"))
                .collect::<String>()
        };
        for (text, says) in [
            (
                without(0),
                "line 1: the line of an account is before the header",
            ),
            (
                without(2),
                "line 4: the end line counts 5 lines, but the export has 4: lines were lost",
            ),
            (
                whole.replace("\"at_ms\"", "\"at\""),
                "line 4: not a line of an export: missing field `at_ms`",
            ),
            (
                whole.replace("\"version\":1", "\"version\":9"),
                "line 1: the export has format",
            ),
            (
                format!("{whole}{whole}"),
                "line 6: an export must begin with its only header",
            ),
            ("hello\n".into(), "line 1: not a line of an export"),
        ] {
            let error = read(&text, 100, &names, &vendors).err().unwrap_or_default();
            assert!(error.starts_with(says), "{error}");
        }
        assert!(!read(&without(4), 100, &names, &vendors).unwrap().is_whole());
        let cut = &whole[..whole.len() - 1];
        assert!(!read(cut, 100, &names, &vendors).unwrap().is_whole());
    }
}
