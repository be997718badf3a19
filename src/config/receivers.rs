//! Checks of event receivers: the sections `[[mail]]` and `[[telegram]]`, and the fields that these have in common with
//! `[[webhook]]`.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::Uri;
use lettre::{AsyncSmtpTransport, Tokio1Executor, message::Mailbox};
use secrecy::ExposeSecret;
use tollgate_layers::key::AccountId;
use tollgate_ledger::happening::Happening;

use super::{
    WebhookConfig,
    check::{Check, web_address},
    raw::{RawConfig, RawMail, RawTelegram},
    secret::{referred, secret},
};
const NAME_CHARS_MAX: usize = 64;
const RECEIVERS_MAX: usize = 64;
/// Maximum number of recipients of a mail.
const TO_MAX: usize = 16;
const TELEGRAM: &str = "https://api.telegram.org";

/// Parses the kind of event with this name.
///
/// # Errors
/// If there is no such kind. The error message lists the existing kinds.
pub(crate) fn kind(word: &str) -> Result<&'static str, String> {
    let known = Happening::KINDS.iter().find(|known| **known == word);
    let problem = || format!("must be one of {}", Happening::KINDS.join(", "));
    known.copied().ok_or_else(problem)
}

/// A receiver of events: its filter, and how events are delivered to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// Name of the receiver in the log, metrics and commands: letters, digits, `-` and `_`.
    pub name: String,
    /// Kinds of events that the receiver gets. If empty, it gets all kinds.
    pub kinds: Vec<&'static str>,
    /// Accounts whose events the receiver gets. If empty, it gets the events of all accounts, and events that belong to
    /// no account.
    pub accounts: Vec<AccountId>,
    /// How long the gateway tries to deliver an event. After this time the event is a dead letter.
    pub retry_max: Duration,
    /// How events are delivered to this receiver.
    pub way: WayConfig,
}

/// A way to deliver events, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WayConfig {
    /// By HTTP requests: a section `[[webhook]]`.
    Webhook(WebhookConfig),
    /// By mail: a section `[[mail]]`.
    Mail(MailConfig),
    /// By Telegram messages: a section `[[telegram]]`.
    Telegram(TelegramConfig),
}

/// A mail server, and the sender of the mails that are sent through it.
#[derive(Clone, PartialEq, Eq)]
pub struct SmtpConfig {
    /// URL of the mail server. It may contain a password.
    pub server: String,
    /// The host of the mail server.
    pub host: String,
    /// Whether and when connections to the mail server use TLS.
    pub tls: MailTls,
    /// Certificate authorities, in PEM, that are trusted instead of Mozilla's list.
    pub authorities: Option<Bytes>,
    /// Sender address of the mails.
    pub from: Mailbox,
}

impl fmt::Debug for SmtpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmtpConfig")
            .field("host", &self.host)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

/// The section `[[mail]]`: events are sent by mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailConfig {
    /// The mail server and the sender.
    pub smtp: SmtpConfig,
    /// Addresses of the recipients, at least one.
    pub to: Vec<Mailbox>,
    /// UTC offset of the times in mails, in minutes. It equals `seller.utc_offset`.
    pub utc_offset_minutes: i32,
}

/// When a connection to a mail server uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailTls {
    /// TLS from the first byte: `smtps://`.
    Always,
    /// STARTTLS is required: `?tls=required`.
    Required,
    /// STARTTLS is used if the server offers it: `?tls=opportunistic`.
    Offered,
    /// No TLS is used.
    Never,
}

/// A section `[[telegram]]`: events are sent to a Telegram chat.
#[derive(Clone, PartialEq, Eq)]
pub struct TelegramConfig {
    /// URL of the Bot API's method that sends a message. It contains the bot's token.
    pub url: Uri,
    /// Id of the chat, or name of the channel.
    pub chat: String,
    /// UTC offset of the times in messages, in minutes. It equals `seller.utc_offset`.
    pub utc_offset_minutes: i32,
    /// Certificate authorities, in PEM, that are trusted instead of Mozilla's list.
    pub authorities: Option<Bytes>,
}

impl fmt::Debug for TelegramConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelegramConfig")
            .field("host", &self.url.host().unwrap_or_default())
            .field("chat", &self.chat)
            .finish_non_exhaustive()
    }
}

/// The fields that all kinds of event receivers have in common: name, kinds, accounts and `retry_hours`.
type Common = (Option<String>, Vec<String>, Vec<String>, Option<u64>);

impl Check<'_> {
    pub(super) fn receivers(
        &mut self,
        raw: &mut RawConfig,
        utc_offset_minutes: i32,
    ) -> Option<Vec<ReceiverConfig>> {
        let mut names = Vec::new();
        let mut receivers = Vec::new();
        for (index, raw) in std::mem::take(&mut raw.webhook).into_iter().enumerate() {
            let at = format!("webhook[{index}]");
            let way = self.webhook(&raw, &at).map(WayConfig::Webhook);
            let common = (raw.name, raw.kinds, raw.accounts, raw.retry_hours);
            receivers.push(self.receiver(common, way, &at, &mut names));
        }
        for (index, raw) in std::mem::take(&mut raw.mail).into_iter().enumerate() {
            let at = format!("mail[{index}]");
            let way = self.mail(&raw, &at, utc_offset_minutes);
            let common = (raw.name, raw.kinds, raw.accounts, raw.retry_hours);
            receivers.push(self.receiver(common, way.map(WayConfig::Mail), &at, &mut names));
        }
        for (index, raw) in std::mem::take(&mut raw.telegram).into_iter().enumerate() {
            let at = format!("telegram[{index}]");
            let way = self.telegram(&raw, &at, utc_offset_minutes);
            let common = (raw.name, raw.kinds, raw.accounts, raw.retry_hours);
            receivers.push(self.receiver(common, way.map(WayConfig::Telegram), &at, &mut names));
        }
        if receivers.len() > RECEIVERS_MAX {
            let problem = format!(
                "the file has more than {RECEIVERS_MAX} event receivers (webhook, mail and \
                 telegram): remove some"
            );
            self.errors.add("webhook", problem);
        }
        receivers.into_iter().collect()
    }

    fn receiver_name(
        &mut self,
        name: Option<String>,
        at: &str,
        names: &mut Vec<String>,
    ) -> Option<String> {
        let path = format!("{at}.name");
        let advice = "give the receiver a name, which the log and commands use";
        let name = self.required(name, &path, advice)?;
        let plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if !plain || name.len() > NAME_CHARS_MAX {
            let problem = format!(
                "must be at most {NAME_CHARS_MAX} characters, only letters, digits, - and _"
            );
            return self.refuse(path, problem);
        }
        if names.contains(&name) {
            let problem = format!(
                "{name:?} is already the name of another receiver: give each receiver its own name"
            );
            return self.refuse(path, problem);
        }
        names.push(name.clone());
        Some(name)
    }

    fn receiver(
        &mut self,
        (name, kinds, accounts, retry_hours): Common,
        way: Option<WayConfig>,
        at: &str,
        names: &mut Vec<String>,
    ) -> Option<ReceiverConfig> {
        let name = self.receiver_name(name, at, names);
        let kinds = self.each(&kinds, &format!("{at}.kinds"), kind);
        let accounts = self.each(&accounts, &format!("{at}.accounts"), |text| {
            text.parse::<AccountId>().map_err(|error| error.to_string())
        });
        let path = format!("{at}.retry_hours");
        let retry: u64 = self.whole(retry_hours, &path, 72, 1..=336);
        Some(ReceiverConfig {
            name: name?,
            kinds,
            accounts,
            retry_max: Duration::from_secs(retry * 3600),
            way: way?,
        })
    }

    fn mail(&mut self, raw: &RawMail, at: &str, utc_offset_minutes: i32) -> Option<MailConfig> {
        let (server, from) = (raw.server.clone(), raw.from.clone());
        let smtp = self.smtp(server, from, raw.ca_file.as_deref(), at);
        let path = format!("{at}.to");
        if raw.to.is_empty() || raw.to.len() > TO_MAX {
            let problem = format!("give 1 to {TO_MAX} email addresses");
            match raw.to.is_empty() {
                true => self.errors.missing(&path, &problem),
                false => self.errors.add(path, problem),
            }
            return None;
        }
        let to = self.each(&raw.to, &path, mailbox);
        Some(MailConfig {
            smtp: smtp?,
            to,
            utc_offset_minutes,
        })
    }

    /// Checks the mail server and the sender of a section, whose path is `at`.
    pub(super) fn smtp(
        &mut self,
        server: Option<String>,
        from: Option<String>,
        ca_file: Option<&str>,
        at: &str,
    ) -> Option<SmtpConfig> {
        let path = format!("{at}.server");
        let advice =
            "give the mail server's URL, like \"${SMTP_URL}\" for smtps://user:password@host";
        let server = self.required(server, &path, advice);
        let server = server.and_then(|text| {
            let server = match referred(&text, self.env) {
                Some(server) => server,
                None if text.contains('@') => Err(
                    "contains a password, which must not be in this file: put the whole URL into an environment \
                     variable or a file, and write \"${NAME}\" or \"file:/path\""
                        .to_owned(),
                ),
                None => Ok(text),
            };
            self.keep(server.and_then(mail_server), &path)
        });
        let path = format!("{at}.from");
        let advice = "give the sender address, like \"Tollgate <noreply@example.com>\"";
        let from = self.required(from, &path, advice);
        let from = from.and_then(|text| self.keep(mailbox(&text), &path));
        let plain = matches!(&server, Some((_, _, MailTls::Never)));
        let authorities = self.authorities(ca_file, plain, &format!("{at}.ca_file"));
        let (server, host, tls) = server?;
        Some(SmtpConfig {
            server,
            host,
            tls,
            authorities,
            from: from?,
        })
    }

    fn telegram(
        &mut self,
        raw: &RawTelegram,
        at: &str,
        utc_offset_minutes: i32,
    ) -> Option<TelegramConfig> {
        let advice = "give the chat, like \"-1001234567890\" or \"@channel\"";
        let chat = self.required(raw.chat.clone(), &format!("{at}.chat"), advice);
        let path = format!("{at}.token");
        let token = self.required(
            raw.token.clone(),
            &path,
            "give the bot's token as \"${NAME}\"",
        );
        let token = token.and_then(|text| {
            let token = secret(&text, self.env);
            let token = token.and_then(|token| bot_token(token.expose_secret()));
            self.keep(token, &path)
        });
        let path = format!("{at}.url");
        let url = raw.url.as_deref().unwrap_or(TELEGRAM);
        let plain = url.starts_with("http:");
        let authorities = self.authorities(raw.ca_file.as_deref(), plain, &format!("{at}.ca_file"));
        let url = self.keep(web_address(url), &path).zip(token);
        let url = url.and_then(|(url, token)| {
            let base = url.to_string();
            let url = format!("{}/bot{token}/sendMessage", base.trim_end_matches('/'));
            let url = url.parse::<Uri>();
            self.keep(url.map_err(|_| "is too long for a URL: shorten it"), &path)
        });
        Some(TelegramConfig {
            url: url?,
            chat: chat?,
            utc_offset_minutes,
            authorities,
        })
    }
}

/// Parses the URL of a mail server, and returns it with its host and its use of TLS. The error message never contains
/// the URL.
fn mail_server(text: String) -> Result<(String, String, MailTls), String> {
    let advice = "must be a URL like smtps://user:password@host:465, smtp://user:password@host:587?tls=required, or \
         smtp://127.0.0.1:25";
    let (scheme, rest) = text.split_once("://").ok_or(advice)?;
    let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = authority.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if scheme == "smtp" && !user.is_empty() && !query.contains("tls=required") {
        return Err(
            "would send the password unencrypted: use smtps://, or smtp:// with ?tls=required"
                .to_owned(),
        );
    }
    let host = host.to_owned();
    let tls = match query.split('&').find_map(|pair| pair.strip_prefix("tls=")) {
        _ if scheme == "smtps" => MailTls::Always,
        Some("required") => MailTls::Required,
        Some("opportunistic") => MailTls::Offered,
        _ => MailTls::Never,
    };
    match AsyncSmtpTransport::<Tokio1Executor>::from_url(&text) {
        Ok(_) if !host.is_empty() => Ok((text, host, tls)),
        _ => Err(advice.to_owned()),
    }
}

fn mailbox(text: &str) -> Result<Mailbox, String> {
    let mailbox = text.parse::<Mailbox>();
    mailbox.map_err(|_| "must be an email address, like Name <name@example.com>".to_owned())
}

/// Parses a bot token, which must have the form that Telegram's BotFather issues.
fn bot_token(text: &str) -> Result<String, String> {
    let good = |text: &str| {
        let (id, key) = text.split_once(':')?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_token = !id.is_empty()
            && id.bytes().all(|byte| byte.is_ascii_digit())
            && key.len() >= 16
            && key.bytes().all(plain);
        is_token.then(|| text.to_owned())
    };
    good(text).ok_or_else(|| "must be the token of a bot, like 123456:ABC…".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Config, ConfigErrors,
        testing::{SMALL, parse, rows},
    };

    fn with(lines: &str) -> Result<Config, ConfigErrors> {
        parse(&format!("{SMALL}\n{lines}"))
    }

    const MAIL: &str = "[[mail]]\nname = \"acme\"\nserver = \"${SMTP_URL}\"\nfrom = \"Tollgate <noreply@example.com>\"\n\
                        to = [\"Бухгалтерия <buh@acme.example>\"]\naccounts = [\"acme\"]\n";
    const CHAT: &str =
        "[[telegram]]\nname = \"ops\"\ntoken = \"${BOT_TOKEN}\"\nchat = \"-1001234567890\"\n";

    #[test]
    fn settings_of_mail_and_chat_receivers_are_read_and_their_secrets_are_not_shown() {
        let config = with(&format!("{MAIL}{CHAT}"));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let shown = format!("{:?}", config.receivers);
        for there in [
            "mail.example:465",
            "buh@acme.example",
            "api.telegram.org",
            "-1001234567890",
        ] {
            assert!(shown.contains(there), "{shown}");
        }
        assert!(
            !shown.contains("hunter2") && !shown.contains("AAbbCC"),
            "{shown}"
        );
        let WayConfig::Telegram(chat) = &config.receivers[1].way else {
            panic!("{shown}");
        };
        assert!(chat.url.path().ends_with("/sendMessage"));
        assert_eq!(chat.utc_offset_minutes, 0);
    }

    #[test]
    fn times_in_messages_use_the_sellers_utc_offset() {
        let seller = "[seller]\nname = \"n\"\nutc_offset = \"+03:00\"\n";
        let config = with(&format!("{CHAT}{seller}"));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let WayConfig::Telegram(chat) = &config.receivers[0].way else {
            panic!("{:?}", config.receivers);
        };
        assert_eq!(chat.utc_offset_minutes, 180);
    }

    #[test]
    fn error_about_an_invalid_receiver_setting_names_the_setting_and_shows_no_secret() {
        for [from, to, field] in rows(
            r#"
            ${SMTP_URL} | smtps://me:hunter2@mail.example | mail[0].server
            ${SMTP_URL} | ${ADMIN_KEY} | mail[0].server
            ${SMTP_URL} | ${SMTP_PLAIN_URL} | mail[0].server
            Tollgate <noreply@example.com> | nobody | mail[0].from
            ["Бухгалтерия <buh@acme.example>"] | [] | mail[0].to
            <buh@acme.example> |  | mail[0].to[0]
            from = | ca_file = "/no/such/ca.pem"\nfrom = | mail[0].ca_file
            "${SMTP_URL}" | "smtp://127.0.0.1:25"\nca_file = "Cargo.toml" | mail[0].ca_file
            chat =  | ca_file = "Cargo.toml"\nchat =  | telegram[0].ca_file
            ${BOT_TOKEN} | ${ADMIN_KEY} | telegram[0].token
            chat = "-1001234567890" |  | telegram[0].chat
            "ops" | "acme" | telegram[0].name
            "ops" | "o p s" | telegram[0].name
        "#,
        ) {
            let text = format!("{MAIL}{CHAT}");
            assert!(text.contains(from), "{from}");
            let errors = with(&text.replace(from, to)).expect_err(to).to_string();
            assert!(errors.contains(field), "{to}: {errors}");
            assert!(
                !errors.contains("hunter2") && !errors.contains("admin-secret"),
                "{errors}"
            );
        }
        let local = MAIL.replace("${SMTP_URL}", "smtp://127.0.0.1:25");
        assert!(with(&local).is_ok());
    }
}
