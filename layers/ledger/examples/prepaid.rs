//! A prepaid account and three calls of which two fit: pay in, hold, charge, release, audit.

use std::{error::Error, sync::Arc, time::Duration};

use tollgate_ledger::{
    account::{AccountId, KeyDigest, KeyId, KeyRecord, KeyStatus},
    ceiling::Ceilings,
    contract::{Entry, Hold, Item, Ledger, LedgerAdmin, LedgerError, Refusal, Settlement},
    memory::MemoryLedger,
    money::MicroRub,
    number::RequestNumber,
    usage::End,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let ledger = Arc::new(MemoryLedger::new());
    let (acme, web): (AccountId, KeyId) = ("acme".parse()?, "web".parse()?);

    // An operator opens an account, pays in, and makes a key.
    ledger.create_account(&acme, "Acme").await?;
    let payment = Entry {
        id: "invoice-1".into(),
        amount: MicroRub::rubles(10),
        reason: None,
    };
    ledger.enter(&acme, &payment).await?;
    // The same payment, told twice, counts once.
    ledger.enter(&acme, &payment).await?;
    ledger.create_key(&key(&web, &acme), Ceilings::NONE).await?;

    // Three calls want 4 ₽ each.
    let holds = [hold(&acme, &web), hold(&acme, &web), hold(&acme, &web)];
    for (index, hold) in holds.iter().enumerate() {
        match ledger.reserve(hold).await {
            Ok(reserved) => println!(
                "call {}: {} held, {} free",
                index + 1,
                reserved.held,
                reserved.free
            ),
            Err(LedgerError::Refused(Refusal::DoesNotFit { free, held, .. })) => {
                println!(
                    "call {}: does not fit: {free} free beside {held} held",
                    index + 1
                );
            }
            Err(error) => return Err(error.into()),
        }
    }

    // The first one cost 1.25 ₽; the second one never happened.
    let settled = ledger
        .settle(&settlement(&holds[0], "1.25".parse()?))
        .await?;
    println!("charged {}", settled.charged);
    let again = ledger
        .settle(&settlement(&holds[0], "9.99".parse()?))
        .await?;
    println!(
        "charged {} the second time too: repeated = {}",
        again.charged, again.repeated
    );
    ledger.release(holds[1].number, &acme, &web).await?;

    let account = ledger.account(&acme).await?;
    println!("balance {}, held {}", account.balance_rub, account.held_rub);
    println!("breaches: {}", ledger.audit().await?.breaches.len());
    Ok(())
}

fn key(id: &KeyId, account: &AccountId) -> KeyRecord {
    KeyRecord {
        id: id.clone(),
        account: account.clone(),
        digest: KeyDigest::new([7; 32]),
        prefix: "tg-example…".into(),
        name: "web".into(),
        status: KeyStatus::Active,
        models: Vec::new(),
        addresses: Vec::new(),
        requests_per_second: None,
        requests_per_minute: None,
        tokens_per_minute: None,
        group: None,
        concurrency: None,
        idempotency: false,
        expires_at_ms: None,
        created_at_ms: 0,
        changed_at_ms: 0,
    }
}

fn hold(account: &AccountId, key: &KeyId) -> Hold {
    let price = MicroRub::rubles(4);
    Hold {
        number: RequestNumber::now_v7(),
        account: account.clone(),
        key: key.clone(),
        want: price,
        least: price,
        ttl: Duration::from_secs(60),
    }
}

fn settlement(hold: &Hold, cost: MicroRub) -> Settlement {
    Settlement {
        number: hold.number,
        account: hold.account.clone(),
        key: hold.key.clone(),
        held: hold.want,
        cost,
        fresh: true,
        lease: None,
        item: Item::new("a call", "us", End::Finished),
    }
}
