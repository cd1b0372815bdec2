//! `--metrics`: answers `GET /metrics` in the supervisor's loop, without waiting for a client.
//!
//! The supervisor has one thread, which forks when managed processes outlive the command, so that HTTP libraries with
//! threads or a runtime do not fit. What a client may take is bounded: the number of connections, the bytes of a
//! request, and the time from connecting to the last byte of the answer. Further clients wait in the kernel's queue.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::text::Format;

/// Connections at a time.
const CLIENTS: usize = 16;
/// Bytes of a request: its line and its headers.
const REQUEST: usize = 8 << 10;
/// Headers of a request.
const HEADERS: usize = 64;
/// How long a connection may last.
const PATIENCE: Duration = Duration::from_secs(5);

/// The address of `--metrics`: `ADDRESS:PORT`, or a port of the loopback interface.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| {
        "expected a port (9108, on 127.0.0.1) or an address with a port (127.0.0.1:9108, [::1]:9108)"
            .to_owned()
    })
}

/// The metrics cannot be served at the address.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}: {cause}; name another address or port with --metrics")]
pub struct ListenError {
    address: SocketAddr,
    cause: io::Error,
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// The unsent rest of the answer; `None` while the request is incomplete.
    outbox: Option<Vec<u8>>,
    since: Instant,
}

/// A listening socket with its clients.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    clients: Vec<Client>,
}

impl Server {
    /// Listens at `address`.
    pub fn open(address: SocketAddr) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(address)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|cause| ListenError { address, cause })?;
        Ok(Self {
            listener,
            clients: Vec::new(),
        })
    }

    /// The address with the port that port 0 has become.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The descriptors to poll, with their events. Without room for a client the listener is left out.
    pub fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let listener = (self.clients.len() < CLIENTS).then(|| self.listener.as_fd());
        let clients = self.clients.iter().map(|client| {
            let flags = match client.outbox {
                Some(_) => PollFlags::OUT,
                None => PollFlags::IN,
            };
            (client.stream.as_fd(), flags)
        });
        let listener = listener.into_iter().map(|fd| (fd, PollFlags::IN));
        listener.chain(clients)
    }

    /// How soon a client will have taken too long.
    pub fn due_in(&self) -> Option<Duration> {
        let ages = self.clients.iter().map(|client| client.since.elapsed());
        ages.max().map(|age| PATIENCE.saturating_sub(age))
    }

    /// Reads and writes as far as possible; `metrics` makes the text for those who asked.
    pub fn serve(&mut self, metrics: impl Fn(Format) -> String) {
        while self.clients.len() < CLIENTS
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client {
                    stream,
                    inbox: Vec::new(),
                    outbox: None,
                    since: Instant::now(),
                });
            }
        }
        self.clients.retain_mut(|client| {
            let goes_on = client.read(&metrics) && client.write();
            goes_on && client.since.elapsed() < PATIENCE
        });
    }
}

impl Client {
    /// Reads until the request is complete and prepares its answer. False: the connection is over.
    fn read(&mut self, metrics: &impl Fn(Format) -> String) -> bool {
        let mut bytes = [0; 4096];
        while self.outbox.is_none() {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(n) => self.inbox.extend_from_slice(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            self.outbox = answer(&self.inbox, metrics);
        }
        true
    }

    /// Sends what the client takes. False: all is sent, or the connection is over.
    fn write(&mut self) -> bool {
        let Some(outbox) = &mut self.outbox else {
            return true;
        };
        while !outbox.is_empty() {
            match self.stream.write(outbox) {
                Ok(n) => drop(outbox.drain(..n)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        false
    }
}

/// The answer to a request; `None` while it is incomplete.
fn answer(request: &[u8], metrics: &impl Fn(Format) -> String) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if request.len() <= REQUEST => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(problem("431 Request Header Fields Too Large", ""));
        }
        Err(_) => return Some(problem("400 Bad Request", "")),
    }
    let path = parsed.path.unwrap_or_default();
    if path.split('?').next() != Some("/metrics") {
        return Some(problem("404 Not Found", ""));
    }
    if parsed.method != Some("GET") {
        return Some(problem("405 Method Not Allowed", "Allow: GET\r\n"));
    }
    let mut accepted = parsed.headers.iter();
    let takes_open_metrics = accepted.any(|header| {
        let value = String::from_utf8_lossy(header.value);
        header.name.eq_ignore_ascii_case("accept") && value.contains("application/openmetrics-text")
    });
    let format = match takes_open_metrics {
        true => Format::OpenMetrics,
        false => Format::Prometheus,
    };
    Some(response(
        "200 OK",
        format.content_type(),
        "",
        &metrics(format),
    ))
}

fn problem(status: &str, headers: &str) -> Vec<u8> {
    let text = format!("{status}: foreswap answers GET /metrics\n");
    response(status, "text/plain; charset=utf-8", headers, &text)
}

fn response(status: &str, content_type: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         {headers}Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
