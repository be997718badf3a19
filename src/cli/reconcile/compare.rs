//! Compares the books with the vendor's usage, row by row.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use tollgate_layers::{
    calendar::{day_begins_ms, day_of},
    price::{Class, Kind},
};

use super::{
    amount::{Nano, Tolerance},
    books::{Books, ClassBooks, DayBooks},
    names::Names,
    vendor_files::{CALLS, CLASSES, TOTAL, VendorUsage},
};

/// Pairs of rate classes. If a vendor's report does not have the first class of a pair, the vendor counts the tokens of
/// this class in the second class.
const COUNTED_IN: &[(&str, &str)] = &[
    ("cache_write_1h", "cache_write"),
    ("cache_write_12h", "cache_write"),
    ("cached_input_audio", "cached_input"),
    ("cached_input_image", "cached_input"),
    ("output_reasoning", "output"),
    ("input_audio", "input"),
    ("input_image", "input"),
    ("output_audio", "output"),
    ("output_image", "output"),
];

/// One row of the comparison: our numbers and the vendor's numbers for one day, model and rate class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) day: u64,
    /// The vendor's name of the model, or all names that receipts cannot distinguish from it.
    pub(super) model: String,
    pub(super) class: &'static str,
    /// Our count; `None` in the row of the total, which has no count.
    pub(super) ours: Option<u64>,
    /// The vendor's count; `None` if the vendor's files have no counts or no count for this row.
    pub(super) vendors: Option<u64>,
    /// Our cost; `None` if unknown. Computed from the configuration's prices, except in the row of the total, which has
    /// the sum of the costs on receipts.
    pub(super) our_cost: Option<Nano>,
    /// The vendor's cost; `None` if the vendor's files have no costs or no cost for this row.
    pub(super) vendors_cost: Option<Nano>,
    /// Whether the difference exceeds the tolerance.
    pub(super) is_drift: bool,
}

/// Returns all rows of the comparison, ordered by day, model and class.
pub(super) fn compare(
    books: &Books<'_>,
    vendor: &VendorUsage,
    names: &Names,
    time: &Range<u64>,
    tolerance: Tolerance,
) -> Vec<Row> {
    let theirs = by_our_names(vendor, names, time);
    let none = (DayBooks::default(), BTreeMap::new());
    let keys: BTreeSet<_> = books.days.keys().chain(theirs.keys()).collect();
    let mut rows = Vec::new();
    for key in keys {
        let ours = books.days.get(key).unwrap_or(&none.0);
        let mut theirs = theirs.get(key).unwrap_or(&none.1).clone();
        images_as_input(ours, &mut theirs);
        let empty = Row {
            day: key.0,
            model: key.1.clone(),
            class: CALLS,
            ours: None,
            vendors: None,
            our_cost: None,
            vendors_cost: None,
            is_drift: false,
        };
        rows.extend(row_of_calls(ours, &theirs, vendor, &empty));
        rows.extend(rows_of_classes(ours, &theirs, vendor, &empty));
        rows.extend(row_of_total(ours, &theirs, vendor, &empty));
    }
    for row in &mut rows {
        // A different number of calls is never drift, because vendors do not bill calls, and they count failed calls as
        // well.
        row.is_drift = row.class != CALLS && row.drifts(tolerance);
    }
    rows
}

/// The vendor's numbers for one day and one model, by rate class.
type Classes = BTreeMap<&'static str, Theirs>;

/// The vendor's numbers for one rate class; each is `None` if unknown.
#[derive(Clone, Copy)]
struct Theirs {
    count: Option<u64>,
    cost: Option<Nano>,
}

impl Theirs {
    /// The numbers of a rate class that the vendor does not list: both are zero.
    const NONE: Self = Self {
        count: Some(0),
        cost: Some(Nano::ZERO),
    };

    /// Adds two numbers of the vendor. If one of them is unknown, the sum is unknown.
    fn plus(self, other: Self) -> Self {
        let counts = self.count.zip(other.count);
        let costs = self.cost.zip(other.cost);
        Self {
            count: counts.map(|(one, other)| one.saturating_add(other)),
            cost: costs.map(|(mut sum, other)| {
                sum += other;
                sum
            }),
        }
    }
}

fn row_of_calls(
    ours: &DayBooks,
    theirs: &Classes,
    vendor: &VendorUsage,
    empty: &Row,
) -> Option<Row> {
    let calls = theirs.get(CALLS);
    let row = Row {
        ours: Some(ours.calls),
        vendors: calls.copied().unwrap_or(Theirs::NONE).count,
        ..empty.clone()
    };
    (vendor.counted.contains(CALLS) && (ours.calls > 0 || calls.is_some())).then_some(row)
}

fn rows_of_classes(
    ours: &DayBooks,
    theirs: &Classes,
    vendor: &VendorUsage,
    empty: &Row,
) -> Vec<Row> {
    // If the vendor reports only counts, our costs are shown for the classes that it counts. If the vendor reports only
    // costs, our counts are shown for the classes that have a cost.
    let (counted, costed) = match (vendor.has_counts, vendor.has_costs) {
        (true, false) => (&vendor.counted, &vendor.counted),
        (false, _) => (&vendor.costed, &vendor.costed),
        (true, true) => (&vendor.counted, &vendor.costed),
    };
    let (counts, costs) = (
        by_reported_class(&ours.classes, counted),
        by_reported_class(&ours.classes, costed),
    );
    let are_exact = ours
        .reported_cost()
        .is_none_or(|reported| add_up(ours, reported));
    let classes = CLASSES.iter().copied().filter(|class| *class != CALLS);
    let rows = classes.filter_map(|class| {
        let billed = theirs.get(class).copied();
        let (counted, costed) = (counts.get(class), costs.get(class));
        if counted.is_none() && costed.is_none() && billed.is_none() {
            return None;
        }
        // The vendor includes the cost of this class in another class.
        let elsewhere = costed.is_none() && ours.classes.contains_key(class);
        let cost = costed.map_or(Some(Nano::ZERO), ClassBooks::cost);
        let billed = billed.unwrap_or(Theirs::NONE);
        Some(Row {
            class,
            ours: Some(counted.map_or(0, |counted| counted.count)),
            vendors: billed.count.filter(|_| vendor.has_counts),
            our_cost: cost.filter(|_| are_exact && !elsewhere),
            vendors_cost: billed.cost.filter(|_| vendor.has_costs && !elsewhere),
            ..empty.clone()
        })
    });
    rows.collect()
}

/// Returns the row with the total cost of the day. Returns `None` unless each receipt has a vendor cost and the vendor
/// reports a cost for every rate class.
fn row_of_total(
    ours: &DayBooks,
    theirs: &Classes,
    vendor: &VendorUsage,
    empty: &Row,
) -> Option<Row> {
    let reported = ours.reported_cost()?;
    // The row with the number of calls has no cost, so it is left out.
    let classes = theirs.iter().filter(|(class, _)| **class != CALLS);
    let billed = classes
        .fold(Theirs::NONE, |sum, (_, it)| sum.plus(*it))
        .cost?;
    let row = Row {
        class: TOTAL,
        our_cost: Some(reported),
        vendors_cost: Some(billed),
        ..empty.clone()
    };
    (vendor.has_costs && calls_are_billed_here(ours, theirs)).then_some(row)
}

/// Returns our numbers by the rate classes that the vendor reports. If the vendor's files do not have a class, our
/// numbers of this class are added to the class in which the vendor counts these tokens.
fn by_reported_class(
    ours: &BTreeMap<&'static str, ClassBooks>,
    reported: &BTreeSet<&'static str>,
) -> BTreeMap<&'static str, ClassBooks> {
    let mut classes = BTreeMap::<_, ClassBooks>::new();
    for (class, books) in ours {
        let whole = COUNTED_IN.iter().find(|(part, _)| part == class);
        let class = match whole {
            Some((_, whole)) if !reported.contains(class) => *whole,
            _ => *class,
        };
        let sum = classes.entry(class).or_default();
        *sum = sum.plus(*books);
    }
    classes
}

/// Adds the vendor's image tokens to the vendor's input tokens, if our books have no image tokens. If a model has no
/// price for images, our books count image tokens as input.
fn images_as_input(ours: &DayBooks, theirs: &mut Classes) {
    const IMAGES: &str = Class::InputImage.name();
    if !ours.classes.contains_key(IMAGES)
        && let Some(images) = theirs.remove(IMAGES)
    {
        let input = theirs.entry("input").or_insert(Theirs::NONE);
        *input = input.plus(images);
    }
}

/// Returns whether the costs of all rate classes by the configuration's prices add up to the costs on the receipts. If
/// not, the prices have changed since the calls, and the cost of each class is unknown.
fn add_up(ours: &DayBooks, reported: Nano) -> bool {
    let mut sum = Nano::ZERO;
    for class in ours.classes.values() {
        let Some(cost) = class.cost() else {
            return false;
        };
        sum += cost;
    }
    // Each receipt is rounded up by at most a micro-ruble, so the allowed difference grows with the number of calls.
    let apart = sum.nano().abs_diff(reported.nano());
    apart <= Nano::NEGLIGIBLE.nano().unsigned_abs() + u128::from(ours.calls) * ROUNDED_NANO
}

/// An upper bound of the value of one micro-ruble, in billionths of any currency.
const ROUNDED_NANO: u128 = 1_000;

/// Returns whether the vendor's rows for the model include the cost of all usage that is billed per call, such as web
/// searches. Anthropic's rows do not include it: Anthropic bills web searches on separate lines.
fn calls_are_billed_here(ours: &DayBooks, theirs: &Classes) -> bool {
    let calls = Class::ALL.iter().filter(|class| class.kind() == Kind::Call);
    calls.map(|class| class.name()).all(|class| {
        let is_billed = |it: &Theirs| it.cost != Some(Nano::ZERO);
        !ours.classes.contains_key(class) || theirs.get(class).is_some_and(is_billed)
    })
}

impl Row {
    fn drifts(&self, tolerance: Tolerance) -> bool {
        let by_count = self
            .vendors
            .zip(self.ours)
            .is_some_and(|(vendors, ours)| tolerance.is_exceeded(ours.into(), vendors.into()));
        let by_cost = match (self.our_cost, self.vendors_cost) {
            (Some(ours), Some(vendors)) => {
                let apart = ours.max(vendors).minus(ours.min(vendors));
                apart > Nano::NEGLIGIBLE && tolerance.is_exceeded(ours.nano(), vendors.nano())
            }
            _ => false,
        };
        by_count || by_cost
    }
}

/// The vendor's numbers by day and by the name under which the comparison lists a model.
type ByOurNames = BTreeMap<(u64, String), Classes>;

fn by_our_names(vendor: &VendorUsage, names: &Names, time: &Range<u64>) -> ByOurNames {
    let mut theirs = ByOurNames::new();
    for (line, billed) in &vendor.lines {
        let (day, model, class) = line;
        if *day < day_of(time.start) || day_begins_ms(*day) >= time.end {
            continue;
        }
        let of_model = theirs.entry((*day, names.of_vendor(model))).or_default();
        let sum = of_model.entry(class).or_insert(Theirs::NONE);
        let empty = vendor.empty.get(line).copied().unwrap_or_default();
        *sum = sum.plus(Theirs {
            count: Some(billed.count).filter(|_| !empty.is_count_unknown()),
            cost: Some(billed.cost).filter(|_| !empty.is_cost_unknown()),
        });
    }
    theirs
}

#[cfg(test)]
mod tests {
    use super::{
        super::{names::Routes, vendor_files::VendorUsage},
        *,
    };

    /// The day 2026-11-20, in days since 1970.
    const DAY: u64 = 20_777;
    const MS: u64 = DAY * 86_400_000;

    const CONFIG: &str = "[[model]]\nid = \"mini\"\nusdt_mtok = { input = \"2\", output = \"8\" }\n\
                          routes = [ { vendor = \"v\", model = \"gpt-mini-2026-01-01\" } ]";

    /// Compares this vendor file with one call of a million input tokens, a million output tokens and a thousand cache
    /// write tokens.
    fn rows(file: &str, tolerance: &str) -> Vec<Row> {
        let usage =
            r#""usage":{"input":1000000,"cached_input":0,"cache_write":1000,"output":1000000}"#;
        rows_of(CONFIG, &format!("\"price\":null,{usage}"), file, tolerance)
    }

    /// Compares like `rows`, but with another configuration, and with the fields `more` on the receipt.
    fn rows_of(config: &str, more: &str, file: &str, tolerance: &str) -> Vec<Row> {
        let vendors = BTreeSet::from(["v".to_owned()]);
        let names = Routes::read(config).unwrap().names(&vendors, &[]);
        let time = MS..MS + 86_400_000;
        let mut books = Books::new(&vendors, &names, time.clone());
        let export = format!(
            "{}\n{}\n",
            r#"{"kind":"header","format":"tollgate-export","version":1}"#,
            format_args!(
                "{{\"kind\":\"call\",\"number\":\"00000000-0000-4000-8000-000000000001\",\"at_ms\":{MS},\"account\":\"a\",\
                 \"key\":\"k\",\"held_rub\":\"1\",\"cost_rub\":\"1\",\"charged_rub\":\"1\",\"loss_rub\":\"0\",\
                 \"booked\":\"held\",\"model\":\"mini\",\"vendor\":\"v\",{more},\"estimated\":false,\"end\":\"finished\"}}"
            ),
        );
        books.push(export.as_bytes()).unwrap();
        let mut vendor = VendorUsage::default();
        vendor.read(file.as_bytes()).unwrap();
        compare(&books, &vendor, &names, &time, tolerance.parse().unwrap())
    }

    /// Returns each row as text: model, class, our count, the vendor's count, our cost, the vendor's cost, and whether
    /// the difference is drift.
    fn shown(rows: &[Row]) -> Vec<String> {
        let cost = |cost: Option<Nano>| cost.map_or("-".into(), |cost| cost.to_string());
        rows.iter()
            .map(|row| {
                let count =
                    |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
                let vendors = count(row.vendors);
                format!(
                    "{} {} {} {vendors} {} {} {}",
                    row.model,
                    row.class,
                    count(row.ours),
                    cost(row.our_cost),
                    cost(row.vendors_cost),
                    if row.is_drift { "drift" } else { "ok" },
                )
            })
            .collect()
    }

    #[test]
    fn compared_counts_are_marked_ok_or_drift() {
        let file = "day,model,class,count\n\
                    2026-11-20,gpt-mini,calls,2\n\
                    2026-11-20,gpt-mini,input,900000\n\
                    2026-11-20,gpt-mini,input_image,100000\n\
                    2026-11-20,gpt-mini-2026-01-01,cache_write,1000\n\
                    2026-11-20,gpt-mini-2026-01-01,output,1010000\n\
                    2026-11-20,gpt-nano,output,3\n\
                    2026-11-20,gpt-mini,web_search_call,1\n";
        let at = |word: &str| {
            let of_output = format!("gpt-mini-2026-01-01 output 1000000 1010000 8.00 - {word}");
            [
                "gpt-mini-2026-01-01 calls 1 2 - - ok".to_owned(),
                "gpt-mini-2026-01-01 input 1000000 1000000 2.00 - ok".to_owned(),
                "gpt-mini-2026-01-01 cache_write 1000 1000 - - ok".to_owned(),
                of_output,
                "gpt-mini-2026-01-01 web_search_call 0 1 0.00 - drift".to_owned(),
                "gpt-nano output 0 3 0.00 - drift".to_owned(),
            ]
        };
        assert_eq!(shown(&rows(file, "0")), at("drift"));
        assert_eq!(shown(&rows(file, "0.9")), at("drift"));
        assert_eq!(shown(&rows(file, "1")), at("ok"));
    }

    #[test]
    fn costs_are_compared_if_the_books_and_the_vendors_file_have_them() {
        let file = "day,model,class,cost\n\
                    2026-11-20,gpt-mini,input,2.01\n\
                    2026-11-20,gpt-mini,output,8.02\n\
                    2026-11-20,gpt-mini,cache_write,77\n";
        assert_eq!(
            shown(&rows(file, "0")),
            [
                // A difference of one cent counts as equal.
                "gpt-mini-2026-01-01 input 1000000 - 2.00 2.01 ok",
                "gpt-mini-2026-01-01 cache_write 1000 - - 77.00 ok",
                "gpt-mini-2026-01-01 output 1000000 - 8.00 8.02 drift",
            ]
        );
        assert!(rows(file, "0.25").iter().all(|row| !row.is_drift));
    }

    #[test]
    fn row_missing_from_the_books_or_the_vendors_file_counts_as_zero() {
        let file = "day,model,class,count\n2026-11-20,other,input,1\n2026-11-21,gpt-mini,input,5\n";
        assert_eq!(
            shown(&rows(file, "0")),
            [
                "gpt-mini-2026-01-01 input 1000000 0 2.00 - drift",
                "gpt-mini-2026-01-01 cache_write 1000 0 - - drift",
                "gpt-mini-2026-01-01 output 1000000 0 8.00 - drift",
                "other input 0 1 0.00 - drift",
            ]
        );
    }

    /// Returns the last fields of a receipt, in JSON: its price, its vendor cost, and usage with one-hour cache writes.
    fn reported(vendor_cost_rub: &str, writes_1h: u64) -> String {
        let price = r#"{"input":"0","cached_input":"0","output":"0","cache_write":"0","version":1,"exchange_rate":"100"}"#;
        format!(
            "\"price\":{price},\"vendor_cost_rub\":\"{vendor_cost_rub}\",\"usage\":{{\"input\":1000000,\"cached_input\":0,\
             \"cache_write\":1000,\"output\":1000000,\"classes\":{{\"cache_write_1h\":{writes_1h}}}}}"
        )
    }

    fn config_with_costs() -> String {
        let costs = "cost_usdt_mtok = { input = \"1\", output = \"4\", cache_write = \"2\", cache_write_1h = \"3\" }";
        let rule = "cost_rules = [ { above_input_tokens = 500000, usdt_mtok = { input = \"2\", output = \"6\", \
                    cache_write = \"4\", cache_write_1h = \"6\" } } ]";
        CONFIG.replace("\" } ]", &format!("\", {costs}, {rule} }} ]"))
    }

    #[test]
    fn rate_class_is_compared_separately_if_the_vendor_reports_it() {
        let one = reported("0.00", 400);
        let of_writes = |file: &str| {
            let rows = rows_of(CONFIG, &one, file, "0");
            let rows = rows
                .iter()
                .filter(|row| row.class.starts_with("cache_write"));
            rows.map(|row| {
                (
                    row.class,
                    row.ours.unwrap(),
                    row.vendors.unwrap(),
                    row.is_drift,
                )
            })
            .collect::<Vec<_>>()
        };
        let head = "day,model,class,count\n2026-11-20,gpt-mini,";
        assert_eq!(
            of_writes(&format!(
                "{head}cache_write,1000\n2026-11-20,gpt-mini,cache_write_1h,400\n"
            )),
            [
                ("cache_write", 1000, 1000, false),
                ("cache_write_1h", 400, 400, false)
            ]
        );
        // The sum of both classes is equal, but the vendor bills a part of it at another rate.
        assert_eq!(
            of_writes(&format!(
                "{head}cache_write,900\n2026-11-20,gpt-mini,cache_write_1h,500\n"
            )),
            [
                ("cache_write", 1000, 900, true),
                ("cache_write_1h", 400, 500, true)
            ]
        );
        assert_eq!(
            of_writes(&format!("{head}cache_write,1400\n")),
            [("cache_write", 1400, 1400, false)]
        );
    }

    #[test]
    fn costs_are_taken_from_receipts_that_record_them() {
        let head = "day,model,class,cost\n";
        let line = |class: &str, cost: &str| format!("2026-11-20,gpt-mini,{class},{cost}\n");
        let file = head.to_owned()
            + &line("input", "2")
            + &line("output", "6")
            + &line("cache_write", "40.4");
        let (config, model) = (config_with_costs(), "gpt-mini-2026-01-01");
        // The cost is 2 + 6 + 0.004, plus ten million tokens of one-hour cache writes at 6, the price of the rule for
        // long calls.
        assert_eq!(
            shown(&rows_of(
                &config,
                &reported("6800.40", 10_000_000),
                &file,
                "0"
            )),
            [
                format!("{model} input 1000000 - 2.00 2.00 ok"),
                format!("{model} cache_write 10001000 - 60.004 40.40 drift"),
                format!("{model} output 1000000 - 6.00 6.00 ok"),
                format!("{model} total - - 68.004 48.40 drift"),
            ]
        );
        // The prices in the configuration have changed since the call. So the receipts give the total cost, but the
        // cost of each class is unknown.
        assert_eq!(
            shown(&rows_of(
                &config,
                &reported("4840.00", 10_000_000),
                &file,
                "0"
            )),
            [
                format!("{model} input 1000000 - - 2.00 ok"),
                format!("{model} cache_write 10001000 - - 40.40 ok"),
                format!("{model} output 1000000 - - 6.00 ok"),
                format!("{model} total - - 48.40 48.40 ok"),
            ]
        );
    }

    #[test]
    fn empty_cell_means_unknown_and_not_zero() {
        let (config, model) = (config_with_costs(), "gpt-mini-2026-01-01");
        let line = |class: &str, cells: &str| format!("2026-11-20,gpt-mini,{class},{cells}\n");
        let of = |lines: &[(&str, &str)]| {
            let lines = lines.iter().map(|(class, cells)| line(class, cells));
            let file = "day,model,class,count,cost\n".to_owned() + &lines.collect::<String>();
            shown(&rows_of(&config, &reported("800.40", 0), &file, "0"))
        };
        let written = ("cache_write", "1000,0.004");
        // Only some classes have a cost. Neither the unknown costs of the other classes nor the sum counts as drift.
        assert_eq!(
            of(&[
                ("calls", "1,"),
                ("input", "1000000,2"),
                ("output", "1000000,"),
                written
            ]),
            [
                format!("{model} calls 1 1 - - ok"),
                format!("{model} input 1000000 1000000 2.00 2.00 ok"),
                format!("{model} cache_write 1000 1000 0.004 0.004 ok"),
                format!("{model} output 1000000 1000000 6.00 - ok"),
            ]
        );
        // A count and its cost may be in one line or in two lines. Here the output has only a cost, and a part of the
        // cache writes has only a count.
        assert_eq!(
            of(&[
                ("input", "1000000,"),
                ("input", ",2"),
                ("output", ",6.5"),
                ("cache_write", "900,0.004"),
                ("cache_write", "100,"),
            ]),
            [
                format!("{model} input 1000000 1000000 2.00 2.00 ok"),
                format!("{model} cache_write 1000 1000 0.004 - ok"),
                format!("{model} output 1000000 - 6.00 6.50 drift"),
            ]
        );
        // An explicit zero is compared like any other number. A class without a line counts as zero.
        assert_eq!(
            of(&[("input", "1000000,2"), ("output", "1000000,0")]),
            [
                format!("{model} input 1000000 1000000 2.00 2.00 ok"),
                format!("{model} cache_write 1000 0 0.004 0.00 drift"),
                format!("{model} output 1000000 1000000 6.00 0.00 drift"),
                format!("{model} total - - 8.004 2.00 drift"),
            ]
        );
    }
}
