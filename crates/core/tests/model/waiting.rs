//! Threads that wait for memory: each run lets one go on, and the first of them first.

use super::directed::{Machine, TIMEOUT};
use super::process::Access;

fn waiting(m: &Machine) -> usize {
    m.p.threads.iter().flatten().count()
}

/// Others hold more than the limit; what this process has it must give back.
fn without_memory(written: usize, pages: usize) -> Machine {
    let mut m = Machine::new(48, &[512], pages);
    for at in 0..written {
        m.touch(at, Some(1000 + at as u64));
    }
    m.sys.charged += 60;
    m.sys.excuse();
    for _ in 0..200 {
        m.p.round(&mut m.sys, true);
    }
    assert_eq!(m.p.space.charged, 0, "all was given back");
    m
}

fn touch(m: &mut Machine, thread: usize, at: usize) {
    let access = m.p.access(&mut m.sys, Some(thread), at, None);
    assert_eq!(access, Access::Waits);
    m.p.read_message(&mut m.sys, 0);
    m.sys.now += 10;
}

#[test]
fn a_page_that_a_thread_waited_for_stays_until_it_is_touched() {
    let mut m = without_memory(100, 110);
    // Pages of zeros: each could have the memory of the one before at once.
    for thread in 0..4 {
        touch(&mut m, thread, 100 + thread);
    }
    m.sys.now += TIMEOUT;
    for left in (0..4).rev() {
        m.p.run(&mut m.sys);
        assert!(
            waiting(&m) <= left,
            "{} threads wait, {left} should",
            waiting(&m)
        );
    }
    m.sys.charged -= 60;
    m.rest();
    m.end();
}

#[test]
fn who_waits_again_comes_back_to_his_place() {
    let mut m = without_memory(100, 110);
    let began = m.sys.now;
    touch(&mut m, 0, 3);
    touch(&mut m, 1, 105);
    // Room for one: the first one's page is read.
    m.sys.charged -= 60 - 47;
    m.p.run(&mut m.sys);
    assert_eq!(m.p.space.flights.len(), 1);
    m.sys.charged += 60 - 47;
    m.sys.excuse();
    // It cannot be moved in, and there is no memory for a copy.
    m.p.space.pages[3].locked = true;
    m.sys.chaos.no_memory = 1000;
    while !m.p.space.flights.is_empty() {
        m.p.complete(&mut m.sys, 0);
    }
    assert_eq!(m.p.mm.oldest_stalled(), Some(began));
    m.sys.chaos.no_memory = 0;
    m.p.space.pages[3].locked = false;
    m.sys.charged -= 60;
    m.rest();
    m.end();
}
