//! Tests of the binary as an operator runs it: signals, file modes and reloads.

use std::os::unix::fs::PermissionsExt;

use crate::support::{config::ConfigText, process::Start};

async fn input_rate(address: &str) -> String {
    let url = format!("http://{address}/v1/tollgate/models");
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new());
    let req = crate::harness::request(http::Method::GET, &url, &[], bytes::Bytes::new());
    let answer = client.build_http().request(req).await.unwrap();
    let catalog = crate::harness::whole(answer).await.json();
    catalog["models"][0]["input_rub_mtok"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn sighup_reloads_valid_prices_only_and_sigterm_exits_with_0() {
    let dir = tempfile::tempdir().unwrap();
    let (config, ledger) = (
        dir.path().join("tollgate.toml"),
        dir.path().join("books.db"),
    );
    let text = |price: &'static str, rate: &str| {
        ConfigText::over(&format!("sqlite:{}", ledger.display()))
            .rates(rate, "1")
            .vendor("v", "chat", "http://127.0.0.1:9/v1", "")
            .model("m", [price, "1", "1", "1"], 100, ("v", "m"))
            .text()
    };
    std::fs::write(&config, text("1", "100")).unwrap();
    let served = Start::new(&config, &dir.path().join("log")).spawn();
    let address = served.serving().await.0.to_string();
    assert_eq!(input_rate(&address).await, "100.00");
    let mode = std::fs::metadata(&ledger).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the books are their owner's alone");

    std::fs::write(&config, text("2", "150")).unwrap();
    served.signal("-HUP");
    assert_eq!(served.says("reloaded").await["price_version"], 2);
    // The gateway logs the reload before it has read a rate from the new source of exchange rates.
    crate::harness::eventually("the new price is shown", async || {
        (input_rate(&address).await == "300.00").then_some(())
    })
    .await;

    std::fs::write(&config, text("0", "150")).unwrap();
    served.signal("-HUP");
    served.says("configuration not reloaded").await;
    assert_eq!(input_rate(&address).await, "300.00");

    served.signal("-TERM");
    served.says("stopped").await;
    assert_eq!(served.ended().await.code(), Some(0));
}
