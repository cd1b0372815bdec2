//! Why a run of the simulated machine ends early.

use foreswap_core::units::{Nanos, Vpn};
use foreswap_core::world::Notice;
use thiserror::Error;

use super::FAULTS;

/// Why a run ended early.
#[derive(Debug, Error)]
pub enum SimError {
    /// A page came back wrong.
    #[error("at {at} ns {page:?} holds {found:#x}, {expected:#x} was written last")]
    Wrong {
        /// When.
        at: Nanos,
        /// Where.
        page: Vpn,
        /// What is there.
        found: u64,
        /// What should be.
        expected: u64,
    },
    /// The core gave a page up.
    #[error("at {at} ns the memory manager says {notice:?}")]
    Notice {
        /// When.
        at: Nanos,
        /// What it says.
        notice: Notice,
    },
    /// Tasks wait and nothing is under way.
    #[error("at {at} ns tasks wait for pages that nothing brings")]
    Stuck {
        /// When.
        at: Nanos,
    },
    /// The machine was made too small for what has to stay free.
    #[error(
        "{pages} pages of memory are left, of which {kept} have to stay free; expected at least four \
         times as many: choose a smaller --scale or a machine with more memory"
    )]
    TooSmall {
        /// Pages that there are.
        pages: u64,
        /// Pages that the zones keep free.
        kept: u64,
    },
    /// Nothing more can be reclaimed.
    #[error(
        "at {at} ns memory is used up and nothing can be reclaimed: choose a smaller --scale or a \
         machine with more memory"
    )]
    NoMemory {
        /// When.
        at: Nanos,
    },
    /// A touch faults again and again.
    #[error("at {at} ns {page:?} is absent after {FAULTS} faults")]
    Loop {
        /// When.
        at: Nanos,
        /// Where.
        page: Vpn,
    },
}
