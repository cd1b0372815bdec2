//! Memory that foreswap does not manage, by kind.

use serde::{Deserialize, Serialize};

/// Why memory is not managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Shared memory: anonymous, System V, memfd, files of a tmpfs.
    Shared,
    /// Private, and locked by mlock, whether or not it would be managed otherwise.
    Locked,
    /// Private, anonymous and executable.
    Executable,
    /// Stacks of threads.
    Stacks,
    /// Private copies of pages of files.
    Files,
    /// Other private memory: of programs without an engine, or not adopted by it.
    Unknown,
}

impl Kind {
    /// All kinds, in the order of the report.
    pub const ALL: [Self; 6] = [
        Self::Shared,
        Self::Locked,
        Self::Executable,
        Self::Stacks,
        Self::Files,
        Self::Unknown,
    ];

    /// The key in `--stats` and `ps --json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Locked => "locked",
            Self::Executable => "executable",
            Self::Stacks => "stacks",
            Self::Files => "files",
            Self::Unknown => "unknown",
        }
    }
}

/// Resident, unmanaged bytes. Pages shared by several processes count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unmanaged {
    /// Of all kinds. A peak is that of the sum, which may be less than the sum of the peaks.
    pub total: u64,
    /// [`Kind::Shared`].
    pub shared: u64,
    /// [`Kind::Locked`].
    pub locked: u64,
    /// [`Kind::Executable`].
    pub executable: u64,
    /// [`Kind::Stacks`].
    pub stacks: u64,
    /// [`Kind::Files`].
    pub files: u64,
    /// [`Kind::Unknown`].
    pub unknown: u64,
}

impl Unmanaged {
    /// The bytes of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Shared => self.shared,
            Kind::Locked => self.locked,
            Kind::Executable => self.executable,
            Kind::Stacks => self.stacks,
            Kind::Files => self.files,
            Kind::Unknown => self.unknown,
        }
    }

    fn word(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Shared => &mut self.shared,
            Kind::Locked => &mut self.locked,
            Kind::Executable => &mut self.executable,
            Kind::Stacks => &mut self.stacks,
            Kind::Files => &mut self.files,
            Kind::Unknown => &mut self.unknown,
        }
    }

    /// Adds to a kind.
    pub fn count(&mut self, kind: Kind, bytes: u64) {
        *self.word(kind) += bytes;
        self.total += bytes;
    }

    /// Subtracts up to `bytes` from a kind; returns the rest.
    pub fn take_off(&mut self, kind: Kind, bytes: u64) -> u64 {
        let word = self.word(kind);
        let taken = bytes.min(*word);
        *word -= taken;
        self.total -= taken;
        bytes - taken
    }

    /// Adds the figures of another process.
    pub fn add(&mut self, other: &Self) {
        for kind in Kind::ALL {
            self.count(kind, other.of(kind));
        }
    }

    /// Keeps the maximum of each kind, and of the sum.
    pub fn keep_peak(&mut self, now: &Self) {
        for kind in Kind::ALL {
            let most = self.of(kind).max(now.of(kind));
            *self.word(kind) = most;
        }
        self.total = self.total.max(now.total);
    }

    /// The largest private kind.
    pub fn main_private_kind(&self) -> Kind {
        let private = Kind::ALL.into_iter().filter(|&kind| kind != Kind::Shared);
        // The last of equal kinds: unknown if all are empty.
        let most = private.max_by_key(|&kind| self.of(kind));
        most.unwrap_or(Kind::Unknown)
    }

    /// The kinds that make up a good part of the whole, the largest first.
    pub fn main_kinds(&self) -> Vec<Kind> {
        let mut kinds = Kind::ALL.to_vec();
        kinds.retain(|&kind| self.of(kind) > 0 && self.of(kind) >= self.total / 16);
        kinds.sort_by_key(|&kind| std::cmp::Reverse(self.of(kind)));
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_of_kinds_and_of_the_sum() {
        let mut first = Unmanaged::default();
        first.count(Kind::Shared, 100);
        first.count(Kind::Files, 5);
        let mut second = Unmanaged::default();
        second.count(Kind::Locked, 70);
        let mut peak = Unmanaged::default();
        peak.keep_peak(&first);
        peak.keep_peak(&second);
        assert_eq!((peak.total, peak.shared, peak.locked), (105, 100, 70));
        first.add(&second);
        assert_eq!(first.total, 175);
        assert_eq!(first.main_kinds(), [Kind::Shared, Kind::Locked]);
        assert_eq!(first.main_private_kind(), Kind::Locked);
        assert_eq!(Unmanaged::default().main_private_kind(), Kind::Unknown);
        assert_eq!(first.take_off(Kind::Locked, 80), 10);
        assert_eq!((first.total, first.locked), (105, 0));
    }

    #[test]
    fn the_names_are_the_keys() {
        let mut each = Unmanaged::default();
        for (bytes, kind) in (1..).zip(Kind::ALL) {
            each.count(kind, bytes);
        }
        let json = serde_json::to_value(each).expect("JSON");
        for (bytes, kind) in (1_u64..).zip(Kind::ALL) {
            assert_eq!(json[kind.name()], bytes);
        }
        assert_eq!(json["total"], 21);
    }
}
