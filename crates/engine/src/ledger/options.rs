//! The user's choices on the command line, which every process of the run follows.
//!
//! The supervisor writes these words before the first process starts; engines read them when they attach. Each enum
//! is stored as a `u32`; an unknown value (a newer supervisor, a damaged ledger) reads as the default.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use foreswap_core::ReclaimPolicy;

/// The pages that are read beside the requested one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadaheadPolicy {
    /// The next pages of streams of touches, continuously.
    #[default]
    Streams,
    /// Neighbours by virtual address, per VMA.
    Vma,
    /// Neighbours by swap slot.
    Cluster,
    /// The direction and stride of the last faults.
    Trend,
    /// Only the page itself.
    None,
}

impl ReadaheadPolicy {
    /// The largest window by default, in pages. The kernel's policies have the kernel's default (`page-cluster` 3);
    /// `trend` has the kernel's maximum (`page-cluster` 5).
    pub fn default_window(self) -> u32 {
        match self {
            Self::Streams => 512,
            Self::Vma | Self::Cluster | Self::None => 8,
            Self::Trend => 32,
        }
    }
}

/// Whether whole huge pages are swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThpMode {
    /// Wherever the VMA allows it.
    Always,
    /// Where it is worthwhile.
    #[default]
    Adaptive,
    /// Only 4 KiB pages.
    Never,
}

/// How pages reach the swap area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoBackend {
    /// io_uring, or threads where it is refused.
    #[default]
    Auto,
    /// io_uring; an error where it is refused.
    Uring,
    /// A small pool of pread/pwrite threads.
    Threads,
}

macro_rules! stored_as_u32 {
    ($name:ident { $($variant:ident = $value:literal),+ }) => {
        impl $name {
            fn to_word(self) -> u32 {
                match self { $(Self::$variant => $value),+ }
            }
            fn from_word(word: u32) -> Self {
                match word { $($value => Self::$variant,)+ _ => Self::default() }
            }
        }
    };
}

stored_as_u32!(ReadaheadPolicy { Vma = 1, Cluster = 2, Trend = 3, None = 4, Streams = 5 });
stored_as_u32!(ThpMode { Always = 1, Adaptive = 2, Never = 3 });
stored_as_u32!(IoBackend { Auto = 1, Uring = 2, Threads = 3 });

/// A policy of the core: its place in the list of all, from 1 on.
fn reclaim_to_word(policy: ReclaimPolicy) -> u32 {
    let place = ReclaimPolicy::ALL.iter().position(|&known| known == policy);
    place.map_or(0, |place| place as u32 + 1)
}

fn reclaim_from_word(word: u32) -> ReclaimPolicy {
    let place = word.checked_sub(1).map(|place| place as usize);
    let known = place.and_then(|place| ReclaimPolicy::ALL.get(place));
    known.copied().unwrap_or_default()
}

/// The choices of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Readahead policy.
    pub readahead: ReadaheadPolicy,
    /// Which page is evicted next.
    pub reclaim: ReclaimPolicy,
    /// Huge-page mode.
    pub thp: ThpMode,
    /// I/O backend.
    pub io: IoBackend,
    /// Threads that hash and compress beside each pager.
    pub helpers: u32,
    /// Largest readahead window, in pages.
    pub max_window: u32,
    /// How long a fault may wait when every area is full, before SIGBUS.
    pub full_timeout: Duration,
    /// Anonymous bytes a process must reach before its engine starts.
    pub adopt_threshold: u64,
}

/// [`Options`] as they lie in the ledger.
#[repr(C)]
pub(super) struct OptionWords {
    readahead: AtomicU32,
    thp: AtomicU32,
    io: AtomicU32,
    helpers: AtomicU32,
    max_window: AtomicU32,
    reclaim: AtomicU32,
    full_timeout_ms: AtomicU64,
    adopt_threshold: AtomicU64,
}

const _: () = assert!(size_of::<OptionWords>() == 40);

impl OptionWords {
    pub(super) fn store(&self, options: &Options) {
        let timeout = u64::try_from(options.full_timeout.as_millis()).unwrap_or(u64::MAX);
        self.readahead.store(options.readahead.to_word(), Relaxed);
        self.reclaim
            .store(reclaim_to_word(options.reclaim), Relaxed);
        self.thp.store(options.thp.to_word(), Relaxed);
        self.io.store(options.io.to_word(), Relaxed);
        self.helpers.store(options.helpers, Relaxed);
        self.max_window.store(options.max_window, Relaxed);
        self.full_timeout_ms.store(timeout, Relaxed);
        self.adopt_threshold.store(options.adopt_threshold, Relaxed);
    }

    pub(super) fn load(&self) -> Options {
        Options {
            readahead: ReadaheadPolicy::from_word(self.readahead.load(Relaxed)),
            reclaim: reclaim_from_word(self.reclaim.load(Relaxed)),
            thp: ThpMode::from_word(self.thp.load(Relaxed)),
            io: IoBackend::from_word(self.io.load(Relaxed)),
            helpers: self.helpers.load(Relaxed),
            max_window: self.max_window.load(Relaxed),
            full_timeout: Duration::from_millis(self.full_timeout_ms.load(Relaxed)),
            adopt_threshold: self.adopt_threshold.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reclaim_policy_has_a_word_of_its_own() {
        for policy in ReclaimPolicy::ALL {
            assert_eq!(reclaim_from_word(reclaim_to_word(policy)), policy);
        }
        for word in [0, 99, u32::MAX] {
            assert_eq!(reclaim_from_word(word), ReclaimPolicy::default());
        }
    }
}
