//! Why a run of the simulated machine ends early.

use foreswap_core::units::{Nanos, Vpn};
use foreswap_core::world::Notice;
use thiserror::Error;

use super::FAULTS;

/// Why a run ended early.
#[derive(Debug, Error)]
pub enum SimError {
    /// A page has wrong content.
    #[error("at {at} ns {page:?} holds {found:#x}, {expected:#x} was written last")]
    Wrong {
        /// The time.
        at: Nanos,
        /// The page.
        page: Vpn,
        /// Its content.
        found: u64,
        /// The expected content.
        expected: u64,
    },
    /// The core gave a page up.
    #[error("at {at} ns the memory manager says {notice:?}")]
    Notice {
        /// The time.
        at: Nanos,
        /// Its notice.
        notice: Notice,
    },
    /// Tasks wait and no event is left.
    #[error("at {at} ns tasks wait for pages that nothing brings")]
    Stuck {
        /// The time.
        at: Nanos,
    },
    /// The machine is too small for the pages that must stay free.
    #[error(
        "{pages} pages of memory are left, of which {kept} have to stay free; expected at least four \
         times as many: choose a smaller --scale or a machine with more memory"
    )]
    TooSmall {
        /// All pages.
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
        /// The time.
        at: Nanos,
    },
    /// A touch faults again and again.
    #[error("at {at} ns {page:?} is absent after {FAULTS} faults")]
    Loop {
        /// The time.
        at: Nanos,
        /// The page.
        page: Vpn,
    },
}
