//! The program's address space as the kernel shows it: adoptable and present memory.

use std::ops::Range;

use foreswap_core::units::{PAGE_SIZE, PageRange, len, overlap};
use rustix::io::Errno;

use super::boot::{bytes_of, pages_of};
use crate::program::Program;
use crate::sys::maps::{self, PageMap, Vma};
use crate::sys::process::Statm;
use crate::sys::{handed, modules, own_memory, stacks};

/// A view of the calling process, for the pager.
pub(crate) struct Space {
    program: &'static Program,
    pagemap: PageMap,
    /// The static data of the modules whose code engine threads run.
    code: Vec<Range<usize>>,
    statm: Statm,
    /// Mappings of the engine's own ring.
    rings: usize,
    /// The process' mappings at the last look, and those that were added since.
    pub(super) mappings: usize,
}

impl Space {
    /// Open it, on the pager's thread, which has `rings` mappings of io_uring.
    pub(crate) fn open(program: &'static Program, rings: usize) -> Result<Self, Errno> {
        Ok(Space {
            program,
            pagemap: PageMap::open()?,
            code: modules::loaded().of_engine().collect(),
            statm: Statm::open()?,
            rings,
            mappings: 0,
        })
    }

    /// The program's private anonymous memory in pieces of at least `smallest` bytes, without the engine's memory and
    /// thread stacks. A stack is first mapped without access, guard included, and looks like reserved memory. While a
    /// thread is being created, all such memory is left to a later look. Its use by the program changes
    /// [`Space::data_bytes`]. If the program has named regions, these are all.
    pub(crate) fn adoptable(&mut self, smallest: usize) -> Result<Vec<Vma>, Errno> {
        if self.program.regions.are_all() {
            return Ok(self.program.regions.ranges().map(Vma::of_region).collect());
        }
        let before = self.program.threads_made();
        let mut vmas = maps::read()?;
        self.mappings = vmas.len();
        if maps::rings(&vmas) > self.rings {
            // A ring that a library made without the C library: see `world/lent.rs`.
            self.program.about_to_lend();
        }
        let steady = before.is_some() && before == self.program.threads_made();
        let blocks = &self.program.control_blocks;
        let can_tell = steady && self.is_single();
        let stacks = stacks::find(&vmas, blocks, can_tell, &mut self.pagemap);
        let excluded: Vec<_> = own_memory::ranges()
            .map(|own| own.start..own.start + own.len)
            .chain(self.code.iter().cloned())
            .chain(stacks)
            .collect();
        if !steady {
            vmas.retain(|vma| vma.read || vma.write || vma.exec);
        }
        Ok(maps::adoptable(&vmas, smallest, &excluded))
    }

    /// Whether the program is known to have one thread. Threads may be created past the wrappers (an allocator may
    /// look up the C library's function itself); then any guarded memory may be a stack.
    fn is_single(&self) -> bool {
        let pid = self.program.pid.load(std::sync::atomic::Ordering::Relaxed);
        let status = handed::read_in_proc(&format!("/proc/{pid}/status")).unwrap_or_default();
        let mut lines = status.split(|&byte| byte == b'\n');
        let threads = lines.find_map(|line| line.strip_prefix(b"Threads:"));
        threads.is_some_and(|number| number.trim_ascii() == b"1")
    }

    /// The pages of `range` that exist.
    pub(crate) fn present(&mut self, range: &PageRange) -> Result<Vec<PageRange>, Errno> {
        self.look(range).map(|(present, _)| present)
    }

    /// The pages of `range` that exist, and those that are guarded.
    pub(crate) fn look(
        &mut self,
        range: &PageRange,
    ) -> Result<(Vec<PageRange>, Vec<PageRange>), Errno> {
        let bytes = bytes_of(range);
        let mut runs = Vec::new();
        self.pagemap.runs(bytes.start, bytes.end, &mut runs)?;
        let (guards, present): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.guard);
        let ranges = |runs: Vec<&maps::Run>| {
            let range = |run: &maps::Run| pages_of(&(run.start..run.end));
            runs.into_iter().map(range).collect()
        };
        Ok((ranges(present), ranges(guards)))
    }

    /// The pages of `range` that are in the memory of another process too; none if that cannot be told.
    pub(crate) fn shared(&self, range: &PageRange) -> u64 {
        let bytes = bytes_of(range);
        let shared = self.pagemap.shared(bytes.start, bytes.end);
        shared.map_or(0, |pages| pages as u64)
    }

    /// Pages of private memory that are present; of regions alone, if the program has named some.
    pub(crate) fn resident(&mut self) -> u64 {
        if self.program.regions.are_all() {
            let regions = self.program.regions.ranges().map(|range| pages_of(&range));
            let present = regions.map(|region| self.present(&region).unwrap_or_default());
            return present.flatten().map(|run| len(&run)).sum();
        }
        let sizes = self.statm.read();
        sizes.map_or(0, |sizes| (sizes.anonymous_resident() / PAGE_SIZE) as u64)
    }

    /// Bytes of mapped data and stack: changes when memory appears or goes.
    pub(crate) fn data_bytes(&self) -> Option<u64> {
        self.statm.read().map(|sizes| sizes.data as u64)
    }
}

/// All private anonymous memory of the calling process except the engine's, in order of address.
pub(super) fn anonymous() -> Result<Vec<Vma>, Errno> {
    let own: Vec<_> = own_memory::ranges()
        .map(|own| own.start..own.start + own.len)
        .collect();
    Ok(maps::adoptable(&maps::read()?, 1, &own))
}

/// Applies `act` to each of `regions`. Where it fails, a part of the region may never have been managed, or another
/// thread has unmapped or replaced it at the last moment: then `act` is applied to each part that is private and
/// anonymous, and its failure there does not count. An error that `is_final` ends the work.
pub(super) fn each_part<E>(
    regions: impl IntoIterator<Item = PageRange>,
    mut act: impl FnMut(&Range<usize>) -> Result<(), E>,
    is_final: impl Fn(&E) -> bool,
) -> Result<(), E> {
    let mut vmas: Option<Vec<PageRange>> = None;
    for region in regions {
        let Err(error) = act(&bytes_of(&region)) else {
            continue;
        };
        if is_final(&error) {
            return Err(error);
        }
        if vmas.is_none() {
            let found = anonymous().ok();
            vmas = found.map(|found| found.iter().map(|vma| pages_of(&vma.range())).collect());
        }
        let Some(vmas) = &vmas else {
            return Err(error);
        };
        let parts = vmas.iter().map(|vma| overlap(vma, &region));
        for part in parts.filter(|part| !part.is_empty()) {
            match act(&bytes_of(&part)) {
                Err(error) if is_final(&error) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(())
}
