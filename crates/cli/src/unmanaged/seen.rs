//! What was seen of a process, and what that says of its memory until it is looked at closely again.

use std::time::{Duration, Instant};

use super::figures::{Kind, Unmanaged};
use super::smaps::{Mappings, Quick, Status};

/// When mappings that are in common with others are read again, though nothing seems to have changed: each that
/// writes to a page gets one of its own.
const AGAIN: Duration = Duration::from_secs(2);

/// What an engine says of the process it is in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charged {
    /// Bytes that count towards the limit.
    pub managed: u64,
    /// Bytes of the engine's own.
    pub engine: u64,
    /// Shared memory of foreswap's own that the process may have mapped.
    pub tables: u64,
    /// It is up.
    pub live: bool,
}

/// What was seen of one process.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The quickest figures.
    pub quick: Quick,
    /// The quick figures.
    pub status: Status,
    /// Looks since `status` was read.
    pub age: u32,
    /// Its mappings, if they were read.
    pub mappings: Option<Mapped>,
    /// They cannot be read.
    pub is_closed: bool,
    /// What is not managed of it.
    pub now: Unmanaged,
}

/// What its mappings were, and when.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    mappings: Mappings,
    /// When that was, and in which look.
    at: Instant,
    pub look: u64,
    /// Another one has turned out to have the same pages since.
    pub is_stale: bool,
    /// Private and shared memory that was resident at that time, what was locked, and what was not charged.
    anonymous: u64,
    shared: u64,
    locked: u64,
    uncharged: u64,
}

impl Mapped {
    /// They were read just now, after the quick figures, and may have grown in between: that must not be counted
    /// again when the quick figures are read next.
    pub fn new(mappings: Mappings, look: u64, seen: &Seen, charged: &Charged) -> Self {
        let uncharged = if charged.managed == 0 {
            mappings.anonymous.saturating_sub(charged.engine)
        } else {
            // As of the time of the charge.
            seen.uncharged(charged)
        };
        Self {
            mappings,
            look,
            at: Instant::now(),
            is_stale: false,
            anonymous: mappings.anonymous,
            shared: mappings.shared,
            locked: seen.status.locked,
            uncharged,
        }
    }
}

impl Seen {
    /// Whether it holds much more or less than when its mappings were read.
    pub fn has_moved(&self, small: u64) -> bool {
        let resident = self.resident();
        let step = small.max(resident / 8);
        self.mappings.as_ref().is_none_or(|mapped| {
            resident.abs_diff(mapped.anonymous + mapped.shared) >= step
                || self.status.locked.abs_diff(mapped.locked) >= step
        })
    }

    /// Whether pages that were others' as well may have become its own since.
    pub fn may_have_parted(&self) -> bool {
        self.mappings.as_ref().is_some_and(|mapped| {
            let in_common = mapped.is_stale || mapped.mappings.is_in_common();
            in_common && mapped.at.elapsed() > AGAIN
        })
    }

    /// Anonymous and shared memory that is resident.
    pub fn resident(&self) -> u64 {
        self.status.anonymous + self.status.shared
    }

    /// Private memory that no engine has accounted for.
    fn uncharged(&self, charged: &Charged) -> u64 {
        let known = charged.managed + charged.engine;
        self.status.anonymous.saturating_sub(known)
    }

    /// What is not managed by the last look at the mappings, with what has come and gone since.
    pub fn brought_forward(&self, mapped: &Mapped, charged: &Charged) -> Unmanaged {
        let mut now = mapped.mappings.unmanaged(charged.managed, charged.engine);
        // Others may map the same pages: so much of one is counted here.
        let share = if mapped.shared > mapped.mappings.ours {
            now.shared as f64 / (mapped.shared - mapped.mappings.ours) as f64
        } else {
            1.0
        };
        let more = self.status.shared.saturating_sub(mapped.shared);
        let less = mapped.shared.saturating_sub(self.status.shared);
        now.count(Kind::Shared, (more as f64 * share.min(1.0)) as u64);
        now.take_off(Kind::Shared, less);
        let private = now.main_private_kind();
        // Locked memory is there whether it is charged or not.
        let (then, today) = match private {
            Kind::Locked => (mapped.anonymous, self.status.anonymous),
            _ => (mapped.uncharged, self.uncharged(charged)),
        };
        now.count(private, today.saturating_sub(then));
        now.take_off(private, then.saturating_sub(today));
        now
    }

    /// At the most this is not managed, going by the quick figures; and at the least, if all that is charged is
    /// resident.
    pub fn bounds(&self, charged: &Charged) -> (Unmanaged, u64) {
        // The ledger and the tables of the areas, where that was not looked at.
        let ours = self
            .mappings
            .map_or(charged.tables, |mapped| mapped.mappings.ours);
        let private = self.status.anonymous.saturating_sub(charged.engine);
        let shared = self.status.shared.saturating_sub(ours);
        let mut least = Unmanaged::default();
        let locked = self.status.locked.min(private);
        least.count(Kind::Shared, shared);
        least.count(Kind::Locked, locked);
        let unknown = private.saturating_sub(charged.managed.max(locked));
        least.count(Kind::Unknown, unknown);
        (least, private + shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen(anonymous: u64, shared: u64, locked: u64) -> Seen {
        Seen {
            status: Status {
                anonymous: anonymous * MIB,
                shared: shared * MIB,
                locked: locked * MIB,
                ..Status::default()
            },
            ..Seen::default()
        }
    }

    #[test]
    fn quick_figures_tell_what_is_not_managed_at_the_least_and_at_the_most() {
        let charged = Charged {
            managed: 50 * MIB,
            engine: 2 * MIB,
            tables: 4 * MIB,
            live: true,
        };
        let (least, most) = seen(62, 30, 0).bounds(&charged);
        assert_eq!((least.unknown, least.shared), (10 * MIB, 26 * MIB));
        assert_eq!(most, 86 * MIB);
        let (least, _) = seen(62, 0, 55).bounds(&charged);
        assert_eq!((least.locked, least.unknown), (55 * MIB, 5 * MIB));
        let (least, most) = seen(7, 3, 0).bounds(&Charged::default());
        assert_eq!((least.total, most), (10 * MIB, 10 * MIB));
    }

    #[test]
    fn what_comes_after_a_close_look_is_added_to_it() {
        let mut before = seen(10, 40, 0);
        let mut mappings = Mappings::default();
        // Two map it, and each has one half.
        mappings.kinds.count(Kind::Shared, 20 * MIB);
        mappings.kinds.count(Kind::Stacks, 9 * MIB);
        (mappings.anonymous, mappings.shared) = (10 * MIB, 40 * MIB);
        let charged = Charged::default();
        let mapped = Mapped::new(mappings, 1, &before, &charged);
        before.mappings = Some(mapped);
        assert!(!before.has_moved(4 * MIB));
        let later = Seen {
            mappings: Some(mapped),
            ..seen(13, 60, 0)
        };
        assert!(later.has_moved(4 * MIB));
        let now = later.brought_forward(&mapped, &charged);
        assert_eq!((now.shared, now.stacks), (30 * MIB, 12 * MIB));
        // It grew between the quick figures and the close look.
        let early = Mapped::new(mappings, 2, &seen(1, 2, 0), &charged);
        assert_eq!(before.brought_forward(&early, &charged), mappings.kinds);
        let now = seen(2, 30, 0).brought_forward(&mapped, &charged);
        assert_eq!((now.shared, now.stacks), (10 * MIB, MIB));
    }
}
