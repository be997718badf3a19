use clap::CommandFactory;

use super::*;
use crate::config::testing::rows;

fn parsed(line: &str) -> Result<Command, clap::Error> {
    Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
}

#[test]
fn command_line_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_has_a_summary_and_an_example() {
    fn walk(command: &clap::Command) {
        assert!(
            command.get_about().is_some(),
            "{}: no summary",
            command.get_name()
        );
        let example = command
            .get_after_help()
            .is_some_and(|help| help.to_string().contains("tollgate "));
        assert!(example, "{}: no example", command.get_name());
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{} {}: no help",
                command.get_name(),
                argument.get_id()
            );
        }
        command.get_subcommands().for_each(walk);
    }
    walk(&Cli::command());
}

#[test]
fn documented_commands_are_accepted() {
    for line in [
        "tollgate demo",
        "tollgate demo --listen 127.0.0.1:0",
        "tollgate demo --vendor-only",
        "tollgate serve --config f",
        "tollgate check --config f --json",
        "tollgate schema",
        "tollgate account create acme --name Acme",
        "tollgate account list",
        "tollgate account show acme",
        "tollgate account set acme --name Acme",
        "tollgate account suspend acme",
        "tollgate account resume acme",
        "tollgate account alert acme",
        "tollgate account alert acme --at 1000 --at 200.50 --json",
        "tollgate account alert acme --key k1 --none",
        "tollgate account alert acme --group support --at 5",
        "tollgate event list",
        "tollgate event list --after 0 --limit 10 --account acme --kind top_up,debt --follow --json",
        "tollgate event receivers --json",
        "tollgate event webhooks",
        "tollgate event dead crm",
        "tollgate event replay crm 17 18",
        "tollgate event replay crm --dead",
        "tollgate event stop crm",
        "tollgate event resume crm",
        "tollgate topup acme 100.50 --id p1",
        "tollgate adjust acme -12.50 --id a1 --reason refund",
        "tollgate adjust acme 12.50 --id a1 --reason refund",
        "tollgate group create acme team --ceiling-day 5",
        "tollgate group update acme team --no-ceiling-month",
        "tollgate group remove acme team",
        "tollgate member add acme anna@acme.example --role finance",
        "tollgate member list acme",
        "tollgate code create --amount 500 --opens-account --uses 20 --expires 2027-01-31",
        "tollgate code list --json",
        "tollgate code remove 0123456789abcdef01234567",
        "tollgate member remove acme anna@acme.example",
        "tollgate key create acme --name n --ceiling 5 --model a --model b --address 10.0.0.0/8 \
         --address ::1 --expires 2027-01-31 --requests-per-second 5",
        "tollgate key create acme --ceiling-month 50.5 --ceiling-day 5 --requests-per-minute 60 \
         --tokens-per-minute 1000000000",
        "tollgate key list acme",
        "tollgate key show k1",
        "tollgate key disable k1",
        "tollgate key enable k1",
        "tollgate key delete k1",
        "tollgate key set k1 --no-ceiling --no-expiry --any-model --any-address --any-rate",
        "tollgate key set k1 --no-ceiling-month --no-ceiling-day --no-requests-per-minute \
         --no-tokens-per-minute",
        "tollgate receipt 0190163d-8694-739b-aea5-966c26f8ad91",
        "tollgate usage",
        "tollgate usage --account acme --key k1 --model m --session s-1 --endpoint messages --since 2026-01-31 \
         --until 2026-02-01T00:00:00Z --by day,account,key,session,endpoint,model --format csv",
        "tollgate usage --json",
        "tollgate statement acme --month 2026-11",
        "tollgate statement acme --month 2026-11 --format csv --output -",
        "tollgate statement acme --month 2026-11 --verify f --json",
        "tollgate invoice acme 1000.50",
        "tollgate invoice acme 1000 --date 2026-11-29 --format pdf --output -",
        "tollgate export",
        "tollgate export --account acme --output f --json",
        "tollgate lease list",
        "tollgate lease list --account acme --json",
        "tollgate payment create acme 5000",
        "tollgate payment create acme 5000.50 --provider yookassa --email a@b.example --id \
         019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90 --json",
        "tollgate payment auto",
        "tollgate payment auto acme",
        "tollgate payment auto acme --below 500 --amount 2000 --month-max 20000 --provider stripe --email a@b.example \
         --id 019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90 --json",
        "tollgate payment auto acme --remove",
        "tollgate payment auto acme --resume",
        "tollgate payment list",
        "tollgate payment list --account acme --state open",
        "tollgate payment check 019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90",
        "tollgate vendor list",
        "tollgate vendor add deepseek --config f",
        "tollgate vendor add gigachat --name sber --key-file k --ca-file c --url https://h --models a,b=c \
         --usdt-mtok 0.72,0.72 --output-tokens-max 100 --config f --json",
        "tollgate init",
        "tollgate init --dir d --vendor deepseek --key-env KEY --listen 0.0.0.0:80 --rate 90.50 --multiplier 1.2",
        "tollgate init --vendor openai --rate market",
        "tollgate vendor disable openai-eu",
        "tollgate vendor enable openai-eu",
        "tollgate prices diff --config f",
        "tollgate prices apply --from map.json --config f --json",
        "tollgate audit",
        "tollgate audit --export f",
        "tollgate audit --export -",
        "tollgate receipt (0190163d-8694-739b-aea5-966c26f8ad91)",
        "tollgate reconcile --vendor openai --file usage.json",
        "tollgate reconcile --vendor a,b --vendor c --file - --file f --tolerance 0.5 --config c --route m=n \
         --since 2026-11-01 --until 2026-12-01 --export e --json",
        "tollgate import keys.csv",
        "tollgate import keys.csv --dry-run --keys-out made.csv --json",
        "tollgate ledger copy --from sqlite:a.db --to redis://h:6379/0",
        "tollgate ledger copy --from ${FROM} --to sqlite:b.db --wait 960 --json",
        "tollgate ledger copy --from redis://h --to redis-cluster://a,b --release",
        "tollgate health --url http://127.0.0.1:8081 --wait 10",
        "tollgate completions bash",
        "tollgate completions fish",
        "tollgate man --out dir",
    ] {
        assert!(
            parsed(line).is_ok(),
            "{line}: {:?}",
            parsed(line).err().map(|error| error.to_string())
        );
    }
}

#[test]
fn command_line_errors_are_found_before_any_request() {
    for [line, says] in rows(
        r#"
        tollgate topup acme 100 | --id
        tollgate topup acme 1,5 --id p1 | not a decimal number
        tollgate topup acme 0.0000001 --id p1 | six digits
        tollgate topup a/b 1 --id p1 | an id must have
        tollgate topup acme -5 --id p1 | tollgate adjust ACCOUNT -5 --id ID --reason TEXT
        tollgate topup acme 0 --id p1 | '<RUBLES>': a payment is 0.000001 to 9007199254.740991 rubles\n
        tollgate adjust acme 1 --id a1 | --reason
        tollgate key create acme --address 10.0.0.0/99 | 203.0.113.0/24
        tollgate key create acme --address 10.0.0.5/8 | 10.0.0.0/8
        tollgate key create acme --expires soon | 2027-01-31
        tollgate account set acme | --name
        tollgate key set k1 --ceiling-day 5 --no-ceiling-day | cannot be used with
        tollgate key create acme --tokens-per-minute 0 | 1..=1000000000
        tollgate key create acme --requests-per-second 0 | 1..=1000000
        tollgate key set k1 --ceiling 5 --no-ceiling | cannot be used with
        tollgate key set k1 --model m --any-model | cannot be used with
        tollgate audit --admin-key secret | unexpected argument
        tollgate receipt 17 | looks like 0190163d-
        tollgate ledger copy --from sqlite:a --to sqlite:b --wait 1 --release | cannot be used with
        tollgate completions tcsh | tcsh
        tollgate usage --by week | week
        tollgate statement acme | --month
        tollgate statement acme --month 11.2026 | a month like 2026-11
        tollgate statement acme --month 2026-11 --verify f --format csv | cannot be used with
        tollgate reconcile --vendor v | --file
        tollgate reconcile --vendor v --file f --tolerance 1% | percentage
        tollgate reconcile --vendor v --file f --since 2026-11-01T10:00:00Z | not a day like
        tollgate usage --since 31.01.2026 | 2027-01-31
        tollgate usage --format csv --json | cannot be used with
        tollgate payment create acme 0 | in whole kopecks
        tollgate payment check 17 | must be a UUID
        tollgate payment auto acme --below 500 | --amount
        tollgate payment auto --remove | <ACCOUNT>
        tollgate payment auto acme --remove --resume | cannot be used with
        tollgate vendor disable | <VENDOR>
        tollgate vendor add deepseek | --config
        tollgate vendor add a --key-env K --key-file f --config c | cannot be used with
        tollgate vendor add a --usdt-mtok 0,30 1,20 --config c | unexpected argument
        tollgate vendor add a --usdt-mtok 5 --config c | like 0.30,1.20
        tollgate init --rate 90,5 | like 90.50, or the word market
        tollgate init --listen 8080 | invalid socket address
        tollgate account alert acme --at 5 --none | cannot be used with
        tollgate event list --limit 1001 | 1..=1000
        tollgate event replay crm | <PLACE>
        tollgate event replay crm 1 --dead | cannot be used with
    "#,
    ) {
        let error = parsed(line).unwrap_err();
        assert!(
            error.use_stderr() && error.to_string().contains(says),
            "{line}: {error}"
        );
    }
}

#[test]
fn connection_flags_may_be_before_or_after_a_subcommand() {
    for line in [
        "tollgate account --json --admin-url http://h list",
        "tollgate account list --json --admin-url http://h",
    ] {
        let Ok(Command::Account(Subcommands { admin, .. })) = parsed(line) else {
            panic!("{line}")
        };
        let url = admin.admin_url.as_deref();
        assert!(admin.json && url == Some("http://h"), "{line}");
    }
}

#[test]
fn help_lists_the_options_of_a_command_before_the_common_options() {
    let mut cli = Cli::command();
    cli.build();
    let key = cli.find_subcommand_mut("key").unwrap();
    let create = key.find_subcommand_mut("create").unwrap();
    let help = create.render_help().to_string();
    let lines = help
        .lines()
        .take_while(|line| *line != "Examples:")
        .map(|line| line.trim_start().trim_start_matches("-h, "));
    let options: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix("--")?.split(' ').next())
        .collect();
    assert_eq!(options.first(), Some(&"owner"), "{help}");
    let last = [
        "growing-holds",
        "admin-url",
        "admin-key-file",
        "json",
        "help",
    ];
    assert!(options.ends_with(&last), "{help}");
}

#[tokio::test]
async fn error_about_an_invalid_amount_states_the_rule_of_its_command() {
    for [line, says] in rows(
        r#"
        tollgate account alert acme --at -5 | a level must be more than 0 rubles
        tollgate payment create b3 0 | 0.01 rubles or more, in whole kopecks
        tollgate payment create b3 -5 | 0.01 rubles or more, in whole kopecks
        tollgate payment create b3 0.001 | 0.01 rubles or more, in whole kopecks
        tollgate payment auto b3 --below -1 --amount 5 --month-max 9 | 0.01 rubles or more, in whole kopecks
    "#,
    ) {
        let refused = parsed(line).unwrap_err().to_string();
        assert!(refused.contains(says), "{line}: {refused}");
        assert!(!refused.contains("adjust"), "{line}: {refused}");
    }
    let refused = parsed("tollgate usage --by day,account,day")
        .unwrap()
        .run()
        .await;
    assert_eq!(
        refused.unwrap_err().text(),
        "--by: day is given twice; leave one out"
    );
}

#[test]
fn key_given_as_an_id_is_refused_without_being_printed() {
    let key = tollgate_layers::auth::SecretKey::generate();
    let secret = key.expose();
    for line in [
        "tollgate key show",
        "tollgate key disable",
        "tollgate key enable",
        "tollgate key delete",
        "tollgate key set --any-model",
        "tollgate usage --key",
        "tollgate account alert acme --key",
    ] {
        let refused = parsed(&format!("{line} {secret}")).unwrap_err().to_string();
        assert!(refused.contains("tollgate key list"), "{line}: {refused}");
        assert!(!refused.contains(&secret[3..]), "{line}");
    }
    let refused = parsed("tollgate key show k/1").unwrap_err().to_string();
    assert!(refused.contains("an id must have"), "{refused}");
}
