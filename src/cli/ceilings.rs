//! Ceilings of a key or a group: the options that set them, the API's fields, and the printed columns.

use clap::Args;
use serde_json::Value;
use tollgate_layers::money::MicroRub;

use super::show::Cell;
use crate::api::ceilings::{CEILINGS, fields};

/// Options that set ceilings, in the order of [`CEILINGS`].
#[derive(Debug, Default, Args)]
pub(super) struct Ceilings {
    /// Ceiling on the total spending
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true)]
    pub(super) ceiling: Option<MicroRub>,
    /// Ceiling on the spending in a month (UTC)
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true)]
    pub(super) ceiling_month: Option<MicroRub>,
    /// Ceiling on the spending in a day (UTC)
    #[arg(long, value_name = "RUBLES", allow_negative_numbers = true)]
    pub(super) ceiling_day: Option<MicroRub>,
}

/// Options that remove ceilings, in the order of [`CEILINGS`].
#[derive(Debug, Args)]
pub(super) struct NoCeilings {
    /// Remove the ceiling on the total spending
    #[arg(long, conflicts_with = "ceiling")]
    no_ceiling: bool,
    /// Remove the monthly ceiling
    #[arg(long, conflicts_with = "ceiling_month")]
    no_ceiling_month: bool,
    /// Remove the daily ceiling
    #[arg(long, conflicts_with = "ceiling_day")]
    no_ceiling_day: bool,
}

impl Ceilings {
    /// Returns the ceilings that the command line sets, as fields of the API.
    pub(super) fn given(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let amounts = [self.ceiling, self.ceiling_month, self.ceiling_day];
        fields()
            .zip(amounts)
            .filter_map(|(field, amount)| Some((field, amount?.to_string().into())))
    }
}

impl NoCeilings {
    /// Returns the API's names of the ceilings that the command line removes.
    pub(super) fn fields(&self) -> impl Iterator<Item = &'static str> {
        let removed = [self.no_ceiling, self.no_ceiling_month, self.no_ceiling_day];
        fields()
            .zip(removed)
            .filter_map(|(field, is_removed)| is_removed.then_some(field))
    }
}

/// Returns the cells `before`, two cells per ceiling (the ceiling and the amount spent under it), and the cells
/// `after`.
pub(super) fn cells(before: &[Cell], after: &[Cell]) -> Vec<Cell> {
    let ceilings = CEILINGS.iter().flat_map(|ceiling| {
        let (value, spent) = ceiling.pointers;
        let (heading, spent_heading, _) = ceiling.headings;
        [
            Cell::rubles(heading, value).or("none"),
            Cell::rubles(spent_heading, spent),
        ]
    });
    [before, &ceilings.collect::<Vec<_>>(), after].concat()
}

/// Returns the columns `before`, two narrow columns per ceiling (the amount spent, and the ceiling), and the columns
/// `after`.
pub(super) fn columns(before: &[Cell], after: &[Cell]) -> Vec<Cell> {
    let ceilings = CEILINGS.iter().flat_map(|ceiling| {
        let (value, spent) = ceiling.pointers;
        [
            Cell::rubles(ceiling.headings.2, spent),
            Cell::rubles("of", value).or("-"),
        ]
    });
    [before, &ceilings.collect::<Vec<_>>(), after].concat()
}
