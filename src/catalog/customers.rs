//! Customer-specific prices in a snapshot: which account pays which prices.

use std::{collections::HashMap, sync::Arc};

use foldhash::fast::FixedState;
use tollgate_layers::{key::AccountId, price::PriceList, reserve::ledger::TariffVersion};

use super::prices::{BasePrices, Markup};
use crate::config::{LiveConfig, Row};

/// The prices of one model for the customers of one price rule.
#[derive(Clone, Debug)]
pub(super) struct OwnPrices {
    pub(super) base: Arc<BasePrices>,
    pub(super) markup: Markup,
    pub(super) prices: Option<PriceList>,
}

/// Prices that apply only to some customers, looked up by account and model.
#[derive(Debug)]
pub(super) struct Customers {
    /// For each account, the indexes of its own prices, one per model. Only the operator adds accounts, so callers
    /// cannot fill the map.
    rows: HashMap<AccountId, Row, FixedState>,
    others: Row,
}

impl Customers {
    /// Creates the table; `None` if all customers pay the same prices. `add` stores customer-specific prices of a model
    /// and returns their index among the model's customer-specific prices.
    pub(super) fn new(
        config: &LiveConfig,
        version: TariffVersion,
        mut add: impl FnMut(usize, OwnPrices) -> usize,
    ) -> Option<Self> {
        let lists = &config.price_lists;
        if lists.rules.is_empty() {
            return None;
        }
        let mut slots = HashMap::new();
        for (rule, model) in lists.used() {
            let by = &lists.rules[rule];
            let own = OwnPrices {
                base: Arc::new(BasePrices::by_rule(&config.models[model], by)),
                markup: Markup {
                    tariff: by.tariff(config.tariff),
                    version: version.id,
                },
                prices: None,
            };
            slots.insert((rule, model), add(model, own));
        }
        // Accounts that share a row in the configuration also share it in this table.
        let mut made: HashMap<*const Option<usize>, Row> = HashMap::new();
        let mut placed = |row: &Row| {
            let make = || {
                let models = row.iter().enumerate();
                let slot = |(model, rule): (usize, &Option<usize>)| Some(slots[&((*rule)?, model)]);
                models.map(slot).collect()
            };
            Row::clone(made.entry(row.as_ptr()).or_insert_with(make))
        };
        let others = placed(&lists.others);
        let accounts = lists.accounts.iter();
        let rows = accounts.map(|(account, row)| (account.clone(), placed(row)));
        Some(Self {
            rows: rows.collect(),
            others,
        })
    }

    /// Returns the indexes of the account's own prices, one per model. `None` means the prices that apply to everybody.
    pub(super) fn row(&self, payer: &AccountId) -> &[Option<usize>] {
        self.rows.get(payer).unwrap_or(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tollgate_layers::{
        model::{Found, Models},
        price::{Price, Rate},
    };

    use crate::catalog::snapshot::{
        Live, RateReading,
        tests::{decimal, live_of},
    };

    const RULES: &str = r#"
        [[price_rule]]
        name = "ours"
        accounts = ["acme"]
        models = ["z-*"]
        sell_rate_multiplier = "1.050001"
        [[price_rule]]
        name = "dear"
        accounts = ["acme"]
        models = ["a-second"]
        usdt_mtok = { input = "1000000", cached_input = "1", output = "1", cache_write = "1" }
        sell_rate_multiplier = "1000"
    "#;

    fn price(live: &Live, account: &str, model: &str) -> Option<Price> {
        match live.find_model_for(model, &account.parse().unwrap()) {
            Found::Callable(_, prices) => Some((*prices.usual).clone()),
            Found::Unpriced => None,
            Found::Unknown => panic!("{model} is unknown"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn customer_price_expires_with_the_exchange_rate() {
        let live = live_of(RULES);
        assert_eq!(price(&live, "acme", "z-first"), None);
        live.set_rate(RateReading::measured(decimal("90.50")));
        let own = price(&live, "acme", "z-first").unwrap();
        // The expected price is 0.25 × 90.50 × 1.050001, rounded up once.
        assert_eq!(own.input.to_string(), "23.756273");
        assert_eq!((own.version, own.rule.as_deref()), (7, Some("ours")));
        for account in ["beta", "Acme"] {
            let usual = price(&live, account, "z-first").unwrap();
            assert_eq!(
                (usual.input.to_string(), usual.rule),
                ("26.01875".into(), None)
            );
        }
        let Found::Callable(_, usual) = live.find_model("z-first") else {
            panic!("z-first has no price");
        };
        assert_eq!(usual.usual.rule, None, "the account is in no price rule");
        tokio::time::advance(Duration::from_secs(601)).await;
        assert_eq!(price(&live, "acme", "z-first"), None);
        assert!(live.expire_rate());
        let listed = |live: &Live| {
            live.snapshot()
                .listed(&"acme".parse().unwrap())
                .any(|it| it.prices.is_some())
        };
        assert!(!listed(&live));
        live.set_rate(RateReading::measured(decimal("91")));
        assert!(price(&live, "acme", "z-first").is_some() && listed(&live));
    }

    /// If an account's agreed price is out of range, the account gets no price. It does not get the price that applies
    /// to everybody.
    #[tokio::test(start_paused = true)]
    async fn customer_has_no_price_if_the_agreed_price_is_out_of_range() {
        let live = live_of(RULES);
        live.set_rate(RateReading::fixed(decimal("100000")));
        assert_eq!(price(&live, "acme", "a-second"), None);
        assert!(price(&live, "beta", "a-second").is_some());
        assert!(price(&live, "acme", "z-first").is_some());
    }

    proptest! {
        /// The expected price is `usdt × rate × multiplier`, rounded up at the sixth digit. The multiplier is that of
        /// the customers' price rule, not of the tariff.
        #[test]
        fn customer_price_is_the_models_price_times_the_rules_multiplier(
            multiplier in 1u64..=1_000_000_000, rate in 1u64..1_000_000,
        ) {
            let text = |micro: u64| format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
            let live = live_of(&RULES.replace("1.050001", &text(multiplier)));
            live.set_rate(RateReading::fixed(decimal(&format!("{}.{:02}", rate / 100, rate % 100))));
            // The expected price is 0.25 × multiplier/10⁶ × rate/100, in micro-rubles.
            let product = u128::from(multiplier) * u128::from(rate);
            let input = Rate::new(u64::try_from(product.div_ceil(400)).unwrap());
            prop_assert_eq!(price(&live, "acme", "z-first").unwrap().input, input);
        }
    }
}
