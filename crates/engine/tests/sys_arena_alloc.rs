//! The engine's allocator under a whole test program, and across fork.

use std::collections::BTreeMap;
use std::thread;

use foreswap::sys::arena_alloc::EngineAlloc;
use foreswap::sys::own_memory::{self, Kind};

#[global_allocator]
static ALLOC: EngineAlloc = EngineAlloc::new();

fn heap_of(inherited: bool, address: usize) -> bool {
    own_memory::ranges().any(|own| {
        own.kind == Kind::Heap
            && own.inherited == inherited
            && (own.start..own.start + own.len).contains(&address)
    })
}

/// Allocations of all sizes, resized and freed in another order, with their contents checked.
fn churn(seed: u64) -> usize {
    let mut state = seed;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut live = BTreeMap::new();
    let mut checked = 0;
    for _ in 0..20_000 {
        let key = random() % 200;
        let len = match random() % 20 {
            0 => random() % 200_000,
            _ => random() % 500,
        };
        let mut block = live.remove(&key).unwrap_or_else(Vec::new);
        assert!(block.iter().all(|&byte| byte == key as u8));
        checked += block.len();
        if random() % 3 > 0 {
            block.resize(len, key as u8);
            live.insert(key, block);
        }
    }
    checked
}

#[test]
fn contents_survive_other_threads_churning() {
    let threads: Vec<_> = (1..5)
        .map(|seed| thread::spawn(move || churn(seed)))
        .collect();
    for thread in threads {
        assert!(thread.join().expect("churn") > 0);
    }
    assert!(ALLOC.opened_bytes() > 0);
}

#[test]
fn alignment_and_zeroes_are_kept() {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let pages: Vec<Box<Page>> = (0..50).map(|i| Box::new(Page([i; 4096]))).collect();
    for (i, page) in pages.iter().enumerate() {
        assert_eq!(&raw const page.0 as usize % 4096, 0);
        assert!(page.0.iter().all(|&byte| byte == i as u8));
    }
    for _ in 0..3 {
        let mut large = vec![0_u8; 5 << 20];
        assert!(large.iter().all(|&byte| byte == 0));
        large.fill(1);
    }
}

#[test]
fn everything_lies_in_listed_memory() {
    let boxed = Box::new(5_u64);
    assert!(heap_of(false, &raw const *boxed as usize));
}

/// Runs in the child alone; returns the exit status.
fn as_child(old: Vec<u64>, mut grown: Vec<u64>) -> i32 {
    own_memory::forget_after_fork();
    // SAFETY: the only thread of a fresh fork child.
    unsafe { ALLOC.forget_after_fork() };
    let old_at = old.as_ptr() as usize;
    if !heap_of(true, old_at) || old != [7; 1000] {
        return 2;
    }
    // Growing old memory moves it into the new heap; freeing old memory does nothing.
    grown.resize(5000, 8);
    if !heap_of(false, grown.as_ptr() as usize) || grown[..1000] != [7; 1000] {
        return 3;
    }
    drop(old);
    let sum = churn(99);
    let fresh: Vec<u64> = vec![1; 100_000];
    if sum == 0 || !heap_of(false, fresh.as_ptr() as usize) {
        return 4;
    }
    // SAFETY: `grown` moved and `old` is gone; what libtest allocated is not used before the exit.
    unsafe { own_memory::unmap_inherited(|own| own.kind == Kind::Heap) };
    if own_memory::ranges().any(|own| own.inherited && own.kind == Kind::Heap) {
        return 5;
    }
    let still = fresh.iter().sum::<u64>() == 100_000;
    i32::from(!still)
}

#[test]
fn a_fork_child_begins_anew_and_can_read_the_old() {
    let (old, grown) = (vec![7_u64; 1000], vec![7_u64; 1000]);
    // SAFETY: the child allocates with our allocator only, which it resets first, and leaves by
    // _exit.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::_exit(as_child(old, grown));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFEXITED(status), "status {status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }
    assert_eq!(old, [7; 1000]);
    assert_eq!(grown, [7; 1000]);
}
