//! Builds the text of a gateway's configuration, with free ports of 127.0.0.1.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

/// The base prices in USDT per million tokens: input, cached input, output, cache write.
pub type Usdt = [&'static str; 4];

/// Builds the text of a configuration, section by section. It has operators, an outbox, limits, vendors and models only
/// if they are added. The exchange rate is 100 rubles, and the multiplier is 1.
#[derive(Clone, Debug)]
pub struct ConfigText {
    admin: bool,
    ledger: String,
    limits: String,
    rate: String,
    multiplier: String,
    vendors: String,
    models: String,
}

impl ConfigText {
    /// Starts the text of a configuration whose ledger is at this URL.
    pub fn over(ledger: &str) -> Self {
        Self {
            admin: false,
            ledger: format!("url = \"{ledger}\"\n"),
            limits: String::new(),
            rate: "100".to_owned(),
            multiplier: "1".to_owned(),
            vendors: String::new(),
            models: String::new(),
        }
    }

    /// Adds a listener for operators. Their key is in the environment variable `ADMIN_KEY`.
    pub fn admin(mut self) -> Self {
        self.admin = true;
        self
    }

    pub fn outbox(self, file: &Path) -> Self {
        self.ledger(&format!("outbox = \"{}\"", file.display()))
    }

    /// Adds a line to the section `[ledger]`.
    pub fn ledger(mut self, line: &str) -> Self {
        let _ = writeln!(self.ledger, "{line}");
        self
    }

    /// Adds a line to the section `[limits]`.
    pub fn limit(mut self, line: &str) -> Self {
        let _ = writeln!(self.limits, "{line}");
        self
    }

    /// Sets the exchange rate and the multiplier.
    pub fn rates(mut self, rate: &str, multiplier: &str) -> Self {
        (self.rate, self.multiplier) = (rate.to_owned(), multiplier.to_owned());
        self
    }

    /// Adds a vendor with these additional lines in its section. Its key is in the environment variable `VENDOR_KEY`.
    pub fn vendor(mut self, name: &str, format: &str, url: &str, more: &str) -> Self {
        let _ = writeln!(
            self.vendors,
            "[[vendor]]\nname = \"{name}\"\nformat = \"{format}\"\nurl = \"{url}\"\nkey = \"${{VENDOR_KEY}}\"\n{more}"
        );
        self
    }

    /// Adds a model with one route: to this vendor, with the vendor's name of the model.
    pub fn model(mut self, id: &str, usdt: Usdt, output_max: u32, route: (&str, &str)) -> Self {
        let [input, cached, output, write] = usdt;
        let (vendor, called) = route;
        let _ = writeln!(
            self.models,
            "[[model]]\nid = \"{id}\"\nfamily = \"Test\"\n\
             usdt_mtok = {{ input = \"{input}\", cached_input = \"{cached}\", output = \"{output}\", cache_write = \"{write}\" }}\n\
             output_tokens_max = {output_max}\n\
             routes = [ {{ vendor = \"{vendor}\", model = \"{called}\" }} ]"
        );
        self
    }

    /// Adds a vendor and a model of each format, named `chat` and `messages` with this suffix. The prices make costs
    /// easy to compute. At the default exchange rate, a million tokens of `chat` cost 100 ₽ (input), 10 ₽ (cached
    /// input), 200 ₽ (output) and 50 ₽ (cache write). A million tokens of `messages` cost ten times as much.
    pub fn chat_and_messages(self, vendor: SocketAddr, suffix: &str, more: &str) -> Self {
        let name = |format: &str| format!("{format}-vendor{suffix}");
        let (chat, messages) = (name("chat"), name("messages"));
        self.vendor(&chat, "chat", &format!("http://{vendor}/v1"), more)
            .vendor(&messages, "messages", &format!("http://{vendor}"), more)
            .model(
                &format!("chat{suffix}"),
                ["1", "0.1", "2", "0.5"],
                4000,
                (&chat, "vendor-chat-1"),
            )
            .model(
                &format!("messages{suffix}"),
                ["10", "1", "20", "5"],
                4000,
                (&messages, "vendor-messages-1"),
            )
    }

    pub fn text(&self) -> String {
        let section = |name: &str, lines: &str| match lines {
            "" => String::new(),
            lines => format!("[{name}]\n{lines}"),
        };
        [
            "listen = \"127.0.0.1:0\"\nbase_url = \"http://gateway.example/v1\"\n",
            if self.admin {
                "[admin]\nlisten = \"127.0.0.1:0\"\nkey = \"${ADMIN_KEY}\"\n"
            } else {
                ""
            },
            &section("ledger", &self.ledger),
            &section("limits", &self.limits),
            &format!(
                "[[rate.source]]\nfixed = \"{}\"\n[tariff]\nsell_rate_multiplier = \"{}\"\n",
                self.rate, self.multiplier
            ),
            &self.vendors,
            &self.models,
        ]
        .concat()
    }
}

/// Returns the text after these replacements. Each is an old text and the new text for it. Panics if an old text does
/// not occur.
pub fn edited(text: String, edits: &[(String, String)]) -> String {
    edits.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from.as_str()), "the config has no {from:?}");
        text.replace(from.as_str(), to)
    })
}
