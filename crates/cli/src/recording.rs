//! `run --trace` and `--report`: collects the engines' records from their rings, into one file and for the page.
//!
//! Each managed process has a ring. The supervisor empties them all many times a second and once more when a process
//! has ended: a killed process loses no record. The file is a valid trace after every write, and is written at least
//! once a second.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foreswap::ledger::{ProcId, Ring, Seen, SeenKind, StatsSnapshot};
use foreswap_lab::trace::{Event, Found, Header, PageRange, Record, Start, TraceWriter, Vpn};

use crate::page::watching::Records;

/// How often the rings are emptied.
pub const EVERY_MS: i64 = 10;
/// The most records that are taken from a ring at a time: all that it holds.
const AT_ONCE: usize = Ring::CAPACITY;
/// How long records are held back at most, for compression.
const KEPT: Duration = Duration::from_secs(1);

/// The trace cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace to {path}: {cause}; name another file with --trace", path = path.display())]
pub struct RecordingError {
    path: PathBuf,
    cause: io::Error,
}

/// A traced process.
struct Traced {
    ring: Ring,
    pid: u32,
    space: u32,
    /// The task that represents the process if the thread is unknown.
    main: u32,
    /// Its threads' tasks.
    threads: HashMap<u32, u32>,
    /// Records known to be lost at the last look.
    lost: u64,
}

/// A trace being written, or counted for the page of the run, or both.
pub struct Recording {
    /// The file of `--trace`.
    path: Option<PathBuf>,
    /// `None` without `--trace`, and after a write error.
    writer: Option<TraceWriter<File>>,
    /// What the page tells of the records.
    page: Option<Records>,
    /// The message for the user about it.
    problem: Option<String>,
    /// When the trace began, ns of CLOCK_MONOTONIC.
    start_ns: u64,
    processes: HashMap<ProcId, Traced>,
    tasks: u32,
    spaces: u32,
    written: Instant,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Recording {
    /// Begins a trace at `path`, if there is one, of a run with `limit_pages`. `page`: there will be a page.
    pub fn create(
        path: Option<&Path>,
        limit_pages: u64,
        page: bool,
    ) -> Result<Self, RecordingError> {
        let header = Header { limit: limit_pages };
        let create = |path: &Path| {
            let writer = File::create(path).and_then(|file| TraceWriter::new(file, header));
            writer.map_err(|cause| RecordingError {
                path: path.to_owned(),
                cause,
            })
        };
        Ok(Self {
            path: path.map(Path::to_owned),
            writer: path.map(create).transpose()?,
            page: page.then(|| Records::new(limit_pages)),
            problem: None,
            start_ns: 0,
            processes: HashMap::new(),
            tasks: 0,
            spaces: 0,
            written: Instant::now(),
        })
    }

    /// The run starts at `start_ns` of CLOCK_MONOTONIC.
    pub fn start(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// A process has connected. False: it cannot be traced.
    pub fn begin(&mut self, process: ProcId, pid: u32, parent: Option<ProcId>) -> bool {
        if self.writer.is_none() && self.page.is_none() {
            return false;
        }
        let ring = match Ring::create() {
            Ok(ring) => ring,
            Err(error) => {
                self.problem
                    .get_or_insert(format!("process {pid} is not traced: {error}"));
                return false;
            }
        };
        let (space, main) = (self.spaces, self.tasks);
        let parent = parent.and_then(|parent| Some(self.processes.get(&parent)?.main));
        let time = monotonic_ns().saturating_sub(self.start_ns);
        let start = Start {
            space,
            pid,
            tid: pid,
            parent,
        };
        self.push(Record {
            time,
            task: main,
            event: Event::Start(start),
        });
        if let Some(page) = &mut self.page {
            page.on_start(pid);
        }
        self.spaces += 1;
        self.tasks += 1;
        let threads = HashMap::from([(pid, main)]);
        self.processes.insert(
            process,
            Traced {
                ring,
                pid,
                space,
                main,
                threads,
                lost: 0,
            },
        );
        true
    }

    /// The ring of a process, to be handed over.
    pub fn ring(&self, process: ProcId) -> Option<BorrowedFd<'_>> {
        Some(self.processes.get(&process)?.ring.fd())
    }

    /// Whether there is a file.
    pub fn has_file(&self) -> bool {
        self.path.is_some()
    }

    /// Whether there are rings to empty.
    pub fn is_busy(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Empties all rings. Returns a message for the user, if there is one.
    pub fn look(&mut self) -> Option<String> {
        let mut all: Vec<ProcId> = self.processes.keys().copied().collect();
        all.sort_unstable_by_key(|process| process.index());
        for process in all {
            if let Some(mut traced) = self.processes.remove(&process) {
                self.empty(&mut traced);
                self.processes.insert(process, traced);
            }
        }
        if let Some(page) = &mut self.page {
            page.look(monotonic_ns().saturating_sub(self.start_ns));
        }
        if self.written.elapsed() >= KEPT {
            self.written = Instant::now();
            if let Some(writer) = &mut self.writer
                && let Err(error) = writer.flush()
            {
                self.fail(&error);
            }
        }
        self.problem.take()
    }

    /// A process has ended, with `stats`.
    pub fn end(&mut self, process: ProcId, stats: impl Fn() -> StatsSnapshot) {
        let Some(mut traced) = self.processes.remove(&process) else {
            return;
        };
        self.empty(&mut traced);
        if let Some(page) = &mut self.page {
            page.on_end(traced.pid, &stats());
        }
        let time = monotonic_ns().saturating_sub(self.start_ns);
        let mut tasks: Vec<u32> = traced.threads.into_values().collect();
        tasks.sort_unstable();
        for task in tasks {
            self.push(Record {
                time,
                task,
                event: Event::End,
            });
        }
    }

    /// What the page tells of the records so far, and of the processes that live. Nothing is counted for it from now on.
    pub fn take_page(&mut self, stats: impl Fn(ProcId) -> StatsSnapshot) -> Option<Records> {
        self.page.as_ref()?;
        // A message for the user stays for the next look.
        self.problem = self.look();
        let mut page = self.page.take()?;
        for (&process, traced) in &self.processes {
            page.on_end(traced.pid, &stats(process));
        }
        Some(page)
    }

    /// Ends the trace. Returns the number of records, or a message for the user.
    pub fn finish(mut self) -> Result<(PathBuf, u64), String> {
        let all: Vec<ProcId> = self.processes.keys().copied().collect();
        let none = StatsSnapshot::default;
        all.into_iter().for_each(|process| self.end(process, none));
        if let (Some(writer), Some(path)) = (self.writer.take(), self.path.clone()) {
            let records = writer.records();
            match writer.finish() {
                Ok(_) => return Ok((path, records)),
                Err(error) => self.fail(&error),
            }
        }
        Err(self.problem.unwrap_or_default())
    }

    fn empty(&mut self, traced: &mut Traced) {
        let now = monotonic_ns();
        let mut is_active = false;
        // The engine, or a program that writes to the ring, may be faster than this.
        for seen in (0..AT_ONCE).map_while(|_| traced.ring.take()) {
            let Some(event) = event(&seen) else {
                continue;
            };
            is_active = true;
            let time = seen.time.min(now).saturating_sub(self.start_ns);
            let task = match seen.tid {
                0 => traced.main,
                tid => match traced.threads.get(&tid) {
                    Some(&task) => task,
                    None => {
                        let task = self.tasks;
                        let (space, pid, parent) = (traced.space, traced.pid, None);
                        let start = Start {
                            space,
                            pid,
                            tid,
                            parent,
                        };
                        self.push(Record {
                            time,
                            task,
                            event: Event::Start(start),
                        });
                        self.tasks += 1;
                        traced.threads.insert(tid, task);
                        task
                    }
                },
            };
            self.push(Record { time, task, event });
        }
        if let Some(page) = &mut self.page
            && is_active
        {
            page.on_active(traced.pid, now.saturating_sub(self.start_ns));
        }
        let lost = traced.ring.lost();
        if lost > traced.lost {
            let time = monotonic_ns().saturating_sub(self.start_ns);
            let event = Event::Lost(lost - traced.lost);
            self.push(Record {
                time,
                task: traced.main,
                event,
            });
            traced.lost = lost;
        }
    }

    fn push(&mut self, record: Record) {
        // Otherwise, the program wrote to the ring.
        if record.event.problem().is_some() {
            return;
        }
        if let Some(page) = &mut self.page {
            page.on_record(&record);
        }
        let Some(writer) = &mut self.writer else {
            return;
        };
        match writer.push(&record) {
            // Impossible as well.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => self.fail(&error),
            Ok(()) => {}
        }
    }

    fn fail(&mut self, error: &io::Error) {
        let path = self.path.as_deref().unwrap_or(Path::new("")).display();
        self.problem = Some(format!(
            "the trace {path} ends here, as it cannot be written: {error}"
        ));
        self.writer = None;
    }
}

fn event(seen: &Seen) -> Option<Event> {
    let end = seen.page.checked_add(seen.pages)?;
    let pages: PageRange = Vpn(seen.page)..Vpn(end);
    let touch = |found| Event::Touch {
        page: Vpn(seen.page),
        found,
        write: seen.write,
    };
    Some(match seen.kind {
        SeenKind::Map => Event::Map(pages),
        SeenKind::Unmap => Event::Unmap(pages),
        SeenKind::Discard => Event::Discard(pages),
        SeenKind::Move => Event::Move {
            from: pages,
            to: Vpn(seen.to),
        },
        SeenKind::New => touch(Found::New),
        SeenKind::Kept => touch(Found::Kept),
        SeenKind::Ahead => touch(Found::Ahead),
        SeenKind::Away => touch(Found::Away),
        SeenKind::Prefetched => Event::Prefetched(pages),
        SeenKind::Evicted => Event::Evicted(pages),
    })
}

/// CLOCK_MONOTONIC, from its zero.
pub fn monotonic() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn monotonic_ns() -> u64 {
    monotonic().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use foreswap_lab::trace::TraceReader;

    use super::*;

    fn seen(kind: SeenKind, tid: u32, page: u64, pages: u64) -> Seen {
        Seen {
            time: 5000,
            kind,
            write: false,
            tid,
            page,
            pages,
            to: 0,
        }
    }

    fn read(path: &Path) -> Vec<Record> {
        let mut reader = TraceReader::new(File::open(path).expect("a file")).expect("a trace");
        std::iter::from_fn(|| reader.next().expect("a record")).collect()
    }

    #[test]
    fn rings_become_tasks_of_a_trace() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t");
        let mut recording = Recording::create(Some(&path), 4096, false).expect("created");
        recording.start(1000);
        let [parent, child] = [3, 7].map(|n| ProcId::new(n).expect("a record"));
        assert!(recording.begin(parent, 100, None) && recording.begin(child, 200, Some(parent)));
        let ring = |recording: &Recording, process| {
            let fd = recording
                .ring(process)
                .expect("a ring")
                .try_clone_to_owned();
            Ring::attach(fd.expect("dup")).expect("attached")
        };
        let (one, two) = (ring(&recording, parent), ring(&recording, child));
        one.put(&seen(SeenKind::Map, 0, 10, 20));
        one.put(&seen(SeenKind::New, 101, 11, 1));
        // Impossible for a program: left out.
        one.put(&seen(SeenKind::Evicted, 0, u64::MAX, 9));
        one.put(&seen(SeenKind::Evicted, 0, 1 << 60, 9));
        two.put(&seen(SeenKind::Away, 200, 12, 1));
        assert_eq!(recording.look(), None);
        // Nothing is lost of a ring whose process is killed.
        one.put(&seen(SeenKind::Evicted, 0, 11, 1));
        recording.end(parent, StatsSnapshot::default);
        let (_, records) = recording.finish().expect("written");
        let found = read(&path);
        assert_eq!(found.len() as u64, records);
        let tasks: Vec<u32> = found.iter().map(|record| record.task).collect();
        assert_eq!(tasks, [0, 1, 0, 2, 2, 1, 0, 0, 2, 1]);
        let Event::Start(start) = &found[1].event else {
            panic!("{:?}", found[1]);
        };
        assert_eq!((start.pid, start.parent, start.space), (200, Some(0), 1));
        assert!(matches!(
            found[3].event,
            Event::Start(Start {
                tid: 101,
                space: 0,
                pid: 100,
                ..
            })
        ));
        assert_eq!(
            found[4].event,
            Event::Touch {
                page: Vpn(11),
                found: Found::New,
                write: false
            }
        );
        assert_eq!(found[4].time, 4000);
        assert_eq!(found[6].event, Event::Evicted(Vpn(11)..Vpn(12)));
    }

    #[test]
    fn lost_records_are_reported_and_an_abandoned_file_is_valid() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t");
        let mut recording = Recording::create(Some(&path), 4096, false).expect("created");
        let process = ProcId::new(0).expect("a record");
        assert!(recording.begin(process, 1, None));
        let fd = recording
            .ring(process)
            .expect("a ring")
            .try_clone_to_owned()
            .expect("dup");
        let ring = Ring::attach(fd).expect("attached");
        let mut puts = 0;
        while ring.lost() < 3 {
            ring.put(&seen(SeenKind::New, 0, puts, 1));
            puts += 1;
        }
        recording.written -= KEPT;
        assert_eq!(recording.look(), None);
        drop(recording);
        let found = read(&path);
        assert_eq!(found.len() as u64, 1 + puts - 3 + 1);
        assert_eq!(found.last().map(|r| &r.event), Some(&Event::Lost(3)));
    }
}
