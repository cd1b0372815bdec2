//! The userfaultfd layer against a real kernel. Fails, rather than skips, where there is none.

use std::ptr::{null_mut, without_provenance_mut};
use std::thread;
use std::time::{Duration, Instant};

use foreswap::sys::uffd::{Event, Features, Mode, RawMsg, Short, Uffd, Why};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE: usize = 4096;
const ENGINE: Features = Features::EVENT_REMOVE
    .union(Features::EVENT_UNMAP)
    .union(Features::EVENT_REMAP)
    .union(Features::MOVE)
    .union(Features::POISON)
    .union(Features::THREAD_ID);

fn map(pages: usize) -> usize {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe { mmap_anonymous(null_mut(), pages * PAGE, prot, flags) }.expect("mmap");
    // SAFETY: advice on the mapping just made; small pages keep the tests' counts exact.
    unsafe { madvise(at, pages * PAGE, Advice::LinuxNoHugepage) }.expect("madvise");
    at as usize
}

fn peek(addr: usize) -> u8 {
    // SAFETY: every caller passes an address in a mapping of its own.
    unsafe { without_provenance_mut::<u8>(addr).read_volatile() }
}

fn poke(addr: usize, value: u8) {
    // SAFETY: as in `peek`.
    unsafe { without_provenance_mut::<u8>(addr).write_volatile(value) }
}

/// Waits for the next event, as the engine's poll would.
fn next(uffd: &Uffd) -> Event {
    let mut buffer = [RawMsg::ZERO; 1];
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        assert!(Instant::now() < deadline, "no event came");
        if let Some(event) = uffd.read(&mut buffer).expect("read").next() {
            return event;
        }
        thread::yield_now();
    }
}

#[test]
fn a_fault_is_served_by_copy_zeropage_and_move() {
    let uffd = Uffd::open(ENGINE).expect("userfaultfd");
    let (area, frames) = (map(4), map(1));
    uffd.register_missing(area, 4 * PAGE).expect("register");
    poke(frames, 7);
    let toucher = thread::spawn(move || [0, 1, 2].map(|i| peek(area + i * PAGE + 5)));
    for page in 0..3 {
        let Event::Fault { addr, flags, tid } = next(&uffd) else {
            panic!("not a fault")
        };
        assert_eq!(addr, area + page * PAGE);
        assert!(!flags.write && !flags.wp && tid != 0);
        match page {
            0 => uffd.zeropage(addr, PAGE),
            1 => {
                let source = [0xAB_u8; PAGE];
                // SAFETY: the source is a page; the destination is ours and absent.
                unsafe { uffd.copy(addr, source.as_ptr().cast(), PAGE) }
            }
            _ => {
                poke(frames + 5, 9);
                // SAFETY: nobody else uses the frame.
                unsafe { uffd.move_pages(addr, frames, PAGE, false) }
            }
        }
        .expect("serve");
    }
    assert_eq!(toucher.join().expect("toucher"), [0, 0xAB, 9]);
    // The frame went: moving it again finds nothing, and its place now reads as zeros.
    // SAFETY: as above.
    let again = unsafe { uffd.move_pages(area + 3 * PAGE, frames, PAGE, false) };
    let nothing = Short {
        done: 0,
        why: Why::NoEntry,
    };
    assert_eq!(again, Err(nothing));
    assert_eq!(peek(frames), 0);
}

#[test]
fn a_partial_move_tells_what_it_did_and_then_why() {
    let uffd = Uffd::open(ENGINE).expect("userfaultfd");
    let (area, frames) = (map(4), map(4));
    uffd.register_missing(area, 4 * PAGE).expect("register");
    for page in [0, 1, 3] {
        poke(frames + page * PAGE, 1 + page as u8);
    }
    // SAFETY: both ranges are this test's alone.
    let (part, rest, holes) = unsafe {
        (
            uffd.move_pages(area, frames, 4 * PAGE, false),
            uffd.move_pages(area + 2 * PAGE, frames + 2 * PAGE, 2 * PAGE, false),
            uffd.move_pages(area + 2 * PAGE, frames + 2 * PAGE, 2 * PAGE, true),
        )
    };
    assert_eq!(
        part,
        Err(Short {
            done: 2 * PAGE,
            why: Why::Again
        })
    );
    assert_eq!(
        rest,
        Err(Short {
            done: 0,
            why: Why::NoEntry
        })
    );
    assert_eq!(holes, Ok(()));
    assert_eq!([0, 1, 3].map(|page| peek(area + page * PAGE)), [1, 2, 4]);
    // A present destination is told as such.
    let taken = uffd.zeropage(area, PAGE);
    assert_eq!(
        taken,
        Err(Short {
            done: 0,
            why: Why::Exists
        })
    );
    let odd = uffd.zeropage(area + 1, PAGE);
    assert_eq!(
        odd,
        Err(Short {
            done: 0,
            why: Why::Invalid
        })
    );
}

/// A thread writes to memory that a fork shares, so that each page changes its place in memory, while
/// it is moved. What is not counted as moved must still be where it was.
#[test]
fn a_move_counts_every_page_also_beside_a_writer() {
    const PAGES: usize = 512;
    const ROUNDS: usize = 150;
    let uffd = Uffd::open(Features::MOVE).expect("userfaultfd");
    let (area, frames) = (map(PAGES), map(PAGES));
    // SAFETY: a property of a mapping of the test's own.
    unsafe {
        madvise(
            without_provenance_mut(frames),
            PAGES * PAGE,
            Advice::LinuxDontFork,
        )
    }
    .expect("madvise");
    (0..PAGES).for_each(|page| poke(area + page * PAGE, 1));
    for range in [area, frames] {
        uffd.register_missing(range, PAGES * PAGE)
            .expect("register");
    }
    let back = |page: usize| loop {
        let (to, from) = (area + page * PAGE, frames + page * PAGE);
        // SAFETY: both ranges are this test's.
        match unsafe { uffd.move_pages(to, from, PAGE, false) } {
            Err(short) if short.why == Why::Again => {}
            other => return other,
        }
    };
    for round in 0..ROUNDS {
        // SAFETY: the child calls nothing but what a signal handler may.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: as above. It ends with the thread that made it, however that ends.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::pause();
                }
            }
        }
        assert!(child > 0, "no child");
        let writer = thread::spawn(move || (0..PAGES).for_each(|page| poke(area + page * PAGE, 2)));
        let mut at = 0;
        let deadline = Instant::now() + Duration::from_secs(30);
        while at < PAGES {
            assert!(Instant::now() < deadline, "page {at} does not move");
            let (to, from) = (frames + at * PAGE, area + at * PAGE);
            // SAFETY: both ranges are this test's.
            let Err(short) = (unsafe { uffd.move_pages(to, from, (PAGES - at) * PAGE, false) })
            else {
                break;
            };
            at += short.done / PAGE;
            match short.why {
                Why::Again => {}
                // The writer has not come so far, or waits for a page behind.
                Why::Busy => {
                    let mut buffer = [RawMsg::ZERO; 1];
                    if let Some(Event::Fault { addr, .. }) =
                        uffd.read(&mut buffer).expect("read").next()
                    {
                        back((addr - area) / PAGE).expect("a page that is waited for");
                    }
                }
                why => panic!("round {round}: page {at} was moved and not counted: {why:?}"),
            }
        }
        for page in 0..PAGES {
            match back(page) {
                Ok(()) => {}
                // It went back before.
                Err(short) => assert_eq!(short.why, Why::Exists, "page {page}"),
            }
        }
        writer.join().expect("the writer");
        // SAFETY: the child that was just made.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, null_mut(), 0);
        }
        assert!((0..PAGES).all(|page| peek(area + page * PAGE) == 2));
    }
}

#[test]
fn an_unread_event_makes_every_ioctl_say_again() {
    let uffd = Uffd::open(ENGINE).expect("userfaultfd");
    let area = map(4);
    uffd.register_missing(area, 4 * PAGE).expect("register");
    uffd.zeropage(area, 4 * PAGE).expect("fill");
    assert!(!uffd.mmap_changing());
    let discarder = thread::spawn(move || {
        // SAFETY: the mapping is this test's.
        unsafe { madvise(without_provenance_mut(area), PAGE, Advice::LinuxDontNeed) }
    });
    while !uffd.mmap_changing() {
        thread::yield_now();
    }
    // Another descriptor tells registered memory all the same, and changes nothing.
    let quiet = Uffd::open(Features::empty()).expect("userfaultfd");
    let other = map(1);
    assert_eq!(quiet.is_registered(area), Some(true));
    assert_eq!(quiet.is_registered(other), Some(false));
    assert_eq!(uffd.is_registered(area), None, "this one has to wait");
    assert_eq!(peek(other), 0);
    assert_eq!(
        uffd.zeropage(area, PAGE),
        Err(Short {
            done: 0,
            why: Why::Again
        })
    );
    let Event::Remove { start, end } = next(&uffd) else {
        panic!("not a remove")
    };
    assert_eq!((start, end), (area, area + PAGE));
    discarder.join().expect("discarder").expect("madvise");
    assert!(!uffd.mmap_changing());

    let mover = thread::spawn(move || {
        // SAFETY: the mapping is this test's, and nothing points into it.
        unsafe {
            rustix::mm::mremap(
                without_provenance_mut(area + 2 * PAGE),
                2 * PAGE,
                4 * PAGE,
                rustix::mm::MremapFlags::MAYMOVE,
            )
        }
        .map(|at| at as usize)
    });
    let Event::Remap { from, to, len } = next(&uffd) else {
        panic!("not a remap")
    };
    // The old addresses are announced as unmapped as well, after the move.
    let Event::Unmap { start, end } = next(&uffd) else {
        panic!("not an unmap")
    };
    assert_eq!((start, end), (area + 2 * PAGE, area + 4 * PAGE));
    let moved = mover.join().expect("mover").expect("mremap");
    assert_eq!((from, to, len), (area + 2 * PAGE, moved, 2 * PAGE));
    let unmapper = thread::spawn(move || {
        // SAFETY: as above.
        unsafe { munmap(without_provenance_mut(moved), 4 * PAGE) }
    });
    let Event::Unmap { start, end } = next(&uffd) else {
        panic!("not an unmap")
    };
    assert_eq!((start, end), (moved, moved + 4 * PAGE));
    unmapper.join().expect("unmapper").expect("munmap");
}

#[test]
fn writeprotect_reports_the_write_and_lets_it_go_on() {
    let wanted = ENGINE | Features::PAGEFAULT_FLAG_WP;
    let uffd = Uffd::open(wanted).expect("userfaultfd");
    let area = map(1);
    uffd.register(area, PAGE, Mode::MISSING | Mode::WP)
        .expect("register");
    uffd.zeropage(area, PAGE).expect("fill");
    uffd.writeprotect(area, PAGE, true).expect("protect");
    let writer = thread::spawn(move || poke(area, 3));
    let Event::Fault { flags, .. } = next(&uffd) else {
        panic!("not a fault")
    };
    assert!(flags.write && flags.wp);
    uffd.writeprotect(area, PAGE, false).expect("unprotect");
    writer.join().expect("writer");
    assert_eq!(peek(area), 3);
}

#[test]
fn poison_and_unregister_are_accepted() {
    let uffd = Uffd::open(ENGINE).expect("userfaultfd");
    let area = map(2);
    uffd.register_missing(area, 2 * PAGE).expect("register");
    uffd.poison(area, PAGE).expect("poison");
    assert_eq!(
        uffd.poison(area, PAGE),
        Err(Short {
            done: 0,
            why: Why::Exists
        })
    );
    uffd.wake(area, 2 * PAGE).expect("wake");
    uffd.unregister(area, 2 * PAGE).expect("unregister");
    assert_eq!(peek(area + PAGE), 0);
}

#[test]
fn an_unknown_feature_is_refused_by_name_not_by_number() {
    // Every feature the kernel may lack is named; one that no kernel has stays EINVAL.
    let odd = Features::from_bits_retain(1 << 60);
    let error = Uffd::open(odd).expect_err("no kernel has it").to_string();
    assert!(error.contains("lacks"), "{error}");
}

#[test]
fn move_wants_the_same_writable_access_on_both_sides_and_copy_does_not() {
    let uffd = Uffd::open(ENGINE).expect("userfaultfd");
    let (area, frames) = (map(2), map(2));
    for range in [area, frames] {
        uffd.register_missing(range, 2 * PAGE).expect("register");
        uffd.zeropage(range, PAGE).expect("fill");
        poke_through(range, 5);
    }
    // SAFETY: the mapping is this test's.
    unsafe {
        rustix::mm::mprotect(
            without_provenance_mut(area),
            2 * PAGE,
            rustix::mm::MprotectFlags::READ,
        )
    }
    .expect("mprotect");
    let invalid = Err(Short {
        done: 0,
        why: Why::Invalid,
    });
    // SAFETY: both ranges are this test's alone.
    unsafe {
        assert_eq!(uffd.move_pages(frames + PAGE, area, PAGE, false), invalid);
        assert_eq!(uffd.move_pages(area + PAGE, frames, PAGE, false), invalid);
        let source = [6_u8; PAGE];
        uffd.copy(area + PAGE, source.as_ptr().cast(), PAGE)
            .expect("copy");
    }
    assert_eq!((peek(area), peek(area + PAGE)), (5, 6));
}

fn poke_through(addr: usize, value: u8) {
    // The zero page is shared: the write gives the address a page of its own.
    poke(addr, value);
}
