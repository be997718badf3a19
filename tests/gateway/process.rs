//! The binary as an operator runs it: its signals and its files.

use std::{
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

use serde_json::Value;

/// A running `tollgate serve` and its log.
struct Served {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Served {
    fn start(config: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--config"])
            .arg(config)
            .env("VENDOR_KEY", "sk-vendor-key-of-the-tests")
            .env("RUST_LOG", "info")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log }
    }

    /// The next line of the log whose message begins so.
    fn says(&mut self, begin: &str) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.log.read_line(&mut line).unwrap(),
                0,
                "it ended without {begin:?}"
            );
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["message"]
                .as_str()
                .is_some_and(|said| said.starts_with(begin))
            {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
async fn sighup_takes_new_prices_and_keeps_the_old_ones_of_a_bad_file_and_sigterm_ends_well() {
    let dir = tempfile::tempdir().unwrap();
    let (config, ledger) = (
        dir.path().join("tollgate.toml"),
        dir.path().join("books.db"),
    );
    let text = |price: &str, rate: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nbase_url = \"http://gateway.example/v1\"\n\
             [ledger]\nurl = \"sqlite:{}\"\n[[rate.source]]\nfixed = \"{rate}\"\n\
             [tariff]\nsell_rate_multiplier = \"1\"\n\
             [[vendor]]\nname = \"v\"\nformat = \"chat\"\nurl = \"http://127.0.0.1:9/v1\"\n\
             key = \"${{VENDOR_KEY}}\"\n[[model]]\nid = \"m\"\nfamily = \"M\"\n\
             usdt_mtok = {{ input = \"{price}\", cached_input = \"1\", output = \"1\", cache_write = \"1\" }}\n\
             output_tokens_max = 100\nroutes = [ {{ vendor = \"v\", model = \"m\" }} ]\n",
            ledger.display()
        )
    };
    std::fs::write(&config, text("1", "100")).unwrap();
    let mut served = Served::start(&config);
    let address = served.says("serving")["address"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(input_rate(&address).await, "100.00");
    let mode = std::fs::metadata(&ledger).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the books are their owner's alone");

    std::fs::write(&config, text("2", "150")).unwrap();
    served.signal("-HUP");
    assert_eq!(served.says("reloaded")["price_version"], 2);
    // Rate sources are asked anew behind that line.
    crate::harness::eventually("the new price is shown", async || {
        (input_rate(&address).await == "300.00").then_some(())
    })
    .await;

    std::fs::write(&config, text("0", "150")).unwrap();
    served.signal("-HUP");
    served.says("not reloaded");
    assert_eq!(input_rate(&address).await, "300.00");

    served.signal("-TERM");
    served.says("stopped");
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
}
