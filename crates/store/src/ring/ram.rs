//! RAM areas behind the same interface as files: what is asked of them is done at once, on the
//! caller's thread, and its end is reaped like any other.
//!
//! A write may be taken in part: pages that do not compress, or for which there is no room, are named
//! in the completion, and the caller puts them elsewhere.

use std::os::fd::RawFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Completion, Direction, Io, IoError, IoVec, MAX_DEPTH, QueueError};
use crate::ram::{Ram, Reader, Refused, Writer};

const PAGE: usize = 4096;
/// The most pages of one write.
const MOST_PAGES: usize = 512;

/// Pages of a write that were not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// A bit for each page, from the first.
    pub pages: [u64; MOST_PAGES / 64],
    /// The area is full; otherwise they do not compress.
    pub full: bool,
}

impl Refusal {
    fn add(&mut self, page: usize) {
        self.pages[page / 64] |= 1 << (page % 64);
    }

    fn is_empty(&self) -> bool {
        self.pages.iter().all(|&word| word == 0)
    }
}

/// One process' way to a RAM area.
pub struct Port {
    ram: Arc<Ram>,
    reader: Reader,
    writer: Writer,
    is_used: Box<dyn Fn(u32) -> bool>,
}

impl Port {
    /// For process number `owner` of the run; `is_used` says of a slot whether any process uses it.
    pub fn new(ram: Arc<Ram>, owner: u16, is_used: Box<dyn Fn(u32) -> bool>) -> Self {
        let method = ram.method();
        Port {
            ram,
            reader: Reader::new(method),
            writer: Writer::new(owner, method),
            is_used,
        }
    }

    fn read<'a>(
        &mut self,
        slot: u32,
        pages: impl Iterator<Item = &'a mut [u8; PAGE]>,
    ) -> Result<(), IoError> {
        for (slot, page) in (slot..).zip(pages) {
            let read = self.reader.read(&self.ram, slot, page);
            read.map_err(|_| IoError::from_errno(Errno::IO))?;
        }
        Ok(())
    }

    fn write<'a>(
        &mut self,
        slot: u32,
        pages: impl Iterator<Item = &'a [u8; PAGE]>,
        as_it_is: bool,
    ) -> Result<(), IoError> {
        let mut refusal = Refusal::default();
        for (at, (slot, page)) in (slot..).zip(pages).enumerate() {
            if refusal.full {
                refusal.add(at);
                continue;
            }
            let (ram, used) = (&self.ram, &*self.is_used);
            match self.writer.write(ram, slot, page, as_it_is, used) {
                Ok(()) => {}
                Err(Refused::Incompressible) => refusal.add(at),
                Err(Refused::Full) => {
                    refusal.full = true;
                    refusal.add(at);
                }
                Err(Refused::NoSuchSlot) => return Err(IoError::from_errno(Errno::INVAL)),
            }
        }
        match refusal.is_empty() {
            true => Ok(()),
            false => Err(IoError::Refused(refusal)),
        }
    }
}

/// A backend for files, with RAM areas beside it.
pub struct WithRam {
    below: Box<dyn Io>,
    ports: Vec<Option<Port>>,
    ended: Vec<Completion>,
}

impl WithRam {
    /// `below`, and no RAM area yet.
    pub fn new(below: Box<dyn Io>) -> Self {
        WithRam {
            below,
            ports: Vec::new(),
            ended: Vec::with_capacity(MAX_DEPTH as usize),
        }
    }

    /// Makes a RAM area reachable as area number `area`, or (`None`) takes it away.
    pub fn set_ram(&mut self, area: usize, port: Option<Port>) {
        if self.ports.len() <= area {
            self.ports.resize_with(area + 1, || None);
        }
        self.ports[area] = port;
    }

    /// Something has ended already: [`Io::reap`] finds it, [`Io::poll_fd`] does not tell.
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// This process stops writing for a while: what it was filling, others may use.
    pub fn give_back(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            port.writer.give_back(&port.ram);
        }
    }

    /// As [`Io::write`]; a RAM area takes pages that do not compress as they are.
    ///
    /// # Safety
    /// As for [`Io::write`].
    pub unsafe fn write_as_it_is(
        &mut self,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin(Direction::Write, token, area, offset, iov, true) }
    }

    unsafe fn begin(
        &mut self,
        direction: Direction,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
        as_it_is: bool,
    ) -> Result<(), QueueError> {
        let Some(port) = self.ports.get_mut(area).and_then(Option::as_mut) else {
            // SAFETY: the caller's promise.
            return unsafe { self.below.start(direction, token, area, offset, iov) };
        };
        if self.ended.len() >= MAX_DEPTH as usize {
            return Err(QueueError::Full);
        }
        let pages: usize = iov.iter().map(|piece| piece.len / PAGE).sum();
        let whole = iov.iter().all(|piece| piece.len.is_multiple_of(PAGE));
        let slot = u32::try_from(offset / PAGE as u64).map_err(|_| QueueError::BadLength)?;
        if pages == 0 || pages > MOST_PAGES || !whole {
            return Err(QueueError::BadLength);
        }
        let each = iov.iter().flat_map(|piece| {
            // SAFETY: each page lies in the piece.
            (0..piece.len / PAGE).map(|page| unsafe { piece.ptr.add(page * PAGE) }.cast())
        });
        let result = match direction {
            Direction::Read => {
                // SAFETY: the memory is mapped and, until the completion is reaped, used by nobody
                // else, as the caller promises; no two pieces are the same.
                let pages = each.map(|page: *mut [u8; PAGE]| unsafe { &mut *page });
                port.read(slot, pages)
            }
            Direction::Write => {
                // SAFETY: as above; it is only read.
                let pages = each.map(|page: *mut [u8; PAGE]| unsafe { &*page.cast_const() });
                port.write(slot, pages, as_it_is)
            }
        };
        self.ended.push(Completion { token, result });
        Ok(())
    }
}

impl Io for WithRam {
    unsafe fn start(
        &mut self,
        direction: Direction,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin(direction, token, area, offset, iov, false) }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.below.flush()
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.ended);
        self.below.reap(out);
    }

    fn wait(&mut self) -> Result<(), IoError> {
        if self.has_ended() {
            return self.below.flush();
        }
        self.below.wait()
    }

    fn poll_fd(&self) -> RawFd {
        self.below.poll_fd()
    }

    fn in_flight(&self) -> usize {
        self.ended.len() + self.below.in_flight()
    }

    fn set_area(&mut self, area: usize, fd: Option<RawFd>) {
        self.below.set_area(area, fd);
    }

    fn name(&self) -> &'static str {
        self.below.name()
    }
}
