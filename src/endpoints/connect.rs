//! Ready-made set-up of clients. `GET /v1/<service>/connect` lists the clients; `…/connect/<client>` returns a file or
//! a snippet for a client, in which only the key is missing.
//!
//! All documents are rendered once per snapshot of prices. They contain no real key. If a client can read its key from
//! the environment, its document names the variable `TOLLGATE_KEY`; otherwise the document contains the placeholder
//! [`KEY`].

use askama::Template;
use http::{
    HeaderValue, Request, Response,
    header::{CONTENT_DISPOSITION, X_CONTENT_TYPE_OPTIONS},
};
use serde::Serialize;
use serde_json::Value;
use tollgate_layers::{Error, body::AnswerBody, model::ModelKind, respond::Language};

use crate::{
    catalog::{
        documents::{CatalogView, ConnectDocuments, Document, ModelView, PublicUrls},
        snapshot::Live,
    },
    config::BaseRates,
    edge::routes::Matched,
    endpoints::{
        catalog::document,
        error::EndpointError,
        page::{self, rendered},
    },
    text::language::say,
};

/// The placeholder that the user replaces with a key.
const KEY: &str = "tg-YOUR-KEY";

/// The context window in tokens that is assumed if the model's window is unknown but the client requires a number.
const CONTEXT_TOKENS: u64 = 128_000;

/// All clients. A new client needs a row here and a template.
const CLIENTS: [Client; 10] = [
    Client {
        name: "claude-code",
        title: "Claude Code",
        format: Format::Json,
        filename: "settings.json",
        place_ru: "Сохраните как ~/.claude/settings.json (в Windows %USERPROFILE%\\.claude\\settings.json). Замените tg-YOUR-KEY \
         на ключ и запустите claude.",
        place_en: "Save as ~/.claude/settings.json (on Windows %USERPROFILE%\\.claude\\settings.json). Replace tg-YOUR-KEY \
         with your key and run claude.",
        write: |offer| rendered(&ClaudeCode { offer }),
    },
    Client {
        name: "codex",
        title: "Codex",
        format: Format::Toml,
        filename: "config.toml",
        place_ru: "Сохраните как ~/.codex/config.toml (в Windows %USERPROFILE%\\.codex\\config.toml); нужен Codex 0.156 или новее. Ключ \
         положите в переменную TOLLGATE_KEY; список моделей Codex получит по ключу.",
        place_en: "Save as ~/.codex/config.toml (on Windows %USERPROFILE%\\.codex\\config.toml), for Codex 0.156 or newer. Put \
         your key into the environment variable TOLLGATE_KEY; Codex uses the key to fetch the list of models.",
        write: |offer| rendered(&Codex { offer }),
    },
    Client {
        name: "opencode",
        title: "opencode",
        format: Format::Json,
        filename: "opencode.json",
        place_ru: "Сохраните как ~/.config/opencode/opencode.json или opencode.json в папке проекта. Ключ положите в переменную \
         TOLLGATE_KEY.",
        place_en: "Save as ~/.config/opencode/opencode.json, or as opencode.json in a project's folder. Put your key into the \
         environment variable TOLLGATE_KEY.",
        write: |offer| rendered(&Opencode { offer }),
    },
    Client {
        name: "vscode",
        title: "VS Code",
        format: Format::Json,
        filename: "chatLanguageModels.json",
        place_ru: "Для VS Code 1.122 или новее: сохраните как chatLanguageModels.json в папке пользователя (Linux ~/.config/Code/User, \
         macOS ~/Library/Application Support/Code/User, Windows %APPDATA%\\Code\\User). Этот файл открывает и \
         команда «Chat: Manage Language Models». Замените tg-YOUR-KEY на ключ.",
        place_en: "For VS Code 1.122 or newer: save as chatLanguageModels.json in the user's folder (Linux ~/.config/Code/User, \
         macOS ~/Library/Application Support/Code/User, Windows %APPDATA%\\Code\\User). The command \
         'Chat: Manage Language Models' opens this file, too. Replace tg-YOUR-KEY with your key.",
        write: |offer| rendered(&VsCode { offer }),
    },
    Client {
        name: "zed",
        title: "Zed",
        format: Format::Json,
        filename: "settings.json",
        place_ru: "Сохраните как ~/.config/zed/settings.json (в Windows %APPDATA%\\Zed\\settings.json). Ключ в этот файл не пишите: введите \
         его в настройках LLM Providers или положите в переменную {variable}.",
        place_en: "Save as ~/.config/zed/settings.json (on Windows %APPDATA%\\Zed\\settings.json). Do not write your key into this \
         file: enter the key in the settings under LLM Providers, or put it into the environment variable {variable}.",
        write: |offer| rendered(&Zed { offer }),
    },
    Client {
        name: "continue",
        title: "Continue",
        format: Format::Yaml,
        filename: "config.yaml",
        place_ru: "Сохраните как ~/.continue/config.yaml (в Windows %USERPROFILE%\\.continue\\config.yaml). Ключ запишите строкой \
         TOLLGATE_KEY=… в файл .env в той же папке; программе cn хватит и переменной TOLLGATE_KEY.",
        place_en: "Save as ~/.continue/config.yaml (on Windows %USERPROFILE%\\.continue\\config.yaml). Write your key as a line \
         TOLLGATE_KEY=… into the file .env in the same folder. For the program cn, the environment variable \
         TOLLGATE_KEY is enough.",
        write: |offer| rendered(&Continue { offer }),
    },
    Client {
        name: "open-webui",
        title: "Open WebUI",
        format: Format::Yaml,
        filename: "compose.yaml",
        place_ru: "Сохраните как compose.yaml в любой папке и запустите там docker compose up -d. Ключ положите \
         в переменную TOLLGATE_KEY; список моделей Open WebUI получит по ключу. Без Docker задайте те же \
         переменные перед open-webui serve.",
        place_en: "Save as compose.yaml in any folder and run docker compose up -d there. Put your key into the environment \
         variable TOLLGATE_KEY; Open WebUI uses the key to fetch the list of models. Without Docker, set the same \
         variables for open-webui serve.",
        write: |offer| rendered(&OpenWebUi { offer }),
    },
    Client {
        name: "langchain",
        title: "LangChain",
        format: Format::Python,
        filename: "ask_langchain.py",
        place_ru: "Вставьте в программу на Python 3.10 или новее. Установите пакеты: pip install langchain-openai langchain-anthropic. Ключ \
         положите в переменную TOLLGATE_KEY.",
        place_en: "Paste into a program for Python 3.10 or newer. Install the packages: pip install langchain-openai \
         langchain-anthropic. Put your key into the environment variable TOLLGATE_KEY.",
        write: |offer| rendered(&LangChain { offer }),
    },
    Client {
        name: "n8n",
        title: "n8n",
        format: Format::Json,
        filename: "n8n-credentials.json",
        place_ru: "Замените tg-YOUR-KEY на ключ и выполните n8n import:credentials --input=n8n-credentials.json. Или в \
         самом n8n: Credentials → Create → OpenAI, поля API Key и Base URL из файла. Список моделей узел \
         OpenAI Chat Model получит по ключу; Use Responses API в нём выключите.",
        place_en: "Replace tg-YOUR-KEY with your key and run n8n import:credentials --input=n8n-credentials.json. Or in \
         n8n: Credentials → Create → OpenAI, with the file's API Key and Base URL. The node OpenAI Chat Model \
         uses the key to fetch the list of models; switch off Use Responses API in this node.",
        write: |offer| rendered(&N8n { offer }),
    },
    Client {
        name: "curl",
        title: "curl",
        format: Format::Shell,
        filename: "ask.sh",
        place_ru: "Выполните этот скрипт в терминале. Ключ положите в переменную TOLLGATE_KEY.",
        place_en: "Run this script in a terminal. Put your key into the environment variable TOLLGATE_KEY.",
        write: |offer| rendered(&Curl { offer }),
    },
];

struct Client {
    /// The client's name in the path `…/connect/<client>`.
    name: &'static str,
    title: &'static str,
    format: Format,
    filename: &'static str,
    /// Where the user saves the document and what to do then, in Russian and in English. `{variable}` is replaced by
    /// the environment variable from which Zed reads the key.
    place_ru: &'static str,
    place_en: &'static str,
    write: for<'a> fn(&Offer<'a>) -> String,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Json,
    Yaml,
    Toml,
    Python,
    Shell,
}

impl Format {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Toml => "application/toml",
            Self::Python | Self::Shell => "text/plain; charset=utf-8",
        }
    }

    /// Returns the value of `content-disposition`: files are downloaded, snippets are displayed.
    const fn disposition(self) -> &'static str {
        match self {
            Self::Json | Self::Yaml | Self::Toml => "attachment",
            Self::Python | Self::Shell => "inline",
        }
    }
}

/// Renders the documents for all clients.
pub(crate) fn render(view: &CatalogView<'_>) -> ConnectDocuments {
    let urls = view.urls;
    let offer = Offer::new(urls, &view.models);
    let variable = zed_variable(&urls.service);
    let base = format!("{}/{}/connect", urls.base_url, urls.service);
    let entries: Vec<Entry> = CLIENTS
        .iter()
        .map(|client| {
            let place = |language| {
                let place = say(language, client.place_ru, client.place_en);
                place.replace("{variable}", &variable)
            };
            Entry {
                client: client.name,
                title: client.title,
                format: client.format,
                filename: client.filename,
                place: place(urls.language),
                place_ru: place(Language::Ru),
                place_en: place(Language::En),
                url: format!("{base}/{}", client.name),
                text: (client.write)(&offer),
            }
        })
        .collect();
    let index = serde_json::to_vec(&Index { clients: &entries });
    let index = index.expect("serializing strings to JSON cannot fail");
    let html = rendered(&ConnectHtml {
        offer: &offer,
        clients: &entries,
    });
    let clients = entries.into_iter();
    let clients = clients.map(|entry| Document::new(entry.text.into()));
    ConnectDocuments {
        index: Document::new(index.into()),
        html: Document::new(html.into()),
        clients: clients.collect(),
    }
}

/// Answers with the current snapshot's list of clients, or with the document for one client.
pub(crate) fn answer<B>(live: &Live, req: &Request<B>) -> Result<Response<AnswerBody>, Error> {
    let snapshot = live.snapshot();
    let shown = snapshot.documents();
    let connect = &shown.connect;
    let Some(name) = Matched::from_request(req)?.parameter.as_deref() else {
        if page::is_asked_for(req.headers()) {
            return document(&connect.html, page::HTML, shown.priced, req).map(page::for_browsers);
        }
        let res = document(&connect.index, "application/json", shown.priced, req)?;
        return Ok(page::varied(res, "accept"));
    };
    let mut files = CLIENTS.iter().zip(&connect.clients);
    let Some((client, file)) = files.find(|(client, _)| client.name == name) else {
        return Err(Error::custom(EndpointError::ClientUnknown {
            client: name.to_owned(),
            known: CLIENTS.map(|client| client.name).join(", "),
        }));
    };
    let mut res = document(file, client.format.content_type(), shown.priced, req)?;
    let (shown_as, filename) = (client.format.disposition(), client.filename);
    let disposition = format!("{shown_as}; filename=\"{filename}\"");
    let headers = res.headers_mut();
    headers.insert(
        CONTENT_DISPOSITION,
        HeaderValue::from_str(&disposition).expect("file names are valid header values"),
    );
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(res)
}

#[derive(Serialize)]
struct Index<'a> {
    clients: &'a [Entry],
}

#[derive(Serialize)]
struct Entry {
    client: &'static str,
    title: &'static str,
    format: Format,
    filename: &'static str,
    #[serde(rename = "where")]
    place: String,
    #[serde(rename = "where_ru")]
    place_ru: String,
    #[serde(rename = "where_en")]
    place_en: String,
    url: String,
    #[serde(skip)]
    text: String,
}

/// The values that the templates insert, quoted as each template's language requires.
struct Offer<'a> {
    front: &'a PublicUrls,
    models: Vec<Row>,
    /// The model that clients use if the user has not chosen one.
    first: String,
    /// The first embedding model, if there is one.
    embedding: Option<String>,
    opus: String,
    sonnet: String,
    haiku: String,
    hello: &'static str,
}

/// A model, with the values that the templates insert. Texts are JSON strings, which YAML, TOML and Python also accept.
struct Row {
    id: String,
    /// The model's context window in tokens, if it is known.
    context: Option<u64>,
    output: u64,
    usd: Option<BaseRates>,
}

impl Row {
    /// For clients that require a number, returns the model's context window, or an assumed one if it is unknown.
    fn context_assumed(&self) -> u64 {
        context_window(self.context, self.output)
    }

    /// Divides the context window into input and output, for clients that add these two numbers.
    fn parts(&self) -> (u64, u64) {
        let context = self.context_assumed();
        let output = match self.output < context {
            true => self.output,
            false => context / 2,
        };
        (context - output, output)
    }
}

/// For clients that require a number, returns the known context window, or one that is derived from the maximum output.
pub(super) fn context_window(known: Option<u64>, output: u64) -> u64 {
    known.unwrap_or_else(|| CONTEXT_TOKENS.max(output.saturating_mul(2)))
}

impl<'a> Offer<'a> {
    fn new(front: &'a PublicUrls, sold: &[ModelView<'_>]) -> Self {
        let (mut ids, mut models) = (Vec::new(), Vec::new());
        // Only the curl script calls an embedding model. All other documents are for chat clients.
        let embedding = (sold.iter()).find(|view| view.model.kind == ModelKind::Embedding);
        let is_chat = |view: &&ModelView<'_>| view.model.kind == ModelKind::Chat;
        for view in sold.iter().filter(is_chat) {
            let model = view.model;
            ids.push(model.id.as_str());
            models.push(Row {
                id: json(&model.id),
                context: model.input_tokens_max,
                output: model.output_tokens_max,
                usd: view.usd_mtok,
            });
        }
        let first = ids.first().copied().unwrap_or("…");
        let tier = |name: &str| {
            let found = ids.iter().find(|id| id.to_lowercase().contains(name));
            json(found.copied().unwrap_or(first))
        };
        Self {
            front,
            opus: tier("opus"),
            sonnet: tier("sonnet"),
            haiku: tier("haiku"),
            first: first.to_owned(),
            embedding: embedding.map(|view| view.model.id.clone()),
            models,
            hello: say(front.language, "Привет", "Hello"),
        }
    }

    fn say(&self, ru: &'static str, en: &'static str) -> &'static str {
        say(self.front.language, ru, en)
    }

    fn base_url(&self) -> String {
        json(&self.front.base_url)
    }

    fn root_url(&self) -> String {
        json(self.front.root_url())
    }

    fn service(&self) -> String {
        json(&self.front.service)
    }

    /// Returns the URL of this path below the base URL.
    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.front.base_url)
    }

    /// Writes the name of the model as `service/model`.
    fn qualified(&self) -> String {
        json(&format!("{}/{}", self.front.service, self.first))
    }

    /// Returns the body of a call in the Chat Completions or the Messages format.
    fn call(&self) -> String {
        let (model, hello) = (json(&self.first), json(self.hello));
        format!(
            r#"{{"model":{model},"max_tokens":1000,"messages":[{{"role":"user","content":{hello}}}]}}"#
        )
    }

    /// Builds the body of a call in the Responses format.
    fn responses_call(&self) -> String {
        let (model, hello) = (json(&self.first), json(self.hello));
        format!(r#"{{"model":{model},"max_output_tokens":1000,"input":{hello}}}"#)
    }

    /// Returns the body of a call of the first embedding model, if there is one.
    fn embeddings_call(&self) -> Option<String> {
        let (model, hello) = (json(self.embedding.as_deref()?), json(self.hello));
        Some(format!(r#"{{"model":{model},"input":{hello}}}"#))
    }

    /// For clients that use one value for all models, returns the smallest known context window of these models.
    fn context_min(&self) -> Option<u64> {
        self.models.iter().filter_map(|model| model.context).min()
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.models.iter().map(|model| &*model.id).collect();
        names.join(", ")
    }
}

/// Quotes a text as a JSON string.
fn json(text: &str) -> String {
    Value::from(text).to_string()
}

/// Quotes a text for a shell.
fn shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes a text for a Docker Compose file, in which a dollar sign begins a variable.
fn compose(text: &str) -> String {
    json(text).replace('$', "$$")
}

/// Returns the environment variable from which Zed reads a provider's key. Its name is the provider's name with an
/// underscore before each word and each number.
fn zed_variable(service: &str) -> String {
    let (mut name, mut before) = (String::new(), '-');
    for now in service.chars() {
        if now != '-' {
            let begins = before == '-' || before.is_ascii_digit() != now.is_ascii_digit();
            if begins && !name.is_empty() {
                name.push('_');
            }
            name.push(now.to_ascii_uppercase());
        }
        before = now;
    }
    name + "_API_KEY"
}

macro_rules! templates {
    ($($name:ident: $path:tt),* $(,)?) => {
        $(
            #[derive(Template)]
            #[template(path = $path, escape = "none", config = "src/endpoints/templates/askama.toml")]
            struct $name<'a> {
                offer: &'a Offer<'a>,
            }
        )*
    };
}

templates! {
    ClaudeCode: "connect/claude-code.json",
    Codex: "connect/codex.toml",
    Opencode: "connect/opencode.json",
    VsCode: "connect/vscode.json",
    Zed: "connect/zed.json",
    Continue: "connect/continue.yaml",
    OpenWebUi: "connect/open-webui.yaml",
    LangChain: "connect/langchain.py",
    N8n: "connect/n8n.json",
    Curl: "connect/curl.sh",
}

#[derive(Template)]
#[template(
    path = "connect/page.html",
    config = "src/endpoints/templates/askama.toml"
)]
struct ConnectHtml<'a> {
    offer: &'a Offer<'a>,
    clients: &'a [Entry],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_window_is_divided_into_input_and_output_limits() {
        for (context, output, parts) in [
            (Some(200_000), 64_000, (136_000, 64_000)),
            (Some(8_000), 8_000, (4_000, 4_000)),
            (Some(1), 8_000, (1, 0)),
            (None, 32_000, (96_000, 32_000)),
            (None, 100_000, (100_000, 100_000)),
        ] {
            let row = Row {
                id: String::new(),
                context,
                output,
                usd: None,
            };
            assert_eq!(row.parts(), parts, "{context:?} {output}");
        }
    }

    #[test]
    fn texts_in_client_setup_files_are_quoted_as_the_file_format_requires() {
        assert_eq!(shell("it's $5 `x`"), r"'it'\''s $5 `x`'");
        assert_eq!(compose("a $b \"c\""), r#""a $$b \"c\"""#);
        assert_eq!(zed_variable("acme-ai"), "ACME_AI_API_KEY");
        assert_eq!(zed_variable("acme2"), "ACME_2_API_KEY");
    }
}
