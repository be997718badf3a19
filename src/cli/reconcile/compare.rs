//! The books beside the vendor's export, row by row.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use tollgate_layers::{
    calendar::{day_begins_ms, day_of},
    usage::Usage,
};

use super::{
    amount::{NanoUsd, Tolerance},
    books::{Books, DayBooks, classes_of},
    names::Names,
    vendor_files::{Billed, CALLS, CLASSES, VendorUsage},
};

/// A class whose tokens are counted in another one by books that do not have it of their own.
const COUNTED_IN: &[(&str, &str)] = &[
    ("cache_write_1h", "cache_write"),
    ("cache_write_12h", "cache_write"),
    ("input_audio", "input"),
    ("input_image", "input"),
    ("output_audio", "output"),
    ("output_image", "output"),
];

/// A day, a model and a class: what we say and what the vendor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) day: u64,
    /// The vendor's name, or all that receipts cannot tell apart.
    pub(super) model: String,
    pub(super) class: &'static str,
    pub(super) ours: u64,
    /// `None` where its files tell no counts.
    pub(super) vendors: Option<u64>,
    /// By the configuration's prices; `None` where it has none.
    pub(super) our_cost: Option<NanoUsd>,
    /// `None` where its files tell no costs.
    pub(super) vendors_cost: Option<NanoUsd>,
    /// The two lie farther apart than is tolerated.
    pub(super) is_drift: bool,
}

/// All rows, by day, model and class.
pub(super) fn compare(
    books: &Books<'_>,
    vendor: &VendorUsage,
    names: &Names,
    time: &Range<u64>,
    tolerance: Tolerance,
) -> Vec<Row> {
    let theirs = by_our_names(vendor, names, time);
    let tells_calls = vendor.lines.keys().any(|(_, _, class)| *class == CALLS);
    let none = (DayBooks::default(), BTreeMap::new());
    let keys: BTreeSet<_> = books.days.keys().chain(theirs.keys()).collect();
    let mut rows = Vec::new();
    for key in keys {
        let ours = books.days.get(key).unwrap_or(&none.0);
        let theirs = theirs.get(key).unwrap_or(&none.1);
        for class in CLASSES.iter().copied() {
            let billed = theirs.get(class);
            let counted = ours.classes.get(class);
            let row = if class == CALLS {
                let row = Row {
                    day: key.0,
                    model: key.1.clone(),
                    class,
                    ours: ours.calls,
                    vendors: Some(billed.map_or(0, |billed| billed.count)),
                    our_cost: None,
                    vendors_cost: None,
                    // Nobody is billed by it, and vendors count calls that failed too.
                    is_drift: false,
                };
                (tells_calls && (ours.calls > 0 || billed.is_some())).then_some(row)
            } else {
                let billed_or_none = billed.copied().unwrap_or_default();
                let mut row = Row {
                    day: key.0,
                    model: key.1.clone(),
                    class,
                    ours: counted.map_or(0, |counted| counted.count),
                    vendors: vendor.has_counts.then_some(billed_or_none.count),
                    our_cost: counted.map_or(Some(NanoUsd::ZERO), |counted| counted.cost()),
                    vendors_cost: vendor.has_costs.then_some(billed_or_none.cost),
                    is_drift: false,
                };
                row.is_drift = row.drifts(tolerance);
                (counted.is_some() || billed.is_some()).then_some(row)
            };
            rows.extend(row);
        }
    }
    rows
}

impl Row {
    fn drifts(&self, tolerance: Tolerance) -> bool {
        let by_count = self
            .vendors
            .is_some_and(|vendors| tolerance.is_exceeded(self.ours.into(), vendors.into()));
        let by_cost = match (self.our_cost, self.vendors_cost) {
            (Some(ours), Some(vendors)) => {
                let apart = ours.max(vendors).minus(ours.min(vendors));
                apart > NanoUsd::NEGLIGIBLE && tolerance.is_exceeded(ours.nano(), vendors.nano())
            }
            _ => false,
        };
        by_count || by_cost
    }
}

/// What the vendor says of a class, by day, by the name that a model is compared under.
type Theirs = BTreeMap<(u64, String), BTreeMap<&'static str, Billed>>;

fn by_our_names(vendor: &VendorUsage, names: &Names, time: &Range<u64>) -> Theirs {
    let ours: BTreeSet<&str> = classes_of(&Usage::default())
        .map(|(class, _)| class)
        .collect();
    let mut theirs = Theirs::new();
    for ((day, model, class), billed) in &vendor.lines {
        if *day < day_of(time.start) || day_begins_ms(*day) >= time.end {
            continue;
        }
        let within = COUNTED_IN.iter().find(|(part, _)| part == class);
        let class = match within {
            Some((part, whole)) if !ours.contains(part) => whole,
            _ => class,
        };
        let of_model = theirs.entry((*day, names.of_vendor(model))).or_default();
        let sum: &mut Billed = of_model.entry(class).or_default();
        sum.count = sum.count.saturating_add(billed.count);
        sum.cost += billed.cost;
    }
    theirs
}

#[cfg(test)]
mod tests {
    use super::{
        super::{names::Routes, vendor_files::VendorUsage},
        *,
    };

    /// 2026-11-20.
    const DAY: u64 = 20_777;
    const MS: u64 = DAY * 86_400_000;

    const CONFIG: &str = "[[model]]\nid = \"mini\"\nusdt_mtok = { input = \"2\", output = \"8\" }\n\
                          routes = [ { vendor = \"v\", model = \"gpt-mini-2026-01-01\" } ]";

    /// One call of a million tokens in and a million out, a thousand written, compared with this file.
    fn rows(file: &str, tolerance: &str) -> Vec<Row> {
        let vendors = BTreeSet::from(["v".to_owned()]);
        let names = Routes::read(CONFIG).unwrap().names(&vendors, &[]);
        let time = MS..MS + 86_400_000;
        let mut books = Books::new(&vendors, &names, time.clone());
        let export = format!(
            "{}\n{}\n",
            r#"{"kind":"header","format":"tollgate-export","version":1}"#,
            format_args!(
                "{{\"kind\":\"call\",\"number\":\"00000000-0000-4000-8000-000000000001\",\"at_ms\":{MS},\"account\":\"a\",\
                 \"key\":\"k\",\"held_rub\":\"1\",\"cost_rub\":\"1\",\"charged_rub\":\"1\",\"loss_rub\":\"0\",\
                 \"booked\":\"held\",\"model\":\"mini\",\"vendor\":\"v\",\"usage\":{{\"input\":1000000,\"cached_input\":0,\
                 \"cache_write\":1000,\"output\":1000000}},\"price\":null,\"estimated\":false,\"end\":\"finished\"}}"
            ),
        );
        books.push(export.as_bytes()).unwrap();
        let mut vendor = VendorUsage::default();
        vendor.read(file.as_bytes()).unwrap();
        compare(&books, &vendor, &names, &time, tolerance.parse().unwrap())
    }

    /// Model, class, ours, the vendor's, both costs, and whether it is drift.
    fn shown(rows: &[Row]) -> Vec<String> {
        let cost = |cost: Option<NanoUsd>| cost.map_or("-".into(), |cost| cost.to_string());
        rows.iter()
            .map(|row| {
                let vendors = row.vendors.map_or("-".into(), |count| count.to_string());
                format!(
                    "{} {} {} {vendors} {} {} {}",
                    row.model,
                    row.class,
                    row.ours,
                    cost(row.our_cost),
                    cost(row.vendors_cost),
                    if row.is_drift { "drift" } else { "ok" },
                )
            })
            .collect()
    }

    #[test]
    fn counts_agree_or_drift() {
        let file = "day,model,class,count\n\
                    2026-11-20,gpt-mini,calls,2\n\
                    2026-11-20,gpt-mini,input,900000\n\
                    2026-11-20,gpt-mini,input_audio,100000\n\
                    2026-11-20,gpt-mini-2026-01-01,cache_write_1h,400\n\
                    2026-11-20,gpt-mini-2026-01-01,cache_write,600\n\
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
    fn costs_are_compared_where_both_are_known() {
        let file = "day,model,class,cost\n\
                    2026-11-20,gpt-mini,input,2.01\n\
                    2026-11-20,gpt-mini,output,8.02\n\
                    2026-11-20,gpt-mini,cache_write,77\n";
        assert_eq!(
            shown(&rows(file, "0")),
            [
                // A cent is no drift.
                "gpt-mini-2026-01-01 input 1000000 - 2.00 2.01 ok",
                "gpt-mini-2026-01-01 cache_write 1000 - - 77.00 ok",
                "gpt-mini-2026-01-01 output 1000000 - 8.00 8.02 drift",
            ]
        );
        assert!(rows(file, "0.25").iter().all(|row| !row.is_drift));
    }

    #[test]
    fn what_one_side_does_not_have_is_nothing_there() {
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
}
