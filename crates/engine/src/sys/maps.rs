//! The process' own memory map: its areas, and their present pages.
//!
//! It is read when the engine arms (and at later looks), from an engine thread, which may allocate and opens files in
//! its own descriptor table. The paths use `/proc/thread-self`: `/proc/self` is the *first* thread, which in some
//! programs has ended, and then shows an empty map.
//!
//! The map is a snapshot that other threads outdate while it is read. It suggests ranges to register; only the
//! kernel's answer, and the events after it, are reliable.

use core::ffi::c_void;
use core::ops::Range;
use std::os::fd::OwnedFd;

use linux_raw_sys::general as k;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::handed::{self, Handed};

const PAGE: usize = 4096;
/// Page runs requested per call.
const BATCH: usize = 512;

/// The backing of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: private memory, named (`[anon:...]`) or not.
    Anonymous,
    /// The same, grown by brk.
    Heap,
    /// The first thread's stack.
    Stack,
    /// A file, shared memory, or hugetlbfs.
    File,
    /// A ring of io_uring.
    Ring,
    /// The kernel's: vdso, vvar, vsyscall and the like.
    Special,
}

/// One area of the address space, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vma {
    /// First byte.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// May be read.
    pub read: bool,
    /// May be written. UFFDIO_MOVE needs this, on both sides.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
    /// Writes are visible to other processes (`MAP_SHARED`).
    pub shared: bool,
    /// Its backing.
    pub backing: Backing,
}

impl Vma {
    /// Private memory without a file that the program reads and writes.
    pub fn of_region(range: Range<usize>) -> Self {
        Vma {
            start: range.start,
            end: range.end,
            read: true,
            write: true,
            exec: false,
            shared: false,
            backing: Backing::Anonymous,
        }
    }

    /// Its addresses.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.end - self.start
    }

    /// Private and without a file: heap or other anonymous memory, not the stack.
    pub fn anonymous(&self) -> bool {
        !self.shared && matches!(self.backing, Backing::Anonymous | Backing::Heap)
    }
}

/// Reads the whole map, in address order.
pub fn read() -> Result<Vec<Vma>, Errno> {
    Ok(parse(&text_of(c"/proc/thread-self/maps")?))
}

/// The number of io_uring's ring mappings.
pub fn rings(vmas: &[Vma]) -> usize {
    vmas.iter()
        .filter(|vma| vma.backing == Backing::Ring)
        .count()
}

/// The areas that are wiped in a fork child (MADV_WIPEONFORK). Only the long form of the map has this, and reading it
/// is slow.
pub fn wiped_on_fork() -> Result<Vec<Range<usize>>, Errno> {
    let text = text_of(c"/proc/thread-self/smaps")?;
    Ok(parse_flag(&text, b"wf").collect())
}

/// The areas that fork children do not get (MADV_DONTFORK). As slow as [`wiped_on_fork`].
pub fn kept_from_children() -> Result<Vec<Range<usize>>, Errno> {
    let text = text_of(c"/proc/thread-self/smaps")?;
    Ok(parse_flag(&text, b"dc").collect())
}

/// The ranges with a hint of the program (MADV_RANDOM, MADV_SEQUENTIAL), with the number of the advice. As slow as
/// [`wiped_on_fork`].
pub fn hints() -> Result<Vec<(Range<usize>, u32)>, Errno> {
    let text = text_of(c"/proc/thread-self/smaps")?;
    let random = parse_flag(&text, b"rr").map(|range| (range, k::MADV_RANDOM));
    let sequential = parse_flag(&text, b"sr").map(|range| (range, k::MADV_SEQUENTIAL));
    Ok(random.chain(sequential).collect())
}

/// The areas whose `VmFlags` hold `flag`.
fn parse_flag(text: &[u8], flag: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut current = None;
    let lines = text.split(|&byte| byte == b'\n');
    lines.filter_map(move |line| {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let has = flags.split(|&byte| byte == b' ').any(|word| word == flag);
            return current.take().filter(|_| has);
        }
        if let Some(vma) = parse_line(line) {
            current = Some(vma.start..vma.end);
        }
        None
    })
}

fn text_of(path: &core::ffi::CStr) -> Result<Vec<u8>, Errno> {
    let file = handed::open_in_proc(path)?;
    let mut text = vec![0_u8; 64 << 10];
    let mut len = 0;
    loop {
        if text.len() - len < PAGE {
            text.resize(2 * text.len(), 0);
        }
        match rustix::io::read(&file, &mut text[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    text.truncate(len);
    Ok(text)
}

fn parse(text: &[u8]) -> Vec<Vma> {
    text.split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// `7f00-7fff rw-p 00000000 00:00 0    [heap]`; lines of another form are skipped.
fn parse_line(line: &[u8]) -> Option<Vma> {
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|&byte| byte != b' ')?;
        let word = rest[start..].split(|&byte| byte == b' ').next()?;
        rest = &rest[start + word.len()..];
        Some(word)
    };
    let range = field()?;
    let access = field()?;
    let (_offset, _device) = (field()?, field()?);
    let inode = field()?;
    let name = field().unwrap_or_default();
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let number = |hex: &[u8]| usize::from_str_radix(core::str::from_utf8(hex).ok()?, 16).ok();
    let &[read, write, exec, sharing] = access else {
        return None;
    };
    let backing = match name {
        b"" if inode == b"0" => Backing::Anonymous,
        b"[heap]" => Backing::Heap,
        b"[stack]" => Backing::Stack,
        b"anon_inode:[io_uring]" => Backing::Ring,
        _ if name.starts_with(b"[anon:") => Backing::Anonymous,
        _ if name.starts_with(b"[anon_shmem:") => Backing::File,
        _ if name.starts_with(b"[") => Backing::Special,
        _ => Backing::File,
    };
    Some(Vma {
        start: number(&range[..dash])?,
        end: number(&range[dash + 1..])?,
        read: read == b'r',
        write: write == b'w',
        exec: exec == b'x',
        shared: sharing == b's',
        backing,
    })
}

/// The parts of `vmas` that could be managed: private anonymous memory outside `exclude`, in pieces of at least
/// `min_bytes`. The kernel merges equal neighbours, so an area of the map may contain memory of the program and of
/// the engine; the latter is cut out.
pub fn adoptable(vmas: &[Vma], min_bytes: usize, exclude: &[Range<usize>]) -> Vec<Vma> {
    let mut holes = exclude.to_vec();
    holes.sort_unstable_by_key(|hole| hole.start);
    let mut pieces = Vec::new();
    for vma in vmas.iter().filter(|vma| vma.anonymous()) {
        let mut start = vma.start;
        let mut keep = |start: usize, end: usize| {
            if end > start && end - start >= min_bytes {
                pieces.push(Vma { start, end, ..*vma });
            }
        };
        for hole in holes
            .iter()
            .filter(|hole| hole.end > vma.start && hole.start < vma.end)
        {
            keep(start, hole.start.min(vma.end));
            start = start.max(hole.end);
        }
        keep(start, vma.end);
    }
    pieces
}

/// Neighbouring pages of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// In the kernel's swap rather than in memory.
    pub swapped: bool,
    /// Mapped as a whole huge page. Known on Linux 6.7 and later.
    pub huge: bool,
    /// The shared page of zeros, which costs no memory. Known on Linux 6.7 and later.
    pub zero: bool,
    /// No page, but a guard (MADV_GUARD_INSTALL). Known on Linux 6.15 and later; before that it appears as `swapped`.
    pub guard: bool,
}

/// Finds the present pages.
#[derive(Debug)]
pub struct PageMap {
    file: OwnedFd,
    scan: bool,
    /// The kernel reports guards.
    guards: std::cell::Cell<bool>,
}

impl PageMap {
    /// Opens the page map of the calling process.
    pub fn open() -> Result<Self, Errno> {
        let path = c"/proc/thread-self/pagemap";
        let file = match handed::open_in_proc(path) {
            Ok(file) => file,
            Err(errno) => {
                let own = handed::get(Handed::PageMap).ok_or(errno)?;
                rustix::io::dup(own)?
            }
        };
        Ok(Self {
            file,
            scan: true,
            guards: true.into(),
        })
    }

    /// The same without the newer interface, to test the behaviour on older kernels.
    pub fn open_without_scan() -> Result<Self, Errno> {
        Self::open().map(|map| Self { scan: false, ..map })
    }

    /// Appends the runs of existing pages in `start..end`, in address order. Pages that were never touched, or were
    /// discarded, are in none.
    pub fn runs(&mut self, start: usize, end: usize, out: &mut Vec<Run>) -> Result<(), Errno> {
        if self.scan {
            match self.scan(start, end, out) {
                Err(Errno::NOTTY | Errno::INVAL) => self.scan = false,
                other => return other,
            }
        }
        self.entries(start, end, out)
    }

    fn scan(&self, start: usize, end: usize, out: &mut Vec<Run>) -> Result<(), Errno> {
        let exists = u64::from(k::PAGE_IS_PRESENT | k::PAGE_IS_SWAPPED);
        let kinds = exists | u64::from(k::PAGE_IS_HUGE | k::PAGE_IS_PFNZERO);
        let guards = u64::from(k::PAGE_IS_GUARD);
        let mut regions = vec![
            k::page_region {
                start: 0,
                end: 0,
                categories: 0
            };
            BATCH
        ];
        let mut at = start;
        while at < end {
            let mut arg = k::pm_scan_arg {
                size: size_of::<k::pm_scan_arg>() as u64,
                flags: 0,
                start: at as u64,
                end: end as u64,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: BATCH as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: 0,
                category_anyof_mask: exists,
                return_mask: kinds | if self.guards.get() { guards } else { 0 },
            };
            // SAFETY: the argument names a buffer of BATCH regions, which lives past the call.
            let count = match unsafe { ioctl(&self.file, Scan(&mut arg)) } {
                Err(Errno::INVAL) if self.guards.replace(false) => continue,
                count => count?,
            };
            for region in &regions[..count.min(BATCH)] {
                let is = |kind: u32| region.categories & u64::from(kind) != 0;
                push(
                    out,
                    Run {
                        start: region.start as usize,
                        end: region.end as usize,
                        swapped: is(k::PAGE_IS_SWAPPED),
                        huge: is(k::PAGE_IS_HUGE),
                        zero: is(k::PAGE_IS_PFNZERO),
                        guard: is(k::PAGE_IS_GUARD),
                    },
                );
            }
            let next = arg.walk_end as usize;
            if next <= at {
                return Err(Errno::INVAL);
            }
            at = next;
        }
        Ok(())
    }

    fn entries(&self, start: usize, end: usize, out: &mut Vec<Run>) -> Result<(), Errno> {
        self.each_entry(start, end, |at, entry| {
            let (present, swapped) = (entry >> 63 & 1 == 1, entry >> 62 & 1 == 1);
            if present || swapped {
                push(
                    out,
                    Run {
                        start: at,
                        end: at + PAGE,
                        swapped,
                        huge: false,
                        zero: false,
                        guard: entry >> 58 & 1 == 1 && swapped,
                    },
                );
            }
        })
    }

    /// Pages of `start..end` that are present, and in the memory of another process too.
    pub fn shared(&self, start: usize, end: usize) -> Result<usize, Errno> {
        let mut shared = 0;
        self.each_entry(start, end, |_, entry| {
            let (present, exclusive) = (entry >> 63 & 1 == 1, entry >> 56 & 1 == 1);
            shared += usize::from(present && !exclusive);
        })?;
        Ok(shared)
    }

    /// Calls `see` with the address and the entry of each page of `start..end`.
    fn each_entry(
        &self,
        start: usize,
        end: usize,
        mut see: impl FnMut(usize, u64),
    ) -> Result<(), Errno> {
        let mut buffer = vec![0_u8; 8 * BATCH];
        let mut page = start / PAGE;
        let last = end.div_ceil(PAGE);
        while page < last {
            let want = 8 * BATCH.min(last - page);
            let got = match rustix::io::pread(&self.file, &mut buffer[..want], 8 * page as u64) {
                Ok(got) => got / 8,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            if got == 0 {
                return Ok(());
            }
            for bytes in buffer[..8 * got].chunks_exact(8) {
                let mut entry = [0; 8];
                entry.copy_from_slice(bytes);
                see(page * PAGE, u64::from_ne_bytes(entry));
                page += 1;
            }
        }
        Ok(())
    }
}

/// Adds a run, or extends the last one if it is adjacent.
fn push(out: &mut Vec<Run>, run: Run) {
    match out.last_mut() {
        Some(last)
            if last.end == run.start
                && Run {
                    end: run.end,
                    ..*last
                } == Run {
                    start: last.start,
                    ..run
                } =>
        {
            last.end = run.end;
        }
        _ => out.push(run),
    }
}

const PAGEMAP_SCAN: Opcode = opcode::read_write::<k::pm_scan_arg>(b'f', 16);

/// PAGEMAP_SCAN returns the number of regions it wrote.
struct Scan<'a>(&'a mut k::pm_scan_arg);

// SAFETY: the operand is the structure that the kernel reads and writes for this ioctl.
unsafe impl Ioctl for Scan<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(count: IoctlOutput, _: *mut c_void) -> Result<usize, Errno> {
        usize::try_from(count).map_err(|_| Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &[u8] = b"\
55d0c8a00000-55d0c8a21000 r-xp 00002000 fe:00 1234                       /usr/bin/a b
55d0c9000000-55d0c9100000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
7f0000400000-7f0000500000 rw-p 00000000 00:00 0                          [anon:jit code]
7f0000500000-7f0000600000 rw-s 00000000 00:01 55                         /dev/zero (deleted)
7f0000600000-7f0000700000 rw-s 00000000 00:01 56                         [anon_shmem:x]
7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0                          [stack]
7ffc00200000-7ffc00204000 r--p 00000000 00:00 0                          [vvar]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
not a line of a map
";

    #[test]
    fn every_kind_of_area_is_told_apart() {
        use Backing::{Anonymous, File, Heap, Special, Stack};
        let vmas = parse(MAP);
        let backings: Vec<Backing> = vmas.iter().map(|vma| vma.backing).collect();
        let expected = [
            File, Heap, Anonymous, Anonymous, File, File, Stack, Special, Special,
        ];
        assert_eq!(backings, expected);
        assert!(vmas[0].read && vmas[0].exec && !vmas[0].write && vmas[4].shared);
        assert_eq!(vmas[2].bytes(), 4 << 20);
        let anonymous = vmas.iter().filter(|vma| vma.anonymous()).count();
        assert_eq!(anonymous, 3);
    }

    #[test]
    fn memory_that_is_wiped_on_fork_is_found_by_its_flag() {
        let text = b"\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
VmFlags: rd wr mr mw me ac wf sd 
7f0000400000-7f0000500000 rw-p 00000000 00:00 0                          [anon:wf]
Size:               1024 kB
VmFlags: rd wr mr mw me ac sd 
";
        let base = 0x7f00_0000_0000;
        let wiped: Vec<_> = parse_flag(text, b"wf").collect();
        assert!(matches!(&wiped[..], [one] if *one == (base..base + 0x40_0000)));
    }

    #[test]
    fn exclusions_are_cut_out_and_small_rests_dropped() {
        let vmas = parse(MAP);
        let base = 0x7f00_0000_0000;
        let exclude = [
            base + 0x40_0000..base + 0x48_0000,
            base + 0x10_0000..base + 0x12_0000,
            base + 0x11_0000..base + 0x13_0000,
        ];
        let pieces: Vec<_> = adoptable(&vmas, 0x8_0001, &exclude)
            .iter()
            .map(|vma| (vma.start, vma.end))
            .collect();
        let heap = (0x55d0_c900_0000, 0x55d0_c910_0000);
        let rest = [
            (base, base + 0x10_0000),
            (base + 0x13_0000, base + 0x40_0000),
        ];
        assert_eq!(pieces, [heap, rest[0], rest[1]]);
    }
}
