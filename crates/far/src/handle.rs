//! The supervisor's side of the relay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::address::Addresses;
use crate::words::{self, Order, Report};

/// The subcommand that is the relay.
pub const COMMAND: &str = "relay";
/// How long the relay may take to answer beyond the time that the server may take.
const GRACE: Duration = Duration::from_secs(20);

/// The interval of looks for its end.
const STEP: Duration = Duration::from_micros(500);

/// An area that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its number.
    pub area: u32,
    /// Its bytes, a multiple of 4 KiB.
    pub bytes: u64,
    /// Bytes at the front that no engine may write.
    pub reserved_bytes: u64,
    /// The socket on which engines register channels.
    pub register: OwnedFd,
}

fn failed(address: &Addresses, error: &io::Error) -> String {
    format!("swap area {}: foreswap's relay: {error}", address.text())
}

/// The connection to the relay, which ends with it unless engines still need it.
#[derive(Debug)]
pub struct Relay {
    socket: OwnedFd,
    pid: Option<Pid>,
    areas: u32,
    closing: BTreeSet<u32>,
    said: VecDeque<(bool, String)>,
    /// Areas that were opened, or not, and that nobody has asked about.
    answers: BTreeMap<u32, Result<Opened, String>>,
    /// It has ended, and that was reported.
    is_gone: bool,
}

impl Relay {
    /// Starts the relay: the executable of this process with the subcommand [`COMMAND`], and a socket as standard input.
    ///
    /// The numbers of its areas begin with `first`: those of a relay that has ended must not be taken for them.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(first: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (socket, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mut child = Command::new("/proc/self/exe")
            .arg0("foreswap")
            .arg(COMMAND)
            .stdin(Stdio::from(its))
            .stdout(Stdio::null())
            .spawn()?;
        // The relay is a grandchild, which no signal to this process' children reaches.
        child.wait()?;
        let mut relay = Self {
            socket,
            pid: None,
            areas: first,
            closing: BTreeSet::new(),
            said: VecDeque::new(),
            answers: BTreeMap::new(),
            is_gone: false,
        };
        let (started, fds) = relay.next(Instant::now() + GRACE)?;
        relay.note(started, fds);
        Ok(relay)
    }

    /// The number of its next area.
    pub fn next_area(&self) -> u32 {
        self.areas
    }

    /// Its process.
    pub fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// Lets the relay end, when no engine needs it any more. If it is a child of this process, it is waited for, at most
    /// `patience`.
    pub fn end(self, patience: Duration) {
        drop(self.socket);
        let end = Instant::now() + patience;
        while Instant::now() < end {
            match waitpid(self.pid, WaitOptions::NOHANG) {
                Ok(None) => std::thread::sleep(STEP),
                // It has ended, or is not a child.
                _ => return,
            }
        }
    }

    /// Readable when the relay has something to say, or has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Opens an area, and waits for it.
    ///
    /// # Errors
    /// The text says why the area cannot be used, and what to do.
    pub fn open(
        &mut self,
        address: &Addresses,
        bytes: Option<u64>,
        timeout: Duration,
    ) -> Result<Opened, String> {
        let area = self.begin_to_open(address, bytes, timeout)?;
        let end = Instant::now() + timeout + GRACE;
        loop {
            if let Some(answer) = self.answers.remove(&area) {
                return answer;
            }
            let (report, fds) = self.next(end).map_err(|error| failed(address, &error))?;
            self.note(report, fds);
        }
    }

    /// Lets the relay open an area, whose number is returned: [`Relay::opened`] has the result.
    ///
    /// # Errors
    /// The relay has ended.
    pub fn begin_to_open(
        &mut self,
        address: &Addresses,
        bytes: Option<u64>,
        timeout: Duration,
    ) -> Result<u32, String> {
        let area = self.areas;
        self.areas += 1;
        let order = Order::Open {
            area,
            address: address.with_secrets().to_owned(),
            bytes,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        };
        words::send(&self.socket, &order, &[]).map_err(|error| failed(address, &error))?;
        Ok(area)
    }

    /// The result of [`Relay::begin_to_open`], once it is known. A relay that has ended meanwhile has none:
    /// [`Relay::is_gone`].
    pub fn opened(&mut self, area: u32) -> Option<Result<Opened, String>> {
        self.look();
        self.answers.remove(&area)
    }

    /// Lets the relay discard the contents of an area that no engine uses any more.
    pub fn begin_to_close(&mut self, area: u32) {
        if !self.is_gone && words::send(&self.socket, &Order::Close { area }, &[]).is_ok() {
            self.closing.insert(area);
        }
    }

    /// Waits for the end of all areas that are being closed, at most `patience`. Returns why contents are still there.
    pub fn until_closed(&mut self, patience: Duration) -> Vec<String> {
        let end = Instant::now() + patience;
        let mut left = Vec::new();
        while !self.closing.is_empty() {
            match self.next(end) {
                Ok((Report::Closed { area, left: why }, _)) => {
                    self.closing.remove(&area);
                    left.extend(why);
                }
                Ok((other, fds)) => self.note(other, fds),
                Err(error) => {
                    left.push(format!("the relay to the servers of swap areas: {error}"));
                    self.closing.clear();
                }
            }
        }
        left
    }

    fn note(&mut self, report: Report, mut fds: Vec<OwnedFd>) {
        match report {
            Report::Said { is_warning, text } => self.said.push_back((is_warning, text)),
            Report::Closed { area, left } => {
                self.closing.remove(&area);
                self.said.extend(left.map(|why| (true, why)));
            }
            Report::Opened {
                area,
                bytes,
                reserved_bytes,
            } => {
                let opened = fds.pop().map(|register| Opened {
                    area,
                    bytes,
                    reserved_bytes,
                    register,
                });
                let opened = opened.ok_or_else(|| "the relay sent no socket".to_owned());
                self.answers.insert(area, opened);
            }
            Report::Failed { area, why } => _ = self.answers.insert(area, Err(why)),
            Report::Started { pid } => self.pid = Pid::from_raw(pid.cast_signed()),
        }
    }

    /// The next report, which comes before `end`.
    fn next(&mut self, end: Instant) -> io::Result<(Report, Vec<OwnedFd>)> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: 3600,
                tv_nsec: 0,
            });
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let received = words::receive(&self.socket)?;
            return received
                .ok_or_else(|| io::Error::new(io::ErrorKind::BrokenPipe, "it has ended"));
        }
    }

    /// Messages for the user since the last call: whether each is a warning, and its text. Does not wait.
    pub fn take_said(&mut self) -> Vec<(bool, String)> {
        self.look();
        self.said.drain(..).collect()
    }

    /// Reads what the relay has said. Does not wait.
    fn look(&mut self) {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        while !self.is_gone && recv(&self.socket, &mut byte[..], flags).is_ok() {
            match words::receive(&self.socket) {
                Ok(Some((report, fds))) => self.note(report, fds),
                Ok(None) | Err(_) => {
                    self.is_gone = true;
                    let text = "the relay to the servers of swap areas has ended; the pages there are lost";
                    self.said.push_back((true, text.to_owned()));
                }
            }
        }
    }

    /// Whether it is known to have ended.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }
}
