//! The operators' methods that both embedded stores implement in the same way.

/// Implements those methods of [`LedgerAdmin`](crate::contract::LedgerAdmin) that use only the state. The store must
/// have a method `look(|state| …)`, and a method `change(|state, now| …)` that stores the record of the change before
/// it returns the result.
macro_rules! ledger_admin {
    () => {
        async fn create_account(
            &self,
            id: &AccountId,
            name: &str,
        ) -> Result<AccountView, BookError> {
            self.change(|state, _| state.create_account(id, name)).await
        }

        async fn change_account(
            &self,
            id: &AccountId,
            name: Option<&str>,
            suspended: Option<bool>,
        ) -> Result<AccountView, BookError> {
            self.change(|state, _| state.change_account(id, name, suspended))
                .await
        }

        async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
            self.look(|state| state.account(id))?
        }

        async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
            self.look(State::accounts)
        }

        async fn enter(
            &self,
            account: &AccountId,
            entry: &Entry,
        ) -> Result<AccountView, BookError> {
            self.change(|state, now| state.enter(account, entry, now))
                .await
        }

        async fn create_key(
            &self,
            record: &KeyRecord,
            ceilings: Ceilings,
        ) -> Result<KeyView, BookError> {
            self.change(|state, now| state.create_key(record, ceilings, now))
                .await
        }

        async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
            self.change(|state, now| state.change_key(id, change, now))
                .await
        }

        async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
            self.look(|state| state.key(id, now_ms()))?
        }

        async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
            self.look(|state| state.keys_of(account, now_ms()))?
        }

        async fn create_group(
            &self,
            account: &AccountId,
            record: &GroupRecord,
            ceilings: Ceilings,
        ) -> Result<GroupView, BookError> {
            self.change(|state, now| state.create_group(account, record, ceilings, now))
                .await
        }

        async fn change_group(
            &self,
            account: &AccountId,
            id: &GroupId,
            change: &GroupChange,
        ) -> Result<GroupView, BookError> {
            self.change(|state, now| state.change_group(account, id, change, now))
                .await
        }

        async fn groups(&self, account: &AccountId) -> Result<Vec<GroupView>, BookError> {
            self.look(|state| state.groups_of(account, now_ms()))?
        }

        async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
            self.change(|state, now| Ok(state.tariff_version(fingerprint, now)))
                .await
        }
    };
}

/// Implements those methods of [`EventStore`](crate::contract::EventStore) that use only the state. The store needs the
/// same methods as for `ledger_admin`.
macro_rules! event_store {
    () => {
        async fn set_levels(
            &self,
            account: &AccountId,
            of: &Watched,
            levels: Levels,
        ) -> Result<(), BookError> {
            self.change(|state, _| state.set_levels(account, of, levels))
                .await
        }

        async fn levels(&self, account: &AccountId) -> Result<Vec<(Watched, Levels)>, BookError> {
            self.look(|state| state.levels(account))?
        }

        async fn gather(&self) -> Result<u64, BookError> {
            self.look(State::last_event)
        }

        async fn emit_once(&self, event: &OnceEvent) -> Result<bool, BookError> {
            self.change(|state, now| Ok(state.emit_once(event, now)))
                .await
        }
    };
}

/// Implements [`Documents`](crate::contract::Documents) for an embedded store. The store needs the same methods as for
/// `ledger_admin`.
macro_rules! documents {
    ($store:ty) => {
        impl Documents for $store {
            async fn document(&self, name: &str) -> Result<Option<Document>, BookError> {
                self.look(|state| state.document(name))
            }

            async fn documents(&self, begins: &str) -> Result<Vec<Document>, BookError> {
                self.look(|state| state.documents(begins))
            }

            async fn compare_and_swap(
                &self,
                name: &str,
                version: u64,
                text: &str,
            ) -> Result<bool, BookError> {
                self.change(|state, _| Ok(state.compare_and_swap(name, version, text)))
                    .await
            }
        }

        impl LeaderLease for $store {
            /// No other process uses this ledger, so every leader lease is granted.
            async fn lead(&self, _: &str, _: &str, _: Duration) -> Result<bool, BookError> {
                Ok(true)
            }
        }
    };
}

pub(crate) use {documents, event_store, ledger_admin};
