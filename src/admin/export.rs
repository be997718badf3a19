//! Exports the whole ledger as lines of JSON, which are written while the ledger is read, so memory use does not grow
//! with the number of receipts. Each account is exported in its state at one moment, but not all accounts at the same
//! moment.
//!
//! ```text
//! {"kind":"header","format":"tollgate-export","version":1,"made_at":…}
//! {"kind":"account",…}         an account with its keys and holds, at one moment
//! {"kind":"entry"|"call",…}    its journal up to that moment, oldest first
//! {"kind":"end","accounts":…,"lines":…}      lines counts all lines, including this one
//! ```

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, stream};
use serde::Serialize;
use tollgate_layers::{
    error::BoxError,
    key::AccountId,
    money::MicroRub,
    reserve::{
        copy,
        ledger::{AccountBooks, AccountView, GroupView, JournalPages, LedgerAdmin, OpenHold},
    },
};

use super::{
    Admin, Answer,
    accounts::find_account,
    answer::{GroupAnswer, KeyAnswer},
    now_ms,
    query::{self, Query},
    refusal::{OrRefuse as _, Refusal, response},
    route::{AdminRequest, Route, routes},
    streamed,
};
use crate::{ledger::AnyLedger, text::time::rfc3339};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/export" => export .with_query();
};

/// The version of the export's line format.
pub(crate) const VERSION: u64 = 1;
/// The value of the field `format` in the export's first line.
pub(crate) const FORMAT: &str = "tollgate-export";

/// The size in bytes at which a piece of the export is sent.
const PIECE_BYTES: usize = 64 * 1024;

impl Admin {
    async fn export(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let account: Option<AccountId> =
            Query::parse(request.query(), &["account"])?.optional("account", query::id)?;
        let accounts = match &account {
            Some(id) => {
                find_account(&self.store, id).await?;
                vec![id.clone()]
            }
            None => {
                let views = self.store.accounts().await.or_refuse("accounts")?;
                views.into_iter().map(|view| view.id).collect()
            }
        };
        let account = account.as_ref().map(tracing::field::display);
        let who = request.who();
        tracing::info!(target: "audit", who = who.name(), what = "export", account, accounts = accounts.len());
        let export = Export::new(self.store.clone(), accounts, now_ms());
        Ok(response(streamed(export.pieces()), "application/x-ndjson"))
    }
}

#[derive(Debug)]
struct Export {
    store: AnyLedger,
    stage: Stage,
    accounts: copy::Export,
    accounts_done: u64,
    lines: u64,
    piece: Vec<u8>,
}

#[derive(Debug)]
enum Stage {
    Header { made_at_ms: u64 },
    Account,
    Journal(JournalPages),
    Done,
}

impl Export {
    fn new(store: AnyLedger, accounts: Vec<AccountId>, now_ms: u64) -> Self {
        Self {
            store,
            stage: Stage::Header { made_at_ms: now_ms },
            accounts: copy::Export::for_accounts(accounts),
            accounts_done: 0,
            lines: 0,
            piece: Vec::new(),
        }
    }

    /// Returns the export's lines in pieces. If reading the ledger fails, the last item is the error.
    fn pieces(self) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
        stream::unfold(self, |mut export| async move {
            match export.next_piece().await {
                Ok(None) => None,
                Ok(Some(piece)) => Some((Ok(piece), export)),
                Err(error) => {
                    tracing::error!(%error, lines = export.lines, "an export of the ledger was cut off by an error");
                    export.stage = Stage::Done;
                    export.piece.clear();
                    Some((Err(error), export))
                }
            }
        })
    }

    async fn next_piece(&mut self) -> Result<Option<Bytes>, BoxError> {
        while self.piece.len() < PIECE_BYTES && !matches!(self.stage, Stage::Done) {
            self.step().await?;
        }
        if self.piece.is_empty() {
            return Ok(None);
        }
        Ok(Some(std::mem::take(&mut self.piece).into()))
    }

    async fn step(&mut self) -> Result<(), BoxError> {
        match &mut self.stage {
            Stage::Header { made_at_ms } => {
                let header = Header {
                    kind: "header",
                    format: FORMAT,
                    version: VERSION,
                    made_at: rfc3339(*made_at_ms),
                };
                self.stage = Stage::Account;
                self.write(&header)
            }
            Stage::Account => match self.accounts.next(&self.store).await? {
                Some(books) => {
                    self.stage = Stage::Journal(JournalPages::up_to(&books));
                    self.accounts_done += 1;
                    self.write(&AccountLine::from(&books))
                }
                None => {
                    let end = End {
                        kind: "end",
                        accounts: self.accounts_done,
                        lines: self.lines + 1,
                    };
                    self.stage = Stage::Done;
                    self.write(&end)
                }
            },
            Stage::Journal(pages) => match pages.next(&self.store).await? {
                Some(lines) => lines.iter().try_for_each(|line| self.write(line)),
                None => {
                    self.stage = Stage::Account;
                    Ok(())
                }
            },
            Stage::Done => Ok(()),
        }
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), BoxError> {
        serde_json::to_writer(&mut self.piece, line)?;
        self.piece.push(b'\n');
        self.lines += 1;
        Ok(())
    }
}

#[derive(Serialize)]
struct Header {
    kind: &'static str,
    format: &'static str,
    version: u64,
    made_at: String,
}

#[derive(Serialize)]
struct End {
    kind: &'static str,
    accounts: u64,
    lines: u64,
}

/// An account with its keys, as the API returns them: without the keys' digests.
#[derive(Serialize)]
struct AccountLine<'a> {
    kind: &'static str,
    #[serde(flatten)]
    view: &'a AccountView,
    entered_rub: MicroRub,
    keys: Vec<KeyAnswer<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<GroupLine<'a>>,
    holds: &'a [OpenHold],
    journal_end: &'a str,
    journal_complete: bool,
}

/// A group of keys as the API returns it, with additional fields that the audit needs.
#[derive(Serialize)]
struct GroupLine<'a> {
    #[serde(flatten)]
    shown: GroupAnswer<'a>,
    carried_rub: MicroRub,
}

impl<'a> From<&'a GroupView> for GroupLine<'a> {
    fn from(view: &'a GroupView) -> Self {
        Self {
            shown: view.into(),
            carried_rub: view.carried_rub,
        }
    }
}

impl<'a> From<&'a AccountBooks> for AccountLine<'a> {
    fn from(books: &'a AccountBooks) -> Self {
        Self {
            kind: "account",
            view: &books.view,
            entered_rub: books.entered_rub,
            keys: books.keys.iter().map(KeyAnswer::from).collect(),
            groups: books.groups.iter().map(GroupLine::from).collect(),
            holds: &books.holds,
            journal_end: &books.journal_end,
            journal_complete: books.journal_complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use serde_json::{Value, json};
    use tollgate_layers::reserve::{ledger::Entry, memory::MemoryLedger};

    use super::*;

    async fn text(store: &AnyLedger, accounts: Vec<AccountId>) -> Vec<Value> {
        let export = Export::new(store.clone(), accounts, 0);
        let pieces: Vec<_> = export.pieces().collect().await;
        let bytes: Vec<u8> = pieces.into_iter().flat_map(Result::unwrap).collect();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[tokio::test]
    async fn export_has_a_header_line_and_a_last_line_with_the_line_count() {
        let store = AnyLedger::Memory(MemoryLedger::new());
        let header = json!({
            "kind": "header", "format": "tollgate-export", "version": 1, "made_at": "1970-01-01T00:00:00Z",
        });
        assert_eq!(
            text(&store, Vec::new()).await,
            [
                header.clone(),
                json!({"kind": "end", "accounts": 0, "lines": 2})
            ]
        );

        let acme: AccountId = "acme".parse().unwrap();
        store.create_account(&acme, "Acme").await.unwrap();
        // The account gets more journal entries than one page of the export holds.
        for n in 0..2500 {
            let entry = Entry {
                id: format!("p{n}"),
                amount: MicroRub::rubles(1),
                reason: None,
            };
            store.enter(&acme, &entry).await.unwrap();
        }
        let lines = text(&store, vec![acme, "gone".parse().unwrap()]).await;
        assert_eq!(lines[0], header);
        assert_eq!(
            (
                &lines[1]["kind"],
                &lines[1]["balance_rub"],
                &lines[1]["journal_complete"]
            ),
            (&json!("account"), &json!("2500.00"), &json!(true))
        );
        for (n, line) in lines[2..2502].iter().enumerate() {
            assert_eq!(
                (&line["kind"], &line["id"]),
                (&json!("entry"), &json!(format!("p{n}")))
            );
        }
        assert_eq!(
            lines[2502],
            json!({"kind": "end", "accounts": 1, "lines": 2503})
        );
        assert_eq!(lines.len(), 2503);
    }
}
