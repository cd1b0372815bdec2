//! The helpers behind [`WithRam`], over a file in memory and over a RAM area.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::*;
use crate::ram::{Method, tests::area};
use crate::ring::{Direction, Io, IoVec, QueueError, RamHandle, WithRam};

/// A file in memory, whose transfers have completed when they are reaped. Beyond its end they fail.
struct File {
    bytes: Vec<u8>,
    ended: Vec<Completion>,
    flushed: Arc<AtomicUsize>,
    /// Rung by each completion.
    bell: OwnedFd,
}

impl Io for File {
    unsafe fn start(
        &mut self,
        direction: Direction,
        token: u64,
        _: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        assert!(matches!(direction, Direction::Read));
        let mut at = offset as usize;
        let mut result = Ok(());
        for piece in iov {
            match self.bytes.get(at..at + piece.len) {
                // SAFETY: the caller lends the memory.
                Some(bytes) => unsafe { piece.ptr.copy_from(bytes.as_ptr(), bytes.len()) },
                None => result = Err(IoError::Os { errno: 5 }),
            }
            at += piece.len;
        }
        self.ended.push(Completion { token, result });
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).expect("a bell");
        Ok(())
    }
    fn flush(&mut self) -> Result<(), IoError> {
        self.flushed.fetch_add(1, Relaxed);
        Ok(())
    }
    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.ended);
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
    fn has_ended(&mut self) -> bool {
        !self.ended.is_empty()
    }
    fn wait(&mut self) -> Result<(), IoError> {
        Ok(())
    }
    fn poll_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
    fn in_flight(&self) -> usize {
        self.ended.len()
    }
    fn set_area(&mut self, _: usize, _: Option<RawFd>) {}
    fn name(&self) -> &'static str {
        "memory"
    }
}

fn hash(page: &[u8; PAGE]) -> u64 {
    page.iter()
        .fold(7, |sum, &byte| sum * 31 % 0xffff_fffb + u64::from(byte))
}

/// `pages` pages; each third one is incompressible.
fn content(pages: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut byte = |at: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let page = at / PAGE;
        if page.is_multiple_of(3) {
            (state >> 56) as u8
        } else {
            page as u8
        }
    };
    (0..pages * PAGE).map(&mut byte).collect()
}

struct Bench {
    io: WithRam,
    event: OwnedFd,
    /// How often the file was flushed.
    flushed: Arc<AtomicUsize>,
}

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

fn bench(helpers: usize, bytes: Vec<u8>, refuses: bool) -> Bench {
    bench_that_hashes(hash, helpers, bytes, refuses)
}

fn bench_that_hashes(hash: Hash, helpers: usize, bytes: Vec<u8>, refuses: bool) -> Bench {
    let spawn = move |helper: Helper| {
        if refuses {
            return Err(SpawnRefused(11));
        }
        std::thread::spawn(|| helper.run());
        Ok(())
    };
    bench_with(Box::new(spawn), hash, helpers, bytes)
}

/// With helpers that never run.
fn bench_without_help(hash: Hash, bytes: Vec<u8>) -> Bench {
    bench_with(Box::new(|_| Ok(())), hash, 1, bytes)
}

fn bench_with(spawn: Spawn, hash: Hash, helpers: usize, bytes: Vec<u8>) -> Bench {
    let (event, flushed) = (bell(), Arc::new(AtomicUsize::new(0)));
    let rings = event.try_clone().expect("a descriptor");
    let helpers = Helpers::new(helpers, hash, rings, spawn);
    let below = File {
        bytes,
        ended: Vec::new(),
        flushed: Arc::clone(&flushed),
        bell: bell(),
    };
    Bench {
        io: WithRam::new(Box::new(below), helpers),
        event,
        flushed,
    }
}

impl Bench {
    /// Reaps as the engine does, by the event, until `count` transfers have completed; `seen` is called for each
    /// before the next reaping.
    fn await_ends(&mut self, count: usize, mut seen: impl FnMut(&WithRam, Completion)) {
        let (mut out, mut ends) = (Vec::new(), 0);
        loop {
            self.io.reap(&mut out);
            ends += out.len();
            out.drain(..).for_each(|ended| seen(&self.io, ended));
            if ends >= count {
                break;
            }
            let patience = Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "nothing rang");
            let mut rung = [0; 8];
            rustix::io::read(&self.event, &mut rung).expect("it rang");
        }
        assert_eq!((ends, self.io.in_flight()), (count, 0));
    }

    /// Reaps one transfer whose work is done entirely on this thread. Returns the number of parts.
    fn end_one_here(&mut self) -> (usize, Completion) {
        let (mut out, mut parts) = (Vec::new(), 0);
        self.io.reap(&mut out);
        while self.io.help(true) {
            parts += 1;
        }
        self.io.reap(&mut out);
        assert_eq!((out.len(), self.io.in_flight()), (1, 0));
        (parts, out[0])
    }

    fn read(&mut self, token: u64, area: usize, page: usize, to: &mut [u8]) {
        let iov = [IoVec {
            ptr: to.as_mut_ptr(),
            len: to.len(),
        }];
        // SAFETY: each test awaits the end.
        unsafe { self.io.read(token, area, (page * PAGE) as u64, &iov) }.expect("queued");
    }
}

fn hashes_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(hash).collect()
}

#[test]
fn large_reads_are_hashed_and_others_are_not() {
    let bytes = content(300);
    let mut bench = bench(1, bytes.clone(), false);
    let mut large = vec![0; 200 * PAGE];
    let (mut small, mut lost) = (vec![0; (LARGE - 1) * PAGE], vec![0; 200 * PAGE]);
    bench.read(1, 0, 10, &mut large);
    bench.read(2, 0, 20, &mut small);
    bench.read(3, 0, 200, &mut lost);
    let first: *const u8 = large.as_ptr();
    bench.await_ends(3, |io, ended| match ended.token {
        1 => {
            let (at, hashes) = io.hashes(1).expect("hashed");
            assert_eq!(
                (at, hashes),
                (first, &hashes_of(&bytes[10 * PAGE..210 * PAGE])[..])
            );
        }
        token => assert!(io.hashes(token).is_none() && ended.result.is_ok() == (token == 2)),
    });
    assert_eq!(large, bytes[10 * PAGE..210 * PAGE]);
    // The next call forgets the reaped transfers.
    bench.io.reap(&mut Vec::new());
    assert!(bench.io.hashes(1).is_none());
}

#[test]
fn more_than_the_helpers_take_is_done_by_the_caller() {
    for (helpers, refuses) in [(0, false), (1, false), (3, false), (2, true)] {
        let helped = if refuses { 0 } else { helpers };
        let bytes = content(512);
        let mut bench = bench(helpers, bytes.clone(), refuses);
        let mut all = vec![vec![0; LARGE * PAGE]; 3 * JOBS];
        for (n, to) in all.iter_mut().enumerate() {
            bench.read(n as u64, 0, n, to);
        }
        let (mut seen, mut hashed) = (vec![0; all.len()], 0);
        bench.await_ends(all.len(), |io, ended| {
            assert_eq!(ended.result, Ok(()));
            seen[ended.token as usize] += 1;
            hashed += usize::from(io.hashes(ended.token).is_some());
        });
        assert!(seen.iter().all(|&times| times == 1), "{seen:?}");
        // All of them had come from the file when the first was reaped, and none came back before the last was handed
        // over.
        assert_eq!(hashed, if helped > 0 { JOBS } else { 0 });
        for (n, read) in all.iter().enumerate() {
            assert_eq!(read[..], bytes[n * PAGE..(n + LARGE) * PAGE]);
        }
    }
}

#[test]
fn a_ram_area_is_written_and_read_by_helpers() {
    for helpers in [0, 1, 3] {
        let mut bytes = content(512);
        let mut bench = bench(helpers, Vec::new(), false);
        let handle = || RamHandle::new(Arc::new(area(8 << 20, Method::Lz4)), 0, Box::new(|_| true));
        bench.io.set_ram(1, Some(handle()));
        let iov = [IoVec {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len(),
        }];
        // SAFETY: the end is awaited.
        unsafe { bench.io.write(1, 1, 0, &iov) }.expect("queued");
        bench.await_ends(1, |_, ended| {
            let Err(IoError::Refused(refusal)) = ended.result else {
                panic!("{ended:?}");
            };
            let refused = |page: usize| refusal.pages[page / 64] >> (page % 64) & 1 != 0;
            assert!((0..512).all(|page| refused(page) == page.is_multiple_of(3)));
        });
        // SAFETY: the end is awaited.
        unsafe { bench.io.write_uncompressed(2, 1, 0, &iov) }.expect("queued");
        bench.await_ends(1, |_, ended| assert_eq!(ended.result, Ok(())));
        let mut back = vec![0; bytes.len()];
        bench.read(3, 1, 0, &mut back);
        bench.await_ends(1, |io, ended| {
            assert_eq!(ended.result, Ok(()));
            let taken = io.hashes(3).map(|(_, hashes)| hashes.to_vec());
            assert_eq!(taken, (helpers > 0).then(|| hashes_of(&bytes)));
        });
        assert!(back == bytes);
        bench.io.give_back();
    }
}

#[test]
fn running_jobs_end_before_the_helpers_are_dropped() {
    static HASHED: AtomicUsize = AtomicUsize::new(0);
    fn slowly(page: &[u8; PAGE]) -> u64 {
        std::thread::sleep(Duration::from_micros(50));
        HASHED.fetch_add(1, Relaxed);
        hash(page)
    }
    let bytes = content(512);
    let mut to = vec![0; bytes.len()];
    let mut bench = bench_that_hashes(slowly, 2, bytes, false);
    bench.read(1, 0, 0, &mut to);
    bench.io.reap(&mut Vec::new());
    assert!(bench.io.is_helped());
    drop(bench);
    assert_eq!(HASHED.load(Relaxed), 512);
}

#[test]
fn a_waiting_owner_is_woken_by_a_helper() {
    let bytes = content(512);
    let mut to = vec![0; bytes.len()];
    let mut bench = bench(1, bytes, false);
    bench.read(1, 0, 0, &mut to);
    let mut out = Vec::new();
    while out.is_empty() {
        bench.io.wait().expect("a wait");
        bench.io.reap(&mut out);
    }
    assert_eq!((out[0].token, out[0].result), (1, Ok(())));
    assert!(bench.io.hashes(1).is_some());
}

#[test]
fn a_helper_that_panics_gives_the_job_back_and_goes_on() {
    fn never(_: &[u8; PAGE]) -> u64 {
        panic!("on purpose");
    }
    let bytes = content(512);
    let mut to = vec![vec![0; LARGE * PAGE]; 3];
    let mut bench = bench_that_hashes(never, 1, bytes, false);
    for (n, to) in to.iter_mut().enumerate() {
        bench.read(n as u64, 0, n, to);
    }
    // The pages are present, although they were not hashed.
    bench.await_ends(3, |io, ended| {
        assert_eq!(ended.result, Ok(()));
        assert!(io.hashes(ended.token).is_none());
    });
}

#[test]
fn the_owner_does_waiting_jobs_in_parts() {
    let mut bytes = content(500);
    let mut bench = bench_without_help(hash, bytes.clone());
    let handle = RamHandle::new(Arc::new(area(8 << 20, Method::Lz4)), 0, Box::new(|_| true));
    bench.io.set_ram(1, Some(handle));
    assert!(!bench.io.help(true), "nothing to do");
    let parts = 500_usize.div_ceil(PART);
    // From a file.
    let mut to = vec![0; bytes.len()];
    bench.read(1, 0, 0, &mut to);
    let ended = bench.end_one_here();
    let all_well = |token| Completion {
        token,
        result: Ok(()),
    };
    assert_eq!(ended, (parts, all_well(1)));
    assert_eq!(bench.io.hashes(1).expect("hashed").1, hashes_of(&bytes));
    // To a RAM area and back: pages are refused in each part.
    let iov = [IoVec {
        ptr: bytes.as_mut_ptr(),
        len: bytes.len(),
    }];
    // SAFETY: the end is awaited.
    unsafe { bench.io.write(2, 1, 0, &iov) }.expect("queued");
    let (done, Completion { token: 2, result }) = bench.end_one_here() else {
        panic!("another one");
    };
    let Err(IoError::Refused(refusal)) = result else {
        panic!("{result:?}");
    };
    let refused = |page: usize| refusal.pages[page / 64] >> (page % 64) & 1 != 0;
    assert!((0..512).all(|page| refused(page) == (page < 500 && page.is_multiple_of(3))));
    // SAFETY: the end is awaited.
    unsafe { bench.io.write_uncompressed(3, 1, 0, &iov) }.expect("queued");
    assert_eq!((done, bench.end_one_here()), (parts, (parts, all_well(3))));
    to.fill(0);
    bench.read(4, 1, 0, &mut to);
    assert_eq!(bench.end_one_here(), (parts, all_well(4)));
    assert_eq!(bench.io.hashes(4).expect("hashed").1, hashes_of(&bytes));
    assert!(to == bytes);
}

#[test]
fn the_owner_ends_a_job_that_it_began() {
    let bytes = content(512);
    let mut to = vec![vec![0; bytes.len()]; 2];
    let mut bench = bench_without_help(hash, bytes.clone());
    for (n, to) in to.iter_mut().enumerate() {
        bench.read(n as u64, 0, 0, to);
    }
    let mut out = Vec::new();
    bench.io.reap(&mut out);
    assert!(!bench.io.help(false), "nothing was begun");
    assert!(bench.io.help(true));
    // The waiter may need it.
    bench.io.wait().expect("a wait");
    bench.io.reap(&mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(bench.io.hashes(0).expect("hashed").1, hashes_of(&bytes));
    // And before the memory has another owner.
    assert!(bench.io.help(true));
    drop(bench);
}

#[test]
fn a_disk_that_has_nothing_begins_with_a_large_transfer_at_once() {
    let bytes = content(512);
    let mut to = vec![vec![0; LARGE * PAGE]; 2];
    let mut small = vec![0; PAGE];
    let mut bench = bench(1, bytes, false);
    bench.read(1, 0, 0, &mut small);
    assert_eq!(bench.flushed.load(Relaxed), 0, "one for all");
    bench.await_ends(1, |_, _| {});
    for (n, to) in to.iter_mut().enumerate() {
        bench.read(n as u64, 0, n, to);
        assert_eq!(bench.flushed.load(Relaxed), 1);
    }
    bench.await_ends(2, |_, _| {});
}
