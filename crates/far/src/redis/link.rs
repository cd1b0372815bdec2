//! One connection at work, to one node.
//!
//! A node has one connection for small reads, which threads wait for, one for large reads and one for writes: replies come in
//! the order of the commands, and WAIT holds up what comes after it. What was sent over a connection that breaks goes back to
//! the area, which reads again and never writes again; no command is repeated here unless the server says that it was not
//! carried out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use redis::aio::MultiplexedConnection;

use super::chunks::Place;
use super::cluster::{self, Node};
use super::command::{self, Answer};
use super::connect::Connection;
use super::served::Served;
use crate::errno;
use crate::polling::Polling;
use crate::transfer::Part;

/// The interval of looks for a server that does not answer.
const LOOK: Duration = Duration::from_millis(50);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads that threads wait for.
    Small,
    /// Other reads.
    Large,
    /// Writes.
    Write,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Write];

    /// Parts in flight.
    fn most(self) -> usize {
        match self {
            Self::Small => 64,
            Self::Large | Self::Write => 16,
        }
    }
}

/// What became of a part.
enum Outcome {
    Answer(Answer),
    /// Pages that were written are not there.
    Missing,
    /// Too few replicas have it.
    Short,
}

/// Serves the node's parts until the connection breaks or is not needed any more. Returns the parts without a reply and the
/// reason.
pub async fn run(
    served: &Rc<Served>,
    node: &Rc<Node>,
    kind: Kind,
    number: u32,
    connection: Connection,
) -> (Vec<Part>, String) {
    let polling = Polling::new();
    let ages: RefCell<BTreeMap<u64, Instant>> = RefCell::default();
    let oldest = || ages.borrow().first_key_value().map(|(_, at)| at.elapsed());
    tokio::select! {
        result = work(served, node, kind, number, connection, &polling, &ages) => result,
        () = polling.run(oldest) => unreachable!("it never ends"),
    }
}

async fn work(
    served: &Rc<Served>,
    node: &Rc<Node>,
    kind: Kind,
    number: u32,
    connection: Connection,
    polling: &Polling,
    ages: &RefCell<BTreeMap<u64, Instant>>,
) -> (Vec<Part>, String) {
    let area = &served.area;
    let mut flights = FuturesUnordered::new();
    let (mut count, mut broken) = (0, Vec::new());
    let why = loop {
        while flights.len() < kind.most() {
            let Some(part) = served.take(node, kind) else {
                break;
            };
            count += 1;
            ages.borrow_mut().insert(count, Instant::now());
            if kind == Kind::Small {
                polling.on_sent();
            }
            let (send, id) = (connection.send.clone(), count);
            flights.push(async move {
                let outcome = carry(served, send, kind, &part).await;
                (id, part, outcome)
            });
        }
        if area.is_closed() && flights.is_empty() {
            return (Vec::new(), "the area is closed".to_owned());
        }
        if connection.is_over() && flights.is_empty() {
            break "the server has closed the connection".to_owned();
        }
        if node.is_retired.get() {
            break "the node has no slots any more".to_owned();
        }
        let oldest = ages.borrow().first_key_value().map(|(_, at)| at.elapsed());
        if oldest.is_some_and(|age| age >= area.patience()) {
            let seconds = area.patience().as_secs_f64();
            break format!("the server has not answered for {seconds} s");
        }
        tokio::select! {
            Some((id, part, outcome)) = flights.next(), if !flights.is_empty() => {
                ages.borrow_mut().remove(&id);
                if let Outcome::Answer(Answer::Unknown(why)) = outcome {
                    broken.push(part);
                    break format!("the connection is broken ({why})");
                }
                settle(served, node, part, outcome);
            }
            () = area.wait_for_work(number), if flights.len() < kind.most() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    };
    drop(connection);
    while let Some((_, part, outcome)) = flights.next().await {
        match outcome {
            Outcome::Answer(Answer::Unknown(_)) => broken.push(part),
            outcome => settle(served, node, part, outcome),
        }
    }
    (broken, why)
}

fn settle(served: &Rc<Served>, node: &Rc<Node>, part: Part, outcome: Outcome) {
    let area = &served.area;
    match outcome {
        Outcome::Answer(Answer::Done) => part.end(0),
        Outcome::Answer(Answer::Full) => area.refused(part, errno::NO_SPACE),
        Outcome::Answer(Answer::Elsewhere { host, port, .. }) => {
            let to = cluster::at(host, port, &node.place);
            served.on_moved(Place::of(&part).chunk, &to);
            area.later(part);
        }
        Outcome::Answer(Answer::Later) => area.later(part),
        Outcome::Answer(Answer::Refused(why)) => {
            served.tell_refused(&why);
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
            node.is_short.set(served.replicas().is_some());
            area.doubt(part);
        }
    }
}

async fn carry(
    served: &Rc<Served>,
    send: MultiplexedConnection,
    kind: Kind,
    part: &Part,
) -> Outcome {
    let first = once(served, send, part, false).await;
    let Outcome::Answer(Answer::Elsewhere {
        host,
        port,
        for_once: true,
    }) = first
    else {
        return first;
    };
    let to = crate::address::Place::Tcp(host, port);
    let node = served.ensure(&to);
    let send = node.up.borrow()[kind as usize].clone();
    match send {
        Some(send) => match once(served, send, part, true).await {
            // Of that connection, not of this one.
            Outcome::Answer(Answer::Unknown(_)) if part.is_write() => Outcome::Short,
            Outcome::Answer(Answer::Unknown(_)) => Outcome::Answer(Answer::Later),
            // It asks for another still: the map will tell.
            Outcome::Answer(Answer::Elsewhere { .. }) => Outcome::Answer(Answer::Later),
            outcome => outcome,
        },
        None => Outcome::Answer(Answer::Later),
    }
}

async fn once(
    served: &Rc<Served>,
    send: MultiplexedConnection,
    part: &Part,
    asking: bool,
) -> Outcome {
    match part.is_write() {
        true => write(served, send, part, asking).await,
        false => read(served, send, part, asking).await,
    }
}

async fn read(
    served: &Rc<Served>,
    mut send: MultiplexedConnection,
    part: &Part,
    asking: bool,
) -> Outcome {
    let place = Place::of(part);
    let command = served.keys.read(place, asking);
    let replies = send
        .send_packed_commands(&command, 0, 1 + usize::from(asking))
        .await;
    let reply = match replies {
        Ok(mut replies) => replies.pop(),
        Err(error) => return Outcome::Answer(command::meaning(&error)),
    };
    let bytes = match reply {
        Some(Value::BulkString(bytes)) => bytes,
        Some(Value::Nil) => Vec::new(),
        Some(Value::ServerError(error)) => {
            return Outcome::Answer(command::meaning(&error.into()));
        }
        _ => return Outcome::Answer(Answer::Unknown("a reply is not of the protocol".to_owned())),
    };
    let memory = part.memory();
    if bytes.len() > memory.len() {
        return Outcome::Answer(Answer::Unknown("a reply is too long".to_owned()));
    }
    let (there, lost) = served.chunks.written(place.chunk);
    let whole = bytes.len() as u64 / foreswap_store::area::PAGE_BYTES;
    let came = match whole {
        0 => 0,
        pages => Place {
            bytes: pages * foreswap_store::area::PAGE_BYTES,
            ..place
        }
        .mask(),
    };
    if place.mask() & (lost | there & !came) != 0 {
        return Outcome::Missing;
    }
    memory[..bytes.len()].copy_from_slice(&bytes);
    // Nobody has written there.
    memory[bytes.len()..].fill(0);
    Outcome::Answer(Answer::Done)
}

async fn write(
    served: &Rc<Served>,
    mut send: MultiplexedConnection,
    part: &Part,
    asking: bool,
) -> Outcome {
    let _writing = served.begin_write();
    let place = Place::of(part);
    let had = served.chunks.on_write(place);
    let wait = served.replicas();
    let command = served.keys.write(place, part.memory(), wait, asking);
    let count = command.len();
    let replies = match send.send_packed_commands(&command, 0, count).await {
        Ok(replies) => command::written(replies, asking),
        Err(error) => return Outcome::Answer(command::meaning(&error)),
    };
    match command::answer(replies.get(1)) {
        Answer::Done => {}
        other => return Outcome::Answer(other),
    }
    if replies.first() == Some(&Value::Int(0))
        && served.chunks.on_missing(place.chunk, had)
        && served.area.losses() == 0
    {
        served.area.on_lost();
    }
    if let Some((least, _)) = wait {
        match replies.get(3) {
            Some(Value::Int(count)) if *count >= i64::from(least) => {}
            _ => return Outcome::Short,
        }
    }
    served.chunks.on_written(place);
    Outcome::Answer(Answer::Done)
}
