//! Which of two CPUs suits a thread with random faults, with the pager beside it: the CPU that the disk interrupts.
//!
//! A disk with one queue interrupts one CPU. If that CPU is idle, each completion has to wake it, which is the
//! longest step of a read on a virtual machine. If the thread and the pager run there, the CPU is awake.
//!
//! Two facts identify the CPU: its interrupt count rises with the reads, and it does so while the thread runs
//! elsewhere. A disk with a queue per CPU interrupts the CPU that reads. If no count rises with the reads, the disk
//! is memory or mostly busy for other processes, and the scheduler places the thread.

use foreswap_core::units::Nanos;

use crate::sys::interrupts::Counts;

/// Time between pairs of looks.
const APART: Nanos = 1_000_000_000;
/// The least number of reads between two looks of a pair, and the longest time between them.
const READS: u64 = 64;
const TOGETHER: Nanos = 100_000_000;
/// Periods after which the pager gives up for a while, because another task has that CPU.
const PATIENCE: u32 = 8;
/// How long it gives up: the first time, and the maximum.
const REST: (Nanos, Nanos) = (64_000_000, 1_000_000_000);

/// The CPU that the disk interrupts.
pub struct Interrupted {
    /// The first look of a pair: its time, the thread's CPU, the reads so far, and the counts.
    first: Option<(Nanos, usize, u64, Counts)>,
    /// When the next pair of looks begins.
    due: Nanos,
    cpu: Option<usize>,
    /// The CPU was interrupted while the thread ran elsewhere.
    sure: bool,
    /// Periods since the thread last ran there.
    astray: u32,
    rest: Nanos,
    not_before: Nanos,
}

impl Interrupted {
    /// Nothing is known.
    pub const fn new() -> Self {
        Interrupted {
            first: None,
            due: 0,
            cpu: None,
            sure: false,
            astray: 0,
            rest: REST.0,
            not_before: 0,
        }
    }

    /// A period has ended in which a missing thread ran on CPU `at`; this process has made `reads` so far. Returns
    /// the preferred CPU, if there is one.
    pub fn on_period(
        &mut self,
        now: Nanos,
        at: usize,
        reads: u64,
        counts: impl FnOnce() -> Option<Counts>,
    ) -> Option<usize> {
        self.look(now, at, reads, counts);
        let cpu = self.cpu?;
        if !self.sure {
            if at != cpu {
                // The counts show it now.
                self.due = self.due.min(now);
            }
            return None;
        }
        if at == cpu {
            if self.astray == 0 {
                self.rest = REST.0;
            }
            self.astray = 0;
        } else if now >= self.not_before {
            self.astray += 1;
        }
        if self.astray > PATIENCE {
            self.astray = 0;
            self.not_before = now + self.rest;
            self.rest = (self.rest * 2).min(REST.1);
        }
        (now >= self.not_before).then_some(cpu)
    }

    fn look(&mut self, now: Nanos, at: usize, reads: u64, counts: impl FnOnce() -> Option<Counts>) {
        match self.first.take() {
            None if now < self.due => {}
            None => self.first = counts().map(|counts| (now, at, reads, counts)),
            // Too much time has passed: the counts may be from other work.
            Some((then, ..)) if now - then > TOGETHER => {
                self.first = counts().map(|counts| (now, at, reads, counts));
            }
            Some((then, was_at, begun, before)) if reads - begun < READS => {
                self.first = Some((then, was_at, begun, before));
            }
            Some((_, was_at, begun, before)) => {
                let cpu = counts().and_then(|now| cpu_of(&before, &now, reads - begun));
                let elsewhere = cpu.is_some() && cpu != Some(at) && cpu != Some(was_at);
                self.sure = elsewhere || self.sure && cpu == self.cpu;
                self.cpu = cpu;
                self.due = now + APART;
            }
        }
    }
}

/// The CPU that received nearly all interrupts of a device that interrupted about once per read.
fn cpu_of(before: &Counts, now: &Counts, reads: u64) -> Option<usize> {
    if before.cpus != now.cpus {
        return None;
    }
    let mut each = vec![0; now.cpus.len()];
    for (number, counts) in &now.lines {
        let Some((_, old)) = before.lines.iter().find(|(other, _)| other == number) else {
            continue;
        };
        let rise = || {
            counts
                .iter()
                .zip(old)
                .map(|(now, old)| now.saturating_sub(*old))
        };
        let all: u64 = rise().sum();
        if (reads / 2..=reads * 3 / 2).contains(&all) {
            each.iter_mut()
                .zip(rise())
                .for_each(|(to, rise)| *to += rise);
        }
    }
    let all: u64 = each.iter().sum();
    let most = each.iter().position(|&rise| rise > all / 8 * 7)?;
    Some(now.cpus[most])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = 4_000_000;

    fn counts(lines: &[[u64; 2]]) -> Counts {
        let lines = lines.iter().enumerate();
        Counts {
            cpus: vec![3, 5],
            lines: lines.map(|(n, each)| (n as u32, each.to_vec())).collect(),
        }
    }

    /// The result after `reads` in which the counts rose by `rise`.
    fn found(rise: &[[u64; 2]], reads: u64) -> Option<usize> {
        let old = counts(&vec![[1000, 70]; rise.len()]);
        let new: Vec<_> = rise.iter().map(|[a, b]| [1000 + a, 70 + b]).collect();
        cpu_of(&old, &counts(&new), reads)
    }

    #[test]
    fn the_counts_of_a_disk_rise_with_the_reads() {
        assert_eq!(found(&[[0, 3], [0, 102], [4, 0]], 100), Some(5));
        assert_eq!(found(&[[98, 2]], 100), Some(3));
        // Two reads per interrupt.
        assert_eq!(found(&[[60, 0]], 100), Some(3));
        // A network device at the same time.
        assert_eq!(found(&[[5000, 0], [0, 100]], 100), Some(5));
    }

    #[test]
    fn no_cpu_is_preferred_if_none_is_the_disks() {
        assert_eq!(found(&[[2, 3]], 100), None, "a memory");
        assert_eq!(found(&[[0, 800]], 100), None, "mostly others'");
        assert_eq!(found(&[[50, 50]], 100), None, "both");
        assert_eq!(found(&[[60, 0], [0, 60]], 100), None, "a queue for each");
        let mut fewer = counts(&[[0, 100]]);
        fewer.cpus.pop();
        assert_eq!(cpu_of(&counts(&[[0, 0]]), &fewer, 100), None);
    }

    /// Runs periods with `reads` each. The counts rise with them on one CPU for two seconds, then on the other, while
    /// the thread is on neither. Returns when the first CPU was known, and the number of looks.
    fn run(interrupted: &mut Interrupted, reads: u64, others: u64) -> (Option<Nanos>, u32) {
        let (mut known, mut looks) = (None, 0);
        for period in 1..=1000 {
            let (now, reads) = (period * PERIOD, period * reads);
            let first = period.min(500) * others + reads.min(reads * 500 / period);
            let wish = interrupted.on_period(now, 1, reads, || {
                looks += 1;
                Some(counts(&[[reads + period * others - first, first]]))
            });
            if wish.is_some() {
                known.get_or_insert(now);
            }
        }
        (known, looks)
    }

    #[test]
    fn it_is_known_soon_and_looked_at_each_second() {
        let mut interrupted = Interrupted::new();
        let (known, looks) = run(&mut interrupted, 50, 0);
        assert_eq!(known, Some(3 * PERIOD));
        assert_eq!(looks, 8, "in four seconds");
        assert_eq!(interrupted.cpu, Some(3), "the interrupts went elsewhere");
    }

    /// A disk with a queue for each CPU interrupts the one that reads.
    #[test]
    fn the_cpu_of_the_thread_does_not_become_the_preferred_one() {
        for one_queue in [false, true] {
            let (mut interrupted, mut each, mut wishes) = (Interrupted::new(), [0, 0], 0);
            for period in 1..=1000_u64 {
                let at = [3, 5][(period / 100 % 2) as usize];
                each[usize::from(one_queue || at == 5)] += 50;
                let wish = interrupted.on_period(period * PERIOD, at, period * 50, || {
                    Some(counts(&[[each[0], 0], [0, each[1]]]))
                });
                assert!(wish.is_none_or(|wish| one_queue && wish == 5));
                wishes += u32::from(wish.is_some());
            }
            assert_eq!(wishes > 0, one_queue, "{wishes}");
        }
    }

    #[test]
    fn few_reads_tell_nothing() {
        let mut interrupted = Interrupted::new();
        assert_eq!(run(&mut interrupted, 2, 0).0, None);
        assert_eq!(run(&mut Interrupted::new(), 50, 50).0, None, "others'");
    }

    #[test]
    fn a_thread_that_cannot_go_there_is_left_alone() {
        let mut interrupted = Interrupted::new();
        (interrupted.cpu, interrupted.sure) = (Some(5), true);
        interrupted.due = Nanos::MAX;
        let mut wishes = |at: usize, from: u64| {
            let wishes = (from..from + 5000).filter(|period| {
                let wish = interrupted.on_period(period * PERIOD, at, 0, || None);
                wish == Some(5)
            });
            wishes.count()
        };
        assert_eq!(wishes(5, 1), 5000);
        let left = wishes(3, 5001);
        assert!((30..500).contains(&left), "{left} of 5000 periods");
        // Once there, the thread is held there.
        assert!(wishes(5, 10_001) > 4700);
    }
}
