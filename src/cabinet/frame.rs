//! The frame of all pages: navigation, account, messages.

use std::ops::Deref;

use askama::Template;
use http::StatusCode;
use tollgate_layers::key::AccountId;

use super::{Answer, Visit, may};
use crate::{
    console::{
        pages::{Frame, written},
        texts::{english, translated},
    },
    members::MemberRole,
};

/// The entries of the navigation: the first path segment of the page, and the entry's name.
const NAV: [(&str, &str); 8] = [
    ("", english("Overview")),
    ("spending", english("Spending")),
    ("calls", english("Calls")),
    ("keys", english("Keys")),
    ("playground", english("Playground")),
    ("payments", english("Payments")),
    ("statements", english("Statements")),
    ("members", english("Members")),
];

/// The frame of a page. Its texts and formats are those of the console.
pub(super) struct Page<'a> {
    frame: Frame<'a>,
    role: Option<MemberRole>,
    pub(super) account: &'a str,
    pub(super) accounts: &'a [AccountId],
}

impl<'a> Deref for Page<'a> {
    type Target = Frame<'a>;

    fn deref(&self) -> &Self::Target {
        &self.frame
    }
}

impl Page<'_> {
    /// Returns the entries of the navigation that the role may see: path, name, and whether the current page belongs to
    /// the entry.
    pub(super) fn nav(&self) -> Vec<(String, &'static str, bool)> {
        let entries = NAV.into_iter().filter(|(segment, _)| {
            let role = self.role;
            role.is_some_and(|role| may(role, segment, false) == Some(true))
        });
        entries
            .map(|(segment, name)| {
                let path = match segment {
                    "" => "/cabinet".to_owned(),
                    segment => format!("/cabinet/{segment}"),
                };
                (path, name, name == self.section)
            })
            .collect()
    }

    pub(super) fn role(&self) -> &'static str {
        self.role.map_or("", role_in_words)
    }

    /// Returns whether the page offers to switch to another account of the person.
    pub(super) const fn offers_accounts(&self) -> bool {
        self.accounts.len() > 1
    }
}

pub(super) const fn role_in_words(role: MemberRole) -> &'static str {
    match role {
        MemberRole::Owner => english("Owner"),
        MemberRole::Finance => english("Finance"),
        MemberRole::Developer => english("Developer"),
    }
}

impl Visit {
    pub(super) fn page<'a>(
        &'a self,
        title: &'a str,
        section: &'static str,
        problem: Option<&'a str>,
    ) -> Page<'a> {
        let done = match self.posted {
            true => "",
            false => self.form.get("done"),
        };
        Page {
            frame: Frame {
                base_path: "/cabinet",
                title: translated(title, self.language).to_owned(),
                section,
                who: Some(self.who.mail.as_str()),
                csrf: self.who.session.csrf(),
                problem,
                done: reported(done),
                ..Frame::bare("", None)
            },
            role: Some(self.who.role),
            account: &self.who.session.account,
            accounts: &self.who.accounts,
        }
    }

    /// Shows a page with nothing but a message.
    pub(super) fn message_page(&self, status: StatusCode, problem: &str) -> Answer {
        let page = self.page(english("Not done"), "", Some(problem));
        written(status, &MessageHtml { page })
    }
}

/// Returns the message for a change that was just made.
fn reported(done: &str) -> Option<&'static str> {
    Some(match done {
        "saved" => english("Saved."),
        "deleted" => english("The key was deleted."),
        "removed" => english("The member was removed."),
        "code" => english("The promo code was accepted, and the balance was credited."),
        "rule" => english("The automatic top-up rule was saved."),
        "no-rule" => english("The automatic top-up rule was removed."),
        _ => return None,
    })
}

/// Returns the frame of a page for people who have not signed in.
pub(super) fn bare<'a>(title: &'static str, problem: Option<&'a str>) -> Page<'a> {
    Page {
        frame: Frame {
            base_path: "/cabinet",
            problem,
            ..Frame::bare(title, None)
        },
        role: None,
        account: "",
        accounts: &[],
    }
}

#[derive(Template)]
#[template(path = "cabinet_told.html")]
pub(super) struct MessageHtml<'a> {
    pub(super) page: Page<'a>,
}

/// Shows a message to a person who has not signed in.
pub(super) fn message_page(status: StatusCode, problem: &str) -> Answer {
    let page = bare(english("Not done"), Some(problem));
    written(status, &MessageHtml { page })
}
