//! Emails the links for signing in and signing up. A task of the node sends the emails, so no response waits for the
//! ledger or the mail server, and the time of a response does not depend on the address.

use std::{fmt, sync::Arc};

use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tollgate_layers::respond::Language;

use crate::{
    catalog::snapshot::Live,
    codes::Codes,
    console::texts::{english, filled, translated},
    edge::panics::catch_round,
    events::Mailer,
    members::{LINK_MS, MailAddress, Members},
    text::time::now_ms,
};

/// The maximum number of link requests that wait for the task.
pub(super) const WAITING_MAX: usize = 100;
/// The maximum number of link requests that are processed at once.
const AT_ONCE_MAX: usize = 8;

/// A request for a sign-in or sign-up link.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) to: MailAddress,
    /// The cookie value of the browser to which the link is bound.
    pub(super) browser: String,
    pub(super) language: Language,
    /// For a sign-up: the invitation and the company's name. `None` for a sign-in.
    pub(super) sign_up: Option<(String, String)>,
}

/// The task that creates links and emails them.
pub struct Mails {
    pub(super) wanted: mpsc::Receiver<Wanted>,
    pub(super) links: Links,
}

impl fmt::Debug for Mails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mails").finish_non_exhaustive()
    }
}

impl Mails {
    /// Processes link requests until the cabinet is dropped.
    pub async fn run(self) {
        let Self { mut wanted, links } = self;
        let requests = stream::poll_fn(|cx| wanted.poll_recv(cx));
        requests
            .for_each_concurrent(AT_ONCE_MAX, |wanted| async {
                let _ = catch_round("a sign-in link", links.send(wanted)).await;
            })
            .await;
    }
}

/// Creates and emails links.
pub(super) struct Links {
    pub(super) members: Members,
    pub(super) codes: Codes,
    pub(super) mailer: Mailer,
    pub(super) live: Arc<Live>,
}

impl Links {
    /// Creates a link and emails it if a member has the address, or if the invitation is valid.
    async fn send(&self, wanted: Wanted) {
        let Wanted { to, browser, .. } = &wanted;
        let (who, now_ms) = (to.person(), now_ms());
        let (made, page, text) = match &wanted.sign_up {
            None => {
                let text = english(
                    "To sign in, open this link in the browser in which you requested it: {0} The link works once, within {1} minutes. If you did not request it, ignore this email: the link is useless without your browser.",
                );
                let made = self.members.new_link(to, browser, now_ms).await;
                (made, "enter", text)
            }
            Some((code, name)) => {
                let text = english(
                    "To open the account, open this link in the browser in which you filled in the form: {0} The link works once, within {1} minutes. If you did not request it, ignore this email: the link is useless without your browser.",
                );
                let made = self.codes.sign_up(code, (to, name), browser, now_ms).await;
                (made, "welcome", text)
            }
        };
        match made {
            Ok(Some(token)) => {
                if wanted.sign_up.is_some() {
                    tracing::info!(target: "audit", %who, mail = to.as_str(), what = "cabinet.sign_up", terms = "accepted");
                }
                let snapshot = self.live.snapshot();
                let root = snapshot.urls().root_url();
                let link = format!("{root}/cabinet/{page}?token={token}");
                self.mail(to, (&link, text), wanted.language).await;
            }
            Ok(None) => {
                let what = match wanted.sign_up {
                    Some(_) => "cabinet.sign_up_refused",
                    None => "cabinet.link_not_sent",
                };
                tracing::info!(target: "audit", %who, what);
            }
            Err(error) => {
                tracing::warn!(%error, "a sign-in link could not be stored, so no email was sent")
            }
        }
    }

    /// Emails a link. `text` is an English text with `{0}` for the link and `{1}` for the minutes for which it is
    /// valid.
    async fn mail(&self, to: &MailAddress, (link, text): (&str, &str), language: Language) {
        let minutes = LINK_MS / 60_000;
        let link = format!("\n\n{link}\n\n");
        let text = filled(text, language, &[&link, &minutes]);
        // Puts the link into a paragraph of its own, without the spaces around it.
        let text = text.replace(" \n\n", "\n\n").replace("\n\n ", "\n\n");
        let subject = translated(english("Sign-in link"), language);
        let who = to.person();
        let message = to.as_str().parse().map(|address| {
            let message = self.mailer.message().to(address).subject(subject);
            message.body(text).map_err(|error| error.to_string())
        });
        let sent = match message {
            Ok(Ok(message)) => self.mailer.send(message).await,
            Ok(Err(error)) => Err(error),
            Err(error) => Err(error.to_string()),
        };
        match sent {
            Ok(()) => tracing::info!(target: "audit", %who, what = "cabinet.link_sent"),
            Err(error) => tracing::warn!(error, "the email with a sign-in link could not be sent"),
        }
    }
}
