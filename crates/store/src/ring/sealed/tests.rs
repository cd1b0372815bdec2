//! Encrypted transfers over a file in memory.

use std::collections::{HashMap, HashSet};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::*;
use crate::ring::{Helper, Helpers, Io};
use crate::seal::{Cipher, KEY_BYTES, Seal, Seals};

/// Pages of the file.
const PAGES: usize = 4096;
/// Where slot 0 begins.
const FIRST: usize = 3;

/// What is outside: the file, and the seals.
#[derive(Default)]
struct Outside {
    bytes: Vec<u8>,
    /// The most transfers at once; 0: no bound.
    depth: usize,
    fails: bool,
    seals: HashMap<u32, Seal>,
    numbers: HashSet<u64>,
}

type Shared = Arc<Mutex<Outside>>;

struct Known(Shared, AtomicU64);

impl Seals for Known {
    fn numbers(&self, pages: u64) -> u64 {
        self.1.fetch_add(pages, Relaxed) + 1
    }
    fn get(&self, slot: u32) -> Seal {
        let outside = self.0.lock().expect("no panic");
        outside.seals.get(&slot).copied().unwrap_or_default()
    }
    fn set(&self, slot: u32, seal: Seal) {
        let mut outside = self.0.lock().expect("no panic");
        assert!(outside.numbers.insert(seal.number), "{}", seal.number);
        outside.seals.insert(slot, seal);
    }
}

/// Transfers have completed when they are reaped.
struct File(Shared, Vec<Completion>);

impl Io for File {
    unsafe fn start(
        &mut self,
        direction: Direction,
        token: u64,
        _: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        let mut outside = self.0.lock().expect("no panic");
        if outside.depth > 0 && self.1.len() == outside.depth {
            return Err(QueueError::Full);
        }
        let mut at = offset as usize;
        for piece in iov {
            let there = outside.bytes[at..at + piece.len].as_mut_ptr();
            // SAFETY: the caller lends the memory.
            unsafe {
                match direction {
                    Direction::Read => piece.ptr.copy_from(there, piece.len),
                    Direction::Write => there.copy_from(piece.ptr, piece.len),
                }
            }
            at += piece.len;
        }
        let result = match outside.fails {
            true => Err(IoError::Os { errno: 5 }),
            false => Ok(()),
        };
        self.1.push(Completion { token, result });
        Ok(())
    }
    fn flush(&mut self) -> Result<(), IoError> {
        Ok(())
    }
    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.1);
    }
    fn has_ended(&mut self) -> bool {
        !self.1.is_empty()
    }
    fn wait(&mut self) -> Result<(), IoError> {
        Ok(())
    }
    fn poll_fd(&self) -> RawFd {
        -1
    }
    fn in_flight(&self) -> usize {
        self.1.len()
    }
    fn set_area(&mut self, _: usize, _: Option<RawFd>) {}
    fn name(&self) -> &'static str {
        "memory"
    }
}

fn hash(page: &[u8; PAGE]) -> u64 {
    page.iter()
        .fold(1, |sum, &byte| sum * 31 % 0xffff_fffb + u64::from(byte))
}

struct Bench {
    io: WithRam,
    outside: Shared,
    event: OwnedFd,
}

fn bench(helpers: usize) -> Bench {
    let outside = Shared::default();
    outside.lock().expect("no panic").bytes = vec![0; PAGES * PAGE];
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let spawn = |helper: Helper| {
        std::thread::spawn(|| helper.run());
        Ok(())
    };
    let rings = event.try_clone().expect("a descriptor");
    let helpers = Helpers::new(helpers, hash, rings, Box::new(spawn));
    let mut io = WithRam::new(Box::new(File(Arc::clone(&outside), Vec::new())), helpers);
    let cipher = Box::leak(Box::new(Cipher::new(&[9; KEY_BYTES]).expect("a key")));
    let seals = Box::new(Known(Arc::clone(&outside), AtomicU64::new(0)));
    let sealed = SealedArea::new(cipher, (FIRST * PAGE) as u64, seals);
    io.set_sealed(0, Some(Arc::new(sealed)));
    let memory = Box::leak(vec![[0_u8; PAGE]; BUFFER_PAGES as usize].into_boxed_slice());
    let memory = NonNull::from(&mut memory[0]).cast();
    // SAFETY: leaked memory of this size. It need not be aligned without direct I/O.
    unsafe { io.lend_buffers(memory) };
    Bench { io, outside, event }
}

/// `pages` pages unlike each other.
fn content(pages: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at / PAGE * 7 + at % PAGE * 3) as u8 ^ seed;
    (0..pages * PAGE).map(byte).collect()
}

impl Bench {
    fn outside(&self) -> MutexGuard<'_, Outside> {
        self.outside.lock().expect("no panic")
    }

    fn begin(
        &mut self,
        direction: Direction,
        token: u64,
        slot: usize,
        pages: &mut [u8],
    ) -> Result<(), QueueError> {
        let iov = [IoVec {
            ptr: pages.as_mut_ptr(),
            len: pages.len(),
        }];
        let at = ((FIRST + slot) * PAGE) as u64;
        // SAFETY: each test awaits the end.
        unsafe { self.io.start(direction, token, 0, at, &iov) }
    }

    /// Reaps until `count` transfers have completed.
    fn ends(&mut self, count: usize) -> Vec<Completion> {
        let mut out = Vec::new();
        self.io.reap(&mut out);
        while out.len() < count {
            let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
            if !self.io.has_ended() {
                let patience = Timespec {
                    tv_sec: 20,
                    tv_nsec: 0,
                };
                assert_eq!(poll(&mut fds, Some(&patience)), Ok(1), "nothing rang");
                let _ = rustix::io::read(&self.event, &mut [0; 8]);
            }
            self.io.reap(&mut out);
        }
        assert_eq!((out.len(), self.io.in_flight()), (count, 0));
        out
    }

    fn write(&mut self, slot: usize, pages: &mut [u8]) {
        self.begin(Direction::Write, 1, slot, pages)
            .expect("queued");
        assert_eq!(self.ends(1)[0].result, Ok(()));
    }

    fn read(&mut self, slot: usize, pages: usize) -> Vec<u8> {
        let mut to = vec![0xee; pages * PAGE];
        self.begin(Direction::Read, 2, slot, &mut to)
            .expect("queued");
        assert_eq!(self.ends(1)[0].result, Ok(()));
        to
    }

    fn is_plain(&self, pages: &[u8]) -> bool {
        let outside = self.outside();
        let there: HashSet<&[u8]> = outside.bytes.chunks(PAGE).collect();
        pages.chunks(PAGE).any(|page| there.contains(page))
    }
}

#[test]
fn what_was_written_comes_back_and_is_not_in_the_file() {
    for helpers in [0, 1, 3] {
        let mut bench = bench(helpers);
        for (slot, pages) in [(0, 1), (5, LARGE - 1), (100, LARGE), (700, 512)] {
            let plain = content(pages, slot as u8);
            let mut frames = plain.clone();
            bench.write(slot, &mut frames);
            assert!(frames == plain, "the frames stay as they are");
            assert!(!bench.is_plain(&plain));
            assert!(bench.read(slot, pages) == plain);
            let hashes: Vec<u64> = plain.as_chunks().0.iter().map(hash).collect();
            let taken = bench.io.hashes(2).map(|(_, hashes)| hashes.to_vec());
            // A helper hashes what it has decrypted.
            assert_eq!(taken, (helpers > 0 && pages >= LARGE).then_some(hashes));
        }
        let pages = 1 + LARGE - 1 + LARGE + 512;
        assert_eq!(bench.outside().numbers.len(), pages);
    }
}

#[test]
fn scattered_frames_are_one_transfer() {
    let mut bench = bench(1);
    let mut pages = content(5, 1);
    let iov = |bytes: &mut [u8], order: [usize; 5]| {
        order.map(|page| IoVec {
            ptr: bytes[page * PAGE..].as_mut_ptr(),
            len: PAGE,
        })
    };
    let written = iov(&mut pages, [4, 2, 0, 1, 3]);
    // SAFETY: the ends are awaited.
    unsafe { bench.io.write(1, 0, (FIRST * PAGE) as u64, &written) }.expect("queued");
    bench.ends(1);
    let mut back = vec![0; 5 * PAGE];
    let read = iov(&mut back, [4, 2, 0, 1, 3]);
    // SAFETY: as above.
    unsafe { bench.io.read(2, 0, (FIRST * PAGE) as u64, &read) }.expect("queued");
    bench.ends(1);
    assert!(back == pages);
}

#[test]
fn what_a_slot_held_before_or_another_slot_holds_does_not_pass() {
    for pages in [1, LARGE] {
        let mut bench = bench(1);
        let bytes = pages * PAGE;
        bench.write(0, &mut content(pages, 1));
        let old = bench.outside().bytes[FIRST * PAGE..][..bytes].to_vec();
        bench.write(0, &mut content(pages, 2));
        bench.write(pages, &mut content(pages, 3));
        let start = (FIRST + pages) * PAGE;
        bench
            .outside()
            .bytes
            .copy_within(start..start + bytes, FIRST * PAGE);
        assert!(bench.read(0, pages).iter().all(|&byte| byte == 0), "moved");
        bench.outside().bytes[FIRST * PAGE..][..bytes].copy_from_slice(&old);
        assert!(bench.read(0, pages).iter().all(|&byte| byte == 0), "old");
        assert!(bench.read(pages, pages) == content(pages, 3));
    }
}

#[test]
fn a_page_that_was_changed_spoils_no_other() {
    let mut bench = bench(1);
    let mut expected = content(LARGE, 1);
    bench.write(0, &mut expected.clone());
    bench.outside().bytes[(FIRST + 7) * PAGE + 4095] ^= 1;
    expected[7 * PAGE..8 * PAGE].fill(0);
    assert!(bench.read(0, LARGE) == expected);
}

/// One number for each page that is written, also to the same slot, and after a write that failed.
#[test]
fn each_write_of_a_slot_has_a_number_of_its_own() {
    let mut bench = bench(2);
    for round in 0..20 {
        let fails = round % 5 == 4;
        bench.outside().fails = fails;
        let mut pages = content(LARGE, 1);
        bench
            .begin(Direction::Write, 1, 0, &mut pages)
            .expect("queued");
        assert_eq!(bench.ends(1)[0].result.is_err(), fails);
    }
    // `Known` has compared them.
    assert_eq!(bench.outside().numbers.len(), 20 * LARGE);
    assert!(bench.io.sealing.writes.is_empty());
}

#[test]
fn without_a_free_buffer_the_queue_is_full() {
    for helpers in [0, 1] {
        let mut bench = bench(helpers);
        let mut pages = content(512, 1);
        for token in 0..4 {
            let slot = 512 * token as usize;
            bench
                .begin(Direction::Write, token, slot, &mut pages)
                .expect("queued");
        }
        let mut page = content(1, 2);
        let again =
            |bench: &mut Bench, page: &mut [u8]| bench.begin(Direction::Write, 9, 3000, page);
        assert_eq!(again(&mut bench, &mut page), Err(QueueError::Full));
        bench.ends(4);
        assert_eq!(again(&mut bench, &mut page), Ok(()));
        bench.ends(1);
        bench.io.give_back();
        assert!(bench.read(3000, 1) == page && bench.read(512, 512) == pages);
    }
}

#[test]
fn encrypted_writes_wait_for_room_in_the_queue() {
    let mut bench = bench(2);
    bench.outside().depth = 1;
    let mut pages = content(LARGE, 1);
    for token in 0..6 {
        let slot = LARGE * token as usize;
        bench
            .begin(Direction::Write, token, slot, &mut pages)
            .expect("queued");
    }
    let ended: HashSet<u64> = bench.ends(6).iter().map(|ended| ended.token).collect();
    assert_eq!(ended.len(), 6);
    for token in 0..6 {
        assert!(bench.read(LARGE * token, LARGE) == pages);
    }
}
