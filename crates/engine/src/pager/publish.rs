//! The pager's counters in the ledger, where the supervisor finds them even if this process dies.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::Mm;
use foreswap_core::units::{PAGE_SIZE, len};

use crate::ledger::{Demand, Ledger, ProcId, VmaStats};

/// Copy the counters into the ledger; cheap enough for every turn of the loop.
pub fn counters(ledger: &Ledger, me: ProcId, mm: &Mm, engine_bytes: u64, channel_bytes: u64) {
    let (from, to) = (&mm.stats, ledger.stats(me));
    let page = PAGE_SIZE as u64;
    for (value, word) in [
        (from.faults_major, &to.faults_major),
        (from.faults_minor, &to.faults_minor),
        (from.faults_zero, &to.faults_zero),
        ((from.swap_in - from.file_in) * page, &to.swap_in_bytes),
        (from.file_in * page, &to.file_in_bytes),
        (from.file_drops * page, &to.file_dropped_bytes),
        (from.file_ahead.pages, &to.file_readahead_pages),
        (from.file_ahead.hits(), &to.file_readahead_hits),
        (from.swap_out * page, &to.swap_out_bytes),
        (from.swap_read_ios, &to.swap_read_ios),
        (from.swap_write_ios, &to.swap_write_ios),
        (from.ahead.pages, &to.readahead_pages),
        (from.ahead.hits(), &to.readahead_hits),
        (from.huge_swap_in, &to.huge_swap_in),
        (from.huge_swap_out, &to.huge_swap_out),
        (from.huge_splits, &to.huge_splits),
        (from.clean_drops, &to.clean_drops),
        (from.zero_drops, &to.zero_drops),
        (from.filled_drops, &to.filled_drops),
        (from.kswapd_wakeups, &to.kswapd_wakeups),
        (from.direct_reclaims, &to.direct_reclaims),
        (from.refaults, &to.refaults),
        (mm.stall_time(), &to.stalled_ns),
        (engine_bytes, &to.engine_bytes),
        (channel_bytes, &to.channel_bytes),
    ] {
        word.store(value, Relaxed);
    }
    to.set_resident(ledger.process_charged(me) * page);
}

/// What load control has to know; cheap.
pub fn demand(ledger: &Ledger, me: ProcId, mm: &Mm) {
    let demand = Demand {
        needs: mm.needed(),
        lost: mm.stats.lost_ns,
        losses: mm.stats.losses,
        waiting: mm.waiting_for_turn() as u32,
    };
    ledger.set_demand(me, &demand);
}

/// The largest regions with their usage. Walks the page table, which is too slow for every turn of the loop.
pub fn regions(ledger: &Ledger, me: ProcId, mm: &Mm) {
    let page = PAGE_SIZE as u64;
    ledger.stats(me).set_managed(mm.managed() * page);
    let mut of_files = (0, 0);
    let mut vmas: Vec<VmaStats> = mm
        .regions()
        .map(|vma| {
            let (resident, swapped) = mm.usage(&vma.range);
            if vma.backing().is_some() {
                of_files.0 += len(&vma.range) * page;
                of_files.1 += resident * page;
            }
            VmaStats {
                start: vma.range.start.address(),
                bytes: len(&vma.range) * page,
                resident_bytes: resident * page,
                swapped_bytes: swapped * page,
                readahead_pages: vma.ahead.pages,
                readahead_hits: vma.ahead.hits(),
            }
        })
        .collect();
    vmas.sort_unstable_by_key(|vma| std::cmp::Reverse(vma.bytes));
    ledger.stats(me).set_vmas(&vmas);
}
