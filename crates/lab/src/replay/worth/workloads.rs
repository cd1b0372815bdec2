//! The workloads: small programs, whose threads share one memory. Sizes are in pages, and relative to the limit.

use foreswap_core::Thp;
use foreswap_core::units::{LEAF_PAGES, Nanos, PAGE_SIZE, Vpn};

use crate::replay::machine::Op;
use crate::replay::world::System;
use crate::sim::rng::{Rng, mix};

/// Memory of the machine: 64 MiB, the least with which units are kept ready.
pub const MEMORY: u64 = 16384;
/// Pages of a program, 128 MiB. Its threads have equal parts.
const DATA: u64 = 2 * MEMORY;
/// Random touches of a program.
const TOUCHES: u64 = MEMORY;
/// The size of a column of the matrix, in bytes: no multiple of the page size.
const COLUMN: u64 = 87_891;
/// Where the data begins: at a huge page.
const BASE: u64 = 1 << 20;

/// The steps of one thread.
pub type Program = Box<dyn Iterator<Item = Op>>;

/// A workload.
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Huge pages.
    pub thp: Thp,
    /// The system below.
    pub system: System,
    /// Work of a thread between two touches.
    pub think: Nanos,
    /// The steps of a thread with its own `pages` from `first` on; `n` is its number.
    steps: fn(first: u64, pages: u64, n: u64) -> Program,
}

impl Workload {
    /// The threads.
    pub fn programs(&self, threads: u64) -> Vec<Program> {
        let leaf = LEAF_PAGES as u64;
        let pages = DATA / threads / leaf * leaf;
        let part = |n| (self.steps)(BASE + n * pages, pages, n);
        (0..threads).map(part).collect()
    }
}

fn touch(page: u64, write: bool) -> Op {
    Op::Touch {
        page: Vpn(page),
        byte: 0,
        write,
    }
}

fn reads(pages: impl Iterator<Item = u64> + 'static) -> Program {
    Box::new(pages.map(|page| touch(page, false)))
}

fn writes(pages: impl Iterator<Item = u64> + 'static) -> Program {
    Box::new(pages.map(|page| touch(page, true)))
}

/// Fill the memory in order, then `rest`.
fn then(first: u64, pages: u64, rest: Program) -> Program {
    Box::new(writes(first..first + pages).chain(rest))
}

/// Every `step`th page, from 0 on, then from 1 on, and so forth; `count` touches.
fn strided(first: u64, pages: u64, step: u64, count: u64) -> Program {
    let all = (0..step).flat_map(move |from| (first + from..first + pages).step_by(step as usize));
    reads(all.take(count as usize))
}

fn uniform(first: u64, pages: u64, seed: u64) -> impl Iterator<Item = u64> {
    let mut rng = Rng::new(seed + 1);
    std::iter::repeat_with(move || first + rng.below(pages))
}

/// About Zipf's law with exponent 1: the rank is the size of the set to a uniform power. Ranks are spread over the pages.
fn zipf(first: u64, pages: u64, seed: u64) -> impl Iterator<Item = u64> {
    let mut rng = Rng::new(seed + 7);
    let most = (pages as f64).ln();
    std::iter::repeat_with(move || {
        let rank = (rng.below(1 << 32) as f64 / (1u64 << 32) as f64 * most).exp() as u64;
        first + mix(rank) % pages
    })
}

/// A thread's part of a number that all threads share.
fn part(all: u64, pages: u64) -> usize {
    (all * pages / DATA) as usize
}

/// A hot set of a quarter of the limit, touched at random; after each touch four pages of a scan of the rest.
fn hot(first: u64, pages: u64, n: u64) -> Program {
    let hot = pages / 8;
    let mut rng = Rng::new(n + 1);
    let mut scan = (hot..pages).cycle();
    let turns = std::iter::repeat_with(move || {
        let random = first + rng.below(hot);
        let next = [(); 4].map(|()| first + scan.next().unwrap_or(hot));
        std::iter::once(random).chain(next)
    });
    then(
        first,
        pages,
        reads(turns.flatten().take(part(3 * TOUCHES, pages))),
    )
}

/// Even threads scan, odd ones touch at random.
fn beside(first: u64, pages: u64, n: u64) -> Program {
    let rest = match n % 2 {
        0 => reads((first..first + pages).cycle().take(4 * pages as usize)),
        _ => reads(uniform(first, pages, n).take(part(TOUCHES, pages))),
    };
    then(first, pages, rest)
}

/// Runs of 8 to 64 pages at random places, as records of a database.
fn records(first: u64, pages: u64, n: u64) -> Program {
    let mut rng = Rng::new(n + 1);
    let all = std::iter::repeat_with(move || {
        let (from, count) = (rng.below(pages - 64), 8 + rng.below(57));
        first + from..first + from + count
    });
    then(
        first,
        pages,
        reads(all.flatten().take(part(2 * TOUCHES, pages))),
    )
}

/// A matrix stored by columns: filled, walked along rows, each a page below the last one, and along columns.
fn matrix(first: u64, pages: u64, _: u64) -> Program {
    let columns = pages * PAGE_SIZE as u64 / COLUMN;
    let rows = (0..COLUMN / 8).step_by(PAGE_SIZE / 8).take(12);
    let all = rows.flat_map(move |row| (0..columns).map(move |column| row * 8 + column * COLUMN));
    let rows = all.map(move |at| Op::Touch {
        page: Vpn(first + at / PAGE_SIZE as u64),
        byte: (at % PAGE_SIZE as u64) as u16,
        write: false,
    });
    let columns = reads(first..first + pages);
    then(first, pages, Box::new(rows.chain(columns)))
}

/// Scan, random reads, scan.
fn phases(first: u64, pages: u64, n: u64) -> Program {
    let random = reads(uniform(first, pages, n).take(part(TOUCHES / 2, pages)));
    let scan = || reads(first..first + pages);
    then(first, pages, Box::new(scan().chain(random).chain(scan())))
}

/// Passes that change some pages: every eighth of one half, the first third of each huge page of the other.
fn changes(first: u64, pages: u64, _: u64) -> Program {
    let change = move |n: u64| match n < pages / 2 {
        true => n.is_multiple_of(8),
        false => n % (LEAF_PAGES as u64) < 170,
    };
    let pass = move || (0..pages).map(move |n| touch(first + n, change(n)));
    then(first, pages, Box::new(pass().chain(pass())))
}

/// All but the oldest quarter of the data is discarded, and the area is emptied while the rest is read at random.
fn swapoff(first: u64, pages: u64, n: u64) -> Program {
    let kept = pages / 4;
    let discard = std::iter::once(Op::Discard(Vpn(first + kept)..Vpn(first + pages)));
    let touches = |seed| reads(uniform(first, kept, seed).take(part(TOUCHES / 64, pages)));
    let begin = (n == 0).then_some(Op::Drain);
    let rest = discard
        .chain(touches(n))
        .chain(begin)
        .chain(touches(n + 99));
    then(first, pages, Box::new(rest))
}

fn sequential(first: u64, pages: u64, _: u64) -> Program {
    then(
        first,
        pages,
        Box::new(reads(first..first + pages).chain(writes(first..first + pages))),
    )
}

/// Pages in the order of a hash: no two are neighbours, and each is touched once.
fn scattered(first: u64, pages: u64, _: u64) -> Program {
    writes((0..pages).map(move |n| first + n * 7919 % pages))
}

/// All workloads.
pub fn all() -> Vec<Workload> {
    let plain = |name, steps| Workload {
        name,
        thp: Thp::Adaptive,
        system: System::default(),
        think: 1000,
        steps,
    };
    let mut all = vec![
        plain("sequential", sequential),
        plain("reverse", |first, pages, _| {
            let back = move || (first..first + pages).rev();
            then(first, pages, Box::new(reads(back()).chain(reads(back()))))
        }),
        plain("stride 3", |first, pages, _| {
            then(first, pages, strided(first, pages, 3, pages))
        }),
        plain("stride 7", |first, pages, _| {
            then(first, pages, strided(first, pages, 7, pages))
        }),
        plain("stride 40", |first, pages, _| {
            then(first, pages, strided(first, pages, 40, pages / 2))
        }),
        plain("stride 512", |first, pages, _| {
            then(first, pages, strided(first, pages, 512, pages / 8))
        }),
        plain("streams", |first, pages, _| {
            let each = pages / 6;
            let pass = (0..each).flat_map(move |n| (0..6).map(move |s| first + s * each + n));
            then(first, pages, reads(pass))
        }),
        plain("random read", |first, pages, n| {
            then(
                first,
                pages,
                reads(uniform(first, pages, n).take(part(TOUCHES, pages))),
            )
        }),
        plain("random write", |first, pages, n| {
            then(
                first,
                pages,
                writes(uniform(first, pages, n).take(part(TOUCHES, pages))),
            )
        }),
        plain("zipf", |first, pages, n| {
            let touches = (0..)
                .zip(zipf(first, pages, n))
                .map(|(n, page)| touch(page, n % 4 == 0));
            then(
                first,
                pages,
                Box::new(touches.take(part(2 * TOUCHES, pages))),
            )
        }),
        plain("hot set beside scan", hot),
        plain("random beside scan", beside),
        plain("records", records),
        plain("phases", phases),
        plain("matrix", matrix),
        plain("changes", changes),
        plain("scattered fill", scattered),
        plain("swapoff", swapoff),
    ];
    let work = plain("slow scan", sequential);
    all.push(Workload {
        think: 20_000,
        ..work
    });
    let system = System {
        fragmented: true,
        ..System::default()
    };
    all.push(Workload {
        system,
        ..plain("no huge pages", sequential)
    });
    let system = System {
        locked: BASE + MEMORY / 2,
        ..System::default()
    };
    all.push(Workload {
        system,
        ..plain("locked half", sequential)
    });
    all
}
