//! The parameters of one random run: sizes, policies and failure rates, drawn from its seed.

use foreswap_core::readahead::Policy;
use foreswap_core::{Config, Swapoff, Thp};

use super::rng::Rng;
use super::system::Chaos;

/// Sizes and rates of one run.
pub struct Plan {
    pub config: Config,
    pub limit: u64,
    pub areas: Vec<u32>,
    pub pages: usize,
    pub threads: usize,
    pub chaos: Chaos,
    pub mixing: bool,
    /// Changes of the address space, of 1000 actions.
    pub changes: u32,
    /// Forks, locks, limits and the like, of 1000 actions.
    pub rare: u32,
    /// Changes of the pattern, of 1000 touches.
    pub turns: u32,
    /// Advice, of 1000 actions.
    pub advice: u32,
    pub actions: u64,
}

impl Plan {
    /// As [`Plan::draw`], with memory for huge pages.
    pub fn draw_huge(rng: &mut Rng, actions: u64) -> Self {
        let plan = Self::draw(rng, actions);
        let pages = rng.pick(&[1100, 2100, 3300]);
        let share = rng.pick(&[2, 3]);
        let window = rng.pick(&[64, 512]);
        Plan {
            config: Config {
                frames: rng.pick(&[64, 200, 512]),
                thp: rng.pick(&[Thp::Adaptive, Thp::Always]),
                clusters: rng.pick(&[1, 2, 4]),
                first_touch: rng.pick(&[1, 256, 256]),
                readahead: rng.pick(&[
                    Policy::Streams(window),
                    Policy::Streams(window),
                    Policy::Streams(window),
                    Policy::Vma(8),
                    Policy::Cluster(8),
                ]),
                ..plan.config
            },
            limit: (pages as u64 / share).max(700),
            areas: rng
                .pick(&[
                    &[8192][..],
                    &[8192, 8192],
                    &[700, 4096],
                    &[1500, 1500],
                    &[600],
                ])
                .to_vec(),
            pages,
            turns: rng.pick(&[1, 3]),
            changes: plan.changes.min(10),
            ..plan
        }
    }

    /// Draw everything.
    pub fn draw(rng: &mut Rng, actions: u64) -> Self {
        let chaos = if rng.chance(300) {
            Chaos::default()
        } else {
            Chaos {
                read_error: rng.pick(&[0, 0, 10, 100]),
                write_error: rng.pick(&[0, 0, 10, 200]),
                no_space: rng.pick(&[0, 0, 0, 20]),
                refuse: rng.pick(&[0, 0, 50, 500]),
                corrupt: rng.pick(&[0, 0, 5, 30]),
                queue_full: rng.pick(&[0, 20, 300]),
                again: rng.pick(&[0, 20, 200]),
                partial: rng.pick(&[0, 20, 200]),
                no_memory: rng.pick(&[0, 0, 20, 100]),
                busy: rng.pick(&[0, 10, 100]),
            }
        };
        let pages = rng.pick(&[64, 150, 300, 600]);
        let share = rng.pick(&[2, 3, 5, 8]);
        Plan {
            config: Config {
                frames: rng.pick(&[32, 32, 48, 64, 200]),
                depth: rng.pick(&[40, 128]),
                readahead: rng.pick(&[
                    Policy::None,
                    Policy::Vma(1),
                    Policy::Vma(8),
                    Policy::Vma(32),
                    Policy::Cluster(8),
                    Policy::Cluster(64),
                    Policy::Trend(8),
                    Policy::Trend(32),
                    Policy::Streams(4),
                    Policy::Streams(64),
                    Policy::Streams(512),
                ]),
                full_timeout: rng.pick(&[1_000, 50_000, 1_000_000]),
                first_touch: rng.pick(&[1, 16, 256]),
                swapoff: rng.pick(&[
                    Swapoff::Stream,
                    Swapoff::Stream,
                    Swapoff::Readahead,
                    Swapoff::LegacyStats,
                ]),
                thp: Thp::Never,
                clusters: 0,
            },
            limit: (pages as u64 / share).max(32),
            areas: rng
                .pick(&[
                    &[4096][..],
                    &[64],
                    &[40, 512],
                    &[100, 700, 513],
                    &[1100, 1100],
                ])
                .to_vec(),
            pages,
            threads: rng.pick(&[1, 3, 6]),
            chaos,
            mixing: rng.chance(500),
            changes: rng.pick(&[0, 10, 60]),
            rare: rng.pick(&[0, 5, 30]),
            advice: rng.pick(&[0, 5, 50]),
            turns: 10,
            actions,
        }
    }
}
