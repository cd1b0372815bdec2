//! A disk that turns: one head, which has to get there, and a plate that has to come round.
//!
//! The requests that wait are served in rising order from where the head is, then from the lowest
//! again, as an elevator does. A disk that queues commands knows where its plate is, and serves the one
//! that it can begin first; none is passed by others for ever. After a read the disk reads on into its cache while nobody asks for
//! anything else, so a sequential reader finds what comes next there. Writes go to the plate, as what is
//! on a swap area or behind a barrier must be there, unless the disk has its write cache on: then a
//! write that goes on where the last one ended comes in time for the head, which is that far behind.
//! Other writes are waited for in either case: the cache is soon full of them.

use std::collections::BTreeMap;

use foreswap_core::units::{Nanos, PAGE_SIZE};
use foreswap_core::world::IoId;

use super::super::parameters::Disk;
use super::Transfer;

const PAGE: u64 = PAGE_SIZE as u64;
/// Zones in each of which all tracks are as long.
const ZONES: u64 = 16;
const MINUTE: u64 = 60_000_000_000;

/// What the disk has read on by itself.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// First page, and when the head was there.
    from: u64,
    since: Nanos,
}

/// A transfer that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    io: IoId,
    transfer: Transfer,
    /// Transfers that had begun when it came.
    since: u64,
}

/// A disk at work.
#[derive(Debug)]
pub struct DiskDevice {
    p: Disk,
    pages: u64,
    /// By first page and arrival.
    waiting: BTreeMap<(u64, u64), Waiting>,
    arrivals: u64,
    /// Transfers begun.
    begun: u64,
    busy: bool,
    /// The page after the last one that passed under the head.
    head: u64,
    ahead: Option<Ahead>,
    /// When the last transfer passed, if it was a write.
    written: Option<Nanos>,
}

fn time(bytes: u64, rate: u64) -> Nanos {
    (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as Nanos
}

impl DiskDevice {
    /// A disk with its head at the outermost track.
    pub fn new(parameters: Disk) -> Self {
        DiskDevice {
            p: parameters,
            pages: parameters.capacity / PAGE,
            waiting: BTreeMap::new(),
            arrivals: 0,
            begun: 0,
            busy: false,
            head: 0,
            ahead: None,
            written: None,
        }
    }

    /// Pages that it holds.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// A transfer is handed over at `now`. The one that ends next, if that is known now only.
    pub fn submit(&mut self, now: Nanos, io: IoId, transfer: Transfer) -> Option<(Nanos, IoId)> {
        self.arrivals += 1;
        let key = (transfer.first, self.arrivals);
        let since = self.begun;
        let waiting = Waiting {
            io,
            transfer,
            since,
        };
        self.waiting.insert(key, waiting);
        if self.busy { None } else { self.begin(now) }
    }

    /// A transfer has ended; when the next one will.
    pub fn ended(&mut self, now: Nanos) -> Option<(Nanos, IoId)> {
        self.busy = false;
        self.begin(now)
    }

    fn begin(&mut self, now: Nanos) -> Option<(Nanos, IoId)> {
        let now = now + self.p.command;
        let key = match self.p.queue {
            1 => self.next_above(),
            queue => self.overdue(queue).or_else(|| self.soonest(now)),
        };
        let Waiting { io, transfer, .. } = self.waiting.remove(&key?)?;
        self.busy = true;
        self.begun += 1;
        Some((self.serve(now, transfer), io))
    }

    fn next_above(&self) -> Option<(u64, u64)> {
        let above = self.waiting.range((self.head, 0)..).next();
        above
            .or_else(|| self.waiting.first_key_value())
            .map(|(&key, _)| key)
    }

    /// The one that came first, once more than two queues of others have passed it.
    fn overdue(&self, queue: u64) -> Option<(u64, u64)> {
        let (&key, first) = self.waiting.iter().min_by_key(|((_, at), _)| *at)?;
        (self.begun - first.since > 2 * queue).then_some(key)
    }

    /// The one whose first page is under the head first.
    fn soonest(&self, now: Nanos) -> Option<(u64, u64)> {
        let start = |transfer: Transfer| {
            let one = Transfer {
                pages: 1,
                ..transfer
            };
            self.passes(now, one)
        };
        let all = self.waiting.iter();
        all.min_by_key(|(key, waiting)| (start(waiting.transfer), **key))
            .map(|(&key, _)| key)
    }

    /// Bytes a second under the head at a page.
    fn rate(&self, page: u64) -> u64 {
        let zone = page * ZONES / self.pages.max(1);
        self.p.outer - (self.p.outer - self.p.inner.min(self.p.outer)) * zone / (ZONES - 1)
    }

    const fn turn(&self) -> Nanos {
        MINUTE / self.p.rpm
    }

    /// Where on its track a page begins, as time since the track's beginning.
    fn angle(&self, page: u64) -> Nanos {
        time(page * PAGE, self.rate(page)) % self.turn()
    }

    /// The way over `pages` of the surface.
    fn seek(&self, from: u64, to: u64) -> Nanos {
        let [track, average, full] = self.p.seek;
        let distance = from.abs_diff(to);
        if distance * PAGE < time_to_bytes(self.turn(), self.rate(from)) {
            return if distance == 0 { 0 } else { track };
        }
        let third = self.pages / 3;
        if distance <= third {
            // The arm gains speed: the way grows with the square of the time.
            let part = (distance * 1_000_000 / third.max(1)) * 1_000_000;
            track + average.saturating_sub(track) * part.isqrt() / 1_000_000
        } else {
            let rest = (distance - third) * 1_000 / (self.pages - third).max(1);
            average + full.saturating_sub(average) * rest / 1_000
        }
    }

    /// When the last page of a transfer that begins at `now` has passed under the head.
    fn passes(&self, now: Nanos, transfer: Transfer) -> Nanos {
        let bytes = u64::from(transfer.pages) * PAGE;
        let rate = self.rate(transfer.first);
        let last = transfer.first + u64::from(transfer.pages);
        match self.ahead.filter(|_| !transfer.write) {
            // Its first page is in the cache, or the next to come: the head passes its last one then.
            Some(ahead) if self.is_ahead(ahead, transfer.first, now) => {
                let behind = last.saturating_sub(ahead.from) * PAGE;
                (ahead.since + time(behind, rate)).max(now)
            }
            _ if transfer.write && self.goes_on(transfer.first, now) => {
                self.written.unwrap_or(now) + time(bytes, rate)
            }
            _ => {
                let there = now + self.seek(self.head, transfer.first);
                let turn = self.turn();
                let wait = (self.angle(transfer.first) + turn - there % turn) % turn;
                there + wait + time(bytes, rate)
            }
        }
    }

    fn serve(&mut self, now: Nanos, transfer: Transfer) -> Nanos {
        let bytes = u64::from(transfer.pages) * PAGE;
        let passed = self.passes(now, transfer);
        self.head = (transfer.first + u64::from(transfer.pages)).min(self.pages);
        self.ahead = (!transfer.write).then_some(Ahead {
            from: self.head,
            since: passed,
        });
        self.written = transfer.write.then_some(passed);
        passed.max(now + time(bytes, self.p.link))
    }

    /// A write that begins where the last one ended, and no later than the cache can make up for.
    fn goes_on(&self, page: u64, now: Nanos) -> bool {
        let late = |since| time_to_bytes(now.saturating_sub(since), self.rate(page));
        page == self.head
            && self
                .written
                .is_some_and(|since| late(since) < self.p.write_cache)
    }

    fn is_ahead(&self, ahead: Ahead, page: u64, now: Nanos) -> bool {
        let read = time_to_bytes(now.saturating_sub(ahead.since), self.rate(page));
        let read = read.min(self.p.ahead) / PAGE;
        (ahead.from..=ahead.from + read).contains(&page)
    }
}

fn time_to_bytes(time: Nanos, rate: u64) -> u64 {
    (u128::from(time) * u128::from(rate) / 1_000_000_000) as u64
}

#[cfg(test)]
mod tests {
    use super::super::super::parameters::{DeviceParameters, Parameters};
    use super::super::super::rng::Rng;
    use super::*;

    fn disk_of(queue: u64) -> DiskDevice {
        let machine = Parameters::named("core-2").expect("a machine");
        match machine.device {
            DeviceParameters::Disk(disk) => DiskDevice::new(Disk { queue, ..disk }),
            other => panic!("{other:?}"),
        }
    }

    fn disk() -> DiskDevice {
        disk_of(1)
    }

    /// Keeps `depth` transfers waiting until `count` have ended; how long that took.
    fn run(
        disk: &mut DiskDevice,
        depth: u32,
        count: u32,
        mut next: impl FnMut() -> Transfer,
    ) -> Nanos {
        let (mut now, mut end) = (0, None);
        for n in 0..depth {
            end = disk.submit(now, IoId(n), next()).or(end);
        }
        for n in 0..count {
            (now, _) = end.expect("one is served");
            end = disk.ended(now);
            end = disk.submit(now, IoId(depth + n), next()).or(end);
        }
        now
    }

    #[test]
    fn sequential_reads_come_at_the_speed_of_the_plate() {
        let Disk { outer, inner, .. } = disk().p;
        for (start, rate) in [(0, outer), (disk().pages - 100_000, inner)] {
            let mut disk = disk();
            let mut at = start;
            let took = run(&mut disk, 1, 500, || {
                at += 32;
                Transfer {
                    write: false,
                    first: at,
                    pages: 32,
                }
            });
            let found = 500 * 32 * PAGE * 1_000 / (took / 1_000_000);
            assert!(
                found.abs_diff(rate) < rate / 20,
                "{found}, specified {rate}"
            );
        }
    }

    #[test]
    fn sequential_writes_lose_a_turn_each_without_the_write_cache() {
        let time = |write_cache| {
            let p = Disk {
                write_cache,
                ..disk().p
            };
            let mut at = 0;
            run(&mut DiskDevice::new(p), 1, 500, || {
                at += 32;
                Transfer {
                    write: true,
                    first: at,
                    pages: 32,
                }
            })
        };
        let (off, on) = (time(0) / 500, time(8 << 20) / 500);
        let disk = disk();
        let transfer = super::time(32 * PAGE, disk.p.outer);
        assert!(
            on.abs_diff(transfer) < transfer / 20,
            "{on}, not {transfer}"
        );
        assert!(off.abs_diff(disk.turn()) < transfer, "{off}");
    }

    #[test]
    fn a_random_read_takes_a_seek_and_half_a_turn() {
        let mut disk = self::disk();
        let mut rng = Rng::new(3);
        let pages = disk.pages();
        let mut random = || Transfer {
            write: false,
            first: rng.below(pages - 1),
            pages: 1,
        };
        let alone = run(&mut disk, 1, 1_000, &mut random) / 1_000;
        let expected = disk.p.seek[1] + disk.turn() / 2 + disk.p.command;
        assert!(
            alone.abs_diff(expected) < expected / 10,
            "{alone}, expected {expected}"
        );
        // The elevator makes the ways shorter.
        let mut disk = self::disk();
        let many = run(&mut disk, 32, 1_000, &mut random) / 1_000;
        assert!(many < alone * 2 / 3, "{many} of {alone}");
    }

    /// Where the ways are short the waits count, and only the disk knows how long they are.
    #[test]
    fn a_disk_that_orders_its_commands_shortens_the_waits() {
        let time = |queue| {
            let mut disk = disk_of(queue);
            let mut rng = Rng::new(3);
            let few = disk.pages() / 100;
            let random = || Transfer {
                write: false,
                first: rng.below(few),
                pages: 1,
            };
            run(&mut disk, 8, 1_000, random) / 1_000
        };
        let (elevator, queued) = (time(1), time(8));
        assert!(queued < elevator * 3 / 4, "{queued} of {elevator}");
    }

    #[test]
    fn no_command_is_passed_for_ever() {
        let mut disk = disk_of(8);
        let read = |first| Transfer {
            write: false,
            first,
            pages: 1,
        };
        let mut end = disk.submit(0, IoId(0), read(0));
        disk.submit(0, IoId(1), read(30_000_000));
        for n in 2..100 {
            let (now, io) = end.expect("one is served");
            if io == IoId(1) {
                assert!((10..30).contains(&n), "{n}");
                return;
            }
            disk.submit(now, IoId(n), read(u64::from(n)));
            end = disk.ended(now);
        }
        panic!("it is passed for ever");
    }

    #[test]
    fn seeks_grow_with_the_distance_between_the_specified_ones() {
        let disk = disk();
        let [track, average, full] = disk.p.seek;
        let seek = |part: u64| disk.seek(0, disk.pages * part / 300);
        assert_eq!((disk.seek(7, 7), disk.seek(7, 8)), (0, track));
        assert!(seek(100).abs_diff(average) < average / 50, "{}", seek(100));
        assert!(seek(300).abs_diff(full) < full / 50, "{}", seek(300));
        assert!((1..300).map(seek).is_sorted());
    }

    #[test]
    fn the_nearest_above_is_served_first() {
        let mut disk = disk();
        let read = |first| Transfer {
            write: false,
            first,
            pages: 1,
        };
        let mut end = disk.submit(0, IoId(0), read(1_000_000));
        for (n, first) in [(1, 500), (2, 3_000_000), (3, 2_000_000)] {
            assert_eq!(disk.submit(0, IoId(n), read(first)), None);
        }
        let mut order = Vec::new();
        while let Some((now, IoId(n))) = end {
            order.push(n);
            end = disk.ended(now);
        }
        assert_eq!(order, [0, 3, 2, 1]);
    }
}
