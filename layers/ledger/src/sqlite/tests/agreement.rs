//! The SQLite store gives the same answers and keeps the same data as the memory store.

use super::*;

#[tokio::test]
async fn concurrent_holds_never_exceed_the_money() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, path) = used(&dir).await;
    // The balance is 930, enough for nine holds of 100. All charges are on key 0.
    let calls: Vec<u8> = (1..=50).map(|index| index * 4).collect();
    let served = join_all(calls.iter().map(|&index| {
        let ledger = ledger.clone();
        async move {
            match ledger.reserve(&hold(index, 100, 100, HOUR)).await {
                Ok(_) => {
                    ledger
                        .settle(&settlement(index, 100, true))
                        .await
                        .unwrap()
                        .charged
                        == MicroRub::new(100)
                }
                Err(LedgerError::Refused(Refusal::DoesNotFit { .. })) => false,
                Err(error) => panic!("{error:?}"),
            }
        }
    }))
    .await;
    assert_eq!(served.into_iter().filter(|served| *served).count(), 9);
    ledger.close().await;

    let view = SqliteLedger::open(&path)
        .unwrap()
        .account(&account(0))
        .await
        .unwrap();
    assert_eq!(
        (view.balance_rub, view.held_rub, view.loss_rub),
        (MicroRub::new(30), MicroRub::ZERO, MicroRub::ZERO)
    );
}

#[derive(Clone, Debug)]
enum Step {
    Enter {
        account: u8,
        id: u8,
        micro: i64,
    },
    Suspend {
        account: u8,
        suspended: bool,
    },
    Ceiling {
        key: u8,
        micro: Option<i64>,
    },
    Status {
        key: u8,
        status: KeyStatus,
    },
    Reserve {
        call: u8,
        want: i64,
        least: i64,
        due: bool,
    },
    Settle {
        call: u8,
        cost: i64,
        fresh: bool,
    },
    Release {
        call: u8,
    },
    Extend {
        call: u8,
        due: bool,
    },
    Probe {
        key: u8,
    },
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    let status = prop_oneof![
        4 => Just(KeyStatus::Active),
        2 => Just(KeyStatus::Disabled),
        1 => Just(KeyStatus::Deleted),
    ];
    prop_oneof![
        3 => (0..3u8, 0..4u8, -300..1_000i64).prop_map(|(account, id, micro)| Step::Enter { account, id, micro }),
        1 => (0..3u8, any::<bool>()).prop_map(|(account, suspended)| Step::Suspend { account, suspended }),
        1 => (0..5u8, proptest::option::of(0..800i64)).prop_map(|(key, micro)| Step::Ceiling { key, micro }),
        1 => (0..5u8, status).prop_map(|(key, status)| Step::Status { key, status }),
        6 => (0..8u8, 0..400i64, 0..400i64, any::<bool>())
            .prop_map(|(call, want, least, due)| Step::Reserve { call, want, least, due }),
        5 => (0..8u8, 0..600i64, any::<bool>()).prop_map(|(call, cost, fresh)| Step::Settle { call, cost, fresh }),
        1 => (0..8u8).prop_map(|call| Step::Release { call }),
        1 => (0..8u8, any::<bool>()).prop_map(|(call, due)| Step::Extend { call, due }),
        1 => (0..5u8).prop_map(|key| Step::Probe { key }),
        1 => Just(Step::Expire),
    ]
}

/// Carries out a step. Returns the answer as text, since errors cannot be compared.
async fn play<L: Ledger + LedgerAdmin>(ledger: &L, step: &Step) -> String {
    let ttl = |due: bool| if due { Duration::ZERO } else { HOUR };
    match *step {
        Step::Enter {
            account: index,
            id,
            micro,
        } => {
            format!(
                "{:?}",
                ledger
                    .enter(&account(index), &topup(&format!("t{id}"), micro))
                    .await
            )
        }
        Step::Suspend {
            account: index,
            suspended,
        } => {
            format!(
                "{:?}",
                ledger
                    .change_account(&account(index), None, Some(suspended))
                    .await
            )
        }
        Step::Ceiling { key: index, micro } => {
            let change = KeyChange {
                ceiling: Some(micro.map(MicroRub::new)),
                ..KeyChange::default()
            };
            format!("{:?}", ledger.change_key(&key(index), &change).await)
        }
        Step::Status { key: index, status } => {
            let change = KeyChange {
                status: Some(status),
                ..KeyChange::default()
            };
            format!("{:?}", ledger.change_key(&key(index), &change).await)
        }
        Step::Reserve {
            call,
            want,
            least,
            due,
        } => {
            format!(
                "{:?}",
                ledger
                    .reserve(&hold(call, want, least.min(want), ttl(due)))
                    .await
            )
        }
        Step::Settle { call, cost, fresh } => {
            format!("{:?}", ledger.settle(&settlement(call, cost, fresh)).await)
        }
        Step::Release { call } => {
            let Hold {
                number,
                account,
                key,
                ..
            } = hold(call, 0, 0, HOUR);
            format!("{:?}", ledger.release(number, &account, &key).await)
        }
        Step::Extend { call, due } => {
            let Hold {
                number, account, ..
            } = hold(call, 0, 0, HOUR);
            format!("{:?}", ledger.extend(number, &account, ttl(due)).await)
        }
        Step::Probe { key: index } => {
            format!("{:?}", ledger.probe(&account(index / 2), &key(index)).await)
        }
        Step::Expire => format!("{:?}", ledger.expire().await),
    }
}

/// All data that a ledger shows, except the times of lines.
async fn shown<L: LedgerAdmin>(
    ledger: &L,
) -> (Vec<AccountView>, Vec<KeyView>, Vec<Option<Receipt>>) {
    let mut keys = Vec::new();
    for index in 0..2 {
        keys.extend(ledger.keys(&account(index)).await.unwrap());
    }
    let mut receipts = Vec::new();
    for call in 0..8 {
        let receipt = ledger.receipt(number(call)).await.ok();
        receipts.push(receipt.map(|receipt| Receipt {
            at_ms: 0,
            ..receipt
        }));
    }
    (ledger.accounts().await.unwrap(), keys, receipts)
}

async fn prepare<L: LedgerAdmin>(ledger: &L) {
    for index in 0..2 {
        ledger
            .create_account(&account(index), "Acme")
            .await
            .unwrap();
    }
    for index in 0..4 {
        ledger
            .create_key(&record(index), Ceilings::NONE)
            .await
            .unwrap();
    }
}

async fn memory_and_file_agree(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    let memory = MemoryLedger::new();
    let file = SqliteLedger::open(&path).unwrap();
    prepare(&memory).await;
    prepare(&file).await;
    for step in steps {
        assert_eq!(
            play(&file, step).await,
            play(&memory, step).await,
            "{step:?}"
        );
        assert_eq!(
            memory.audit().await.unwrap().breaches,
            Vec::<String>::new(),
            "{step:?}"
        );
    }
    assert_eq!(shown(&file).await, shown(&memory).await);
    assert_eq!(file.audit().await.unwrap(), memory.audit().await.unwrap());
    file.close().await;

    // Holds end with the process. All other data is the same after a restart.
    let file = SqliteLedger::open(&path).unwrap();
    let (accounts, keys, receipts) = shown(&file).await;
    let (accounts_before, keys_before, receipts_before) = shown(&memory).await;
    assert_eq!(receipts, receipts_before);
    for (after, before) in accounts.into_iter().zip(accounts_before) {
        assert_eq!(
            after,
            AccountView {
                held_rub: MicroRub::ZERO,
                free_rub: before.balance_rub,
                holds_open: 0,
                ..before
            }
        );
    }
    for (after, before) in keys.into_iter().zip(keys_before) {
        assert_eq!(
            after,
            KeyView {
                held_rub: MicroRub::ZERO,
                free_rub: after.free_rub,
                ..before
            }
        );
    }
    assert_eq!(file.audit().await.unwrap().breaches, Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn sqlite_ledger_gives_the_same_results_as_the_memory_ledger(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(memory_and_file_agree(&steps));
    }
}
