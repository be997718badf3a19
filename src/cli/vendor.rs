//! `tollgate vendor`: one call of the admin API per command, and how its answer is printed.

use std::path::PathBuf;

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, facts, rows, table},
    vendor_add::vendor_add,
    vendor_test::vendor_test,
};
use crate::{admin::path_segment, config::sections::VendorArgs};

#[derive(Debug, Subcommand)]
pub(super) enum VendorCommand {
    /// List vendors by route: state, failures in a row, calls in flight, time to the first byte, last error
    #[command(
        after_help = "A route is answering, untried (no call yet), failing (it never answered), shut after failures \
                      (until shut until) for calls that have another, trying one call as a test, resting because the vendor requested it with a 429 or has \
                      no such model (until rests until), or disabled with its vendor.\n\n\
                      Example:\n  tollgate vendor list --json | jq '.vendors[].routes[] | select(.state != \"answering\")'"
    )]
    List,
    /// Write a vendor and its models from a preset into a configuration file
    ///
    /// Appends `[[vendor]]` and `[[model]]` sections; the rest of the file stays as it is. The result is checked before it
    /// replaces the file; a running gateway reads it by itself. The key stays in a variable or a file. Needs no running
    /// gateway.
    #[command(
        after_help = "Examples:\n  tollgate vendor add deepseek --config tollgate.toml\n  \
                      tollgate vendor add openai --name openai-eu --url https://eu.api.openai.com/v1 --key-env OPENAI_EU_KEY \
                      --models gpt-5.4,gpt-5.4-mini --config tollgate.toml\n  \
                      tollgate vendor add vllm --models qwen3 --rub-mtok 20,60 --config tollgate.toml"
    )]
    Add {
        /// The preset: `tollgate preset list` lists them
        preset: String,
        #[command(flatten)]
        args: Box<VendorArgs>,
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Call a vendor with the settings of a file, and print what came, its usage and its price
    ///
    /// Makes one plain call and one stream with at most 16 tokens of output, which the vendor bills. Reads secrets from
    /// the environment and files as `serve` would; needs no running gateway. Exit 1 if a call failed, with what to mend.
    #[command(
        after_help = "Example:\n  tollgate vendor test deepseek --config /etc/tollgate/tollgate.toml"
    )]
    Test {
        /// The vendor's name in the configuration
        vendor: String,
        /// A model that has a route to the vendor, by its own or the vendor's name; by default the first one
        model: Option<String>,
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Send the vendor no new calls; running ones end
    ///
    /// Applies to the node that answers, until it is restarted; a reload keeps it. To remove a vendor for good, remove
    /// it from the configuration.
    #[command(after_help = "Example:\n  tollgate vendor disable openai-eu")]
    Disable {
        /// The vendor's name in the configuration
        vendor: String,
    },
    /// Send calls to a disabled vendor again
    #[command(after_help = "Example:\n  tollgate vendor enable openai-eu")]
    Enable {
        /// The vendor's name in the configuration
        vendor: String,
    },
}

/// Columns of a list of routes, including the columns of each route's vendor.
const ROUTE_ROW: &[Cell] = &[
    Cell::text("vendor", "/vendor/name"),
    Cell::text("status", "/vendor/status"),
    Cell::text("model", "/route/model"),
    Cell::text("state", "/route/state"),
    Cell::number("failures", "/route/failures"),
    Cell::number("in flight", "/route/in_flight"),
    Cell::number("ms", "/route/ewma_ms"),
    Cell::text("shut until", "/route/shut_until"),
    Cell::text("rests until", "/route/rests_until"),
    Cell::text("last error", "/route/last_error/at"),
    Cell::text("which was", "/route/last_error/text"),
];

const VENDOR: &[Cell] = &[
    Cell::text("vendor", "/name"),
    Cell::text("status", "/status"),
    Cell::number("in flight", "/in_flight"),
    Cell::number("at most", "/connections_max"),
    Cell::number("keys", "/keys"),
    Cell::number("keys parked", "/keys_parked"),
];

pub(super) async fn vendor(admin: &AdminArgs, command: VendorCommand) -> Result<(), Failure> {
    let (name, status) = match command {
        VendorCommand::List => {
            let answer = Client::new(admin)?
                .call(Method::GET, "/admin/v1/vendors", None)
                .await?;
            return show::print(admin.json, &answer, |answer| {
                table(ROUTE_ROW, &route_rows(answer))
            });
        }
        VendorCommand::Add {
            preset,
            args,
            config,
        } => return vendor_add(&preset, &args, &config, admin.json),
        VendorCommand::Test {
            vendor,
            model,
            config,
        } => return vendor_test(&config, &vendor, model.as_deref(), admin.json).await,
        VendorCommand::Disable { vendor } => (vendor, "disabled"),
        VendorCommand::Enable { vendor } => (vendor, "active"),
    };
    let path = format!("/admin/v1/vendors/{}", path_segment(&name));
    let answer = Client::new(admin)?
        .call(Method::PATCH, &path, Some(json!({"status": status})))
        .await?;
    show::print(admin.json, &answer, |answer| facts(VENDOR, answer))?;
    if status == "disabled" && !admin.json {
        eprintln!(
            "{name} gets no new calls from this node; calls in flight run to their ends. \
             To put it back: tollgate vendor enable {name}"
        );
    }
    Ok(())
}

/// Returns one row per route; the facts of a vendor are repeated in the rows of all its routes.
fn route_rows(answer: &Value) -> Vec<Value> {
    let vendors = rows(answer, "vendors").iter();
    vendors
        .flat_map(|vendor| {
            let routes = rows(vendor, "routes").iter();
            routes.map(move |route| json!({"vendor": vendor, "route": route}))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_list_has_a_row_per_route() {
        let route = |model: &str, state: &str, last_error: Value| {
            json!({
                "model": model, "state": state, "failures": 0, "in_flight": 2, "ewma_ms": 400,
                "shut_until": null, "rests_until": null, "last_error": last_error,
            })
        };
        let error =
            json!({ "at": "2027-01-31T00:00:00Z", "status": 404, "text": "model not found (404)" });
        let routes = [
            route("m-1", "answering", error),
            route("m-2", "shut", Value::Null),
        ];
        let answer = json!({ "vendors": [
            { "name": "a", "status": "active", "routes": routes },
            { "name": "b", "status": "disabled", "routes": [] },
        ] });
        assert_eq!(
            table(ROUTE_ROW, &route_rows(&answer)),
            "VENDOR  STATUS  MODEL  STATE      FAILURES  IN FLIGHT   MS  SHUT UNTIL  RESTS UNTIL  LAST ERROR            WHICH WAS\n\
             a       active  m-1    answering         0          2  400  -           -            2027-01-31T00:00:00Z  model not found (404)\n\
             a       active  m-2    shut              0          2  400  -           -            -                     -\n"
        );
    }
}
