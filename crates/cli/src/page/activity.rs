//! What the records of a run tell: when pages came and went, where, and how many would have stayed in more memory.
//!
//! Records are counted as they come and not kept. So the page of a long run is ready when the run has ended, and there is no
//! file that could become too large. Memory does not grow with time: a few figures per column, a [`Grid`] for each of the most
//! active processes, a sample of the evicted pages for the curve. A grid has two bits for each page that was ever touched.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foreswap_lab::trace::{Event, Found as Place, KeptUnits, MAX_PAGES, PageRange, Record};
use foreswap_lab::{Curve, RunningCurve};

use super::grid::{COLUMNS, Change, Grid};
use super::names::Names;

/// Processes with a grid.
const GRIDS: usize = 12;
/// The length of the first columns, ns.
const FIRST_NS: u64 = 4 << 20;
/// When the mappings of a process get their names first, ns after its start.
const FIRST_LOOK_NS: u64 = 20_000_000;
/// A look at the names takes at most this part of the time.
const LOOK_PART: u64 = 50;
/// Evicted pages that the curve follows.
const SAMPLES: usize = 8192;

/// What happened in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Touches of pages that were on an area or in a file only.
    pub away: u64,
    /// Those of them whose eviction was seen: not the first read of a file, nor what a child inherits on an area.
    pub again: u64,
    /// Touches of pages that were in a frame, or on their way there.
    pub near: u64,
    /// First touches.
    pub new: u64,
    /// Pages that came back, touched or read ahead.
    pub back: u64,
    /// Pages that were evicted.
    pub out: u64,
    /// Pages in memory at its end, as far as their coming was recorded.
    pub held: u64,
}

impl Column {
    fn add(&mut self, other: &Self) {
        self.away += other.away;
        self.again += other.again;
        self.near += other.near;
        self.new += other.new;
        self.back += other.back;
        self.out += other.out;
        self.held = other.held;
    }
}

/// A process of the run.
#[derive(Debug, Default)]
pub struct Space {
    /// Its pid.
    pub pid: u32,
    /// Where it was paged.
    pub grid: Grid,
    /// What is where.
    pub names: Names,
    began_ns: u64,
    /// When the names are looked at again, ns since the start.
    due_ns: u64,
}

/// All of it.
pub struct Activity {
    limit_pages: u64,
    curve: RunningCurve,
    /// The address space of each task.
    tasks: Vec<u32>,
    spaces: HashMap<u32, Space>,
    kept: KeptUnits,
    columns: Vec<Column>,
    /// Up to this column, what was in memory is known.
    held_until: usize,
    column_ns: u64,
    last_ns: u64,
    processes: u64,
    left_out: u64,
    lost: u64,
}

impl std::fmt::Debug for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Activity").finish_non_exhaustive()
    }
}

/// What was found, when all records have been seen.
#[derive(Debug)]
pub struct Found {
    /// The limit of the run, in pages.
    pub limit_pages: u64,
    /// The misses by memory, from the limit on.
    pub curve: Curve,
    /// The most active processes, the most active first.
    pub spaces: Vec<Space>,
    /// The time, column by column, up to the last record.
    pub columns: Vec<Column>,
    /// The length of a column.
    pub column: Duration,
    /// The time of the last record.
    pub last: Duration,
    /// Processes that were recorded.
    pub processes: u64,
    /// Threads that were: the first of each process, and the others that faulted.
    pub threads: u64,
    /// Processes that are not among `spaces`.
    pub left_out: u64,
    /// Records that were lost.
    pub lost: u64,
}

impl Found {
    /// The sum of all columns.
    pub fn total(&self) -> Column {
        let mut total = Column::default();
        self.columns.iter().for_each(|column| total.add(column));
        total
    }
}

impl Activity {
    /// Of a run with a limit of `limit_pages`.
    pub fn new(limit_pages: u64) -> Self {
        Self {
            limit_pages,
            curve: RunningCurve::new(limit_pages, SAMPLES),
            tasks: Vec::new(),
            spaces: HashMap::new(),
            kept: KeptUnits::default(),
            columns: vec![Column::default(); COLUMNS],
            held_until: 0,
            column_ns: FIRST_NS,
            last_ns: 0,
            processes: 0,
            left_out: 0,
            lost: 0,
        }
    }

    /// The next record.
    pub fn record(&mut self, record: &Record) {
        self.curve.record(record);
        self.last_ns = self.last_ns.max(record.time);
        let column = self.column(record.time);
        self.hold_until(column);
        if let Event::Start(start) = &record.event {
            self.tasks.push(start.space);
            if start.tid == start.pid {
                self.begin(start.space, start.pid, record.time);
            }
            return;
        }
        // Sources yield no record of a task that has not started.
        let space = self.tasks.get(record.task as usize).copied().unwrap_or(0);
        let of_time = &mut self.columns[column];
        match &record.event {
            Event::Touch { found, .. } => {
                *match found {
                    Place::New => &mut of_time.new,
                    Place::Kept | Place::Ahead => &mut of_time.near,
                    Place::Away | Place::Unknown => &mut of_time.away,
                } += 1;
            }
            Event::Evicted(pages) => of_time.out += pages.end.0 - pages.start.0,
            Event::Lost(records) => self.lost = self.lost.saturating_add(*records),
            _ => {}
        }
        self.on_pages(column, space, &record.event);
        self.hold_until(column);
    }

    /// Where the pages of an event are now.
    fn on_pages(&mut self, column: usize, space: u32, event: &Event) {
        let is_rest = self.kept.is_rest(space, event);
        let mut space = self.spaces.get_mut(&space);
        let range = |pages: &PageRange| pages.start.0..pages.end.0;
        let (pages, change) = match event {
            Event::Touch { page, found, .. } => {
                let change = match found {
                    Place::Away | Place::Ahead => Change::CameBack,
                    Place::Kept => Change::Stayed,
                    Place::New | Place::Unknown => Change::Came,
                };
                (page.0..page.0 + 1, change)
            }
            Event::Prefetched(pages) if is_rest => (range(pages), Change::Stayed),
            Event::Prefetched(pages) => (range(pages), Change::Came),
            Event::Evicted(pages) => (range(pages), Change::Evicted),
            Event::Discard(pages) | Event::Unmap(pages) => (range(pages), Change::Gone),
            Event::Move { from, to } => {
                if let Some(space) = space {
                    space.grid.on_move(column, range(from), to.0);
                }
                return;
            }
            Event::End => {
                // Its pid may soon be that of another process.
                match &mut space {
                    Some(space) if space.due_ns != u64::MAX => space.due_ns = u64::MAX,
                    // Its other threads have no memory of their own.
                    _ => return,
                }
                (0..MAX_PAGES, Change::Gone)
            }
            Event::Start(_) | Event::Map(_) | Event::File { .. } | Event::Lost(_) => return,
        };
        // Of a process without a grid it is not known: most were evicted.
        let number = pages.end - pages.start;
        let evicted = space.map_or(number, |space| space.grid.on_change(column, pages, change));
        let of_time = &mut self.columns[column];
        match change {
            Change::Came => of_time.back += evicted,
            Change::CameBack => of_time.back += 1,
            Change::Stayed | Change::Evicted | Change::Gone => {}
        }
        if matches!(
            event,
            Event::Touch {
                found: Place::Away,
                ..
            }
        ) {
            of_time.again += evicted;
        }
    }

    /// What is in memory has been so up to `column`.
    fn hold_until(&mut self, column: usize) {
        let held = self.spaces.values().map(|space| space.grid.held()).sum();
        if column >= self.held_until {
            for column in &mut self.columns[self.held_until..=column] {
                column.held = held;
            }
            self.held_until = column;
        }
    }

    /// The column of a time. There are fewer when there would be too many.
    fn column(&mut self, time: u64) -> usize {
        while time / self.column_ns >= COLUMNS as u64 {
            self.column_ns *= 2;
            for column in 0..COLUMNS / 2 {
                let second = self.columns[2 * column + 1];
                self.columns[column] = self.columns[2 * column];
                self.columns[column].add(&second);
            }
            self.columns[COLUMNS / 2..].fill(Column::default());
            self.held_until /= 2;
            self.spaces
                .values_mut()
                .for_each(|space| space.grid.halve());
        }
        (time / self.column_ns) as usize
    }

    fn begin(&mut self, number: u32, pid: u32, now: u64) {
        self.processes += 1;
        if self.spaces.len() >= GRIDS {
            let least = self
                .spaces
                .iter()
                .min_by_key(|(_, space)| (space.due_ns != u64::MAX, space.grid.moves()));
            if let Some(&least) = least.map(|(number, _)| number) {
                self.spaces.remove(&least);
                self.left_out += 1;
            }
        }
        let space = Space {
            pid,
            began_ns: now,
            due_ns: now + FIRST_LOOK_NS,
            ..Space::default()
        };
        self.spaces.insert(number, space);
    }

    /// Asks the kernel for the names of mappings, `now` (ns since the start). A process is looked at again when it has
    /// become a sixteenth older, and rarer if that takes long.
    pub fn look_at_names(&mut self, now: u64) {
        for space in self.spaces.values_mut() {
            if now >= space.due_ns {
                let began = Instant::now();
                space.names.look(space.pid);
                let cost = LOOK_PART * began.elapsed().as_nanos() as u64;
                space.due_ns = now + cost.max(now.saturating_sub(space.began_ns) / 16);
            }
        }
    }

    /// All records were given.
    pub fn finish(mut self) -> Found {
        let used = (self.last_ns / self.column_ns) as usize + 1;
        self.columns.truncate(used);
        let mut spaces: Vec<Space> = self.spaces.into_values().collect();
        spaces.sort_by_key(|space| (std::cmp::Reverse(space.grid.moves()), space.pid));
        Found {
            limit_pages: self.limit_pages,
            curve: self.curve.finish(),
            spaces,
            columns: self.columns,
            column: Duration::from_nanos(self.column_ns),
            last: Duration::from_nanos(self.last_ns),
            processes: self.processes,
            threads: self.tasks.len() as u64,
            left_out: self.left_out,
            lost: self.lost,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use foreswap_lab::trace::{Start, Vpn};

    use super::*;

    /// A process that touches 100 pages in 50 of memory, three times, within `last` ns.
    pub fn cyclic(last: u64) -> Activity {
        let mut activity = Activity::new(50);
        let start = Start {
            space: 0,
            pid: 7,
            tid: 7,
            parent: None,
        };
        let mut records = vec![(0, Event::Start(start))];
        for n in 0..300_u64 {
            let time = last * n / 299;
            let found = if n < 100 { Place::New } else { Place::Away };
            let page = Vpn(0x5000 + n % 100);
            records.push((
                time,
                Event::Touch {
                    page,
                    found,
                    write: true,
                },
            ));
            if n >= 50 {
                let page = 0x5000 + (n - 50) % 100;
                records.push((time, Event::Evicted(Vpn(page)..Vpn(page + 1))));
            }
        }
        for (time, event) in records {
            activity.record(&Record {
                time,
                task: 0,
                event,
            });
        }
        activity
    }

    impl Activity {
        /// The names of the mappings of `pid`.
        pub fn names(&mut self, pid: u32, change: impl Fn(&mut Names)) {
            let mut spaces = self.spaces.values_mut();
            spaces
                .find(|space| space.pid == pid)
                .into_iter()
                .for_each(|space| change(&mut space.names));
        }
    }

    #[test]
    fn records_become_figures() {
        for last in [1_000, 1_000_000_000, 1 << 50] {
            let found = cyclic(last).finish();
            let total = found.total();
            assert_eq!((total.new, total.away, total.near), (100, 200, 0), "{last}");
            assert_eq!(total.again, 200);
            assert_eq!(
                (total.back, total.out, total.held),
                (200, 250, 50),
                "{last}"
            );
            assert!(found.columns.len() <= COLUMNS);
            assert!(
                found
                    .columns
                    .iter()
                    .skip(COLUMNS / 2)
                    .all(|column| column.held > 0)
            );
            let end = found.column * found.columns.len() as u32;
            assert!(found.last.as_nanos() == u128::from(last) && end > found.last);
            // A page returns when fifty others were evicted after it.
            assert_eq!(
                (found.curve.again(50), found.curve.again(99)),
                (200.0, 200.0)
            );
            assert_eq!(found.curve.again(101), 0.0);
        }
    }

    /// As of a file that is read: more memory would not have saved that.
    #[test]
    fn a_page_that_nobody_saw_go_is_not_touched_again() {
        let mut activity = cyclic(1000);
        let event = Event::Touch {
            page: Vpn(0x9000),
            found: Place::Away,
            write: false,
        };
        activity.record(&Record {
            time: 1000,
            task: 0,
            event,
        });
        let total = activity.finish().total();
        assert_eq!((total.away, total.again, total.back), (201, 200, 201));
    }

    /// A huge page that was still in its frames was not read.
    #[test]
    fn a_huge_page_in_frames_did_not_come_back() {
        let mut activity = cyclic(1000);
        let before = activity
            .columns
            .iter()
            .map(|column| column.back)
            .sum::<u64>();
        let unit = Vpn(0xa000)..Vpn(0xa200);
        let kept = Event::Touch {
            page: Vpn(0xa100),
            found: Place::Kept,
            write: false,
        };
        let rest = [unit.start..Vpn(0xa100), Vpn(0xa101)..unit.end];
        let rest = rest.map(Event::Prefetched);
        for event in [Event::Evicted(unit), kept].into_iter().chain(rest) {
            activity.record(&Record {
                time: 1000,
                task: 0,
                event,
            });
        }
        let found = activity.finish();
        assert_eq!(found.total().back, before);
        assert_eq!(found.total().held, 50 + 512);
        assert_eq!(
            found.curve.again(50),
            200.0,
            "nor would memory have saved that"
        );
    }

    /// Short helpers do not push out a process that has not been paged yet.
    #[test]
    fn a_process_that_lives_keeps_its_grid() {
        let mut activity = Activity::new(50);
        for number in 0..40_u32 {
            let mut record = |event| {
                activity.record(&Record {
                    time: 5,
                    task: number,
                    event,
                })
            };
            record(Event::Start(Start {
                space: number,
                pid: 100 + number,
                tid: 100 + number,
                parent: None,
            }));
            if number > 0 {
                record(Event::Evicted(Vpn(0)..Vpn(1)));
                record(Event::End);
            }
        }
        assert!(activity.spaces.contains_key(&0));
    }

    #[test]
    fn an_ended_process_holds_nothing_and_has_no_names() {
        let mut activity = cyclic(1000);
        assert!(activity.spaces[&0].due_ns < u64::MAX);
        activity.record(&Record {
            time: 2000,
            task: 0,
            event: Event::End,
        });
        assert_eq!(activity.spaces[&0].due_ns, u64::MAX);
        assert_eq!(activity.finish().total().held, 0);
    }

    #[test]
    fn the_most_active_processes_are_kept() {
        let mut activity = Activity::new(50);
        for number in 0..40_u32 {
            let start = Start {
                space: number,
                pid: 100 + number,
                tid: 100 + number,
                parent: None,
            };
            let mut record = |event| {
                activity.record(&Record {
                    time: 5,
                    task: number,
                    event,
                })
            };
            record(Event::Start(start));
            let pages = if number == 3 { 1000 } else { 1 };
            record(Event::Evicted(Vpn(0)..Vpn(pages)));
        }
        let found = activity.finish();
        assert_eq!((found.processes, found.left_out), (40, 40 - GRIDS as u64));
        assert_eq!((found.spaces.len(), found.spaces[0].pid), (GRIDS, 103));
        assert_eq!(found.total().out, 1039);
    }
}
