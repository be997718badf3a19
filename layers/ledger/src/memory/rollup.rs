//! The memory store keeps no roll-up, because its journals are short enough to be read.

use std::ops::Range;

use super::MemoryLedger;
use crate::{
    account::AccountId,
    contract::{BookError, JournalLine},
    rollup::{Change, Marks, Rolled, Rollup, RowId, Scope, Sums, UnrolledLines},
};

impl Rollup for MemoryLedger {
    async fn marks(&self) -> Result<Marks, BookError> {
        Ok(Marks::default())
    }

    async fn rolled(&self, _: &[(Scope, Range<u64>)]) -> Result<Rolled, BookError> {
        Ok(Rolled::default())
    }

    async fn oldest_sums_ms(&self, _: &Scope) -> Result<Option<u64>, BookError> {
        Ok(None)
    }

    fn place_ms(&self, _: &str) -> u64 {
        0
    }

    async fn sums_at(&self, ids: &[RowId]) -> Result<Vec<Option<Sums>>, BookError> {
        Ok(vec![None; ids.len()])
    }

    async fn unrolled_lines(
        &self,
        _: &AccountId,
        _: Option<&str>,
        _: u64,
    ) -> Result<UnrolledLines, BookError> {
        Ok(UnrolledLines::default())
    }

    async fn entries(&self, _: &AccountId, _: &str) -> Result<Option<Vec<JournalLine>>, BookError> {
        Ok(None)
    }

    async fn change_sums(&self, _: &Change) -> Result<Option<u64>, BookError> {
        Ok(None)
    }

    async fn clear_sums(&self) -> Result<(), BookError> {
        Ok(())
    }
}
