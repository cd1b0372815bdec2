//! A machine: sizes, policies and failure rates, all drawn from a seed.

use foreswap_core::readahead::Policy;
use foreswap_core::units::Nanos;
use foreswap_core::{Config, ReclaimPolicy, Swapoff, Thp};
use serde::{Deserialize, Serialize};

use crate::chance::{Chance, mix};
use crate::setup::Setup;
use crate::system::Chaos;

/// [`Policy`] in a replay file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Readahead {
    /// Only the requested page.
    None,
    /// By address.
    Vma(u32),
    /// By slot.
    Cluster(u32),
    /// Along the majority stride.
    Trend(u32),
    /// Ahead of streams.
    Streams(u32),
}

/// [`Swapoff`] in a replay file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emptying {
    /// A deep stream of large reads.
    Stream,
    /// Page by page, through readahead.
    Readahead,
    /// The same with wrong counts.
    LegacyStats,
}

/// [`Thp`] in a replay file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Huge {
    /// Single pages.
    #[default]
    Never,
    /// Where touches are in order.
    Adaptive,
    /// Wherever possible.
    Always,
}

/// [`ReclaimPolicy`] in a replay file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reclaim {
    /// References.
    #[default]
    Clock,
    /// Two lists.
    Lru,
    /// Generations.
    Generations,
    /// Two queues.
    S3Fifo,
}

/// How often each kind of step is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Changes of the address space, of 1000 steps.
    pub changes: u32,
    /// Forks, locks, limits and the like, of 1000 steps.
    pub rare: u32,
    /// Programs that fork and then only read, of 1000 steps.
    #[serde(default)]
    pub readers: u32,
    /// Advice, of 1000 steps.
    pub advice: u32,
    /// Steps of the driver alone, out of order, of 1000 steps; otherwise it executes whole rounds.
    pub disorder: u32,
    /// Single actions of threads, driver and devices, of 1000 steps.
    #[serde(default)]
    pub single: u32,
}

/// A machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Frames of each process' engine.
    pub frames: u32,
    /// The queue depth that the core assumes.
    pub depth: u32,
    /// The real queue depth.
    pub queue: u32,
    /// Swap readahead.
    pub readahead: Readahead,
    /// Which page is evicted next.
    #[serde(default)]
    pub reclaim: Reclaim,
    /// How long a fault waits for memory, in nanoseconds.
    pub full_timeout: Nanos,
    /// Largest batch of a first touch, in pages.
    pub first_touch: u32,
    /// The method of emptying an area.
    pub swapoff: Emptying,
    /// When memory is managed in huge pages.
    #[serde(default)]
    pub thp: Huge,
    /// Clusters of frames for huge pages.
    #[serde(default)]
    pub clusters: u32,
    /// Clusters that may be hashed in parallel beside the core.
    #[serde(default)]
    pub helpers: u32,
    /// The device reports completions only when none is left.
    #[serde(default)]
    pub at_once: bool,
    /// The limit, in pages.
    pub limit: u64,
    /// Slots of each area.
    pub areas: Vec<u32>,
    /// Pages of each process.
    pub pages: u32,
    /// Threads of each process.
    pub threads: u32,
    /// Processes at a time.
    pub processes: u32,
    /// The failure rates.
    pub chaos: Chaos,
    /// The rates of steps.
    pub rates: Rates,
    /// Calls of the core between two full checks.
    pub check_every: u32,
    /// Processes share pages since a fork without being charged for them.
    #[serde(default)]
    pub families: bool,
    /// The first process is not managed until its memory does not fit, or others need it.
    #[serde(default)]
    pub bare: bool,
    /// Programs map files.
    #[serde(default)]
    pub files: bool,
    /// The bug that is planted in the core.
    #[cfg(feature = "planted")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plant: Option<crate::PlantedBug>,
}

/// The least limit where processes are charged by their account, which keeps some pages back.
pub(crate) const FAMILY_LIMIT: u64 = 192;

/// Tells the draw of `Plan::files` from others.
const FILES: u64 = 0xf11e5;

/// The bounds of the values of a replay file, which prevent failures of the machine itself.
const BOUNDS: [(&str, u64, u64); 9] = [
    ("frames", 16, 1 << 16),
    ("depth", 36, 1 << 12),
    ("queue", 1, 1 << 12),
    ("limit", 16, 1 << 20),
    ("pages", 8, 1 << 14),
    ("threads", 1, 64),
    ("processes", 1, 8),
    ("check_every", 1, 1 << 20),
    ("clusters", 0, 64),
];

impl Plan {
    /// Draw everything.
    pub fn draw(seed: u64) -> Self {
        let chance = &mut Chance::new(seed);
        let plan = Self::draw_small(chance);
        let plan = match chance.one_in(700) {
            false => plan.with_huge_pages(chance),
            true => Plan {
                at_once: chance.below(4) == 0,
                ..plan
            },
        };
        Plan {
            reclaim: chance.pick(&[
                Reclaim::Clock,
                Reclaim::Lru,
                Reclaim::Generations,
                Reclaim::S3Fifo,
            ]),
            // A draw of its own: the others stay as they were.
            files: mix(seed ^ FILES).is_multiple_of(4),
            ..plan.with_readers(chance)
        }
    }

    /// With processes that fork, and share pages; every other machine has memory for one or some of them, and begins
    /// without managing it. The progress of programs that only read is not known for them.
    #[must_use]
    pub fn with_family(self, seed: u64) -> Self {
        let chance = &mut Chance::new(mix(seed));
        let bare = chance.below(2) > 0;
        let limit = match bare {
            true => u64::from(self.pages) * chance.pick(&[2, 2, 3, 4, 6]) / 2,
            false => self.limit,
        };
        Plan {
            families: true,
            bare,
            limit: limit.max(FAMILY_LIMIT),
            processes: self.processes.max(3),
            rates: Rates {
                rare: self.rates.rare.max(5),
                readers: 0,
                ..self.rates
            },
            ..self
        }
    }

    /// A machine without huge pages.
    pub fn draw_small(chance: &mut Chance) -> Self {
        let chaos = Self::draw_chaos(chance);
        let pages = chance.pick(&[64, 150, 300, 600, 1200]);
        let share = chance.pick(&[2, 3, 5, 8]);
        Plan {
            frames: chance.pick(&[32, 48, 64, 200, 400]),
            depth: chance.pick(&[40, 128]),
            queue: chance.pick(&[8, 8, 32, 128]),
            readahead: chance.pick(&[
                Readahead::None,
                Readahead::Vma(1),
                Readahead::Vma(8),
                Readahead::Vma(32),
                Readahead::Cluster(8),
                Readahead::Cluster(64),
                Readahead::Trend(8),
                Readahead::Trend(32),
                Readahead::Streams(4),
                Readahead::Streams(64),
                Readahead::Streams(512),
            ]),
            reclaim: Reclaim::Clock,
            full_timeout: chance.pick(&[1_000, 50_000, 1_000_000, 1_000_000_000]),
            first_touch: chance.pick(&[1, 16, 256]),
            swapoff: chance.pick(&[
                Emptying::Stream,
                Emptying::Stream,
                Emptying::Readahead,
                Emptying::LegacyStats,
            ]),
            limit: (u64::from(pages) / share).max(32),
            // Small areas are full most of the time.
            areas: match chance.below(4) {
                0 => chance.pick(&[&[64][..], &[40, 512], &[100, 700, 513]]),
                _ => chance.pick(&[&[4096][..], &[2048, 513], &[1100, 1100], &[700, 4096]]),
            }
            .to_vec(),
            pages,
            threads: chance.pick(&[1, 3, 6, 16]),
            processes: chance.pick(&[1, 1, 2, 3]),
            chaos,
            rates: Rates {
                changes: chance.pick(&[1, 2, 10, 60]),
                rare: chance.pick(&[0, 1, 5, 30]),
                readers: 0,
                advice: chance.pick(&[0, 5, 50]),
                disorder: chance.pick(&[0, 0, 100, 500]),
                single: 0,
            },
            check_every: chance.pick(&[128, 512, 2048]),
            thp: Huge::Never,
            clusters: 0,
            helpers: 0,
            at_once: false,
            families: false,
            bare: false,
            files: false,
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// With memory for huge pages.
    #[must_use]
    pub fn with_huge_pages(self, chance: &mut Chance) -> Self {
        let plan = self;
        let pages = chance.pick(&[1600, 2600, 5200, 5200]);
        // Huge pages exist only in regions without lost pages.
        let lost = chance.pick(&[0, 0, 1]);
        Plan {
            chaos: Chaos {
                read_error: plan.chaos.read_error.min(lost),
                write_error: plan.chaos.write_error.min(lost),
                refuse: chance.pick(&[plan.chaos.refuse, 0, 300]),
                corrupt: plan.chaos.corrupt.min(lost),
                lost_write: plan.chaos.lost_write.min(lost),
                ..plan.chaos
            },
            full_timeout: 1_000_000_000,
            frames: chance.pick(&[400, 2048, 2048, 2048]),
            thp: chance.pick(&[Huge::Adaptive, Huge::Always, Huge::Always]),
            clusters: chance.pick(&[2, 4, 8]),
            helpers: chance.pick(&[0, 1, 3]),
            at_once: chance.below(3) == 0,
            readahead: chance.pick(&[plan.readahead, Readahead::Streams(512)]),
            first_touch: 256,
            swapoff: chance.pick(&[plan.swapoff, Emptying::Stream, Emptying::Stream]),
            pages,
            limit: (u64::from(pages) / chance.pick(&[1, 2, 3])).max(700),
            areas: chance
                .pick(&[&[16384][..], &[700, 16384], &[8192, 8192], &[8192, 16384]])
                .to_vec(),
            rates: Rates {
                changes: chance.pick(&[0, 1, 2, 10]),
                rare: chance.pick(&[2, 5, 5, 10]),
                ..plan.rates
            },
            ..plan
        }
    }

    /// One machine in four has programs whose forks only read: most of their memory is immovable. The areas have room
    /// for the movable part, and the core has its own patience; the expected behaviour is then known.
    fn with_readers(self, chance: &mut Chance) -> Self {
        if chance.below(4) > 0 {
            return self;
        }
        let areas = match self.clusters {
            0 => chance.pick(&[&[4096][..], &[2048, 4096], &[8192]]).to_vec(),
            _ => self.areas,
        };
        Plan {
            full_timeout: chance.pick(&[self.full_timeout, 1_000_000_000, 1_000_000_000]),
            areas,
            processes: self.processes.max(chance.pick(&[2, 3, 4])),
            chaos: Chaos {
                again: chance.pick(&[self.chaos.again, 0]),
                ..self.chaos
            },
            rates: Rates {
                readers: chance.pick(&[2, 5, 10]),
                ..self.rates
            },
            ..self
        }
    }

    fn draw_chaos(chance: &mut Chance) -> Chaos {
        if chance.one_in(300) {
            return Chaos::default();
        }
        Chaos {
            read_error: chance.pick(&[0, 0, 1, 10, 100]),
            write_error: chance.pick(&[0, 0, 0, 1, 10]),
            no_space: chance.pick(&[0, 0, 0, 20]),
            refuse: chance.pick(&[0, 0, 50, 500]),
            corrupt: chance.pick(&[0, 0, 1, 5, 30]),
            lost_write: chance.pick(&[0, 0, 0, 5]),
            short: chance.pick(&[0, 0, 50, 300]),
            stall: chance.pick(&[0, 0, 1, 20]),
            queue_full: chance.pick(&[0, 20, 300]),
            again: chance.pick(&[0, 20, 200]),
            partial: chance.pick(&[0, 20, 200]),
            no_memory: chance.pick(&[0, 0, 20, 100]),
            busy: chance.pick(&[0, 10, 100]),
        }
    }

    /// Each of its processes.
    pub fn setup(&self) -> Setup {
        Setup {
            config: self.config(),
            pages: self.pages as usize,
            threads: self.threads as usize,
            queue: self.queue as usize,
            helpers: self.helpers as usize,
            at_once: self.at_once,
            check_every: self.check_every,
            #[cfg(feature = "planted")]
            plant: self.plant.map(Into::into),
        }
    }

    fn config(&self) -> Config {
        Config {
            frames: self.frames,
            depth: self.depth,
            readahead: match self.readahead {
                Readahead::None => Policy::None,
                Readahead::Vma(max) => Policy::Vma(max),
                Readahead::Cluster(max) => Policy::Cluster(max),
                Readahead::Trend(max) => Policy::Trend(max),
                Readahead::Streams(max) => Policy::Streams(max),
            },
            reclaim: match self.reclaim {
                Reclaim::Clock => ReclaimPolicy::Clock,
                Reclaim::Lru => ReclaimPolicy::Lru,
                Reclaim::Generations => ReclaimPolicy::Generations,
                Reclaim::S3Fifo => ReclaimPolicy::S3Fifo,
            },
            full_timeout: self.full_timeout,
            first_touch: self.first_touch,
            swapoff: match self.swapoff {
                Emptying::Stream => Swapoff::Stream,
                Emptying::Readahead => Swapoff::Readahead,
                Emptying::LegacyStats => Swapoff::LegacyStats,
            },
            thp: match self.thp {
                Huge::Never => Thp::Never,
                Huge::Adaptive => Thp::Adaptive,
                Huge::Always => Thp::Always,
            },
            clusters: self.clusters,
        }
    }

    /// Whether it can be built.
    ///
    /// # Errors
    ///
    /// The invalid value, and the expected one.
    pub fn check(&self) -> Result<(), String> {
        let values = [
            self.frames.into(),
            self.depth.into(),
            self.queue.into(),
            self.limit,
            self.pages.into(),
            self.threads.into(),
            self.processes.into(),
            self.check_every.into(),
            self.clusters.into(),
        ];
        for ((name, least, most), value) in BOUNDS.into_iter().zip(values) {
            if !(least..=most).contains(&value) {
                return Err(format!("`{name}` is {value}; expected {least} to {most}"));
            }
        }
        let (Readahead::Vma(max)
        | Readahead::Cluster(max)
        | Readahead::Trend(max)
        | Readahead::Streams(max)) = self.readahead
        else {
            return self.check_areas();
        };
        if !(1..=512).contains(&max) {
            return Err(format!("`readahead` is {max} pages; expected 1 to 512"));
        }
        self.check_areas()
    }

    fn check_areas(&self) -> Result<(), String> {
        if !(1..=4).contains(&self.areas.len()) {
            let areas = self.areas.len();
            return Err(format!("`areas` has {areas} entries; expected 1 to 4"));
        }
        match self.areas.iter().find(|n| !(16..=1 << 20).contains(*n)) {
            Some(n) => Err(format!(
                "`areas` has one of {n} slots; expected 16 to {}",
                1 << 20
            )),
            None => Ok(()),
        }
    }
}
