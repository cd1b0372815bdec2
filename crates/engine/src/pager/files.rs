//! Mapped files that the pager serves (`foreswap run --map-files`).
//!
//! The program maps the file as ever, and its thread asks the pager. The pager puts anonymous memory in the place of the
//! whole pages of the mapping, before the thread knows the address, and manages it; for the core its pages are slots of
//! an area that is never written to (`mm/files.rs` there). They are read from the file, by direct I/O where the file
//! system has it.
//!
//! A shared mapping shows what others write to the file, and managed memory does not. The pager therefore holds a lease
//! (F_SETLEASE): the kernel lets nobody open the file for writing before the pager has given the mapping back to the
//! kernel, and the supervisor ends the lease when no process of the run has one that is served. Only the file's owner may have a lease. For others the pager looks at the time of the last change, a few times a
//! second, and gives the mapping back, with a message, when it has changed.

use std::ffi::{CString, c_void};
use std::ops::Range;
use std::sync::Arc;

use foreswap_core::Vma;
use foreswap_core::units::{Nanos, PAGE_SIZE, PageRange, Slot, len, overlap};
use foreswap_core::world::StoreId;
use foreswap_store::ring::Io as _;
use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::boot::{bytes_of, pages_of};
use super::world::now;
use super::{Mode, Pager};
use crate::ledger::protocol::{FileNumbers, Severity, Sharing};
use crate::ledger::{MAX_AREAS, SeenKind};
use crate::program::{FileMapping, SMALL};
use crate::sys::gate::Gate;
use crate::sys::mapping_at::{Mapping, MappingAt};
use crate::sys::{handed, lease, thread};

/// How often files are looked at.
const EVERY: Nanos = 100_000_000;
/// The area number, for transfers, of a file that could not be opened: reads of it fail.
const NO_FILE: usize = MAX_AREAS;
/// Those of files begin here.
const FIRST: usize = MAX_AREAS + 1;

/// File systems in memory: the kernel's mapping costs less there.
const IN_MEMORY: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// An open file whose pages have numbers.
pub(super) struct MappedFile {
    pub(super) numbers: FileNumbers,
    pub(super) file: Arc<OwnedFd>,
    /// Device and inode.
    id: (u64, u64),
    /// Its area number for transfers.
    area: usize,
    /// What is read passes through the kernel's cache.
    buffered: bool,
    /// How changes are noticed.
    watch: Watch,
}

/// How a change of a file is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    /// It does not matter: the mappings are private.
    No,
    /// By the lease on it.
    Lease,
    /// By its size and its time: seconds and nanoseconds.
    Time(i64, i64, i64),
    /// It has changed since the parent of this process mapped it.
    Stale,
    /// It has changed: its mappings are being given back.
    Changed,
}

/// The files of this process.
#[derive(Default)]
pub(super) struct Files {
    all: Vec<Arc<MappedFile>>,
    next_look: Nanos,
    /// Its reads fail.
    none: Option<OwnedFd>,
}

impl MappedFile {
    /// The place of a page in the file, in bytes.
    pub(super) fn offset_of(&self, page: Slot) -> Option<u64> {
        let at = page.index.checked_sub(self.numbers.first)?;
        (at < self.numbers.pages).then(|| u64::from(at) * PAGE_SIZE as u64)
    }

    fn is_mapped_by(&self, vma: &Vma) -> bool {
        let first = vma.backing();
        first.is_some_and(|first| self.offset_of(first).is_some())
    }
}

impl Files {
    /// The area number and the byte at which a page of a file is read.
    pub(super) fn place(&self, page: Slot) -> (usize, u64) {
        let mut all = self.all.iter();
        let found = all.find_map(|file| Some((file.area, file.offset_of(page)?)));
        found.unwrap_or((NO_FILE, 0))
    }

    /// The file system of a page of a file: its device, beside the numbers of areas.
    pub(super) fn store(&self, page: Slot) -> StoreId {
        let mut all = self.all.iter();
        let found = all.find(|file| file.offset_of(page).is_some());
        let device = found.map_or(0, |file| file.id.0);
        StoreId(device << 4 | u64::from(page.area))
    }

    /// All files.
    pub(super) fn all(&self) -> Vec<Arc<MappedFile>> {
        self.all.clone()
    }

    /// The path of the file with this page, and the place of the page in it, for messages.
    pub(super) fn name(&self, page: Slot) -> String {
        let mut all = self.all.iter();
        let found = all.find_map(|file| Some((file, file.offset_of(page)?)));
        found.map_or_else(
            || "a mapped file that is not open any more".to_owned(),
            |(file, at)| format!("{} at offset {at}", path_of(file.file.as_fd())),
        )
    }

    fn free_area(&self) -> usize {
        let is_free = |area: &usize| self.all.iter().all(|file| file.area != *area);
        (FIRST..).find(is_free).unwrap_or(FIRST)
    }
}

fn path_of(file: BorrowedFd<'_>) -> String {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new());
    path.map_or_else(
        |_| "a mapped file".to_owned(),
        |path| path.to_string_lossy().into_owned(),
    )
}

fn changed(stat: &Stat) -> Watch {
    Watch::Time(stat.st_size, stat.st_mtime, stat.st_mtime_nsec as i64)
}

/// A page to read into.
#[repr(C, align(4096))]
struct Page([u8; PAGE_SIZE]);

/// Opens the program's file `fd` anew, past the kernel's cache if that is possible. Whether it passes through it.
fn reopen(pid: u32, fd: i32) -> Result<(OwnedFd, bool), Errno> {
    let path = CString::new(format!("/proc/{pid}/fd/{fd}")).map_err(|_| Errno::INVAL)?;
    let mut page = Box::new(Page([0; PAGE_SIZE]));
    if let Ok(file) = handed::open_in_proc_with(&path, OFlags::DIRECT)
        && rustix::io::pread(&file, &mut page.0, 0).is_ok()
    {
        return Ok((file, false));
    }
    let file = handed::open_in_proc(&path)?;
    // The windows are ours. A file system that does not know the advice works without it.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
    Ok((file, true))
}

impl Pager {
    /// The program maps a file, `bytes` at `address`. Whether the pager serves the mapping from now on.
    pub(super) fn on_map_file(&mut self, address: usize, bytes: usize, file: FileMapping) -> bool {
        // Nothing is registered while a fork is held, and another answer of the supervisor may be on its way.
        if !self.hold.is_none() || self.reserving {
            return false;
        }
        let found = MappingAt::default().find(address);
        let Ok((first, pages)) = self.open_mapped(file, found) else {
            return false;
        };
        let bytes = bytes.next_multiple_of(PAGE_SIZE);
        let bytes = bytes.min(pages as usize * PAGE_SIZE);
        if bytes < SMALL {
            return false;
        }
        if self.mode == Mode::Bare {
            self.arm_all();
        }
        let range = address..address + bytes;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let at = core::ptr::without_provenance_mut(address);
        // SAFETY: the program's thread waits in the call that mapped the file there.
        if unsafe { rustix::mm::mmap_anonymous(at, bytes, protection, flags) }.is_err() {
            return false;
        }
        let pages = pages_of(&range);
        // A page that is there already is zeros (mlockall) and not the file's.
        if self.adopt(range) && !self.mm.has_content(&pages) {
            self.mm.map_file(&pages, first);
            return true;
        }
        self.map_as_before(&pages, first);
        false
    }

    /// `range` is not served after all. The program's thread waits, so nobody has touched it.
    fn map_as_before(&mut self, range: &PageRange, first: Slot) {
        let bytes = bytes_of(range);
        // Not registered, it is replaced without an event, which only this thread could read.
        let registered = self.w.program.unregister(bytes.start, bytes.len());
        self.w.kept.forget(range);
        self.w.record(|to| to.change(SeenKind::Unmap, range));
        self.mm.unmap(&mut self.w, range);
        let mut all = self.w.files.all.iter();
        let found = all.find_map(|file| Some((file, file.offset_of(first)?)));
        let is_back = found.is_some_and(|(file, offset)| {
            map_file(&bytes, &file.file, offset, file.numbers.sharing.is_shared()).is_ok()
        });
        if !is_back {
            let at = core::ptr::without_provenance_mut(bytes.start);
            // A fault there is better than zeros in the place of the file.
            // SAFETY: as above.
            let _ = unsafe { rustix::mm::munmap(at, bytes.len()) };
        }
        debug_assert!(registered.is_ok() && is_back);
    }

    /// Whether the memory at `address` is of a file.
    pub(super) fn on_is_file(&self, address: usize, bytes: usize) -> bool {
        let range = super::adopt::pages(address, address.saturating_add(bytes));
        let mut regions = self.mm.regions();
        regions.any(|vma| vma.backing().is_some() && len(&overlap(&vma.range, &range)) > 0)
    }

    /// The number of the page that is mapped first, and of pages from there to the end of the file.
    fn open_mapped(
        &mut self,
        mapping: FileMapping,
        found: Option<Mapping>,
    ) -> Result<(Slot, u64), Errno> {
        let FileMapping { fd, first, shared } = mapping;
        let (file, buffered) = reopen(self.w.pid, fd)?;
        let stat = rustix::fs::fstat(&file)?;
        // A thread may have descriptors of its own (unshare), or another have closed this one since.
        let at = (stat.st_ino, first * PAGE_SIZE as u64);
        if found.is_some_and(|found| found.file != at) {
            return Err(Errno::BADF);
        }
        let pages = stat.st_size.cast_unsigned() / PAGE_SIZE as u64;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let in_memory = IN_MEMORY.contains(&rustix::fs::fstatfs(&file)?.f_type);
        let (Ok(pages), true) = (u32::try_from(pages), is_file && !in_memory) else {
            return Err(Errno::INVAL);
        };
        let left = u64::from(pages).saturating_sub(first);
        if left * (PAGE_SIZE as u64) < SMALL as u64 {
            return Err(Errno::INVAL);
        }
        let id = (stat.st_dev, stat.st_ino);
        let known = self.w.files.all.iter().find(|known| {
            let numbers = known.numbers;
            let is_it =
                known.id == id && numbers.sharing.is_shared() == shared && numbers.pages >= pages;
            is_it && known.watch != Watch::Changed
        });
        if let Some(known) = known {
            return Ok((Slot::of_file(known.numbers.first).plus(first as u32), left));
        }
        let watch = match shared {
            false => Watch::No,
            true => self.watch_for_changes(file.as_fd(), &stat)?,
        };
        let client = self.w.client.as_mut().ok_or(Errno::CONNRESET)?;
        let numbers = client.map_file(file.as_fd(), pages, shared);
        let numbers = numbers.map_err(|_| Errno::NFILE)?;
        self.add_file(numbers, file, id, buffered, watch);
        Ok((Slot::of_file(numbers.first).plus(first as u32), left))
    }

    fn watch_for_changes(&self, file: BorrowedFd<'_>, stat: &Stat) -> Result<Watch, Errno> {
        match lease::take(file) {
            Ok(()) => Ok(Watch::Lease),
            Err(Errno::AGAIN) => {
                self.say_of_file(
                    Severity::Warning,
                    file,
                    "is mapped by the kernel, not by foreswap, as it is open for writing: its pages do not count",
                );
                Err(Errno::AGAIN)
            }
            Err(_) => Ok(changed(stat)),
        }
    }

    fn add_file(
        &mut self,
        numbers: FileNumbers,
        file: OwnedFd,
        id: (u64, u64),
        buffered: bool,
        watch: Watch,
    ) {
        let area = self.w.files.free_area();
        self.w.io.set_area(area, Some(file.as_raw_fd()));
        self.w.files.all.push(Arc::new(MappedFile {
            numbers,
            file: Arc::new(file),
            id,
            area,
            buffered,
            watch,
        }));
    }

    /// In a forked child: `range`, as far as it is managed, maps a file, whose page `first` is at its start.
    pub(super) fn inherit_file(&mut self, range: &PageRange, first: Slot) {
        let files = &self.w.files;
        if files.place(first).0 == NO_FILE && self.open_inherited(first).is_none() {
            // Its reads find the end of an empty file, and say so.
            let empty = rustix::fs::memfd_create(c"no-file", rustix::fs::MemfdFlags::CLOEXEC);
            self.w.files.none = empty.ok().or(self.w.files.none.take());
            let none = self.w.files.none.as_ref().map(|none| none.as_raw_fd());
            self.w.io.set_area(NO_FILE, none);
        }
        self.mm.map_file(range, first);
    }

    fn open_inherited(&mut self, page: Slot) -> Option<()> {
        let client = self.w.client.as_mut()?;
        let (numbers, file) = client.file(page.index).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let flags = rustix::fs::fcntl_getfl(&file).ok()?;
        let watch = match numbers.sharing {
            Sharing::Private => Watch::No,
            Sharing::Leased => Watch::Lease,
            Sharing::Watched => changed(&stat),
            Sharing::Changed => Watch::Stale,
        };
        let buffered = !flags.contains(OFlags::DIRECT);
        self.add_file(numbers, file, (stat.st_dev, stat.st_ino), buffered, watch);
        Some(())
    }

    /// A few times a second: files that have changed, and files that are not mapped any more.
    pub(super) fn look_at_files(&mut self, now: Nanos) {
        if self.w.files.all.is_empty() || now < self.w.files.next_look {
            return;
        }
        self.w.files.next_look = now + EVERY;
        for file in self.w.files.all() {
            if file.buffered {
                // No second copy of what is read.
                let _ = rustix::fs::fadvise(&file.file, 0, None, rustix::fs::Advice::DontNeed);
            }
            let is_same = match file.watch {
                Watch::No | Watch::Changed => true,
                Watch::Stale => false,
                Watch::Lease => lease::is_held(&file.file),
                before @ Watch::Time(..) => {
                    rustix::fs::fstat(&file.file).is_ok_and(|stat| changed(&stat) == before)
                }
            };
            if !is_same {
                self.on_changed(&file);
            }
            let is_mapped = self.mm.regions().any(|vma| file.is_mapped_by(vma));
            if !is_mapped && !self.mm.has_io(foreswap_core::units::FILES) {
                self.close_file(&file);
            }
        }
    }

    /// Somebody wants to write to the file, or has: the kernel maps it from now on. If a thread is about to unmap memory, a
    /// later look tries again.
    fn on_changed(&mut self, file: &Arc<MappedFile>) {
        let program = self.program;
        program.gate.close();
        let began = now();
        // A thread that unmaps waits until its event is read.
        while !program.gate.is_empty() && now() - began < EVERY / 2 {
            self.read_program();
            rustix::thread::sched_yield();
        }
        if !program.gate.is_empty() {
            return program.gate.open();
        }
        self.settle();
        let mapped = self.mm.regions().filter(|vma| file.is_mapped_by(vma));
        let mapped = mapped.filter_map(|vma| Some((vma.range.clone(), vma.backing()?)));
        let mapped = mapped.collect();
        if !self.give_back(file, mapped) {
            return program.gate.open();
        }
        if matches!(file.watch, Watch::Time(..)) {
            self.say_of_file(
                Severity::Warning,
                file.file.as_fd(),
                "has changed while it was mapped: the program may have read old content for a moment; the kernel maps it \
                 from now on",
            );
        }
        for known in &mut self.w.files.all {
            if Arc::ptr_eq(known, file) {
                *known = Arc::new(MappedFile {
                    watch: Watch::Changed,
                    file: Arc::clone(&file.file),
                    ..**file
                });
            }
        }
    }

    fn close_file(&mut self, file: &Arc<MappedFile>) {
        self.w.io.set_area(file.area, None);
        self.w.files.all.retain(|known| !Arc::ptr_eq(known, file));
        // A file that has changed may be mapped anew, with the same numbers.
        let first = file.numbers.first;
        let is_mapped = self
            .w
            .files
            .all
            .iter()
            .any(|other| other.numbers.first == first);
        if let Some(client) = self.w.client.as_ref().filter(|_| !is_mapped) {
            // Without a supervisor nobody keeps it.
            let _ = client.drop_file(first);
        }
    }

    /// Maps the file as the program did, in the place of the managed memory. On a thread of its own: the kernel waits
    /// until the pager has read that the memory is gone. Then the gate opens. False: there is no thread for it.
    fn give_back(&mut self, file: &MappedFile, mapped: Vec<(PageRange, Slot)>) -> bool {
        let job = Box::new(GiveBack {
            file: Arc::clone(&file.file),
            shared: file.numbers.sharing.is_shared(),
            mapped: mapped
                .into_iter()
                .filter_map(|(range, first)| Some((bytes_of(&range), file.offset_of(first)?)))
                .collect(),
            gate: &self.program.gate,
        });
        let argument = Box::into_raw(job).cast::<c_void>();
        // SAFETY: `give_back` keeps to the rules for engine threads and gets its argument alone.
        let spawned = unsafe { thread::spawn(c"fs-file", 64 << 10, true, give_back, argument) };
        if spawned.is_err() {
            // SAFETY: the thread did not start, so the argument was not used.
            drop(unsafe { Box::from_raw(argument.cast::<GiveBack>()) });
        }
        spawned.is_ok()
    }

    fn say_of_file(&self, severity: Severity, file: BorrowedFd<'_>, text: &str) {
        let text = format!("{} {text}", path_of(file));
        if let Some(client) = &self.w.client {
            // Without a supervisor there is no reader.
            let _ = client.log(severity, &text);
        }
    }
}

/// Mappings that the kernel gets back.
struct GiveBack {
    file: Arc<OwnedFd>,
    shared: bool,
    /// Addresses, and places in the file.
    mapped: Vec<(Range<usize>, u64)>,
    gate: &'static Gate,
}

extern "C" fn give_back(argument: *mut c_void) {
    // SAFETY: the pointer came from a box, for this thread alone.
    let job = unsafe { Box::from_raw(argument.cast::<GiveBack>()) };
    for (bytes, offset) in &job.mapped {
        let mapped = map_file(bytes, &job.file, *offset, job.shared);
        debug_assert!(mapped.is_ok(), "{mapped:?}");
    }
    job.gate.open();
}

/// Maps the file as the program did, in the place of memory that holds what the file does, and that no thread unmaps or
/// writes to meanwhile.
fn map_file(bytes: &Range<usize>, file: &OwnedFd, offset: u64, shared: bool) -> Result<(), Errno> {
    let (kind, protection) = match shared {
        true => (MapFlags::SHARED, ProtFlags::READ),
        false => (MapFlags::PRIVATE, ProtFlags::READ | ProtFlags::WRITE),
    };
    let at = core::ptr::without_provenance_mut(bytes.start);
    let flags = kind | MapFlags::FIXED;
    // SAFETY: the callers keep to the above.
    unsafe { rustix::mm::mmap(at, bytes.len(), protection, flags, file, offset) }.map(|_| ())
}
