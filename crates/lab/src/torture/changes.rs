//! How a tortured program changes its address space, where it can at that moment.

use std::ops::Range;

use super::process::{Fork, Process};
use super::space::{Mapping, Page};
use super::step::Act;
use super::system::System;

/// `n` pages from `page` on, as far as there are any.
pub fn stretch(process: &Process, page: u16, n: u16) -> Range<usize> {
    let pages = process.cells.len();
    let start = usize::from(page) % pages;
    start..(start + usize::from(n.max(1))).min(pages)
}

/// The program discards pages, and the driver sees to it at once.
pub fn give_back(process: &mut Process, sys: &mut System, range: Range<usize>) {
    let pages = &mut process.space.pages[range.clone()].iter();
    let fits = |page: &Page| page.mapping == Mapping::Managed && !page.locked && !page.pinned;
    if process.settled() && pages.all(fits) {
        process.discard(range);
        process.read_event(sys);
        process.acknowledge();
        process.zap();
    }
}

/// The program changes its address space, where it can at this moment.
pub fn change(process: &mut Process, sys: &mut System, act: Act) {
    let (Act::Discard { page, n }
    | Act::Free { page, n }
    | Act::Unmap { page, n }
    | Act::Remap { page, n, .. }
    | Act::Map { page, n }) = act
    else {
        return;
    };
    let mut range = stretch(process, page, n);
    if let Some(wait) = process.oldest_wait()
        && sys.chance.one_in(500)
    {
        // Where it hurts: a page that is on its way.
        range = stretch(process, wait.at as u16, n);
    }
    // While a fork is prepared, other threads go on discarding, and do nothing else.
    let forking = process.fork != Fork::No;
    let pages = &process.space.pages[range.clone()];
    let managed = pages.iter().all(|page| page.mapping == Mapping::Managed);
    let fixed = pages.iter().any(|page| page.locked || page.pinned);
    let busy = process.busy(&range) || process.events.len() > 2;
    match act {
        Act::Discard { .. } if !busy && !fixed && managed => process.discard(range),
        _ if forking => {}
        Act::Unmap { .. } if !busy => process.unmap(range),
        Act::Remap { to, .. } if !busy && managed => {
            let to = usize::from(to) % process.cells.len();
            let target = to..to + range.len();
            let apart = target.end <= range.start || range.end <= target.start;
            if apart && target.end <= process.cells.len() && !process.busy(&target) {
                process.remap(range, to);
            }
        }
        Act::Free { .. } if !busy && !fixed => process.silently_discard(range),
        Act::Map { .. } => {
            if !process.busy(&range) || sys.chance.one_in(300) {
                process.map(range.clone());
            }
            let pages = &process.space.pages[range.clone()];
            if process.settled() && pages.iter().all(|page| page.mapping != Mapping::None) {
                process.adopt(sys, range);
            }
        }
        _ => {}
    }
}
