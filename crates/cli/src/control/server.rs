//! The supervisor's side of the control socket: accepts clients, reads their requests, and writes answers as fast as
//! each client reads them. Never waits for a client.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags};
use rustix::process::Pid;

use super::place;
use super::words::{LINE_BYTES, Reply, Request};

/// Clients at a time.
const CLIENTS: usize = 32;
/// Bytes queued for a client that does not read.
const OUTBOX: usize = 1 << 20;
/// How long a client may take to send its request, and to read the last answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Client {
    id: u64,
    socket: OwnedFd,
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
    /// It has asked.
    asked: bool,
    /// The last answer was sent.
    answered: bool,
    /// A command that has joined the group: it stays.
    is_member: bool,
    since: Instant,
}

/// The control socket of a supervisor; removed when dropped.
#[derive(Debug)]
pub struct Control {
    listener: Option<(OwnedFd, PathBuf)>,
    /// The second name of the socket, by which commands of the group find it.
    group: Option<PathBuf>,
    clients: Vec<Client>,
    next_id: u64,
}

impl Control {
    /// Listens for clients; without a socket the run continues, and the reason is returned.
    pub fn open() -> (Self, Option<place::PlaceError>) {
        let (listener, error) = match place::listen(std::process::id()) {
            Ok(listener) => (Some(listener), None),
            Err(error) => (None, Some(error)),
        };
        let control = Self {
            listener,
            group: None,
            clients: Vec::new(),
            next_id: 0,
        };
        (control, error)
    }

    /// Where clients find it.
    pub fn path(&self) -> Option<&Path> {
        self.listener.as_ref().map(|(_, path)| path.as_path())
    }

    /// From now on commands find the socket by the name of their group.
    pub fn lead(&mut self, group: &str) -> io::Result<()> {
        let (_, path) = self.listener.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let name = place::group(path.parent().unwrap_or(path), group);
        // A name that is too long could be made, and not connected to.
        SocketAddrUnix::new(&name)?;
        std::fs::hard_link(path, &name)?;
        self.group = Some(name);
        Ok(())
    }

    /// Removes the socket.
    pub fn close(&mut self) {
        self.clients.clear();
        let path = self.listener.take().map(|(_, path)| path);
        for path in self.group.take().into_iter().chain(path) {
            // Another process may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }

    /// A copy of the process remains and continues to listen: this one leaves the socket alone.
    pub fn leave(&mut self) {
        (self.listener, self.group) = (None, None);
    }

    /// This process is the remaining copy.
    pub fn hand_over(&mut self) {
        self.clients.retain(|client| client.is_member);
        if let Some((_, path)) = &mut self.listener {
            *path = place::hand_over(path, std::process::id());
        }
    }

    /// The descriptors to poll, with their events.
    pub fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let listener = self
            .listener
            .iter()
            .map(|(fd, _)| (fd.as_fd(), PollFlags::IN));
        let clients = self.clients.iter().map(|client| {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !client.outbox.is_empty());
            (client.socket.as_fd(), flags)
        });
        listener.chain(clients)
    }

    /// How soon to look again without an event.
    pub fn timeout(&self) -> Option<Duration> {
        (self.clients.len() > self.members()).then_some(PATIENCE)
    }

    /// Reads and writes as far as possible. Returns new requests with their clients.
    pub fn serve(&mut self) -> Vec<(u64, Result<Request, String>)> {
        self.accept();
        let mut requests = Vec::new();
        for client in &mut self.clients {
            if !client.read(&mut requests) {
                client.answered = true;
                client.outbox.clear();
            }
            client.write();
        }
        self.clients.retain(|client| {
            let over = client.answered && client.outbox.is_empty();
            let late = !client.is_member
                && (!client.asked || client.answered)
                && client.since.elapsed() > PATIENCE;
            !over && !late
        });
        requests
    }

    fn accept(&mut self) {
        let Some((listener, _)) = &self.listener else {
            return;
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = rustix::net::accept_with(listener, flags) {
            self.next_id += 1;
            let mut client = Client {
                id: self.next_id,
                socket,
                inbox: Vec::new(),
                outbox: VecDeque::new(),
                asked: false,
                answered: false,
                is_member: false,
                since: Instant::now(),
            };
            let ours = rustix::process::geteuid();
            let peer = rustix::net::sockopt::socket_peercred(&client.socket);
            let allowed = peer.is_ok_and(|peer| peer.uid == ours || peer.uid.is_root());
            if !allowed {
                let user = ours.as_raw();
                let text = format!(
                    "this run belongs to user {user}; only that user and root may control it"
                );
                client.say(&Reply::Error { text }, true);
            } else if self.clients.len() - self.members() >= CLIENTS {
                let text = format!("{CLIENTS} clients are being served already; try again");
                client.say(&Reply::Error { text }, true);
            }
            self.clients.push(client);
        }
    }

    /// Whether a client is still there.
    pub fn has(&self, id: u64) -> bool {
        self.clients
            .iter()
            .any(|client| client.id == id && !client.answered)
    }

    /// Commands that have joined the group, and still run.
    pub fn members(&self) -> usize {
        let members = self.clients.iter();
        members.filter(|client| client.is_member).count()
    }

    /// The client is a command of the group; its pid, if its namespace has one for it.
    pub fn join(&mut self, id: u64, reply: &Reply) -> Option<Pid> {
        let client = self.clients.iter_mut().find(|client| client.id == id)?;
        client.is_member = true;
        client.say(reply, false);
        client.write();
        let peer = rustix::net::sockopt::socket_peercred(&client.socket).ok()?;
        Some(peer.pid)
    }

    /// Tells all commands of the group.
    pub fn tell_members(&mut self, reply: &Reply) {
        for client in self.clients.iter_mut().filter(|client| client.is_member) {
            client.say(reply, false);
            client.write();
        }
    }

    /// Sends a reply to a client; after the `last` one the client is removed.
    pub fn say(&mut self, id: u64, reply: &Reply, last: bool) {
        if let Some(client) = self.clients.iter_mut().find(|client| client.id == id) {
            client.say(reply, last);
            client.write();
        }
    }
}

impl Client {
    fn say(&mut self, reply: &Reply, last: bool) {
        if self.answered {
            return;
        }
        if last {
            (self.asked, self.answered, self.since) = (true, true, Instant::now());
        } else if self.outbox.len() > OUTBOX / 2 {
            // It does not read: it misses some progress.
            return;
        }
        // Replies have no maps with odd keys, and serialisation cannot fail.
        let line = serde_json::to_vec(reply).unwrap_or_default();
        self.outbox.extend(line);
        self.outbox.push_back(b'\n');
    }

    /// False if the client is gone.
    fn read(&mut self, requests: &mut Vec<(u64, Result<Request, String>)>) -> bool {
        let mut buffer = [0u8; 4096];
        loop {
            let n = match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) => return false,
                Ok((n, _)) => n,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            };
            if self.asked {
                // One request per connection: further data is ignored.
                continue;
            }
            self.inbox.extend_from_slice(&buffer[..n]);
            if let Some(end) = self.inbox.iter().position(|&byte| byte == b'\n') {
                self.asked = true;
                let request = serde_json::from_slice(&self.inbox[..end]);
                let request = request
                    .map_err(|error| format!("not a request of this version of foreswap: {error}"));
                requests.push((self.id, request));
            } else if self.inbox.len() > LINE_BYTES {
                return false;
            }
        }
    }

    fn write(&mut self) {
        while !self.outbox.is_empty() {
            let (bytes, _) = self.outbox.as_slices();
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.outbox.clear();
                    self.answered = true;
                }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.close();
    }
}
