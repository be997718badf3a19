//! The list of planted bugs, each with the contract test that must find it.

macro_rules! bugs {
    ($($bug:ident: $promise:ident;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Bug {
            $($bug),*
        }

        pub(super) const BUGS: &[(Bug, &str)] = &[$((Bug::$bug, stringify!($promise))),*];
    };
}

bugs! {
    ReserveDroppedAfterTakingMoney: a_dropped_reserve_leaves_no_hold_after_its_release;
    ReserveDroppedLivesForEver: a_dropped_reserve_leaves_no_hold_after_its_expiry;
    ReserveDroppedIsGone: a_dropped_reserve_that_is_repeated_is_granted_once;
    SettleDroppedAfterTheCharge: a_dropped_settlement_that_is_repeated_charges_once;
    SettlementsDroppedAfterTheFirst: a_dropped_batch_of_settlements_that_is_repeated_charges_once;
    ReleaseDroppedBeforeMoneyReturns: a_dropped_release_that_is_repeated_frees_the_hold;
    ExtendDroppedWithoutTheHold: a_dropped_extension_does_not_end_the_hold;
    SweepDroppedBeforeMoneyReturns: a_dropped_sweep_loses_no_hold;
    SweepAlwaysFindsOne: a_dropped_sweep_loses_no_hold;
    AdjustDroppedAfterTakingMoney: a_dropped_adjustment_that_is_repeated_counts_once;
    AdjustDroppedWithoutTheHold: a_dropped_adjustment_leaves_no_hold_after_its_call_ends;
    GrowthChecksBeforeItLocks: holds_grow_by_several_threads_only_up_to_the_free_money;
    AdjustChecksBeforeItLocks: a_concurrent_adjustment_and_settlement_lose_no_money;
    AdjustKeepsTheMoney: a_smaller_hold_frees_money_at_once;
    AdjustNeedsAnAmount: a_smaller_hold_frees_money_at_once;
    GrowthIsNotChecked: a_hold_grows_only_into_free_money;
    GrowthCountsItsOwnHold: a_hold_grows_only_into_free_money;
    GrowthIsGrantedInPart: a_hold_grows_only_into_free_money;
    RefusedGrowthTakesMoney: a_hold_grows_only_into_free_money;
    ExpiredHoldsKeepOthersSmall: an_expired_hold_does_not_keep_another_from_growing;
    OlderAdjustmentCounts: an_older_adjustment_changes_nothing;
    AdjustedHoldIsAnother: an_older_adjustment_changes_nothing;
    AdjustHoldsAgain: an_ended_hold_is_not_adjusted;
    AnotherKeyAdjusts: an_ended_hold_is_not_adjusted;
    TheFirstHoldPays: a_cost_is_charged_up_to_the_adjusted_hold_and_free_money;
    ReserveChecksBeforeItLocks: holds_by_several_threads_are_granted_only_up_to_the_free_money;
    RepeatIsCheckedBeforeTheLock: a_hold_sent_by_two_threads_is_granted_once;
    SettleChecksBeforeItLocks: a_call_settled_by_two_threads_is_charged_once;
    ReleaseChecksBeforeItLocks: only_one_of_a_concurrent_settlement_and_release_takes_effect;
    ReserveAwaitsAfterTheCheck: concurrent_holds_are_granted_only_up_to_the_free_money;
    LeastIsIgnored: a_reserve_grants_between_the_least_and_the_wanted_amount;
    AllOrNothing: a_reserve_grants_between_the_least_and_the_wanted_amount;
    EachKeyHasTheWholeBalance: holds_of_all_keys_count_against_the_account;
    OpenHoldsAreNotCounted: holds_of_all_keys_count_against_the_account;
    RepeatedHoldTakesTwice: a_repeated_reserve_is_granted_once;
    AnotherHoldUnderTheSameNumber: a_repeated_reserve_is_granted_once;
    EndedNumberHoldsAgain: a_reserve_for_an_ended_call_holds_nothing;
    HeldMoneyCountsAsSpent: an_account_is_empty_only_without_posted_money;
    AnyKeyOfAnyAccount: a_key_cannot_hold_money_of_another_account;
    TheHoldIsCharged: a_settlement_charges_the_cost_and_frees_the_hold;
    TheHoldIsKept: a_settlement_charges_the_cost_and_frees_the_hold;
    CostIsCutToTheHold: a_cost_beyond_the_hold_takes_free_money;
    CostTakesOtherHolds: a_cost_beyond_the_hold_takes_free_money;
    LossIsForgotten: a_cost_beyond_the_hold_takes_free_money;
    RepeatedSettlementCharges: a_repeated_settlement_gets_the_first_result;
    AnswersInAnotherOrder: settlements_of_one_batch_are_answered_in_order;
    ReleaseRefundsASettledCall: a_repeated_settlement_gets_the_first_result;
    ReleaseOfAnUnknownCallIsForgotten: a_release_costs_nothing_and_blocks_later_requests_of_its_call;
    EverySecondReleaseIsIgnored: a_release_costs_nothing_and_blocks_later_requests_of_its_call;
    SweepEndsEveryHold: holds_end_by_themselves_after_their_expiry;
    ExtendChangesNothing: holds_end_by_themselves_after_their_expiry;
    ExpiredHoldsBlock: an_expired_hold_blocks_no_other_hold;
    ExpiredHoldIsNotCharged: an_expired_hold_is_settled_late_once;
    LostHoldIsNotCharged: a_call_without_a_hold_is_charged_by_force_while_fresh_and_is_stale_later;
    OldNumberIsCharged: a_call_without_a_hold_is_charged_by_force_while_fresh_and_is_stale_later;
    AnotherKeySettles: a_settlement_by_a_key_without_the_hold_charges_nothing;
    MissingAccountIsAnError: a_settlement_by_a_key_without_the_hold_charges_nothing;
}
