//! `tollgate invoice`: writes an invoice for a company that tops up an account by bank transfer.

use std::path::PathBuf;

use clap::Args;
use tollgate_layers::{key::AccountId, money::MicroRub};

use super::{
    AdminArgs,
    client::{Client, with_query},
    failure::Failure,
    show::Cell,
    statement::{Format, Output, write_document},
};
use crate::text::time::parse_rfc3339_ms;

/// Options of `tollgate invoice`: account and amount, and where to write the invoice.
#[derive(Debug, Args)]
pub(super) struct InvoiceArgs {
    /// Id of the account
    account: AccountId,
    /// The amount in rubles, in whole kopecks
    rubles: MicroRub,
    /// The date of the invoice, for example 2026-11-29; default: today at seller.utc_offset
    #[arg(long, value_parser = date)]
    date: Option<String>,
    /// The format. Default: by the extension of --output; without --output, a summary is printed
    #[arg(long, value_enum, conflicts_with = "json")]
    format: Option<Format>,
    /// Output file; - is standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const SUMMARY: &[Cell] = &[
    Cell::text("number", "/number"),
    Cell::text("account", "/account"),
    Cell::text("name", "/name"),
    Cell::text("date", "/date"),
    Cell::rubles("amount", "/amount_rub"),
    Cell::text("amount in words", "/amount_in_words"),
    Cell::rubles("VAT in the amount", "/vat/rub"),
    Cell::text("purpose", "/purpose"),
    Cell::text("payment code", "/payment_code"),
];

fn date(text: &str) -> Result<String, String> {
    let is_date = text.len() == "2026-01-31".len() && parse_rfc3339_ms(text).is_some();
    (is_date.then(|| text.to_owned())).ok_or_else(|| "must be a date like 2026-01-31".into())
}

pub(super) async fn invoice(admin: &AdminArgs, args: &InvoiceArgs) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let path = format!(
        "/admin/v1/accounts/{}/invoice?amount_rub={}",
        args.account, args.rubles
    );
    let path = with_query(&path, [("date", args.date.clone())]);
    let output = Output {
        format: args.format,
        file: args.output.as_deref(),
    };
    write_document(&client, &path, &output, SUMMARY, admin.json).await
}
