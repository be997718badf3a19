//! Sends mails: events to receivers, and sign-in links.

use std::{fmt, time::Duration};

use http::uri::Authority;
use lettre::{
    AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{Mailbox, MessageBuilder, header::ContentType},
    transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters},
};
use tollgate_ledger::happening::Event;

use super::{
    webhook::{Sent, failed, id},
    words,
};
use crate::{
    config::{MailConfig, MailTls, SmtpConfig},
    text::causes::chain,
};

/// The time limit for sending one mail, including the time to connect.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends mails through an SMTP server, from one sender.
pub(crate) struct Mailer {
    server: AsyncSmtpTransport<Tokio1Executor>,
    host: String,
    from: Mailbox,
}

impl Mailer {
    pub(crate) fn new(config: &SmtpConfig) -> Self {
        let server = AsyncSmtpTransport::<Tokio1Executor>::from_url(&config.server);
        let mut server = server.expect("the configuration has checked the address");
        if let Some(tls) = tls(config) {
            server = server.tls(tls);
        }
        Self {
            server: server.timeout(Some(PATIENCE)).build(),
            host: config.host.clone(),
            from: config.from.clone(),
        }
    }

    /// Begins a plain-text mail from the sender.
    pub(crate) fn message(&self) -> MessageBuilder {
        Message::builder()
            .from(self.from.clone())
            .header(ContentType::TEXT_PLAIN)
    }

    /// Sends a mail once, within the time limit.
    ///
    /// # Errors
    /// What the server answered, or that it did not answer in time.
    pub(crate) async fn send(&self, message: Message) -> Result<(), String> {
        match tokio::time::timeout(PATIENCE, self.server.send(message)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }
}

/// Sends events as mails.
pub(super) struct Mail {
    mailer: Mailer,
    to: Vec<Mailbox>,
    utc_offset_minutes: i32,
}

impl Mail {
    pub(super) fn new(config: &MailConfig) -> Self {
        Self {
            mailer: Mailer::new(&config.smtp),
            to: config.to.clone(),
            utc_offset_minutes: config.utc_offset_minutes,
        }
    }

    pub(super) fn host(&self) -> &str {
        &self.mailer.host
    }

    pub(super) async fn send(&self, event: &Event) -> Sent {
        let message = match self.message(event) {
            Ok(message) => message,
            Err(error) => return failed(format!("the event cannot be written as a mail: {error}")),
        };
        match self.mailer.send(message).await {
            Ok(()) => Sent::Taken,
            Err(error) => failed(error),
        }
    }

    /// Returns the message. Its Message-ID is the same at each attempt to send it, so that mailboxes can drop a
    /// repeated mail.
    fn message(&self, event: &Event) -> Result<Message, lettre::error::Error> {
        let domain = self.mailer.from.email.domain();
        let mut message = self
            .mailer
            .message()
            .subject(words::subject(event, self.utc_offset_minutes))
            .message_id(Some(format!("<{}@{domain}>", id(event))));
        for to in &self.to {
            message = message.to(to.clone());
        }
        message.body(words::text(event, self.utc_offset_minutes))
    }
}

/// Returns TLS settings with the certificate authorities of the configuration; `None` if it names no authorities, or
/// TLS is off.
fn tls(config: &SmtpConfig) -> Option<Tls> {
    let certificate = Certificate::from_pem(config.authorities.as_ref()?);
    let host = config.host.parse::<Authority>();
    let host = host.map_or_else(|_| config.host.clone(), |host| host.host().to_owned());
    let parameters = TlsParameters::builder(host)
        .certificate_store(CertificateStore::None)
        .add_root_certificate(certificate.expect("the configuration has checked the PEM"))
        .build()
        .expect("the configuration has checked the certificates");
    match config.tls {
        MailTls::Always => Some(Tls::Wrapper(parameters)),
        MailTls::Required => Some(Tls::Required(parameters)),
        MailTls::Offered => Some(Tls::Opportunistic(parameters)),
        MailTls::Never => None,
    }
}

/// Hides the server's address, which may contain a password.
impl fmt::Debug for Mailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailer")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mail")
            .field("host", &self.mailer.host)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}
