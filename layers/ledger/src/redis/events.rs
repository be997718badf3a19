//! Events in Redis. The script that moves an account's money also writes the events of this movement, to a stream of
//! the account. The events get their numbers later, in the order of the stream, because a Cluster has no atomic step
//! over two accounts. A gateway numbers the events of its own charges immediately, and searches all accounts for other
//! unnumbered events from time to time.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{ACCOUNTS_AT_ONCE, RedisLedger, SWEPT_MAX, books::done, names::account_key, to_json};
use crate::{
    account::AccountId,
    conn::{RedisFault, Result},
    contract::{
        BookError, Document, Documents, EVENTS_AT_ONCE_MAX, EVENTS_MAX, EventStore, LeaderLease,
        LedgerAdmin, ONCE_MS, OnceEvent,
    },
    happening::{CeilingKind, Event, Happening, Levels, Watched},
    money::MicroRub,
};

pub(super) const FEED: &str = "tg:ev:{feed}";
/// How often a gateway searches all accounts for events that another gateway has left without numbers.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// The largest number of batches of one account that are numbered before the events of other accounts are numbered.
const GATHERINGS_MAX: usize = 100;
/// The largest number of events that one script run numbers.
const GATHERED_MAX: &str = "100";

pub(super) fn feed_key(part: &str) -> String {
    [FEED, part].concat()
}

/// The accounts that may have events without a number, as far as this gateway has noticed.
#[derive(Default)]
pub(super) struct NoticedAccounts {
    accounts: Mutex<BTreeSet<AccountId>>,
    sweep: tokio::sync::Mutex<Sweep>,
}

#[derive(Default)]
struct Sweep {
    cursor: u64,
    last: Option<Instant>,
}

impl NoticedAccounts {
    pub(super) fn note(&self, account: &AccountId) {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.insert(account.clone());
    }

    fn take(&self) -> BTreeSet<AccountId> {
        std::mem::take(&mut *self.accounts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An event in a stream: the position in the stream, and the fields.
type RawEvent = (String, HashMap<String, String>);

impl RedisLedger {
    /// Gives numbers to all unnumbered events of an account.
    async fn gather_of(&self, account: &AccountId) -> Result<()> {
        let stream = account_key(account, ":ev");
        for _ in 0..GATHERINGS_MAX {
            let from: Option<String> = self.command(&["HGET", &feed_key(":from"), account]).await?;
            let from = from.unwrap_or_else(|| "0-0".to_owned());
            let begin = format!("({from}");
            let words = ["XRANGE", &stream, &begin, "+", "COUNT", GATHERED_MAX];
            let raw: Vec<(String, Vec<String>)> = self.command(&words).await?;
            let Some((last, _)) = raw.last() else {
                return Ok(());
            };
            let last = last.clone();
            let mut args = vec![account.to_string(), from, last, EVENTS_MAX.to_string()];
            for (place, fields) in raw {
                args.extend([place, fields.len().to_string()]);
                args.extend(fields);
            }
            let mut keys: Vec<String> = ["", ":from", ":last"].map(feed_key).into();
            if !self.0.conn.is_cluster() {
                keys.push(stream.clone());
            }
            // If another gateway numbers these events first, the script adds none of them, and the next round starts
            // after them. If the feed and the account's stream are on one server, the script also skips events that a
            // failover has lost: such an event is emitted again when its cause is repeated.
            let _: u64 = self
                .ask_durably(&self.0.scripts.gather, &keys, &args)
                .await?;
        }
        self.0.noticed.note(account);
        Ok(())
    }

    /// Searches for accounts whose events have no number because a gateway was killed.
    async fn sweep_unnumbered(&self) -> Result<()> {
        let mut sweep = self.0.noticed.sweep.lock().await;
        if sweep.last.is_some_and(|last| last.elapsed() < SWEEP_EVERY) {
            return Ok(());
        }
        let mut swept = 0;
        loop {
            let (next, ids) = self.next_ids(sweep.cursor).await?;
            for ids in ids.chunks(ACCOUNTS_AT_ONCE) {
                let from = feed_key(":from");
                let mut words = vec!["HMGET", &from];
                words.extend(ids.iter().map(|id| &**id));
                let had: Vec<Option<String>> = self.command(&words).await?;
                let last = join_all(ids.iter().map(|id| self.last_event_of(id))).await;
                for ((id, had), last) in ids.iter().zip(had).zip(last) {
                    match last {
                        Ok(last) if last.is_some() && had != last => self.0.noticed.note(id),
                        Ok(_) => {}
                        // The account's server does not answer. The next sweep reads the account's events again.
                        Err(_) if self.0.conn.is_cluster() => {}
                        Err(fault) => return Err(fault),
                    }
                }
            }
            sweep.cursor = next;
            swept += ids.len();
            if next == 0 || swept >= SWEPT_MAX {
                break;
            }
        }
        sweep.last = Some(Instant::now());
        Ok(())
    }

    async fn last_event_of(&self, account: &AccountId) -> Result<Option<String>> {
        let stream = account_key(account, ":ev");
        let words = ["XREVRANGE", &stream, "+", "-", "COUNT", "1"];
        let last: Vec<RawEvent> = self.command(&words).await?;
        Ok(last.into_iter().next().map(|(place, _)| place))
    }
}

impl EventStore for RedisLedger {
    async fn set_levels(
        &self,
        account: &AccountId,
        of: &Watched,
        levels: Levels,
    ) -> Result<(), BookError> {
        let known = match of {
            Watched::Balance => true,
            Watched::Key(id) => self.key(id).await?.record.account == *account,
            Watched::Group(id) => {
                let groups = self.stored_groups(account).await?;
                groups.iter().any(|group| group.record.id == *id)
            }
        };
        if !known {
            return Err(BookError::NotFound);
        }
        let keys = [account_key(account, "")];
        let word: String = self
            .ask_durably(
                &self.0.scripts.change_account,
                &keys,
                &[levels_field(of), levels.to_string()],
            )
            .await?;
        done(&word)
    }

    async fn levels(&self, account: &AccountId) -> Result<Vec<(Watched, Levels)>, BookError> {
        let fields: HashMap<String, String> = self
            .command(&["HGETALL", &account_key(account, "")])
            .await?;
        if !fields.contains_key("b") {
            return Err(BookError::NotFound);
        }
        let mut all = Vec::new();
        for (name, text) in &fields {
            let unexpected = || RedisFault::Unexpected(format!("field {name:?}: {text:?}"));
            if let Some(of) = watched_by(name).ok_or_else(unexpected)? {
                all.push((of, text.parse::<Levels>().map_err(|_| unexpected())?));
            }
        }
        all.retain(|(_, levels)| !levels.is_empty());
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(all)
    }

    async fn gather(&self) -> Result<u64, BookError> {
        self.sweep_unnumbered().await?;
        for account in self.0.noticed.take() {
            if let Err(fault) = self.gather_of(&account).await {
                self.0.noticed.note(&account);
                // In a Cluster, a failed primary must not delay the events of accounts on other primaries.
                if !self.0.conn.is_cluster() {
                    return Err(fault.into());
                }
            }
        }
        let last: Option<u64> = self.command(&["GET", &feed_key(":last")]).await?;
        Ok(last.unwrap_or_default())
    }

    async fn events(&self, after: u64, limit: usize) -> Result<Vec<Event>, BookError> {
        let (after, limit) = (
            format!("({after}-0"),
            limit.clamp(1, EVENTS_AT_ONCE_MAX).to_string(),
        );
        let words = ["XRANGE", FEED, &after, "+", "COUNT", &limit];
        let raw: Vec<RawEvent> = self.command(&words).await?;
        let events = raw.iter().map(|(place, fields)| event_of(place, fields));
        Ok(events.collect::<Result<_, _>>()?)
    }

    async fn emit_once(&self, event: &OnceEvent) -> Result<bool, BookError> {
        let json = to_json(&event.what)?;
        let mut args = vec![ONCE_MS.to_string(), EVENTS_MAX.to_string()];
        args.extend(["what".to_owned(), json]);
        for (name, id) in [
            ("account", event.account.as_deref()),
            ("key", event.key.as_deref()),
        ] {
            args.extend(
                id.into_iter()
                    .flat_map(|id| [name.to_owned(), id.to_owned()]),
            );
        }
        let keys = [
            FEED.to_owned(),
            feed_key(&format!(":told:{}", event.once)),
            feed_key(":last"),
        ];
        Ok(self
            .ask_durably(&self.0.scripts.emit_once, &keys, &args)
            .await?)
    }
}

impl Documents for RedisLedger {
    async fn document(&self, name: &str) -> Result<Option<Document>, BookError> {
        let text: Option<String> = self.command(&["HGET", &feed_key(":notes"), name]).await?;
        Ok(text.map(|text| document_of(name, &text)).transpose()?)
    }

    async fn compare_and_swap(
        &self,
        name: &str,
        version: u64,
        text: &str,
    ) -> Result<bool, BookError> {
        let args = [name.to_owned(), version.to_string(), text.to_owned()];
        let script = &self.0.scripts.compare_and_swap;
        Ok(self
            .ask_durably(script, &[feed_key(":notes")], &args)
            .await?)
    }

    async fn documents(&self, begins: &str) -> Result<Vec<Document>, BookError> {
        // The names of documents contain no characters that have a meaning in a Redis pattern.
        let pattern = format!("{begins}*");
        let rows: Vec<(String, String)> = self.scan_hash(&feed_key(":notes"), &pattern).await?;
        let documents = rows.iter().map(|(name, text)| document_of(name, text));
        let mut found = documents.collect::<Result<Vec<_>, _>>()?;
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        Ok(found)
    }
}

impl LeaderLease for RedisLedger {
    async fn lead(&self, name: &str, owner: &str, ttl: Duration) -> Result<bool, BookError> {
        let keys = [feed_key(&format!(":lease:{name}"))];
        let args = [owner.to_owned(), ttl.as_millis().to_string()];
        Ok(self
            .ask_patiently(&self.0.scripts.lead, &keys, &args)
            .await?)
    }
}

fn document_of(name: &str, text: &str) -> Result<Document> {
    let unexpected = || RedisFault::Unexpected(format!("document {name:?}"));
    let (version, text) = text.split_once(':').ok_or_else(unexpected)?;
    Ok(Document {
        name: name.to_owned(),
        version: version.parse().map_err(|_| unexpected())?,
        text: text.to_owned(),
    })
}

pub(super) fn event_of(place: &str, fields: &HashMap<String, String>) -> Result<Event> {
    let unexpected = |name: &str| {
        RedisFault::Unexpected(format!("event {place}: field {name} is missing or invalid"))
    };
    let number = place.split('-').next().unwrap_or_default();
    let at = fields.get("at").ok_or_else(|| unexpected("at"))?;
    let account = fields.get("account").map(|id| id.parse());
    let key = fields.get("key").map(|id| id.parse());
    Ok(Event {
        number: number.parse().map_err(|_| unexpected("id"))?,
        at_ms: at.parse().map_err(|_| unexpected("at"))?,
        account: account.transpose().map_err(|_| unexpected("account"))?,
        key: key.transpose().map_err(|_| unexpected("key"))?,
        what: match fields.get("what") {
            Some(json) => serde_json::from_str(json).map_err(|_| unexpected("what"))?,
            None => happening_of(fields).map_err(unexpected)?,
        },
    })
}

/// Returns the name of the account's hash field that stores these alert levels.
pub(super) fn levels_field(of: &Watched) -> String {
    match of {
        Watched::Balance => "lo".to_owned(),
        Watched::Key(id) => format!("{id}.lo"),
        Watched::Group(id) => format!("g:{id}.lo"),
    }
}

/// Parses the name of a field of the account's hash. The inner value is the account, key or group whose alert levels
/// the field stores; it is `None` for other fields. The outer value is `None` if the id in the name is invalid.
fn watched_by(field: &str) -> Option<Option<Watched>> {
    let Some(id) = field.strip_suffix(".lo") else {
        return Some((field == "lo").then_some(Watched::Balance));
    };
    Some(Some(match id.strip_prefix("g:") {
        Some(id) => Watched::Group(id.parse().ok()?),
        None => Watched::Key(id.parse().ok()?),
    }))
}

/// Parses an event that a script has written. The error is the name of the missing or invalid field.
fn happening_of(fields: &HashMap<String, String>) -> Result<Happening, &'static str> {
    let word = |name: &'static str| fields.get(name).cloned().ok_or(name);
    let amount = |name: &'static str| {
        let amount = word(name)?.parse().map(MicroRub::new);
        amount.map_err(|_| name)
    };
    let ceiling = || match word("ceiling")?.as_str() {
        "total" => Ok(CeilingKind::Total),
        "month" => Ok(CeilingKind::Month),
        "day" => Ok(CeilingKind::Day),
        _ => Err("ceiling"),
    };
    let group = || fields.get("group").map(|id| id.parse()).transpose();
    let group = || group().map_err(|_| "group");
    Ok(match word("kind")?.as_str() {
        "balance_low" => Happening::BalanceLow {
            level_rub: amount("level")?,
            balance_rub: amount("balance")?,
            by: word("by")?,
        },
        "ceiling_low" => Happening::CeilingLow {
            group: group()?,
            ceiling: ceiling()?,
            ceiling_rub: amount("limit")?,
            level_rub: amount("level")?,
            left_rub: amount("left")?,
            by: word("by")?,
        },
        "ceiling_reached" => Happening::CeilingReached {
            group: group()?,
            ceiling: ceiling()?,
            ceiling_rub: amount("limit")?,
            left_rub: amount("left")?,
            by: word("by")?,
        },
        "top_up" => Happening::TopUp {
            entry: word("id")?,
            amount_rub: amount("amount")?,
            balance_rub: amount("balance")?,
        },
        "correction" => Happening::Correction {
            entry: word("id")?,
            amount_rub: amount("amount")?,
            reason: word("reason")?,
            balance_rub: amount("balance")?,
        },
        // A later version of the gateway wrote this event.
        _ => Happening::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        ceiling::Ceilings,
        contract::{GroupRecord, JournalLine, JournalPart, KeyChange, Ledger, LedgerAdmin},
        leases::{LeaseLedger, Step, Turn, TurnEnd, Word},
        redis::test_server::Server,
        testing::{
            check_documents, check_events,
            given::{acme, hold, key, micro, number, settlement, topup},
            open,
        },
    };

    #[tokio::test]
    async fn redis_ledger_passes_the_event_tests() {
        let server = Server::start().await;
        let make = async || {
            let _: String = server.ask(&["FLUSHALL"]).await;
            server.ledger().await
        };
        check_events(make).await;
        check_documents(make).await;
    }

    /// The gateway is killed after it has made the charge and before the event gets its number.
    #[tokio::test]
    async fn event_left_without_a_number_by_a_killed_gateway_is_numbered_by_a_sweep() {
        let (server, killed) = Server::with_balance(100).await;
        killed
            .set_levels(
                &acme(),
                &Watched::Balance,
                Levels::new(&[micro(50)]).unwrap(),
            )
            .await
            .unwrap();
        killed.reserve(&hold(1, "k1", 60)).await.unwrap();
        killed.settle(&settlement(1, "k1", 60)).await.unwrap();
        drop(killed);
        let other = server.ledger().await;
        assert_eq!(other.gather().await.unwrap(), 2);
        let kinds = other.events(0, 10).await.unwrap();
        let kinds: Vec<_> = kinds.iter().map(|event| event.what.kind()).collect();
        assert_eq!(kinds, ["top_up", "balance_low"]);
    }

    /// A charge of a lease turn emits its events once, even if the turn is sent twice.
    #[tokio::test]
    async fn charge_from_a_lease_emits_its_events_once_even_if_the_lease_turn_is_sent_twice() {
        let (_server, ledger) = Server::with_balance(100).await;
        let levels = Levels::new(&[micro(50)]).unwrap();
        ledger
            .set_levels(&acme(), &Watched::Balance, levels)
            .await
            .unwrap();
        let opens = Turn {
            lease: number(50),
            account: acme(),
            key: key("k1"),
            step: Step::Open,
            before: String::new(),
            this: "first".into(),
            give: micro(0),
            more: micro(60),
            raise: micro(0),
            short_of: micro(0),
            ttl_ms: 60_000,
            grants_ms: 1_000,
            ends: Vec::new(),
        };
        assert_eq!(ledger.turn(&opens).await.unwrap().word, Word::Done);
        let settlement = Arc::new(settlement(1, "k1", 60));
        let charges = Turn {
            step: Step::GoOn,
            before: "first".into(),
            this: "second".into(),
            more: micro(0),
            ends: vec![TurnEnd {
                settlement,
                cover: micro(50),
            }],
            ..opens
        };
        for _ in 0..2 {
            let answer = ledger.turn(&charges).await.unwrap();
            assert_eq!(answer.ends[0].charged, micro(60));
        }
        assert_eq!(ledger.gather().await.unwrap(), 2);
        let events = ledger.events(0, 10).await.unwrap();
        let kinds: Vec<_> = events.iter().map(|event| event.what.kind()).collect();
        assert_eq!(kinds, ["top_up", "balance_low"]);
    }

    /// The script books charges that emit no events as one sum. Charges that emit events must be booked one by one,
    /// even if the lease pays them.
    #[tokio::test]
    async fn charge_from_a_lease_emits_the_alerts_of_the_keys_group() {
        let (_server, ledger) = Server::with_balance(1000).await;
        let group = GroupRecord {
            id: "g1".parse().unwrap(),
            name: "Отдел".into(),
            removed: false,
        };
        let ceilings = Ceilings::total(micro(200));
        let made = ledger.create_group(&acme(), &group, ceilings).await;
        made.unwrap();
        let into = KeyChange {
            group: Some(Some(group.id.clone())),
            ..KeyChange::default()
        };
        ledger.change_key(&key("k1"), &into).await.unwrap();
        let (of, levels) = (Watched::Group(group.id.clone()), [micro(150)]);
        let levels = Levels::new(&levels).unwrap();
        ledger.set_levels(&acme(), &of, levels).await.unwrap();
        let mut turn = Turn {
            lease: number(50),
            account: acme(),
            key: key("k1"),
            step: Step::Open,
            before: String::new(),
            this: "0".into(),
            give: micro(0),
            more: micro(100),
            raise: micro(0),
            short_of: micro(0),
            ttl_ms: 60_000,
            grants_ms: 1_000,
            ends: Vec::new(),
        };
        assert_eq!(ledger.turn(&turn).await.unwrap().word, Word::Done);
        (turn.step, turn.more) = (Step::GoOn, micro(0));
        for n in 1..=4 {
            let settlement = Arc::new(settlement(n, "k1", 20));
            turn.ends = vec![TurnEnd {
                settlement,
                cover: micro(20),
            }];
            turn.before = std::mem::replace(&mut turn.this, n.to_string());
            let answer = ledger.turn(&turn).await.unwrap();
            assert_eq!(answer.ends[0].charged, micro(20));
        }
        ledger.gather().await.unwrap();
        let events = ledger.events(1, 10).await.unwrap();
        let low = Happening::CeilingLow {
            group: Some(group.id.clone()),
            ceiling: CeilingKind::Total,
            ceiling_rub: micro(200),
            level_rub: micro(150),
            left_rub: micro(140),
            by: number(3).to_string(),
        };
        let noticed = events.iter().map(|event| (&event.key, &event.what));
        assert_eq!(noticed.collect::<Vec<_>>(), [(&None, &low)]);
        let page = ledger.journal(&acme(), &JournalPart::whole()).await;
        let of_group = page.unwrap().lines.into_iter().filter(|line| {
            matches!(line, JournalLine::Call(receipt) if receipt.group.as_ref() == Some(&group.id))
        });
        assert_eq!(of_group.count(), 4);
    }

    #[tokio::test]
    async fn each_event_gets_one_number_even_if_gateways_number_events_in_parallel() {
        let server = Server::start().await;
        let ledgers = [
            server.ledger().await,
            server.ledger().await,
            server.ledger().await,
        ];
        open(&ledgers[0], 0).await;
        let entries: Vec<_> = (0..300).map(|n| topup(&format!("p{n}"), 1)).collect();
        let gathered = async {
            for _ in 0..20 {
                for ledger in &ledgers {
                    ledger.0.noticed.note(&acme());
                }
                for last in join_all(ledgers.iter().map(EventStore::gather)).await {
                    last.unwrap();
                }
            }
        };
        let id = acme();
        let paid = entries.iter().enumerate();
        let paid = join_all(paid.map(|(n, entry)| ledgers[n % 3].enter(&id, entry)));
        let (paid, ()) = futures_util::future::join(paid, gathered).await;
        paid.into_iter().for_each(|view| drop(view.unwrap()));
        for ledger in &ledgers {
            assert_eq!(ledger.gather().await.unwrap(), 300);
        }
        let events = ledgers[0].events(0, 1000).await.unwrap();
        let balances: Vec<i64> = events
            .iter()
            .map(|event| match &event.what {
                Happening::TopUp { balance_rub, .. } => balance_rub.micro(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(balances, (1..=300).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn leader_lease_belongs_to_one_gateway_until_it_expires() {
        let server = Server::start().await;
        let ledger = server.ledger().await;
        let minute = Duration::from_secs(60);
        assert!(ledger.lead("w", "a", minute).await.unwrap());
        assert!(ledger.lead("w", "a", minute).await.unwrap());
        assert!(!ledger.lead("w", "b", minute).await.unwrap());
        assert!(ledger.lead("other", "b", minute).await.unwrap());
        assert!(
            ledger
                .lead("w", "a", Duration::from_millis(1))
                .await
                .unwrap()
        );
        tokio::time::timeout(minute, async {
            while !ledger.lead("w", "b", minute).await.unwrap() {}
        })
        .await
        .unwrap();
    }
}
