//! How the engine of a forked child adopts the memory that its parent's engine managed.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::Stored;
use foreswap_core::units::{PAGE_SIZE, PageRange, Vpn, overlap};
use foreswap_core::world::{Limit, SwapMap};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::boot::{BootError, bytes_of, pages_of, system};
use super::guests::mark;
use super::lazy::{Heard, once_it_is_free};
use super::snapshot::{Fate, Region, Snapshot};
use super::{Mode, Pager};
use crate::ledger::SeenKind;
use crate::program::Listed;
use crate::sys::maps;

/// Adopt the parent's memory: register all of it, then find each page on an area or in memory.
///
/// If the child is already running (`is_early`), it may change its memory meanwhile.
pub(super) fn inherit(
    pager: &mut Pager,
    mut snapshot: Snapshot,
    heard: &mut Heard,
    is_early: bool,
) -> Result<(), BootError> {
    if is_early {
        heard.settle(&pager.w.program, &mut snapshot);
    }
    pager.faults = core::mem::take(&mut heard.faults);
    pager.copies.extend(core::mem::take(&mut heard.copies));
    pager.overdue = core::mem::take(&mut heard.overdue);
    if snapshot.is_spoilt() {
        return Err(BootError::Spoilt);
    }
    pager.mode = Mode::Armed;
    let mut regions: Vec<PageRange> = Vec::new();
    let remains = remains(pager)?;
    for Region { range: region, .. } in snapshot.regions() {
        for (there, listed) in &remains {
            let part = overlap(&region, there);
            let bytes = bytes_of(&part);
            if bytes.is_empty() {
                continue;
            }
            match once_it_is_free(|| pager.w.register(bytes.start, bytes.len())) {
                Ok(()) => {
                    let is_still = listed.as_ref().is_none_or(Listed::is_still);
                    if is_still || pager.is_still_named(&bytes) {
                        regions.push(part);
                    }
                }
                // Memory of a kind that was never managed.
                Err(Errno::INVAL) => {}
                Err(errno) => return Err(system("UFFDIO_REGISTER")(errno)),
            }
        }
    }
    let w = &mut pager.w;
    mark::register(&w.program);
    w.keep_inherited(&regions, snapshot.has_pages());
    for region in &regions {
        w.record(|to| to.change(SeenKind::Map, region));
        pager.mm.adopt(w, region.clone(), &[]);
    }
    for Region { range, hint, .. } in snapshot.regions() {
        pager.mm.advise(w, &range, foreswap_core::Advice::Use(hint));
    }
    let wiped = if pager.program.wipes.load(Relaxed) {
        let found = maps::wiped_on_fork().map_err(system("reading smaps"))?;
        found.iter().map(pages_of).collect()
    } else {
        Vec::new()
    };
    let mut found = Vec::new();
    for region in &regions {
        let looked = pager
            .space
            .look(region)
            .map_err(system("reading pagemap"))?;
        found.push(looked);
    }
    let mut there: Vec<PageRange> = found
        .iter()
        .flat_map(|(present, _)| present.iter().cloned())
        .collect();
    there.sort_unstable_by_key(|run| run.start);
    let is_there = |page: Vpn| {
        let after = there.partition_point(|run| run.start <= page);
        after > 0 && page < there[after - 1].end
    };
    for (page, stored, fate) in snapshot.pages() {
        let is_wiped = wiped.iter().any(|range| range.contains(&page));
        if fate == Fate::Forgotten || is_wiped || !pager.mm.manages(page) {
            if let Stored::In(slot) = stored
                && !slot.is_file()
            {
                pager.w.put(slot);
            }
            continue;
        }
        let present = is_there(page);
        // Pages of a running child have been reported, or soon will be.
        let came_back = fate == Fate::CameBack || is_early;
        if present && !came_back {
            // A stray: a write between the fork and now reached the page before it was registered. The snapshot has
            // its content.
            drop_page(pager, page)?;
        }
        pager
            .mm
            .inherit(&mut pager.w, page, stored, present && came_back);
    }
    for (region, (present, guards)) in regions.into_iter().zip(found) {
        pager.mm.adopt(&mut pager.w, region, &present);
        for guarded in guards {
            pager.mm.guard(&mut pager.w, &guarded);
        }
    }
    for Region { range, first, .. } in snapshot.regions() {
        if let Some(first) = first {
            pager.inherit_file(&range, first);
        }
    }
    if is_early {
        // Memory that it got meanwhile.
        pager.arm_all();
    }
    debug_assert!(pager.w.available() <= pager.w.limit());
    for child in heard.forked.drain(..) {
        pager.take_guest(child, heard.changed_since);
    }
    Ok(())
}

/// Where the parent's memory may be. A region that another thread of the parent unmapped or moved at the last moment is
/// absent, cut, or replaced. If the program names regions, the table has what is left of them: each counts by itself, as
/// its neighbours may be gone.
fn remains(pager: &Pager) -> Result<Vec<(PageRange, Option<Listed<'static>>)>, BootError> {
    let regions = &pager.program.regions;
    if regions.are_all() {
        let listed = regions.listed();
        return Ok(listed
            .map(|region| (pages_of(&region.range), Some(region)))
            .collect());
    }
    let vmas = super::space::anonymous().map_err(system("reading maps"))?;
    Ok(vmas
        .iter()
        .map(|vma| (pages_of(&vma.range()), None))
        .collect())
}

/// Drop one page of the program; the resulting event is read here, because no other thread can.
fn drop_page(pager: &Pager, page: Vpn) -> Result<(), BootError> {
    let at = page.address() as usize;
    let uffd = &pager.w.program;
    uffd.unregister(at, PAGE_SIZE)
        .map_err(system("UFFDIO_UNREGISTER"))?;
    // SAFETY: the page's content is void, and its only thread waits for this one.
    unsafe { madvise(at as *mut c_void, PAGE_SIZE, Advice::LinuxDontNeed) }
        .map_err(system("madvise(DONTNEED)"))?;
    uffd.register_missing(at, PAGE_SIZE)
        .map_err(system("UFFDIO_REGISTER"))
}
