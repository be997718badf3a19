//! `tollgate init`: writes the files that a gateway needs, and prints the commands that lead to the first paid call.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, IsTerminal as _},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use clap::Args;
use tollgate_layers::model::ModelKind;

use super::{
    ask::{ask, ask_values, without_echo},
    failure::Failure,
    show::{self, counted},
    vendor_add::{advice, checked},
};
use crate::{
    config::{
        Config, Preset, presets,
        sections::{KEY_FILE, Sections, VendorArgs, full, preset, prices},
    },
    net::replace::replace_file,
    text::hex::hex,
};

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Folder for the configuration, the keys and the ledger; created if it does not exist
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Preset of the first vendor, for example deepseek
    #[arg(long, value_name = "PRESET")]
    vendor: Option<String>,
    #[command(flatten)]
    args: VendorArgs,
    /// Address for callers; default: 127.0.0.1:8080. The listener for operators gets the next port, on the loopback
    /// interface only
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Rubles per USDT: a fixed number, or market for public quotes from Rapira, or from CoinGecko if Rapira fails;
    /// default: market
    #[arg(long, value_parser = rate)]
    rate: Option<Rate>,
    /// Multiplier for your prices: the customers' price is the vendor's price × rubles per USDT × this number
    #[arg(long, default_value = "1.15")]
    multiplier: String,
}

/// Where the exchange rate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rate {
    Market,
    Fixed(String),
}

fn rate(text: &str) -> Result<Rate, String> {
    let is_number = text.bytes().all(|it| it.is_ascii_digit() || it == b'.');
    match text {
        "" | "market" => Ok(Rate::Market),
        number if is_number => Ok(Rate::Fixed(number.to_owned())),
        _ => Err("write a number like 90.50, or the word market".into()),
    }
}

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// The `[[rate.source]]` sections of deploy/tollgate.toml.
const MARKET: &str = r#"# Public quotes, requested in this order; nobody guarantees them. For a rate of your own: fixed = "90.50"
[[rate.source]]
url    = "https://api.rapira.net/open/market/rates"
select = "/data[symbol=USDT/RUB]/askPrice"
min = "50"                                # a rate below min or above max is rejected
max = "200"

[[rate.source]]
url    = "https://api.coingecko.com/api/v3/simple/price?ids=tether&vs_currencies=rub"
select = "/tether/rub"
min = "50"
max = "200"
"#;

/// Writes the configuration and key files, and prints the commands to run next.
///
/// # Errors
/// If a required option is missing, the folder already has a configuration, or a file cannot be written.
pub(super) fn init(mut args: InitArgs) -> Result<(), Failure> {
    let config = args.dir.join("tollgate.toml");
    if config.exists() {
        return Err(Failure::Usage(format!(
            "{0} already exists; to add a vendor to it, run `tollgate vendor add PRESET --config {0}`",
            config.display()
        )));
    }
    let (preset, key) = questions(&mut args)?;
    fs::create_dir_all(&args.dir).map_err(|error| Failure::of_file(&args.dir, &error))?;
    let mut made = Made::default();
    let admin_key = args.dir.join("admin.key");
    if !admin_key.exists() {
        made.write(&admin_key, &random_key()?)?;
    }
    if let Some(key) = key {
        let name = args.args.name.as_deref().unwrap_or(preset.name);
        let file = args.dir.join(format!("{name}.key"));
        made.write(&file, &format!("{key}\n"))?;
        args.args.key_file = Some(file);
    }
    let sections = Sections::new(preset, &args.args, &BTreeSet::new()).map_err(Failure::Usage)?;
    let service_account = args.args.check_service_account(preset);
    service_account.map_err(Failure::Usage)?;
    let in_rubles = preset.is_in_rubles() || args.args.rub_mtok.is_some();
    let text = head(&args, &admin_key, in_rubles)? + &sections.text;
    let (checked, mut missing) = checked(&text, &config)?;
    made.write(&config, &text)?;
    for warning in &checked.warnings {
        eprintln!("{}: warning: {warning}", config.display());
    }
    let models = counted(sections.models.len() as u64, "model");
    let files = made.keep();
    eprintln!(
        "\nwrote {files}, readable by you alone\nvendor {:?} with {models}, sold at the vendor's price × {}{}",
        sections.name,
        if in_rubles { "" } else { "rate × " },
        args.multiplier
    );
    eprint!("{}", advice(preset, &missing));
    eprintln!("next, in this shell (each part is explained in docs/operators.md):\n");
    missing.retain(|name| name != "TOLLGATE_ADMIN_KEY");
    show::write(&commands(&args.dir, &checked, &missing)?)
}

/// Asks for the options that the command line does not give, if standard input is a terminal. Returns the preset, and
/// the vendor's key if the user typed it.
fn questions(args: &mut InitArgs) -> Result<(&'static Preset, Option<String>), Failure> {
    let can_ask = io::stdin().is_terminal();
    let names: Vec<_> = presets().iter().map(|preset| preset.name).collect();
    let preset = match &args.vendor {
        Some(name) => preset(name).map_err(Failure::Usage)?,
        None if can_ask => ask(&format!("Vendor ({}): ", names.join(", ")), |name| {
            preset(name).map_err(Failure::Usage)
        })?,
        None => {
            let names = names.join(", ");
            return Err(Failure::Usage(format!(
                "--vendor is missing: give one of {names}"
            )));
        }
    };
    if !can_ask {
        return Ok((preset, None));
    }
    let about = &preset.about;
    let key = ask_key(preset, &mut args.args)?;
    ask_values(&mut args.args, preset)?;
    if about.models.is_empty() && args.args.models.is_empty() {
        let question =
            "Model, as the vendor names it (or ID=NAME, if your customers use another name): ";
        args.args.models = vec![ask(question, |text| match text {
            "" => Err(Failure::Usage(
                "the preset has no models: name the one to sell".into(),
            )),
            text => Ok(text.to_owned()),
        })?];
    }
    let is_priced = args.args.usdt_mtok.is_some() || args.args.rub_mtok.is_some();
    if about.models.is_empty() && !is_priced {
        let question = "Price in your contract with the vendor (USDT per million tokens: INPUT,OUTPUT, like 0.30,1.20): ";
        args.args.usdt_mtok = Some(ask(question, |text| prices(text).map_err(Failure::Usage))?);
    }
    if args.listen.is_none() {
        let question = format!("Address for callers (Enter: {LISTEN}): ");
        args.listen = Some(ask(&question, address)?);
    }
    if args.rate.is_none() {
        let question = "Rubles per USDT: a number, which stays fixed (Enter: public quotes from Rapira or, if it fails, from CoinGecko): ";
        args.rate = Some(ask(question, |text| rate(text).map_err(Failure::Usage))?);
    }
    Ok((preset, key))
}

/// Asks for the vendor's key, or for the file that contains it. Returns the key if the user typed it.
fn ask_key(preset: &Preset, args: &mut VendorArgs) -> Result<Option<String>, Failure> {
    let login = args.login.as_deref();
    let (Some(variable), None, None) = (preset.key_env(login), &args.key_env, &args.key_file)
    else {
        return Ok(None);
    };
    let title = &preset.about.title;
    let page = preset.about.key_page.as_ref().filter(|_| login.is_none());
    let page = page.map(|page| format!(" from {page}")).unwrap_or_default();
    if preset.key_setting(login).as_deref() == Some(KEY_FILE) {
        let question = format!("File with the key{page} (JSON of {title}): ");
        args.key_file = Some(ask(&question, |text| {
            let file = PathBuf::from(text);
            match file.is_file() {
                true => Ok(file),
                false => Err(Failure::Usage(format!("{text} is not a file"))),
            }
        })?);
        return Ok(None);
    }
    let question = format!(
        "Key at {title}{page} (hidden; Enter: the gateway reads it from its variable {variable}): "
    );
    let typed = without_echo(|| ask(&question, |text| Ok(text.to_owned())))?;
    Ok(Some(typed).filter(|text| !text.is_empty()))
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    match text {
        "" => Ok(LISTEN),
        text => text.parse().map_err(|_| {
            Failure::Usage("write an IP address with a port, like 0.0.0.0:8080".into())
        }),
    }
}

/// Returns 256 random bits in hexadecimal.
fn random_key() -> Result<String, Failure> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Internal(format!("the system gave no random bytes: {error}")))?;
    Ok(hex(&bytes) + "\n")
}

/// The files that this run has written. They are removed if the run fails.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    fn write(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        let is_new = !path.exists();
        replace_file(path, text.as_bytes()).map_err(|error| Failure::of_file(path, &error))?;
        if is_new {
            self.0.push(path.to_owned());
        }
        Ok(())
    }

    /// Keeps the files, because the run succeeded, and returns their names.
    fn keep(mut self) -> String {
        let files = std::mem::take(&mut self.0);
        let names: Vec<_> = files.iter().map(|it| it.display().to_string()).collect();
        names.join(", ")
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = fs::remove_file(file);
        }
    }
}

/// Returns the configuration's sections above `[[vendor]]`.
fn head(args: &InitArgs, admin_key: &Path, in_rubles: bool) -> Result<String, Failure> {
    let listen = args.listen.unwrap_or(LISTEN);
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, listen.port().wrapping_add(1)));
    let admin_key = full(admin_key).map_err(Failure::Usage)?;
    let ledger = full(&args.dir.join("tollgate.db")).map_err(Failure::Usage)?;
    let rate = match &args.rate {
        None | Some(Rate::Market) => MARKET.to_owned(),
        Some(Rate::Fixed(number)) => format!(
            "# Rubles per USDT, for vendors' prices in USDT. The rate is fixed: it changes only when you edit it here\n\
             [[rate.source]]\nfixed = \"{number}\"\n"
        ),
    };
    let quoted = |text: String| serde_json::Value::from(text).to_string();
    let tariff = match in_rubles {
        true => ("sell_rub_multiplier", "rubles"),
        false => ("sell_rate_multiplier", "USDT × rate"),
    };
    Ok(format!(
        "# Written by `tollgate init`. docs/settings.md has every setting, deploy/tollgate.toml an example of each.\n\
         listen = \"{listen}\"\n\n\
         [admin]\nlisten = \"{admin}\"\nkey = {}\n\n\
         [ledger]\nurl = {}\n\n\
         {rate}\n\
         [tariff]\n{} = {}             # your price = the vendor's price in {} × this\n\n",
        quoted(format!("file:{admin_key}")),
        quoted(format!("sqlite:{ledger}")),
        tariff.0,
        quoted(args.multiplier.clone()),
        tariff.1,
    ))
}

/// Returns the commands that lead to the first paid call, in three parts: start the gateway, create a customer, send a
/// call.
fn commands(dir: &Path, config: &Config, missing: &BTreeSet<String>) -> Result<String, Failure> {
    let models = &config.live.models;
    let chats = models.iter().filter(|model| model.kind == ModelKind::Chat);
    let cheapest = chats.min_by_key(|model| model.base.output);
    let model = cheapest.map_or_else(String::new, |model| {
        serde_json::Value::from(model.id.clone()).to_string()
    });
    let variables = missing.iter();
    let variables: String = variables
        .map(|name| format!("export {name}=...\n"))
        .collect();
    let admin = config.admin.as_ref().map(|admin| admin.listen);
    let admin = match admin {
        Some(admin) if admin.port() != 8081 => {
            format!("export TOLLGATE_ADMIN_URL=http://{admin}\n")
        }
        _ => String::new(),
    };
    let mut callers = config.listen;
    if callers.ip().is_unspecified() {
        callers.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    Ok(format!(
        r#"cd {dir} && export TOLLGATE_ADMIN_KEY=$(cat admin.key)
{variables}{admin}tollgate serve --config tollgate.toml >>tollgate.log 2>&1 &
tollgate health --wait 10

tollgate account create acme --name "Acme LLC"
tollgate topup acme 1000 --id payment-1
KEY=$(tollgate key create acme --name first | tee /dev/stderr | grep -o 'tg-[0-9A-Za-z]\{{48\}}')

curl -sS http://{callers}/v1/chat/completions -H "authorization: Bearer $KEY" -H 'content-type: application/json' \
  -d '{{"model":{model},"max_tokens":50,"messages":[{{"role":"user","content":"Hello"}}]}}'
tollgate account show acme
"#,
        dir = shell(&full(dir).map_err(Failure::Usage)?),
        model = model.replace('\'', r"'\''"),
    ))
}

/// Quotes a word for the shell, if it needs quotes.
fn shell(word: &str) -> String {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"/._-~+".contains(&it);
    match word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use clap::Parser as _;
    use tempfile::TempDir;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::config::testing::rows;

    fn run(dir: &Path, flags: &str) -> Result<String, String> {
        let line = format!("tollgate init --dir {} {flags}", dir.display());
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Init(args) = cli.command else {
            panic!("{line}")
        };
        match init(args) {
            Ok(()) => Ok(fs::read_to_string(dir.join("tollgate.toml")).unwrap()),
            Err(failure) => Err(failure.text().to_owned()),
        }
    }

    #[test]
    fn init_writes_private_files_and_a_valid_configuration() {
        let dir = TempDir::new().unwrap();
        let home = dir.path().join("new");
        let text = run(
            &home,
            "--vendor deepseek --rate 90.50 --listen 127.0.0.1:9000",
        )
        .unwrap();
        for file in ["tollgate.toml", "admin.key"] {
            let mode = fs::metadata(home.join(file)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        let key = fs::read_to_string(home.join("admin.key")).unwrap();
        assert!(
            key.trim().len() == 64 && !text.contains(key.trim()),
            "{text}"
        );
        let (config, missing) = checked(&text, &home).unwrap();
        assert_eq!(config.warnings, []);
        assert_eq!(
            missing.into_iter().collect::<Vec<_>>(),
            ["DEEPSEEK_API_KEY"]
        );
        assert_eq!(config.listen.port(), 9000);
        assert_eq!(config.admin.unwrap().listen.to_string(), "127.0.0.1:9001");
        assert_eq!(config.ledger.url.kind(), "sqlite");
        let again = run(&home, "--vendor openai").unwrap_err();
        assert!(
            again.contains("tollgate vendor add PRESET --config"),
            "{again}"
        );
    }

    #[test]
    fn failed_init_removes_the_files_that_it_wrote() {
        let dir = TempDir::new().unwrap();
        for [flags, says] in rows(
            r#"
            --vendor vllm | has no models
            --vendor yandexgpt | add --value folder=
            --vendor gigachat --multiplier many | sell_rub_multiplier
            --vendor deepseek --multiplier many | sell_rate_multiplier
            --vendor deepsek | did you mean deepseek?
            --vendor openai --key-file /no/such | cannot read /no/such
        "#,
        ) {
            let failure = run(dir.path(), flags).unwrap_err();
            assert!(failure.contains(says), "{failure}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{flags}");
        }
    }

    #[test]
    fn init_writes_the_rate_sources_of_the_example_configuration() {
        let example = include_str!("../../deploy/tollgate.toml");
        for line in MARKET.lines().filter(|it| it.starts_with(['u', 's'])) {
            assert!(example.contains(line), "{line}");
        }
    }

    #[test]
    fn init_prints_commands_that_fit_the_written_configuration() {
        let (config, missing) = {
            let dir = TempDir::new().unwrap();
            let text = run(
                dir.path(),
                "--vendor openai --rate 90 --listen 0.0.0.0:8080",
            )
            .unwrap();
            checked(&text, dir.path()).unwrap()
        };
        let text = commands(Path::new("/srv/my gateway"), &config, &missing).unwrap();
        assert!(
            text.starts_with("cd '/srv/my gateway' && export TOLLGATE_ADMIN_KEY="),
            "{text}"
        );
        assert!(
            text.contains("\nexport OPENAI_API_KEY=...\ntollgate serve"),
            "{text}"
        );
        assert!(
            text.contains("http://127.0.0.1:8080/v1") && !text.contains("embedding"),
            "{text}"
        );
    }
}
