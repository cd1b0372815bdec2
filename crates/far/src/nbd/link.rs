//! One connection at work: requests go out as parts come, replies come in any order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Notify;

use super::{REPLY, command, reply, request};
use crate::area::Area;
use crate::errno;
use crate::polling::{Polling, SMALL};
use crate::stream::{self, Incoming, Stream};
use crate::transfer::{PART, Part};

/// Requests that one system call sends.
const BATCH: usize = 16;
/// Requests without a reply that a connection may have: what servers carry out at once, and as many in the sockets.
const MOST: usize = 64;
/// The interval of looks for a server that does not answer.
const LOOK: Duration = Duration::from_millis(100);
/// The error of a server that is about to end.
const SHUTDOWN: u32 = 108;

/// A request without a reply.
struct Sent {
    part: Part,
    at: Instant,
}

impl Sent {
    /// A thread waits for it, if any does.
    fn is_small_read(&self) -> bool {
        !self.part.is_write() && self.part.bytes <= SMALL
    }
}

/// What the tasks of a connection share.
struct Link {
    in_flight: RefCell<HashMap<u64, Sent>>,
    /// A reply has come.
    room: Notify,
    polling: Polling,
}

impl Link {
    fn is_full(&self) -> bool {
        self.in_flight.borrow().len() >= MOST
    }

    /// The age of the oldest request, of those that `count`.
    fn oldest(&self, count: impl Fn(&Sent) -> bool) -> Option<Duration> {
        let in_flight = self.in_flight.borrow();
        let counted = in_flight.values().filter(|sent| count(sent));
        counted.map(|sent| sent.at.elapsed()).max()
    }
}

/// Serves `area` over `stream`, as its connection `number`, until the connection breaks, the server does not answer for the area's patience, or the area
/// is closed and nothing is in flight. Returns the parts without a reply and the reason.
pub async fn run(area: &Area, number: u32, stream: Box<dyn Stream>) -> (Vec<Part>, String) {
    let (incoming, outgoing) = tokio::io::split(stream);
    let link = Link {
        in_flight: RefCell::default(),
        room: Notify::new(),
        polling: Polling::new(),
    };
    let small = || link.oldest(Sent::is_small_read);
    let why = tokio::select! {
        result = send(area, number, outgoing, &link) => in_words(result),
        result = receive(area, incoming, &link) => in_words(result),
        why = watch(area, &link) => why,
        () = link.polling.run(small) => unreachable!("it never ends"),
    };
    let sent = link.in_flight.into_inner().into_values();
    (sent.map(|sent| sent.part).collect(), why)
}

fn in_words(result: io::Result<()>) -> String {
    match result {
        Ok(()) => "the connection is closed".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the server has closed the connection".to_owned()
        }
        Err(error) => format!("the connection is broken ({error})"),
    }
}

async fn watch(area: &Area, link: &Link) -> String {
    loop {
        tokio::time::sleep(LOOK.min(area.patience())).await;
        let oldest = link.oldest(|_| true);
        if oldest.is_some_and(|age| age >= area.patience()) {
            let seconds = area.patience().as_secs_f64();
            return format!("the server has not answered for {seconds} s");
        }
    }
}

async fn send(
    area: &Area,
    number: u32,
    mut to: WriteHalf<Box<dyn Stream>>,
    link: &Link,
) -> io::Result<()> {
    let mut cookie = 0;
    let mut heads = Vec::with_capacity(BATCH);
    loop {
        heads.clear();
        let mut payloads: Vec<&[u8]> = Vec::with_capacity(BATCH);
        let (mut bytes, mut has_small) = (0, false);
        // A large part goes alone: other connections take the next.
        while heads.len() < BATCH && bytes < PART && !link.is_full() {
            let Some(part) = area.next() else { break };
            cookie += 1;
            bytes += part.bytes;
            let kind = match part.is_write() {
                true => command::WRITE,
                false => command::READ,
            };
            heads.push(request(kind, cookie, part.offset(), part.bytes));
            let payload: &[u8] = match part.is_write() {
                true => part.memory(),
                false => &[],
            };
            // SAFETY: the memory outlives the part, and the part stays in the table until its reply has come. If that comes
            // before all is sent, the server speaks another protocol: at worst it gets other bytes of the same buffer.
            payloads.push(unsafe { std::slice::from_raw_parts(payload.as_ptr(), payload.len()) });
            let at = Instant::now();
            let sent = Sent { part, at };
            has_small |= sent.is_small_read();
            link.in_flight.borrow_mut().insert(cookie, sent);
        }
        if heads.is_empty() {
            if area.is_closed() && link.in_flight.borrow().is_empty() {
                let head = request(command::DISCONNECT, 0, 0, 0);
                to.write_all(&head).await?;
                return to.shutdown().await;
            }
            match link.is_full() {
                true => link.room.notified().await,
                false => area.wait_for_work(number).await,
            }
            continue;
        }
        let pairs = heads.iter().zip(&payloads);
        let slices = pairs.flat_map(|(head, payload)| [IoSlice::new(head), IoSlice::new(payload)]);
        stream::write_all(&mut to, slices).await?;
        if has_small {
            link.polling.on_sent();
        }
    }
}

async fn receive(area: &Area, from: ReadHalf<Box<dyn Stream>>, link: &Link) -> io::Result<()> {
    let mut incoming = Incoming::new(from);
    loop {
        let mut head = [0; REPLY];
        incoming.fill(&mut head).await?;
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let (error, cookie) =
            reply(&head).ok_or_else(|| wrong("a reply is not of the protocol"))?;
        let memory = match link.in_flight.borrow().get(&cookie) {
            // SAFETY: as in `send`: the part stays in the table while this function fills its memory.
            Some(Sent { part, .. }) if !part.is_write() && error == 0 => unsafe {
                let memory = part.memory();
                std::slice::from_raw_parts_mut(memory.as_mut_ptr(), memory.len())
            },
            Some(_) => &mut [],
            None => return Err(wrong("a reply to no request")),
        };
        incoming.fill(memory).await?;
        let Some(sent) = link.in_flight.borrow_mut().remove(&cookie) else {
            continue;
        };
        match error {
            0 => sent.part.end(0),
            SHUTDOWN => {
                link.in_flight.borrow_mut().insert(cookie, sent);
                return Err(wrong("the server is shutting down"));
            }
            28 => area.refused(sent.part, errno::NO_SPACE),
            _ => area.refused(sent.part, errno::IO),
        }
        link.room.notify_one();
    }
}
