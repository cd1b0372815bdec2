//! A rotating disk: one head that seeks, and a platter that turns.
//!
//! Waiting requests are served in rising order from the head's position, then from the lowest again, as by an
//! elevator. A disk with command queueing knows its rotation, and serves the request that it can begin first; no
//! request is passed over for ever. After a read, an idle disk reads ahead into its cache, and a sequential reader
//! finds its next data there. Writes go to the platter, because data on a swap area or behind a barrier must be
//! there. With the write cache on, a write that continues the last one arrives in time for the head, which is that
//! far behind. Other writes are waited for in either case: they soon fill the cache.

use std::collections::BTreeMap;

use foreswap_core::units::{Nanos, PAGE_SIZE};
use foreswap_core::world::IoId;

use super::super::parameters::Disk;
use super::Transfer;

const PAGE: u64 = PAGE_SIZE as u64;
/// Zones with tracks of equal length.
const ZONES: u64 = 16;
const MINUTE: u64 = 60_000_000_000;

/// The disk's own read-ahead.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// First page, and the time of the head there.
    from: u64,
    since: Nanos,
}

/// A waiting transfer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    io: IoId,
    transfer: Transfer,
    /// Transfers that had begun when it arrived.
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
    /// The page after the last one under the head.
    head: u64,
    ahead: Option<Ahead>,
    /// The end of the last transfer, if it was a write.
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

    /// A transfer is submitted at `now`. Returns the next completion, if it is only known now.
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

    /// A transfer has ended; returns the next completion.
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

    /// The oldest request, once more than two queues of others have passed it.
    fn overdue(&self, queue: u64) -> Option<(u64, u64)> {
        let (&key, first) = self.waiting.iter().min_by_key(|((_, at), _)| *at)?;
        (self.begun - first.since > 2 * queue).then_some(key)
    }

    /// The request whose first page is under the head first.
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

    /// Bytes per second under the head at a page.
    fn rate(&self, page: u64) -> u64 {
        let zone = page * ZONES / self.pages.max(1);
        self.p.outer - (self.p.outer - self.p.inner.min(self.p.outer)) * zone / (ZONES - 1)
    }

    const fn turn(&self) -> Nanos {
        MINUTE / self.p.rpm
    }

    /// The position of a page on its track, as time since the track's start.
    fn angle(&self, page: u64) -> Nanos {
        time(page * PAGE, self.rate(page)) % self.turn()
    }

    /// The track of a page: the tracks of a zone have numbers.
    fn track(&self, page: u64) -> (u64, u64) {
        let rate = self.rate(page);
        (rate, time(page * PAGE, rate) / self.turn())
    }

    /// The seek from one page to another: none if the platter turns to it.
    fn seek(&self, from: u64, to: u64) -> Nanos {
        let [track, average, full] = self.p.seek;
        let distance = from.abs_diff(to);
        if distance * PAGE < time_to_bytes(self.turn(), self.rate(from)) {
            let same = distance == 0 || self.track(from) == self.track(to);
            return if same { 0 } else { track };
        }
        let third = self.pages / 3;
        if distance <= third {
            // The arm accelerates: the distance grows with the square of the time.
            let part = (distance * 1_000_000 / third.max(1)) * 1_000_000;
            track + average.saturating_sub(track) * part.isqrt() / 1_000_000
        } else {
            let rest = (distance - third) * 1_000 / (self.pages - third).max(1);
            average + full.saturating_sub(average) * rest / 1_000
        }
    }

    /// The time when the last page of a transfer that begins at `now` has passed under the head.
    fn passes(&self, now: Nanos, transfer: Transfer) -> Nanos {
        let bytes = u64::from(transfer.pages) * PAGE;
        let rate = self.rate(transfer.first);
        let last = transfer.first + u64::from(transfer.pages);
        match self.ahead.filter(|_| !transfer.write) {
            // Its first page is cached, or comes next: the head then passes its last one.
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

    /// A write that begins where the last one ended, within the delay that the cache can absorb.
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

    /// Keeps `depth` transfers waiting until `count` have ended; returns the time.
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

    /// The head stays on the track: the platter turns over what is left out.
    #[test]
    fn reads_that_leave_out_less_than_a_track_come_at_the_speed_of_the_plate() {
        let mut disk = disk();
        let mut at = 0;
        let took = run(&mut disk, 8, 500, || {
            at += 32;
            Transfer {
                write: false,
                first: at,
                pages: 4,
            }
        });
        let passed = super::time(500 * 32 * PAGE, disk.p.outer);
        assert!(
            took < 2 * passed,
            "{took}, {passed} at the speed of the plate"
        );
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
        // The elevator shortens the seeks.
        let mut disk = self::disk();
        let many = run(&mut disk, 32, 1_000, &mut random) / 1_000;
        assert!(many < alone * 2 / 3, "{many} of {alone}");
    }

    /// If seeks are short, rotation dominates, and only the disk knows it.
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
        let next = time_to_bytes(disk.turn(), disk.rate(0)) / PAGE;
        let seeks = [7, 8, next - 1, next + 1].map(|page| disk.seek(7, page));
        assert_eq!(seeks, [0, 0, 0, track]);
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
