//! A prepaid account that pays for two of three calls: payment, hold, charge, release and audit.

use std::{error::Error, sync::Arc, time::Duration};

use tollgate_ledger::{
    account::{AccountId, KeyDigest, KeyId, KeyRecord},
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

    // An operator opens an account, books a payment, and creates a key.
    ledger.create_account(&acme, "Acme").await?;
    let payment = Entry {
        id: "invoice-1".into(),
        amount: MicroRub::rubles(10),
        reason: None,
    };
    ledger.enter(&acme, &payment).await?;
    // A repeated payment counts once.
    ledger.enter(&acme, &payment).await?;
    let key = KeyRecord::new(web.clone(), acme.clone(), KeyDigest::new([7; 32]));
    ledger.create_key(&key, Ceilings::NONE).await?;

    // Each of the three calls requests a hold of 4 ₽; the payment covers two of them.
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

    // The first call costs 1.25 ₽. The second call is released without a charge.
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

fn hold(account: &AccountId, key: &KeyId) -> Hold {
    let (price, ttl) = (MicroRub::rubles(4), Duration::from_secs(60));
    Hold::new(
        RequestNumber::now_v7(),
        account.clone(),
        key.clone(),
        price,
        ttl,
    )
}

fn settlement(hold: &Hold, cost: MicroRub) -> Settlement {
    let item = Item::new("a call", "us", End::Finished);
    Settlement::new(hold, hold.want, cost, item)
}
