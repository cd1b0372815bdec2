//! The last observation of a process, and its estimate of the process' memory until the next close look.

use std::time::{Duration, Instant};

use super::figures::{Kind, Unmanaged};
use super::smaps::{Mappings, Quick, Status};

/// When shared mappings are read again without an apparent change: each process that writes to a page gets its own.
const AGAIN: Duration = Duration::from_secs(2);

/// The engine's figures for its process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Charged {
    /// Bytes that count towards the limit.
    pub managed: u64,
    /// The engine's own bytes.
    pub engine: u64,
    /// foreswap's shared memory that the process may have mapped.
    pub tables: u64,
    /// The channels of its engine, by the engine's figure.
    pub channels: u64,
    /// It is up.
    pub live: bool,
}

impl Charged {
    /// Shared memory that is foreswap's.
    fn ours(&self) -> u64 {
        self.tables + self.channels
    }
}

/// The observation of one process.
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
    /// They are unreadable.
    pub is_closed: bool,
    /// Its unmanaged memory.
    pub now: Unmanaged,
}

/// Its mappings at a time.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    mappings: Mappings,
    /// The unmanaged memory among them, by the engine's figures at that time.
    unmanaged: Unmanaged,
    /// The time, and the number of the look.
    at: Instant,
    pub look: u64,
    /// Another process was found to share its pages since.
    pub is_stale: bool,
    /// Resident private and shared memory at that time, the locked part, and the uncharged part.
    anonymous: u64,
    shared: u64,
    locked: u64,
    uncharged: u64,
    /// foreswap's shared memory at that time, by its own figures.
    ours: u64,
}

impl Mapped {
    /// The mappings were read just now, after the quick figures, and may have grown in between: that growth must not
    /// be counted again at the next quick figures.
    pub fn new(mappings: Mappings, look: u64, seen: &Seen, charged: &Charged) -> Self {
        let uncharged = if charged.managed == 0 {
            mappings.anonymous.saturating_sub(charged.engine)
        } else {
            // At the time of the charge.
            seen.uncharged(charged)
        };
        Self {
            unmanaged: mappings.unmanaged(charged.managed, charged.engine),
            mappings,
            look,
            at: Instant::now(),
            is_stale: false,
            anonymous: mappings.anonymous,
            shared: mappings.shared,
            locked: seen.status.locked,
            uncharged,
            ours: charged.ours(),
        }
    }
}

impl Seen {
    /// Whether its size differs much from that at the last read of its mappings.
    pub fn has_moved(&self, small: u64) -> bool {
        let resident = self.resident();
        let step = small.max(resident / 8);
        self.mappings.as_ref().is_none_or(|mapped| {
            resident.abs_diff(mapped.anonymous + mapped.shared) >= step
                || self.status.locked.abs_diff(mapped.locked) >= step
        })
    }

    /// Whether formerly shared pages may have become its own since.
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

    /// Private memory without an engine's charge.
    fn uncharged(&self, charged: &Charged) -> u64 {
        let known = charged.managed + charged.engine;
        self.status.anonymous.saturating_sub(known)
    }

    /// The unmanaged memory by the last mappings, corrected by later changes.
    pub fn brought_forward(&self, mapped: &Mapped, charged: &Charged) -> Unmanaged {
        let mut now = mapped.unmanaged;
        // Other processes may map the same pages: this share of a page is counted here.
        let share = if mapped.shared > mapped.mappings.ours {
            now.shared as f64 / (mapped.shared - mapped.mappings.ours) as f64
        } else {
            1.0
        };
        let ours = [charged.ours(), mapped.ours];
        let (more, less) = change(self.status.shared, mapped.shared, ours);
        now.count(Kind::Shared, (more as f64 * share.min(1.0)) as u64);
        now.take_off(Kind::Shared, less);
        let private = now.main_private_kind();
        // Locked memory is present whether it is charged or not.
        let (then, today) = match private {
            Kind::Locked => (mapped.anonymous, self.status.anonymous),
            _ => (mapped.uncharged, self.uncharged(charged)),
        };
        now.count(private, today.saturating_sub(then));
        now.take_off(private, then.saturating_sub(today));
        now
    }

    /// The maximum of its unmanaged memory by the quick figures, and the minimum if the whole charge is resident.
    pub fn bounds(&self, charged: &Charged) -> (Unmanaged, u64) {
        // The ledger and the tables of the areas, if not measured.
        let ours = self.mappings.map_or(charged.ours(), |mapped| {
            let since = charged.ours().saturating_sub(mapped.ours);
            mapped.mappings.ours + since
        });
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

/// By how much memory has grown, or shrunk, from `then` to `now`, apart from foreswap's part of it, now and then.
fn change(now: u64, then: u64, ours: [u64; 2]) -> (u64, u64) {
    let [now, then] = [now + ours[1], then + ours[0]];
    (now.saturating_sub(then), then.saturating_sub(now))
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
            tables: 3 * MIB,
            channels: MIB,
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

    /// The charge of later growth is not that of memory which the look found.
    #[test]
    fn locked_memory_that_grows_after_a_close_look_stays_locked() {
        let charge = |mebibytes| Charged {
            managed: mebibytes * MIB,
            ..Charged::default()
        };
        let mut mappings = Mappings::default();
        mappings.kinds.count(Kind::Locked, 86 * MIB);
        (mappings.registered, mappings.anonymous) = (86 * MIB, 86 * MIB);
        let mapped = Mapped::new(mappings, 1, &seen(86, 0, 96), &charge(87));
        let now = seen(96, 0, 96).brought_forward(&mapped, &charge(96));
        assert_eq!((now.locked, now.total), (96 * MIB, 96 * MIB));
    }

    #[test]
    fn growth_after_a_close_look_is_added() {
        let mut before = seen(10, 40, 0);
        let mut mappings = Mappings::default();
        // Two processes map it, and each has one half.
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
