//! An engine's side of the socket: its requests, and the supervisor's orders.
//!
//! Orders may arrive before an answer, and an answer before orders: each is kept until it is asked for.
//!
//! A pager that serves faults never waits for the supervisor, which may be busy or stopped. It reads without blocking
//! ([`Client::order`], [`Client::reserved`]), and what it sends fits the socket's buffer: a report of a fork follows an
//! answer, so the supervisor has read all before; orders are answered once each; other messages are dropped if there is
//! no room ([`Client::log`]).

use std::collections::VecDeque;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{
    AreaFiles, AreaOrder, Message, ProtocolError, Received, Refusal, Severity, receive,
    receive_with, send, send_with, system,
};
use crate::ledger::layout::MAX_AREAS;
use crate::ledger::{AreaId, Ledger, ProcId, Ring};
use crate::sys::host::Host;

/// An engine's connection to the supervisor.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    /// Orders that were read and not asked for yet.
    inbox: VecDeque<(AreaOrder, Vec<OwnedFd>)>,
    /// The answer to [`Client::ask_to_reserve`].
    reserved: Option<Result<ProcId, Refusal>>,
}

/// The numbers of the pages of a mapped file, the same in all processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileNumbers {
    /// That of the first page.
    pub first: u32,
    /// Whole pages.
    pub pages: u32,
    /// How it is mapped.
    pub sharing: Sharing,
}

/// Whether writes of others to the file must be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// No: the mapping is private.
    Private,
    /// Yes. A lease on the open file tells of writers.
    Leased,
    /// Yes. There is no lease.
    Watched,
    /// Yes, and somebody writes to it, or has since it was mapped.
    Changed,
}

impl Sharing {
    pub(super) fn from_word(word: u32) -> Option<Self> {
        let all = [Self::Private, Self::Leased, Self::Watched, Self::Changed];
        all.into_iter().find(|sharing| *sharing as u32 == word)
    }

    /// Whether writes of others must be seen.
    pub fn is_shared(self) -> bool {
        self != Self::Private
    }
}

/// The answer to a hello.
#[derive(Debug)]
pub struct Welcome {
    /// This process' record.
    pub record: ProcId,
    /// The ledger, mapped.
    pub ledger: Ledger,
    /// The areas' files; their tables are attached.
    pub areas: Vec<(AreaId, AreaFiles)>,
    /// The page with the key, if the run encrypts: see `crate::key`.
    pub key: Option<OwnedFd>,
    /// The ring for records, if the run is traced.
    pub ring: Option<Ring>,
}

impl Client {
    /// Connects to the socket named by [`super::SOCKET_VARIABLE`].
    pub fn connect(name: &str) -> Result<Self, ProtocolError> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(system("socket"))?;
        super::connect(&socket, name.as_bytes()).map_err(system("connect"))?;
        Ok(Self::of_socket(socket))
    }

    /// A client on a connected socket without messages so far.
    pub fn of_socket(socket: OwnedFd) -> Self {
        Self {
            socket,
            inbox: VecDeque::new(),
            reserved: None,
        }
    }

    /// The socket alone, for another process.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Asks for another connection, for an engine that cannot make one.
    pub fn another(&mut self) -> Result<OwnedFd, ProtocolError> {
        send(&self.socket, &Message::Connect, &[])?;
        let answer = self.answer()?;
        match answer.message {
            Message::Connected => answer.fds.into_iter().next(),
            _ => None,
        }
        .ok_or(ProtocolError::Malformed)
    }

    /// Asks for /dev/userfaultfd, for a process that may not open it.
    pub fn device(&mut self) -> Result<OwnedFd, ProtocolError> {
        send(&self.socket, &Message::Device, &[])?;
        let answer = self.answer()?;
        match answer.message {
            Message::DeviceOpen => answer.fds.into_iter().next(),
            _ => None,
        }
        .ok_or(ProtocolError::Malformed)
    }

    /// Numbers for the first `pages` pages of `file`: that of the first. Not while a request for a record is open.
    pub fn map_file(
        &mut self,
        file: BorrowedFd<'_>,
        pages: u32,
        shared: bool,
    ) -> Result<FileNumbers, ProtocolError> {
        send(&self.socket, &Message::MapFile { pages, shared }, &[file])?;
        self.file_at().map(|(numbers, _)| numbers)
    }

    /// The file that has `page` among its numbers.
    pub fn file(&mut self, page: u32) -> Result<(FileNumbers, OwnedFd), ProtocolError> {
        send(&self.socket, &Message::File { page }, &[])?;
        let (numbers, fds) = self.file_at()?;
        let file = fds.into_iter().next();
        Ok((numbers, file.ok_or(ProtocolError::Malformed)?))
    }

    fn file_at(&mut self) -> Result<(FileNumbers, Vec<OwnedFd>), ProtocolError> {
        let answer = self.answer()?;
        let Message::FileAt {
            first,
            pages,
            sharing,
        } = answer.message
        else {
            return Err(ProtocolError::Malformed);
        };
        let numbers = FileNumbers {
            first,
            pages,
            sharing,
        };
        Ok((numbers, answer.fds))
    }

    /// All files of a forked child are known.
    pub fn has_inherited(&self) -> Result<(), ProtocolError> {
        send(&self.socket, &Message::Inherited, &[])
    }

    /// The process maps this file no longer.
    pub fn drop_file(&self, first: u32) -> Result<(), ProtocolError> {
        send(&self.socket, &Message::DropFile { first }, &[])
    }

    /// Says hello for the process `host`: a fork child names its `parent`'s record, and its own if that was reserved.
    pub fn hello(
        &mut self,
        host: &Host,
        parent: Option<ProcId>,
        record: Option<ProcId>,
    ) -> Result<Welcome, ProtocolError> {
        let pid = host.pid();
        send(
            &self.socket,
            &Message::Hello {
                pid,
                parent,
                record,
            },
            &[host.as_fd()],
        )?;
        let answer = self.answer()?;
        let Message::Welcome {
            record,
            areas,
            encrypted,
            traced,
        } = answer.message
        else {
            return Err(ProtocolError::Malformed);
        };
        let mut fds = answer.fds.into_iter();
        let mut next = || fds.next().ok_or(ProtocolError::Malformed);
        let ledger = Ledger::attach(next()?)?;
        let mut files = Vec::new();
        for area in (0..MAX_AREAS as u8).filter(|area| areas >> area & 1 != 0) {
            let area = AreaId(area);
            ledger.attach_area(area, next()?)?;
            let (file, own) = (next()?, next()?);
            ledger.attach_ram(area, file.as_fd())?;
            files.push((area, AreaFiles { file, own }));
        }
        let key = encrypted.then(&mut next).transpose()?;
        let ring = match traced {
            true => Some(Ring::attach(next()?)?),
            false => None,
        };
        if fds.next().is_some() {
            return Err(ProtocolError::Malformed);
        }
        Ok(Welcome {
            record,
            ledger,
            areas: files,
            key,
            ring,
        })
    }

    /// Asks for a record for a coming fork child. One request at a time.
    pub fn ask_to_reserve(&self) -> Result<(), ProtocolError> {
        send(&self.socket, &Message::Reserve, &[])
    }

    /// The answer to [`Client::ask_to_reserve`], once it has arrived.
    pub fn reserved(&mut self) -> Option<Result<ProcId, Refusal>> {
        self.read();
        self.reserved.take()
    }

    /// Reports the result of a fork; see [`Message::Reap`].
    pub fn reap(&self, record: ProcId, child: Option<u32>) -> Result<(), ProtocolError> {
        send(&self.socket, &Message::Reap { record, child }, &[])
    }

    /// Reports that the reservation for this process is not needed; see [`Message::Unused`].
    pub fn unused(&self, parent: ProcId, record: ProcId) -> Result<(), ProtocolError> {
        send(&self.socket, &Message::Unused { parent, record }, &[])
    }

    /// Sends a message to the user; the supervisor prints each distinct text once, after `foreswap: `. Fails with
    /// `Timeout` if earlier ones have filled the socket.
    pub fn log(&self, severity: Severity, text: &str) -> Result<(), ProtocolError> {
        let text = text.to_owned();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let message = Message::Log { severity, text };
        send_with(&self.socket, &message, &[], flags)
    }

    /// Reports that from here on the process depends on its engine, with the descriptors that hold its memory.
    pub fn keep(&self, descriptors: &[BorrowedFd<'_>]) -> Result<(), ProtocolError> {
        send(&self.socket, &Message::Keep, descriptors)
    }

    /// The next order of the supervisor with its descriptors, if there is one.
    pub fn order(&mut self) -> Option<(AreaOrder, Vec<OwnedFd>)> {
        self.read();
        self.inbox.pop_front()
    }

    /// Reads all messages that have arrived.
    fn read(&mut self) {
        while let Ok(received) = receive_with(&self.socket, RecvFlags::DONTWAIT) {
            match received.message {
                Message::Area(order) => self.inbox.push_back((order, received.fds)),
                Message::Reserved { record } => self.reserved = Some(Ok(record)),
                Message::Refused(why) => self.reserved = Some(Err(why)),
                // Other messages are invalid at this time.
                _ => {}
            }
        }
    }

    /// Answers an order.
    pub fn done(&self, order: AreaOrder, ok: bool) -> Result<(), ProtocolError> {
        send(&self.socket, &Message::AreaDone { order, ok }, &[])
    }

    /// Reports that a fault lacks memory because `area` is being drained.
    pub fn starved(&self, area: AreaId) -> Result<(), ProtocolError> {
        send(&self.socket, &Message::Starved { area }, &[])
    }

    /// The socket: readable when an order arrives, and (end of file) when the supervisor has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Waits while there is a supervisor: a stopped one (Ctrl-Z) answers when it continues.
    fn answer(&mut self) -> Result<Received, ProtocolError> {
        loop {
            self.wait()?;
            let received = receive(&self.socket)?;
            match received.message {
                Message::Refused(why) => return Err(why.into()),
                _ if !received.same_version => return Err(Refusal::Version.into()),
                Message::Area(order) => self.inbox.push_back((order, received.fds)),
                _ => return Ok(received),
            }
        }
    }

    fn wait(&self) -> Result<(), ProtocolError> {
        let mut wait = [PollFd::new(&self.socket, PollFlags::IN)];
        loop {
            match poll(&mut wait, None) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(system("poll")(errno)),
            }
        }
    }
}
