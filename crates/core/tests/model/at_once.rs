//! A device that tells of the ends of I/Os when it has none left gets them in batches.

use foreswap_core::readahead::Policy;

use super::directed::Machine;
use super::process::Process;
use super::system::System;

const PAGES: usize = 14_000;

impl Process {
    /// The device works one I/O off, and ends all when none is left.
    pub fn work_off(&mut self, sys: &mut System) {
        self.space.worked_off += 1;
        if self.space.worked_off < self.space.flights.len() {
            return;
        }
        self.space.worked_off = 0;
        while !self.space.flights.is_empty() {
            self.complete(sys, 0);
        }
    }
}

fn filled(at_once: bool) -> Machine {
    let mut m = Machine::of(Policy::Streams(512), 4_096, 5_000, &[32_768], PAGES);
    m.p.space.depth = 128;
    m.sys.at_once = at_once;
    m.fill();
    m
}

/// Write to all pages in order, each read back rightly. Returns how many I/Os began, and how many of them
/// while others were in flight.
fn scan(m: &mut Machine) -> (u64, u64) {
    let before = (m.p.space.begun, m.p.space.added);
    for at in 0..PAGES {
        let value = 1000 + at as u64;
        assert_eq!(m.touch(at, None), Some(value));
        m.touch(at, Some(value));
    }
    (m.p.space.begun - before.0, m.p.space.added - before.1)
}

#[test]
fn it_gets_batches() {
    let mut m = filled(true);
    scan(&mut m);
    let (begun, added) = scan(&mut m);
    assert!(added * 100 <= begun, "{added} of {begun}");
    m.end();
}

#[test]
fn any_other_gets_more_while_it_has_some() {
    let mut m = filled(false);
    scan(&mut m);
    let (begun, added) = scan(&mut m);
    assert!(added * 50 >= begun, "{added} of {begun}");
    m.end();
}
