//! A gateway with several scripted vendors for each model.

use tollgate::demo::vendor::ScriptedVendor;

use crate::prelude::*;

/// The scripted vendors of each model. Number 0 is the vendor of the harness.
pub struct Fleet {
    pub world: World,
    pub others: Vec<ScriptedVendor>,
}

impl Fleet {
    /// Starts a gateway with this number of vendors per model. `route` returns further lines for the route to a vendor,
    /// for example `priority = 1`. `vendor` returns further lines for the vendor.
    pub async fn start(
        setup: Setup,
        count: usize,
        route: impl Fn(usize) -> String,
        vendor: impl Fn(usize) -> String,
    ) -> Self {
        let mut others = Vec::new();
        for _ in 1..count {
            others.push(ScriptedVendor::start().await.unwrap());
        }
        let mut ours = Setup {
            ledger: setup.ledger,
            edits: Vec::new(),
            file: None,
        };
        for op in BOTH {
            let (format, model) = (op.model(), op.vendor_model());
            let routes: Vec<String> = (0..count)
                .map(|n| {
                    let more = match route(n) {
                        more if more.is_empty() => more,
                        more => format!(", {more}"),
                    };
                    format!(
                        "{{ vendor = \"{}\", model = \"{model}\"{more} }}",
                        Self::name(op, n)
                    )
                })
                .collect();
            let blocks: Vec<String> = others
                .iter()
                .enumerate()
                .map(|(index, other)| {
                    let path = if op == Op::Chat { "/v1" } else { "" };
                    format!(
                        "[[vendor]]\nname = \"{}\"\nformat = \"{format}\"\nurl = \"http://{}{path}\"\n\
                         key = \"${{VENDOR_KEY}}\"\n{}\n",
                        Self::name(op, index + 1),
                        other.address(),
                        vendor(index + 1)
                    )
                })
                .collect();
            let begin = format!("[[model]]\nid = \"{format}\"");
            ours = ours
                .edit(
                    &format!(
                        "routes = [ {{ vendor = \"{format}-vendor\", model = \"{model}\" }} ]"
                    ),
                    &format!("routes = [ {} ]", routes.join(", ")),
                )
                .edit(
                    &format!("name = \"{format}-vendor\"\n"),
                    &format!("name = \"{format}-vendor\"\n{}\n", vendor(0)),
                )
                .edit(&begin, &format!("{}{begin}", blocks.concat()));
        }
        ours.edits.extend(setup.edits);
        Self {
            world: ours.start().await,
            others,
        }
    }

    /// Starts a gateway with two vendors per model. Vendor 1 is called first. Vendor 0 is called if vendor 1 fails or
    /// is disabled.
    pub async fn pair(lines: &str) -> Self {
        Self::start(
            Setup::default(),
            2,
            |n| format!("priority = {}", 1 - n),
            |_| lines.to_owned(),
        )
        .await
    }

    /// Returns the configured name of vendor `n` for the model of this operation.
    pub fn name(op: Op, n: usize) -> String {
        match n {
            0 => format!("{}-vendor", op.model()),
            n => format!("{}-vendor-{n}", op.model()),
        }
    }

    pub fn vendor(&self, n: usize) -> &ScriptedVendor {
        match n {
            0 => &self.world.vendor,
            n => &self.others[n - 1],
        }
    }

    /// Returns the number of requests that a vendor has received.
    pub fn requested(&self, n: usize) -> usize {
        self.vendor(n).received().len()
    }
}
