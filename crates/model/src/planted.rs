//! The bugs that can be planted in the core, by their names on the command line and in replay files.

use foreswap_core::planted::Bug;
use serde::{Deserialize, Serialize};

/// [`Bug`], which describes each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum PlantedBug {
    LostWakeUp,
    SlotFreedTwice,
    StaleWindow,
    KeptClean,
    EarlyPublish,
    UncheckedDigest,
    ForgottenCount,
    LeakedFrame,
    ForgottenStall,
    MissedDiscard,
    UnitOfTwoLeaves,
    TakenUntouched,
    CreepingLimit,
    ReplacedGuard,
    HastyLoss,
}

impl From<PlantedBug> for Bug {
    fn from(bug: PlantedBug) -> Self {
        match bug {
            PlantedBug::LostWakeUp => Bug::LostWakeUp,
            PlantedBug::SlotFreedTwice => Bug::SlotFreedTwice,
            PlantedBug::StaleWindow => Bug::StaleWindow,
            PlantedBug::KeptClean => Bug::KeptClean,
            PlantedBug::EarlyPublish => Bug::EarlyPublish,
            PlantedBug::UncheckedDigest => Bug::UncheckedDigest,
            PlantedBug::ForgottenCount => Bug::ForgottenCount,
            PlantedBug::LeakedFrame => Bug::LeakedFrame,
            PlantedBug::ForgottenStall => Bug::ForgottenStall,
            PlantedBug::MissedDiscard => Bug::MissedDiscard,
            PlantedBug::UnitOfTwoLeaves => Bug::UnitOfTwoLeaves,
            PlantedBug::TakenUntouched => Bug::TakenUntouched,
            PlantedBug::CreepingLimit => Bug::CreepingLimit,
            PlantedBug::ReplacedGuard => Bug::ReplacedGuard,
            PlantedBug::HastyLoss => Bug::HastyLoss,
        }
    }
}
