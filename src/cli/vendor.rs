//! `tollgate vendor`: each command sends one request to the admin API and prints the response.

use std::path::PathBuf;

use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use super::{
    AdminArgs,
    failure::Failure,
    show::{Cell, facts, rows, table},
    vendor_add::vendor_add,
    vendor_test::vendor_test,
};
use crate::{config::sections::VendorArgs, text::percent::encoded};

#[derive(Debug, Subcommand)]
pub(super) enum VendorCommand {
    /// List the routes of all vendors: state, failures in a row, calls in flight, time to the first byte, last error
    #[command(after_help = "The state of a route:\n  \
                      answering  the vendor answers calls on this route\n  \
                      untried    no call has taken the route yet\n  \
                      failing    the vendor has never answered a call on this route\n  \
                      shut       after failures: until `shut until`, calls that have another route avoid this one\n  \
                      trying     the time `shut until` has passed: one call tests the route\n  \
                      resting    calls avoid this route until `rests until`: the vendor requested a pause with a 429, \
                      or does not have the model\n  \
                      disabled   the vendor is disabled\n\n\
                      Example:\n  tollgate vendor list --json | jq '.vendors[].routes[] | select(.state != \"answering\")'")]
    List,
    /// Add a vendor and its models from a preset to a configuration file
    ///
    /// Appends `[[vendor]]` and `[[model]]` sections; the rest of the file does not change. The result is checked
    /// before it replaces the file. The vendor's key stays in a variable or a file. Needs no running gateway; a running
    /// gateway reads the changed file by itself.
    #[command(
        after_help = "Examples:\n  tollgate vendor add deepseek --config tollgate.toml\n  \
                      tollgate vendor add openai --name openai-eu --url https://eu.api.openai.com/v1 --key-env OPENAI_EU_KEY \
                      --models gpt-5.4,gpt-5.4-mini --config tollgate.toml\n  \
                      tollgate vendor add vllm --models qwen3 --rub-mtok 20,60 --config tollgate.toml"
    )]
    Add {
        /// Name of the preset; `tollgate preset list` lists the presets
        preset: String,
        #[command(flatten)]
        args: Box<VendorArgs>,
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Call a vendor with the settings in a file, and print the response, its usage and its price
    ///
    /// Sends one plain call and one stream, each with at most 16 output tokens; the vendor bills both. Reads secrets
    /// from the environment and files as `serve` does. Needs no running gateway. If a call fails, exits with 1 and
    /// prints what to change.
    #[command(
        after_help = "Example:\n  tollgate vendor test deepseek --config /etc/tollgate/tollgate.toml"
    )]
    Test {
        /// The vendor's name in the configuration
        vendor: String,
        /// A model with a route to the vendor, by its catalog name or the vendor's name; default: the first such model
        model: Option<String>,
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Send no new calls to a vendor; its calls in flight run to their end
    ///
    /// The vendor is disabled only at the node that gets the command, until this node is restarted; a reload does not
    /// enable the vendor again. To remove a vendor permanently, remove it from the configuration.
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

/// Columns of the route list. The first two describe the route's vendor.
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
    Cell::text("error", "/route/last_error/text"),
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
            let text = |answer: &Value| table(ROUTE_ROW, &route_rows(answer));
            return admin
                .request(Method::GET, "/admin/v1/vendors", None, text)
                .await;
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
    let path = format!("/admin/v1/vendors/{}", encoded(&name));
    let body = Some(json!({"status": status}));
    let text = |answer: &Value| facts(VENDOR, answer);
    admin.request(Method::PATCH, &path, body, text).await?;
    if status == "disabled" && !admin.json {
        eprintln!(
            "{name} gets no new calls from this node; calls in flight run to their ends. \
             To send it calls again: tollgate vendor enable {name}"
        );
    }
    Ok(())
}

/// Returns one row per route. Each row repeats the facts of the route's vendor.
fn route_rows(answer: &Value) -> Vec<Value> {
    let of_vendor = |vendor| {
        let routes = rows(vendor, "routes").iter();
        routes.map(move |route| json!({"vendor": vendor, "route": route}))
    };
    rows(answer, "vendors").iter().flat_map(of_vendor).collect()
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
            "VENDOR  STATUS  MODEL  STATE      FAILURES  IN FLIGHT   MS  SHUT UNTIL  RESTS UNTIL  LAST ERROR            ERROR\n\
             a       active  m-1    answering         0          2  400  -           -            2027-01-31T00:00:00Z  model not found (404)\n\
             a       active  m-2    shut              0          2  400  -           -            -                     -\n"
        );
    }
}
