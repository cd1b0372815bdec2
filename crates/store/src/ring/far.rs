//! Areas that are not on this machine behind the same interface as files: their transfers go to the relay.
//!
//! A completion from there does not make [`Io::poll_fd`] readable: the relay writes to the eventfd that the engine gave it.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Completion, Direction, Io, IoError, IoVec, QueueError};
use crate::far::Client;

/// How long [`Io::wait`] sleeps while only the relay has transfers.
const STEP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// A backend for files with far areas.
pub struct WithFar {
    below: Box<dyn Io>,
    far: Vec<Option<Client>>,
}

impl WithFar {
    pub(super) fn new(below: Box<dyn Io>) -> Self {
        WithFar {
            below,
            far: Vec::new(),
        }
    }

    pub(super) fn set_far(&mut self, area: usize, client: Option<Client>) {
        if self.far.len() <= area {
            self.far.resize_with(area + 1, || None);
        }
        self.far[area] = client;
    }

    /// The channel of an area, if it is a far one.
    pub(super) fn client(&mut self, area: usize) -> Option<&mut Client> {
        self.far.get_mut(area).and_then(Option::as_mut)
    }

    fn clients(&mut self) -> impl Iterator<Item = &mut Client> {
        self.far.iter_mut().flatten()
    }

    /// The relay carries transfers.
    pub(super) fn is_relayed(&self) -> bool {
        self.far
            .iter()
            .flatten()
            .any(|client| client.in_flight() > 0)
    }

    pub(super) fn give_back(&mut self) {
        self.clients().for_each(Client::give_back);
    }

    pub(super) fn buffer_bytes(&self) -> u64 {
        let clients = self.far.iter().flatten();
        clients.map(Client::buffer_bytes).sum()
    }
}

impl Io for WithFar {
    unsafe fn start(
        &mut self,
        direction: Direction,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.client(area) {
                Some(client) => client.start(direction, token, offset, iov),
                None => self.below.start(direction, token, area, offset, iov),
            }
        }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.clients().for_each(Client::flush);
        self.below.flush()
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.below.reap(out);
        self.clients().for_each(|client| client.reap(out));
    }

    fn has_ended(&mut self) -> bool {
        self.below.has_ended() || self.clients().any(|client| client.has_ended())
    }

    fn wait(&mut self) -> Result<(), IoError> {
        self.flush()?;
        if self.in_flight() == self.below.in_flight() {
            return self.below.wait();
        }
        while !self.has_ended() {
            // SAFETY: the backend keeps it open as long as it lives.
            let below = unsafe { BorrowedFd::borrow_raw(self.below.poll_fd()) };
            let mut fds = [PollFd::from_borrowed_fd(below, PollFlags::IN)];
            match poll(&mut fds, Some(&STEP)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(IoError::from_errno(error)),
            }
        }
        Ok(())
    }

    fn poll_fd(&self) -> RawFd {
        self.below.poll_fd()
    }

    fn in_flight(&self) -> usize {
        let far: usize = self.far.iter().flatten().map(Client::in_flight).sum();
        far + self.below.in_flight()
    }

    fn set_area(&mut self, area: usize, fd: Option<RawFd>) {
        self.below.set_area(area, fd);
    }

    fn name(&self) -> &'static str {
        self.below.name()
    }
}
