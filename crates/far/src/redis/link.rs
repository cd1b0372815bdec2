//! One connection at work, to one node.
//!
//! A node has one connection for small reads, which threads wait for, one for large reads and one for writes: replies come in
//! the order of the commands, and WAIT holds up what comes after it. Bytes go between the socket and the memory of transfers
//! without a copy in between. What was sent over a connection that breaks goes back to the area, which reads again and never
//! writes again; no command is repeated here unless the server says that it was not carried out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::{Duration, Instant};

use foreswap_store::area::PAGE_BYTES;
use redis::Value;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::Notify;

use super::chunks::Place;
use super::cluster::{self, Node};
use super::command::{self, Answer, Message};
use super::connect::Socket;
use super::served::{Served, Writing};
use crate::errno;
use crate::polling::Polling;
use crate::stream::{self, Incoming};
use crate::transfer::{PART, Part};

/// The interval of looks for a server that does not answer.
const LOOK: Duration = Duration::from_millis(50);
/// The longest line of a reply.
const LINE: usize = 4096;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads that threads wait for.
    Small,
    /// Other reads.
    Large,
    /// Writes.
    Write,
    /// The relay's own commands.
    Own,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Small, Self::Large, Self::Write, Self::Own];

    /// Parts in flight.
    fn most(self) -> usize {
        match self {
            Self::Small => 64,
            Self::Large | Self::Write => 16,
            Self::Own => 0,
        }
    }
}

/// A part without its replies.
struct Sent<'a> {
    part: Part,
    at: Instant,
    /// After ASK.
    asking: bool,
    /// Of a write: the pages that its chunk must have.
    had: u64,
    replies: usize,
    _writing: Option<Writing<'a>>,
}

/// What became of a part.
enum Outcome {
    Answer(Answer),
    /// Pages that were written are not there.
    Missing,
    /// Too few replicas have it.
    Short,
}

/// What the tasks of a connection share.
struct Link<'a> {
    served: &'a Rc<Served>,
    node: &'a Rc<Node>,
    kind: Kind,
    in_flight: RefCell<VecDeque<Sent<'a>>>,
    /// A reply has come.
    room: Notify,
    polling: Polling,
}

/// Serves the node's parts until the connection breaks or is not needed any more. Returns the parts without a reply and the
/// reason.
pub async fn run(
    served: &Rc<Served>,
    node: &Rc<Node>,
    kind: Kind,
    number: u32,
    socket: Socket,
) -> (Vec<Part>, String) {
    let (incoming, outgoing) = tokio::io::split(socket);
    let link = Link {
        served,
        node,
        kind,
        in_flight: RefCell::default(),
        room: Notify::new(),
        polling: Polling::new(),
    };
    let why = tokio::select! {
        why = link.send(number, outgoing) => why.unwrap_or_else(|error| in_words(&error)),
        error = link.receive(incoming) => in_words(&error),
        why = link.watch() => why,
        () = link.polling.run(|| link.oldest()) => unreachable!("it never ends"),
    };
    // Nothing of these was sent.
    let asked = std::mem::take(&mut node.asked.borrow_mut()[kind as usize]);
    asked.into_iter().for_each(|part| served.area.later(part));
    let sent = link.in_flight.into_inner().into_iter();
    (sent.map(|sent| sent.part).collect(), why)
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server has closed the connection".to_owned(),
        _ => format!("the connection is broken ({error})"),
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<'a> Link<'a> {
    fn is_full(&self) -> bool {
        self.in_flight.borrow().len() >= self.kind.most()
    }

    /// The age of the oldest part without a reply.
    fn oldest(&self) -> Option<Duration> {
        let in_flight = self.in_flight.borrow();
        in_flight.front().map(|sent| sent.at.elapsed())
    }

    async fn watch(&self) -> String {
        let patience = self.served.area.patience();
        loop {
            tokio::time::sleep(LOOK.min(patience)).await;
            if self.oldest().is_some_and(|age| age >= patience) {
                let seconds = patience.as_secs_f64();
                return format!("the server has not answered for {seconds} s");
            }
        }
    }

    /// The next part, and whether another node has sent it here.
    fn next(&self) -> Option<(Part, bool)> {
        let asked = self.node.asked.borrow_mut()[self.kind as usize].pop_front();
        match asked {
            Some(part) => Some((part, true)),
            None => self
                .served
                .take(self.node, self.kind)
                .map(|part| (part, false)),
        }
    }

    /// The message of a part that is in flight from now on.
    fn begin(&self, part: Part, asking: bool) -> Message {
        let place = Place::of(&part);
        let (keys, is_write) = (&self.served.keys, part.is_write());
        let message = match is_write {
            true => keys.write(place, self.served.replicas(), asking),
            false => keys.read(place, asking),
        };
        let had = match is_write {
            true => self.served.chunks.on_write(place),
            false => 0,
        };
        self.in_flight.borrow_mut().push_back(Sent {
            part,
            at: Instant::now(),
            asking,
            had,
            replies: message.replies,
            _writing: is_write.then(|| self.served.begin_write()),
        });
        message
    }

    async fn send(&self, number: u32, mut to: WriteHalf<Socket>) -> io::Result<String> {
        loop {
            let mut messages: Vec<(Message, &[u8])> = Vec::new();
            let mut bytes = 0;
            // A large write goes alone.
            while bytes < PART
                && !self.is_full()
                && let Some((part, asking)) = self.next()
            {
                if part.is_write() {
                    bytes += part.bytes;
                }
                let memory = match part.is_write() {
                    true => part.memory(),
                    false => &mut [],
                };
                // SAFETY: the memory outlives the part, and the part stays in flight until its replies have come. If they
                // come before all is sent, the server speaks another protocol: at worst it gets other bytes of the same
                // buffer.
                let memory = unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) };
                messages.push((self.begin(part, asking), memory));
            }
            if !messages.is_empty() {
                let slices = messages.iter().flat_map(|(message, memory)| {
                    let three = [&message.head[..], memory, &message.tail[..]];
                    three.map(IoSlice::new)
                });
                stream::write_all(&mut to, slices).await?;
                if self.kind == Kind::Small {
                    self.polling.on_sent();
                }
                continue;
            }
            if self.in_flight.borrow().is_empty() {
                if self.served.area.is_closed() {
                    return Ok("the area is closed".to_owned());
                }
                if self.node.is_retired.get() {
                    return Ok("the node has no slots any more".to_owned());
                }
            }
            tokio::select! {
                () = self.room.notified(), if self.is_full() => {}
                () = self.served.area.wait_for_work(number), if !self.is_full() => {}
                // It may be needed no more, or enough replicas are back.
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn receive(&self, from: ReadHalf<Socket>) -> io::Error {
        let mut incoming = Incoming::new(from);
        loop {
            let outcome = match self.reply(&mut incoming).await {
                Ok(outcome) => outcome,
                Err(error) => return error,
            };
            if let Outcome::Answer(Answer::Unknown(why)) = outcome {
                return wrong(&why);
            }
            let ended = self.in_flight.borrow_mut().pop_front();
            if let Some(sent) = ended {
                self.settle(sent.part, outcome);
            }
            self.room.notify_one();
        }
    }

    /// Reads the replies to the part that was sent first.
    async fn reply(&self, incoming: &mut Incoming<Socket>) -> io::Result<Outcome> {
        let mut line = incoming.line(LINE).await?;
        let (replies, asking, is_write) = {
            let in_flight = self.in_flight.borrow();
            let sent = in_flight
                .front()
                .ok_or_else(|| wrong("a reply to nothing"))?;
            (sent.replies, sent.asking, sent.part.is_write())
        };
        if !is_write {
            if asking {
                line = incoming.line(LINE).await?;
            }
            return self.read_reply(incoming, &line).await;
        }
        let mut values = vec![value(&line)?];
        while values.len() < replies {
            values.push(value(&incoming.line(LINE).await?)?);
        }
        Ok(self.write_reply(&values))
    }

    async fn read_reply(
        &self,
        incoming: &mut Incoming<Socket>,
        line: &[u8],
    ) -> io::Result<Outcome> {
        let (place, memory) = {
            let in_flight = self.in_flight.borrow();
            let sent = in_flight
                .front()
                .ok_or_else(|| wrong("a reply to nothing"))?;
            let memory = sent.part.memory();
            // SAFETY: as in `send`: the part stays in flight while this function fills its memory.
            let memory =
                unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), memory.len()) };
            (Place::of(&sent.part), memory)
        };
        let length = line.strip_prefix(b"$");
        let length = length.and_then(|text| str::from_utf8(text).ok()?.trim_end().parse().ok());
        let came: usize = match length {
            Some(-1) => 0,
            Some(length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let whole = memory.get_mut(..length);
                let whole = whole.ok_or_else(|| wrong("a reply is too long"))?;
                incoming.fill(whole).await?;
                incoming.fill(&mut [0; 2]).await?;
                length
            }
            None => return Ok(Outcome::Answer(command::answer(Some(&value(line)?)))),
        };
        let (there, lost) = self.served.chunks.written(place.chunk);
        let bytes = came as u64 / PAGE_BYTES * PAGE_BYTES;
        let whole = match bytes {
            0 => 0,
            bytes => Place { bytes, ..place }.mask(),
        };
        if place.mask() & (lost | there & !whole) != 0 {
            return Ok(Outcome::Missing);
        }
        // Nobody has written there.
        memory[came..].fill(0);
        Ok(Outcome::Answer(Answer::Done))
    }

    fn write_reply(&self, values: &[Value]) -> Outcome {
        let in_flight = self.in_flight.borrow();
        let Some(sent) = in_flight.front() else {
            return Outcome::Answer(Answer::Unknown("a reply to nothing".to_owned()));
        };
        let place = Place::of(&sent.part);
        let written = command::written(values, place.is_whole(), sent.asking);
        if written.answer != Answer::Done {
            return Outcome::Answer(written.answer);
        }
        let chunks = &self.served.chunks;
        if written.was_missing
            && chunks.on_missing(place.chunk, sent.had)
            && self.served.area.losses() == 0
        {
            self.served.area.on_lost();
        }
        if let Some((least, _)) = self.served.replicas()
            && written.replicas < i64::from(least)
        {
            return Outcome::Short;
        }
        chunks.on_written(place);
        Outcome::Answer(Answer::Done)
    }

    fn settle(&self, part: Part, outcome: Outcome) {
        let area = &self.served.area;
        match outcome {
            Outcome::Answer(Answer::Done) => part.end(0),
            Outcome::Answer(Answer::Full) => area.refused(part, errno::NO_SPACE),
            Outcome::Answer(Answer::Elsewhere {
                host,
                port,
                for_once,
            }) => {
                let to = cluster::at(host, port, &self.node.place);
                match for_once {
                    true => self.ask(part, &to),
                    false => {
                        self.served.on_moved(Place::of(&part).chunk, &to);
                        area.later(part);
                    }
                }
            }
            Outcome::Answer(Answer::Later) => area.later(part),
            Outcome::Answer(Answer::Refused(why)) => {
                self.served.tell_refused(&why);
                area.refused(part, errno::IO);
            }
            Outcome::Answer(Answer::Unknown(_)) => area.doubt(part),
            Outcome::Missing => {
                if area.losses() == 0 {
                    area.on_lost();
                }
                part.end(errno::IO);
            }
            Outcome::Short => {
                self.node.is_short.set(true);
                area.doubt(part);
            }
        }
    }

    /// Another node has what the part wants, for this once.
    fn ask(&self, part: Part, to: &crate::address::Place) {
        let node = self.served.ensure(to);
        // One that sends it back, or is not there yet: the map will tell.
        if Rc::ptr_eq(&node, self.node) || !node.up.borrow()[self.kind as usize] {
            return self.served.area.later(part);
        }
        node.asked.borrow_mut()[self.kind as usize].push_back(part);
        self.served.area.wake_all();
    }
}

/// A reply of one line.
fn value(line: &[u8]) -> io::Result<Value> {
    redis::parse_redis_value(line).map_err(|_| wrong("a reply is not of the protocol"))
}
