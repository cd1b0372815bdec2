//! Both backends, through the same bodies, against real files. Neither may be skipped: a machine
//! that refuses io_uring fails here.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use foreswap_store::area::{self, AreaSpec, OpenArea};
use foreswap_store::ring::{
    Completion, Io, IoError, IoVec, MAX_DEPTH, Pool, PoolError, QueueError, SetupFlags,
    SpawnRefused, Uring,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PAGE: usize = 4096;
const EBADF: i32 = 9;
const ENOSPC: i32 = 28;

#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE]);

impl Page {
    fn filled(stamp: u64) -> Page {
        let mut page = Page([0; PAGE]);
        for (index, word) in page.0.chunks_mut(8).enumerate() {
            let value = (stamp ^ (index as u64) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&value.to_ne_bytes());
        }
        page
    }

    fn piece(&mut self) -> IoVec {
        IoVec {
            ptr: self.0.as_mut_ptr(),
            len: PAGE,
        }
    }
}

fn pool(fds: &[RawFd], depth: u32, workers: usize) -> Pool {
    Pool::new(fds, depth, workers, |worker| {
        std::thread::spawn(move || worker.run());
        Ok(())
    })
    .expect("threads")
}

/// Runs a body on every backend that exists.
fn on_all(fds: &[RawFd], depth: u32, body: impl Fn(&mut dyn Io)) {
    for flags in [
        SetupFlags::Plain,
        SetupFlags::Cooperative,
        SetupFlags::SingleIssuer,
    ] {
        let mut ring = Uring::with_flags(fds, depth, flags).expect("io_uring is required here");
        body(&mut ring);
    }
    for workers in [1, 4] {
        body(&mut pool(fds, depth, workers));
    }
}

fn new_area(bytes: u64) -> OpenArea {
    let directory = std::env::temp_dir();
    let spec = AreaSpec::Path(directory.to_path_buf());
    area::open(&spec, Some(bytes), 1 << 20).expect("an area in the temporary directory")
}

/// Sleeps on the descriptor as the engine does, until `count` transfers have ended.
fn await_ends(io: &mut dyn Io, count: usize) -> Vec<Completion> {
    io.flush().expect("a flush");
    let mut out = Vec::new();
    while out.len() < count {
        // SAFETY: the descriptor belongs to `io`, which is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(io.poll_fd()) };
        let patience = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&patience),
        );
        assert_eq!(ready, Ok(1), "{}: no completion came", io.name());
        io.reap(&mut out);
    }
    assert_eq!(out.len(), count);
    out
}

fn read_one(io: &mut dyn Io, area: usize, offset: u64, pages: &mut [Page]) -> Completion {
    let iov: Vec<IoVec> = pages.iter_mut().map(Page::piece).collect();
    // SAFETY: the completion is awaited before `pages` is given back.
    unsafe { io.read(1, area, offset, &iov) }.expect("queued");
    await_ends(io, 1)[0]
}

fn write_one(io: &mut dyn Io, area: usize, offset: u64, pages: &mut [Page]) -> Completion {
    let iov: Vec<IoVec> = pages.iter_mut().map(Page::piece).collect();
    // SAFETY: the completion is awaited before `pages` is given back.
    unsafe { io.write(2, area, offset, &iov) }.expect("queued");
    await_ends(io, 1)[0]
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Many writes and reads in flight, of one to eight scattered pages, in whatever order the disk
/// likes; never two at once on a page, as the engine guarantees. Every read is compared.
#[test]
fn many_reordered_transfers_keep_every_page() {
    const GROUPS: u64 = 512;
    const GROUP_PAGES: u64 = 8;
    const STEPS: usize = 6000;
    const DEPTH: usize = 64;

    struct Lane {
        pages: Vec<Page>,
        group: u64,
        first: u64,
        stamps: Option<Vec<u64>>,
    }

    let area = new_area(GROUPS * GROUP_PAGES * PAGE as u64);
    for seed in [1u64, 0xdead_beef] {
        on_all(&[area.file.as_raw_fd()], DEPTH as u32, |io| {
            let mut random = Random(seed);
            let mut contents = vec![0u64; (GROUPS * GROUP_PAGES) as usize];
            let mut locked = vec![false; GROUPS as usize];
            let mut lanes: Vec<Lane> = (0..DEPTH)
                .map(|_| Lane {
                    pages: vec![Page([0; PAGE]); GROUP_PAGES as usize],
                    group: 0,
                    first: 0,
                    stamps: None,
                })
                .collect();
            // Everything is written once, so that no read meets another backend's pages.
            let mut begun: u64 = 0;
            let mut idle: Vec<usize> = (0..DEPTH).collect();
            let mut out = Vec::with_capacity(DEPTH);
            let total = GROUPS + STEPS as u64;
            while begun < total || io.in_flight() > 0 {
                while let Some(&lane_index) = idle.last().filter(|_| begun < total) {
                    let first_pass = begun < GROUPS;
                    let group = if first_pass {
                        begun
                    } else {
                        random.below(GROUPS)
                    };
                    if locked[group as usize] {
                        break;
                    }
                    let lane = &mut lanes[lane_index];
                    let count = if first_pass {
                        GROUP_PAGES
                    } else {
                        1 + random.below(GROUP_PAGES)
                    };
                    lane.group = group;
                    lane.first = group * GROUP_PAGES + random.below(GROUP_PAGES - count + 1);
                    let range = lane.first as usize..(lane.first + count) as usize;
                    // Scattered in memory: every second page, from the back.
                    let mut order: Vec<usize> = (0..count as usize).rev().collect();
                    order.rotate_left(count as usize / 2);
                    let writing = first_pass || random.below(2) == 0;
                    if writing {
                        for (page, slot) in order.iter().zip(range.clone()) {
                            contents[slot] = begun << 16 | slot as u64;
                            lane.pages[*page] = Page::filled(contents[slot]);
                        }
                        lane.stamps = None;
                    } else {
                        lane.pages.fill(Page([0xee; PAGE]));
                        lane.stamps = Some(contents[range].to_vec());
                    }
                    let iov: Vec<IoVec> = order.iter().map(|i| lane.pages[*i].piece()).collect();
                    let offset = lane.first * PAGE as u64;
                    // SAFETY: the lane is not touched before its completion, `lanes` does not grow.
                    let queued = unsafe {
                        if writing {
                            io.write(lane_index as u64, 0, offset, &iov)
                        } else {
                            io.read(lane_index as u64, 0, offset, &iov)
                        }
                    };
                    assert_eq!(queued, Ok(()));
                    locked[group as usize] = true;
                    idle.pop();
                    begun += 1;
                }
                io.flush().expect("a flush");
                io.wait().expect("a wait");
                out.clear();
                io.reap(&mut out);
                for end in &out {
                    assert_eq!(end.result, Ok(()));
                    let lane = &lanes[end.token as usize];
                    assert!(locked[lane.group as usize], "a second completion");
                    locked[lane.group as usize] = false;
                    idle.push(end.token as usize);
                    if let Some(stamps) = &lane.stamps {
                        let count = stamps.len();
                        let mut order: Vec<usize> = (0..count).rev().collect();
                        order.rotate_left(count / 2);
                        for (page, stamp) in order.iter().zip(stamps) {
                            assert!(
                                lane.pages[*page].0 == Page::filled(*stamp).0,
                                "{}: seed {seed}: wrong bytes in slots from {}",
                                io.name(),
                                lane.first
                            );
                        }
                    }
                }
            }
            assert_eq!(idle.len(), DEPTH);
        });
    }
}

#[test]
fn the_end_of_the_area_is_an_error_and_not_zeros() {
    let area = new_area(1 << 20);
    on_all(&[area.file.as_raw_fd()], 4, |io| {
        let mut pages = vec![Page([7; PAGE]); 4];
        let beyond = read_one(io, 0, 1 << 20, &mut pages);
        let nothing = IoError::Short {
            done: 0,
            wanted: 4 * PAGE as u64,
        };
        assert_eq!(beyond.result, Err(nothing));
        assert_eq!(pages[0].0, [7; PAGE]);
        let across = read_one(io, 0, (1 << 20) - 2 * PAGE as u64, &mut pages);
        let half = IoError::Short {
            done: 2 * PAGE as u64,
            wanted: 4 * PAGE as u64,
        };
        assert_eq!(across.result, Err(half));
    });
}

#[test]
fn a_file_that_ends_within_a_sector_is_reported_as_short() {
    let area = new_area(1 << 20);
    area.file.set_len(5000).expect("a size");
    on_all(&[area.file.as_raw_fd()], 4, |io| {
        let end = read_one(io, 0, 0, &mut vec![Page([0; PAGE]); 4]);
        assert!(
            matches!(end.result, Err(IoError::Short { done: 5000, .. })),
            "{end:?}"
        );
    });
}

#[test]
fn a_hole_reads_as_zeros() {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(1 << 20).expect("a size");
    on_all(&[file.as_raw_fd()], 4, |io| {
        let mut pages = vec![Page([7; PAGE]); 2];
        assert_eq!(read_one(io, 0, 8192, &mut pages).result, Ok(()));
        assert_eq!(pages[1].0, [0; PAGE]);
    });
}

#[test]
fn refusals_of_the_kernel_come_back_as_they_are() {
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    let readonly = File::open(Path::new("/proc/self/exe")).expect("our own program");
    let closed: RawFd = 1_000_000;
    let fds = [full.as_raw_fd(), readonly.as_raw_fd(), closed];
    on_all(&fds, 4, |io| {
        let mut pages = vec![Page([1; PAGE]); 2];
        let failed = |errno| Err(IoError::Os { errno });
        assert_eq!(write_one(io, 0, 0, &mut pages).result, failed(ENOSPC));
        assert_eq!(write_one(io, 1, 0, &mut pages).result, failed(EBADF));
        assert_eq!(write_one(io, 2, 0, &mut pages[..1]).result, failed(EBADF));
        assert_eq!(read_one(io, 2, 0, &mut pages).result, failed(EBADF));
        assert_eq!(read_one(io, 0, 0, &mut pages).result, failed(EBADF));
        assert_eq!(io.in_flight(), 0);
    });
}

#[test]
fn one_failure_does_not_disturb_its_batch() {
    let area = new_area(1 << 20);
    let fds = [area.file.as_raw_fd(), 1_000_000];
    on_all(&fds, 16, |io| {
        let mut pages = vec![Page([3; PAGE]); 9];
        for (index, page) in pages.iter_mut().enumerate() {
            let offset = (index * PAGE) as u64;
            // SAFETY: awaited below; `pages` does not move.
            unsafe { io.write(index as u64, index % 2, offset, &[page.piece()]) }.expect("queued");
        }
        for end in await_ends(io, 9) {
            let expected = match end.token % 2 {
                0 => Ok(()),
                _ => Err(IoError::Os { errno: EBADF }),
            };
            assert_eq!(end.result, expected);
        }
    });
}

#[test]
fn longer_vectors_than_the_kernel_takes_go_in_steps() {
    const COUNT: usize = 1500;
    let area = new_area((COUNT * PAGE) as u64 + (1 << 20));
    on_all(&[area.file.as_raw_fd()], 4, |io| {
        // Every second page, so that no two neighbours can be merged.
        let mut pages: Vec<Page> = (0..2 * COUNT as u64).map(Page::filled).collect();
        let iov: Vec<IoVec> = pages.iter_mut().step_by(2).map(Page::piece).collect();
        // SAFETY: awaited below; `pages` does not move.
        unsafe { io.write(1, 0, 4096, &iov) }.expect("queued");
        assert_eq!(await_ends(io, 1)[0].result, Ok(()));
        let mut back = vec![Page([0; PAGE]); COUNT];
        assert_eq!(read_one(io, 0, 4096, &mut back).result, Ok(()));
        for (index, page) in back.iter().enumerate() {
            assert!(page.0 == Page::filled(2 * index as u64).0, "page {index}");
        }
    });
}

#[test]
fn the_depth_is_a_limit_and_a_reap_makes_room() {
    let area = new_area(1 << 20);
    on_all(&[area.file.as_raw_fd()], 3, |io| {
        let mut pages = vec![Page([0; PAGE]); 4];
        for (token, page) in pages.iter_mut().enumerate().take(3) {
            // SAFETY: awaited below; `pages` does not move.
            unsafe { io.read(token as u64, 0, 0, &[page.piece()]) }.expect("queued");
        }
        let piece = pages[3].piece();
        // SAFETY: refused, so nothing happens to the memory.
        let fourth = unsafe { io.read(3, 0, 0, &[piece]) };
        assert_eq!(fourth, Err(QueueError::Full));
        assert_eq!(io.in_flight(), 3);
        await_ends(io, 3);
        assert_eq!(io.in_flight(), 0);
        assert_eq!(read_one(io, 0, 0, &mut pages).result, Ok(()));
    });
}

#[test]
fn the_largest_depth_can_be_filled() {
    let area = new_area(MAX_DEPTH as u64 * PAGE as u64);
    on_all(&[area.file.as_raw_fd()], u32::MAX, |io| {
        let mut pages = vec![Page([0; PAGE]); MAX_DEPTH as usize];
        for (token, page) in pages.iter_mut().enumerate() {
            let piece = page.piece();
            // SAFETY: awaited below; `pages` does not move.
            unsafe { io.write(token as u64, 0, (token * PAGE) as u64, &[piece]) }.expect("queued");
        }
        let mut tokens: Vec<u64> = await_ends(io, MAX_DEPTH as usize)
            .iter()
            .map(|end| end.token)
            .collect();
        tokens.sort_unstable();
        assert!(tokens.into_iter().eq(0..u64::from(MAX_DEPTH)));
    });
}

#[test]
fn requests_that_name_nothing_are_refused() {
    let area = new_area(1 << 20);
    on_all(&[area.file.as_raw_fd()], 4, |io| {
        let mut page = Page([0; PAGE]);
        let piece = page.piece();
        // SAFETY: all are refused, so nothing happens to the memory.
        unsafe {
            assert_eq!(io.read(1, 0, 0, &[]), Err(QueueError::BadLength));
            assert_eq!(
                io.read(1, 0, u64::MAX, &[piece]),
                Err(QueueError::BadLength)
            );
            assert_eq!(io.write(1, 5, 0, &[piece]), Err(QueueError::NoSuchArea(5)));
        }
        assert_eq!(io.in_flight(), 0);
    });
}

#[test]
fn areas_can_be_added_while_others_are_busy() {
    let first = new_area(1 << 20);
    let second = new_area(1 << 20);
    second
        .file
        .write_all_at(&Page::filled(99).0, 4096)
        .unwrap_or_else(|_| panic!("an aligned write"));
    on_all(&[first.file.as_raw_fd()], 8, |io| {
        let mut busy = vec![Page([5; PAGE]); 2];
        let piece = busy[0].piece();
        // SAFETY: awaited below; `busy` does not move.
        unsafe { io.write(7, 0, 0, &[piece]) }.expect("queued");
        let number = 3;
        io.set_area(number, Some(second.file.as_raw_fd()));
        let mut page = Page([0; PAGE]);
        // SAFETY: awaited below.
        unsafe { io.read(8, number, 4096, &[page.piece()]) }.expect("queued");
        let ends = await_ends(io, 2);
        assert!(ends.iter().all(|end| end.result == Ok(())));
        assert!(page.0 == Page::filled(99).0);
        io.set_area(number, None);
        for area in [1, number] {
            // SAFETY: refused.
            let refused = unsafe { io.read(9, area, 4096, &[page.piece()]) };
            assert_eq!(refused, Err(QueueError::NoSuchArea(area)));
        }
    });
}

#[test]
fn the_descriptor_is_readable_exactly_when_there_is_something() {
    let area = new_area(1 << 20);
    on_all(&[area.file.as_raw_fd()], 8, |io| {
        let ready = |io: &dyn Io| {
            // SAFETY: the descriptor belongs to `io`, which is borrowed.
            let fd = unsafe { BorrowedFd::borrow_raw(io.poll_fd()) };
            let at_once = Timespec::default();
            poll(
                &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
                Some(&at_once),
            )
        };
        let mut pages = vec![Page([0; PAGE]); 4];
        for round in 0..50 {
            assert_eq!(ready(io), Ok(0), "{} round {round}", io.name());
            for (token, page) in pages.iter_mut().enumerate() {
                // SAFETY: awaited below; `pages` does not move.
                unsafe { io.read(token as u64, 0, 0, &[page.piece()]) }.expect("queued");
            }
            await_ends(io, 4);
            // A worker may ring once more for what was taken already; that too is heard.
            let mut out = Vec::new();
            for _ in 0..1000 {
                io.reap(&mut out);
                if ready(io) == Ok(0) {
                    break;
                }
                std::thread::yield_now();
            }
            assert!(out.is_empty());
        }
    });
}

/// The end of a transfer shows without any call that would bring it about.
#[test]
fn an_end_shows_in_memory_alone() {
    let area = new_area(1 << 20);
    on_all(&[area.file.as_raw_fd()], 4, |io| {
        for turn in 0..50 {
            assert!(!io.has_ended(), "{}: nothing is in flight", io.name());
            let mut page = Page::filled(turn);
            // SAFETY: the completion is awaited before `page` goes.
            unsafe { io.write(turn, 0, turn * PAGE as u64, &[page.piece()]) }.expect("queued");
            io.flush().expect("a flush");
            let (began, mut out) = (Instant::now(), Vec::new());
            while out.is_empty() {
                let waited = began.elapsed();
                assert!(waited < Duration::from_secs(20), "{}: no end", io.name());
                if io.has_ended() {
                    io.reap(&mut out);
                }
                std::hint::spin_loop();
            }
            let ended = out.iter().map(|end| (end.token, end.result));
            assert_eq!(ended.collect::<Vec<_>>(), [(turn, Ok(()))]);
        }
    });
}

#[test]
fn waiting_for_nothing_returns() {
    let area = new_area(1 << 20);
    on_all(&[area.file.as_raw_fd()], 8, |io| {
        assert_eq!(io.wait(), Ok(()));
        assert_eq!(io.flush(), Ok(()));
    });
}

#[test]
fn dropping_a_backend_waits_for_its_transfers() {
    const PAGES: usize = 256;
    let area = new_area((PAGES * PAGE) as u64);
    for round in 0..20u64 {
        let stamp = |index: usize| round << 16 | index as u64;
        let mut pages: Vec<Page> = (0..PAGES).map(|i| Page::filled(stamp(i))).collect();
        let mut io: Box<dyn Io> = match round % 2 {
            0 => Box::new(Uring::new(&[area.file.as_raw_fd()], MAX_DEPTH).expect("io_uring")),
            _ => Box::new(pool(&[area.file.as_raw_fd()], MAX_DEPTH, 2)),
        };
        for (index, page) in pages.iter_mut().enumerate() {
            let offset = (index * PAGE) as u64;
            // SAFETY: `io` is dropped before `pages`.
            unsafe { io.write(0, 0, offset, &[page.piece()]) }.expect("queued");
        }
        if round % 3 == 0 {
            io.flush().expect("a flush");
        }
        drop(io);
        for index in 0..PAGES {
            let mut page = Page([0; PAGE]);
            area.file
                .read_exact_at(&mut page.0, (index * PAGE) as u64)
                .expect("a read");
            assert!(page.0 == Page::filled(stamp(index)).0);
        }
    }
}

#[test]
fn a_pool_works_with_the_threads_it_got_and_says_when_there_is_none() {
    let area = new_area(1 << 20);
    let fds = [area.file.as_raw_fd()];
    let none = Pool::new(&fds, 4, 2, |_| Err(SpawnRefused(11)));
    assert_eq!(none.err(), Some(PoolError::Spawn(SpawnRefused(11))));
    assert_eq!(
        Pool::new(&fds, 4, 0, |_| Ok(())).err(),
        Some(PoolError::NoWorkers)
    );

    let mut calls = 0;
    let mut one = Pool::new(&fds, 4, 3, |worker| {
        calls += 1;
        if calls > 1 {
            return Err(SpawnRefused(11));
        }
        // The way of a raw clone: a function and an argument.
        let (entry, argument) = worker.into_raw();
        let address = argument.expose_provenance();
        std::thread::spawn(move || {
            // SAFETY: the pair comes from `into_raw` and is used once.
            unsafe { entry(std::ptr::with_exposed_provenance_mut(address)) }
        });
        Ok(())
    })
    .expect("one thread");
    assert_eq!(calls, 2);
    assert_eq!(
        write_one(&mut one, 0, 0, &mut [Page([0; PAGE])]).result,
        Ok(())
    );
}
