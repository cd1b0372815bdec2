//! The program's address space as the kernel shows it: what could be managed, what is there.

use std::ops::Range;

use foreswap_core::units::PageRange;
use rustix::io::Errno;

use super::boot::{bytes_of, pages_of};
use crate::program::Program;
use crate::sys::maps::{self, PageMap, Vma};
use crate::sys::{handed, modules, own_memory};

/// A view of the calling process, for the pager.
pub(crate) struct Space {
    program: &'static Program,
    pagemap: PageMap,
    /// Where the code that engine threads run keeps its static data.
    code: Vec<Range<usize>>,
    statm: rustix::fd::OwnedFd,
}

impl Space {
    /// Open it, on the pager's thread.
    pub(crate) fn open(program: &'static Program) -> Result<Self, Errno> {
        let statm = handed::open_in_proc(c"/proc/thread-self/statm")?;
        Ok(Space {
            program,
            pagemap: PageMap::open()?,
            code: modules::loaded().libraries().collect(),
            statm,
        })
    }

    /// The program's private anonymous memory in pieces of at least `smallest` bytes; ours and the
    /// threads' stacks left out. A stack is first mapped without access, guard and all, and looks like
    /// reserved memory: while a thread is made all such memory is left to a later look. The program's
    /// use of it changes [`Space::data_pages`].
    pub(crate) fn adoptable(&self, smallest: usize) -> Result<Vec<Vma>, Errno> {
        let before = self.program.threads_made();
        let mut vmas = maps::read()?;
        let steady = before.is_some() && before == self.program.threads_made();
        let excluded: Vec<_> = own_memory::ranges()
            .map(|own| own.start..own.start + own.len)
            .chain(self.code.iter().cloned())
            .chain(stacks(&vmas))
            .collect();
        if !steady {
            vmas.retain(|vma| vma.read || vma.write || vma.exec);
        }
        Ok(maps::adoptable(&vmas, smallest, &excluded))
    }

    /// All private anonymous memory but ours, in order of address.
    pub(crate) fn anonymous(&self) -> Result<Vec<Range<usize>>, Errno> {
        let own: Vec<_> = own_memory::ranges()
            .map(|own| own.start..own.start + own.len)
            .collect();
        let vmas = maps::adoptable(&maps::read()?, 1, &own);
        Ok(vmas.iter().map(|vma| vma.start..vma.end).collect())
    }

    /// The pages of `range` that exist.
    pub(crate) fn present(&mut self, range: &PageRange) -> Result<Vec<PageRange>, Errno> {
        let bytes = bytes_of(range);
        let mut runs = Vec::new();
        self.pagemap.runs(bytes.start, bytes.end, &mut runs)?;
        Ok(runs
            .iter()
            .map(|run| pages_of(&(run.start..run.end)))
            .collect())
    }

    /// Pages of data and stack that are mapped: changes when memory appears or goes.
    pub(crate) fn data_pages(&self) -> Option<u64> {
        let mut text = [0; 128];
        let n = rustix::io::pread(&self.statm, &mut text, 0).ok()?;
        let field = text[..n].split(|&b| b == b' ').nth(5)?;
        core::str::from_utf8(field).ok()?.trim_ascii().parse().ok()
    }
}

/// The largest guard below a thread's stack.
const GUARD: usize = 64 << 10;

/// What looks like a thread's stack: writable memory right above a small guard. A stack holds the
/// thread's control block, to which the kernel writes when the thread ends; a page that is absent
/// then is not waited for, and whoever joins the thread would wait for ever.
fn stacks(vmas: &[Vma]) -> impl Iterator<Item = Range<usize>> + '_ {
    vmas.windows(2).filter_map(|pair| {
        let [below, vma] = pair else { return None };
        let is_guard = !below.read && !below.write && !below.exec && below.bytes() <= GUARD;
        let is_stack = is_guard && below.anonymous() && below.end == vma.start && vma.write;
        is_stack.then_some(vma.start..vma.end)
    })
}
