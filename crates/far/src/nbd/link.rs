//! One connection at work: requests go out as parts come, replies come in any order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use super::{REPLY, REQUEST, Stream, command, reply, request};
use crate::area::Area;
use crate::errno;
use crate::transfer::{PART, Part};

/// Requests that one system call sends.
const BATCH: usize = 16;
/// Requests without a reply that a connection may have: what servers carry out at once, and as many in the sockets.
const MOST: usize = 64;
/// The buffer of replies. A larger reply goes to its memory directly.
const BUFFER: usize = 16 << 10;
/// The interval of looks for a server that does not answer.
const LOOK: Duration = Duration::from_millis(100);
/// The error of a server that is about to end.
const SHUTDOWN: u32 = 108;

/// A request without a reply.
struct Sent {
    part: Part,
    at: Instant,
}

type InFlight = RefCell<HashMap<u64, Sent>>;

/// Serves `area` over `stream`, as its connection `number`, until the connection breaks, the server does not answer for the area's patience, or the area
/// is closed and nothing is in flight. Returns the parts without a reply and the reason.
pub async fn run(area: &Area, number: u32, stream: Box<dyn Stream>) -> (Vec<Part>, String) {
    let (incoming, outgoing) = tokio::io::split(stream);
    let in_flight = InFlight::default();
    let room = tokio::sync::Notify::new();
    let why = tokio::select! {
        result = send(area, number, outgoing, &in_flight, &room) => in_words(result),
        result = receive(area, incoming, &in_flight, &room) => in_words(result),
        why = watch(area, &in_flight) => why,
    };
    let sent = in_flight.into_inner().into_values();
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

async fn watch(area: &Area, in_flight: &InFlight) -> String {
    loop {
        tokio::time::sleep(LOOK.min(area.patience())).await;
        let oldest = in_flight.borrow().values().map(|sent| sent.at).min();
        if oldest.is_some_and(|at| at.elapsed() >= area.patience()) {
            let seconds = area.patience().as_secs_f64();
            return format!("the server has not answered for {seconds} s");
        }
    }
}

async fn send(
    area: &Area,
    number: u32,
    mut to: WriteHalf<Box<dyn Stream>>,
    in_flight: &InFlight,
    room: &tokio::sync::Notify,
) -> io::Result<()> {
    let mut cookie = 0;
    let mut heads = Vec::with_capacity(BATCH);
    loop {
        heads.clear();
        let mut payloads: Vec<&[u8]> = Vec::with_capacity(BATCH);
        let mut bytes = 0;
        // A large part goes alone: other connections take the next.
        while heads.len() < BATCH && bytes < PART && in_flight.borrow().len() < MOST {
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
            in_flight.borrow_mut().insert(cookie, Sent { part, at });
        }
        if heads.is_empty() {
            if area.is_closed() && in_flight.borrow().is_empty() {
                let head = request(command::DISCONNECT, 0, 0, 0);
                to.write_all(&head).await?;
                return to.shutdown().await;
            }
            if in_flight.borrow().len() < MOST {
                area.wait_for_work(number).await;
            } else {
                room.notified().await;
            }
            continue;
        }
        write_all(&mut to, &heads, &payloads).await?;
        to.flush().await?;
    }
}

async fn write_all(
    to: &mut WriteHalf<Box<dyn Stream>>,
    heads: &[[u8; REQUEST]],
    payloads: &[&[u8]],
) -> io::Result<()> {
    let pairs = heads.iter().zip(payloads);
    let slices = pairs.flat_map(|(head, payload)| [IoSlice::new(head), IoSlice::new(payload)]);
    let mut slices: Vec<IoSlice<'_>> = slices.filter(|slice| !slice.is_empty()).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let written = to.write_vectored(left).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut left, written);
    }
    Ok(())
}

/// Bytes that have come and were not used.
struct Incoming {
    from: ReadHalf<Box<dyn Stream>>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Incoming {
    async fn fill(&mut self, to: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < to.len() {
            if self.start == self.end {
                let rest = &mut to[filled..];
                if rest.len() >= self.buffer.len() {
                    return self.from.read_exact(rest).await.map(|_| ());
                }
                (self.start, self.end) = (0, self.from.read(&mut self.buffer).await?);
                if self.end == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            let count = (self.end - self.start).min(to.len() - filled);
            to[filled..filled + count]
                .copy_from_slice(&self.buffer[self.start..self.start + count]);
            self.start += count;
            filled += count;
        }
        Ok(())
    }
}

async fn receive(
    area: &Area,
    from: ReadHalf<Box<dyn Stream>>,
    in_flight: &InFlight,
    room: &tokio::sync::Notify,
) -> io::Result<()> {
    let mut incoming = Incoming {
        from,
        buffer: vec![0; BUFFER].into(),
        start: 0,
        end: 0,
    };
    loop {
        let mut head = [0; REPLY];
        incoming.fill(&mut head).await?;
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let (error, cookie) =
            reply(&head).ok_or_else(|| wrong("a reply is not of the protocol"))?;
        let memory = match in_flight.borrow().get(&cookie) {
            // SAFETY: as in `send`: the part stays in the table while this function fills its memory.
            Some(Sent { part, .. }) if !part.is_write() && error == 0 => unsafe {
                let memory = part.memory();
                std::slice::from_raw_parts_mut(memory.as_mut_ptr(), memory.len())
            },
            Some(_) => &mut [],
            None => return Err(wrong("a reply to no request")),
        };
        incoming.fill(memory).await?;
        let Some(sent) = in_flight.borrow_mut().remove(&cookie) else {
            continue;
        };
        match error {
            0 => sent.part.end(0),
            SHUTDOWN => {
                in_flight.borrow_mut().insert(cookie, sent);
                return Err(wrong("the server is shutting down"));
            }
            28 => area.refused(sent.part, errno::NO_SPACE),
            _ => area.refused(sent.part, errno::IO),
        }
        room.notify_one();
    }
}
