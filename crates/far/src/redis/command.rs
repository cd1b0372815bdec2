//! What goes to a server, and what its replies mean.

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use super::chunks::Place;
use super::cluster;

/// What became of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was carried out.
    Done,
    /// The server has no room.
    Full,
    /// Another node has the slot: for good, or for this one command.
    Elsewhere {
        /// Its host; empty: the same as this node's.
        host: String,
        /// Its port.
        port: u16,
        /// ASK.
        for_once: bool,
    },
    /// It was not carried out, and will be later.
    Later,
    /// It was refused for good, for this reason.
    Refused(String),
    /// Nobody knows: the connection is broken.
    Unknown(String),
}

/// What an error means for a command that was sent.
pub fn meaning(error: &RedisError) -> Answer {
    match (error.kind(), error.code()) {
        (_, Some("OOM")) => Answer::Full,
        (_, Some("NOREPLICAS" | "MISCONF")) => Answer::Later,
        (ErrorKind::Server(kind), _) => match kind {
            ServerErrorKind::Moved | ServerErrorKind::Ask => match error.redirect_node() {
                Some((address, _)) => elsewhere(address, kind == ServerErrorKind::Ask),
                None => Answer::Later,
            },
            ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly => Answer::Later,
            _ => Answer::Refused(error.to_string()),
        },
        (ErrorKind::Extension, _) => Answer::Refused(error.to_string()),
        _ => Answer::Unknown(error.to_string()),
    }
}

fn elsewhere(address: &str, for_once: bool) -> Answer {
    let Some((host, port)) = address.rsplit_once(':') else {
        return Answer::Later;
    };
    match port.parse() {
        Ok(port) => Answer::Elsewhere {
            host: host.to_owned(),
            port,
            for_once,
        },
        Err(_) => Answer::Later,
    }
}

/// The keys of an area.
pub struct Keys {
    prefix: String,
    /// Of the prefix; see [`cluster::slot_of`].
    crc: u16,
    /// Seconds.
    pub expire: u64,
}

impl Keys {
    /// Of the run with this number.
    pub fn new(run: u128, expire: u64) -> Self {
        let prefix = format!("foreswap:{run:032x}:");
        Self {
            crc: cluster::crc(0, prefix.as_bytes()),
            prefix,
            expire,
        }
    }

    /// The key of the mark, which is there while the run's chunks are.
    pub fn mark(&self) -> String {
        format!("{}mark", self.prefix)
    }

    /// The key of a chunk. Without braces: its whole text decides about the node.
    pub fn chunk(&self, chunk: u64) -> String {
        format!("{}{chunk:x}", self.prefix)
    }

    /// The slot of a chunk in a cluster.
    pub fn slot(&self, chunk: u64) -> u16 {
        cluster::slot_of(self.crc, format!("{chunk:x}").as_bytes())
    }

    /// A read. `asking`: after ASK.
    pub fn read(&self, place: Place, asking: bool) -> Message {
        let mut message = Message::default();
        let key = self.chunk(place.chunk);
        let [from, last] = [place.from, place.from + place.bytes - 1].map(|at| at.to_string());
        message.ask(asking);
        message.put(&["GETRANGE", &key, &from, &last]);
        message
    }

    /// A write. `replicas`: how many must have it within so many milliseconds. See [`written`] for its replies.
    ///
    /// A whole chunk is set anew: the server takes its bytes as they come, without a copy. Otherwise the first command tells
    /// whether the chunk was there.
    pub fn write(&self, place: Place, replicas: Option<(u32, u64)>, asking: bool) -> Message {
        let mut message = Message::default();
        let (key, seconds) = (self.chunk(place.chunk), self.expire.to_string());
        match place.is_whole() {
            true => {
                message.ask(asking);
                message.put_around(&["SET", &key], place.bytes, &["EX", &seconds]);
            }
            false => {
                message.ask(asking);
                message.put(&["EXPIRE", &key, &seconds]);
                message.ask(asking);
                let from = place.from.to_string();
                message.put_around(&["SETRANGE", &key, &from], place.bytes, &[]);
                message.ask(asking);
                message.put(&["EXPIRE", &key, &seconds]);
            }
        }
        if let Some((count, ms)) = replicas {
            message.put(&["WAIT", &count.to_string(), &ms.to_string()]);
        }
        message
    }
}

/// Commands on their way, of which one may have the bytes of a part in it.
#[derive(Default)]
pub struct Message {
    /// All up to those bytes.
    pub head: Vec<u8>,
    /// All behind them.
    pub tail: Vec<u8>,
    /// There are such bytes.
    pub has_bytes: bool,
    /// How many replies come.
    pub replies: usize,
}

impl Message {
    fn text(&mut self) -> &mut Vec<u8> {
        match self.has_bytes {
            true => &mut self.tail,
            false => &mut self.head,
        }
    }

    fn words(&mut self, words: &[&str]) {
        let text = self.text();
        for word in words {
            text.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
    }

    fn begin(&mut self, words: usize) {
        self.replies += 1;
        self.text().extend(format!("*{words}\r\n").bytes());
    }

    fn ask(&mut self, asking: bool) {
        if asking {
            self.put(&["ASKING"]);
        }
    }

    /// Adds a command.
    pub fn put(&mut self, words: &[&str]) {
        self.begin(words.len());
        self.words(words);
    }

    /// Adds a command with the bytes of the part between words.
    fn put_around(&mut self, before: &[&str], bytes: u64, behind: &[&str]) {
        self.begin(before.len() + 1 + behind.len());
        self.words(before);
        self.text().extend(format!("${bytes}\r\n").bytes());
        self.has_bytes = true;
        self.text().extend(b"\r\n");
        self.words(behind);
    }
}

/// What the replies to a write say.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    /// What became of it.
    pub answer: Answer,
    /// Its chunk was not there before.
    pub was_missing: bool,
    /// How many replicas have it, if that was asked.
    pub replicas: i64,
}

/// Reads the replies to a write. `asking`: after ASK, which has a reply before that of each command but WAIT.
pub fn written(replies: &[Value], is_whole: bool, asking: bool) -> Written {
    let commands = if is_whole { 1 } else { 3 };
    let behind = if asking { 2 * commands } else { commands };
    let of = |command: usize| match asking {
        true => replies.get(2 * command + 1),
        false => replies.get(command),
    };
    Written {
        answer: answer(of(commands / 2)),
        was_missing: !is_whole && of(0) == Some(&Value::Int(0)),
        replicas: match replies.get(behind) {
            Some(Value::Int(count)) => *count,
            _ => 0,
        },
    }
}

/// Sets when a key expires. The reply: whether it is there.
pub fn expire(key: &str, seconds: u64) -> Cmd {
    let mut command = redis::cmd("EXPIRE");
    command.arg(key).arg(seconds);
    command
}

/// What a reply to a command means.
pub fn answer(reply: Option<&Value>) -> Answer {
    match reply {
        Some(Value::ServerError(error)) => meaning(&RedisError::from(error.clone())),
        Some(_) => Answer::Done,
        None => Answer::Unknown("a reply is missing".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Answer {
        let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        answer(Some(&value.expect("a reply")))
    }

    #[test]
    fn errors_of_servers_are_understood() {
        assert_eq!(
            of("OOM command not allowed when used memory > 'maxmemory'"),
            Answer::Full
        );
        let moved = |for_once| Answer::Elsewhere {
            host: "10.0.0.1".to_owned(),
            port: 7000,
            for_once,
        };
        assert_eq!(of("MOVED 5 10.0.0.1:7000"), moved(false));
        assert_eq!(of("ASK 5 10.0.0.1:7000"), moved(true));
        for text in [
            "CLUSTERDOWN x",
            "TRYAGAIN x",
            "LOADING x",
            "READONLY x",
            "MASTERDOWN x",
        ] {
            assert_eq!(of(text), Answer::Later, "{text}");
        }
        for text in ["NOPERM x", "ERR unknown command", "WRONGTYPE x"] {
            assert!(matches!(of(text), Answer::Refused(_)), "{text}");
        }
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(matches!(meaning(&broken.into()), Answer::Unknown(_)));
    }

    #[test]
    fn commands_are_as_the_protocol_wants_them() {
        let keys = Keys::new(5, 60);
        let place = |from, bytes| Place {
            chunk: 0x1f,
            from,
            bytes,
        };
        let key = keys.chunk(0x1f);
        assert_eq!(keys.slot(0x1f), cluster::slot(&key));
        let packed = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            words[1..].iter().for_each(|word| {
                command.arg(*word);
            });
            command.get_packed_command()
        };
        let read = keys.read(place(4096, 8192), true);
        let expected = [
            packed(&["ASKING"]),
            packed(&["GETRANGE", &key, "4096", "12287"]),
        ];
        assert_eq!((read.head, read.replies), (expected.concat(), 2));
        let data = "x".repeat(4096);
        let whole = |message: Message, bytes: &str| {
            [message.head, bytes.as_bytes().to_vec(), message.tail].concat()
        };
        let part = keys.write(place(4096, 4096), Some((1, 9)), false);
        let expire = packed(&["EXPIRE", &key, "60"]);
        let expected = [
            expire.clone(),
            packed(&["SETRANGE", &key, "4096", &data]),
            expire,
            packed(&["WAIT", "1", "9"]),
        ];
        assert_eq!(part.replies, 4);
        assert_eq!(whole(part, &data), expected.concat());
        let data = "y".repeat(super::super::CHUNK as usize);
        let all = keys.write(place(0, super::super::CHUNK), None, true);
        let expected = [
            packed(&["ASKING"]),
            packed(&["SET", &key, &data, "EX", "60"]),
        ];
        assert_eq!(all.replies, 2);
        assert_eq!(whole(all, &data), expected.concat());
    }

    #[test]
    fn replies_to_writes_are_understood() {
        let ok = Value::Okay;
        let read = |replies: &[Value], is_whole, asking| {
            let Written {
                answer,
                was_missing,
                replicas,
            } = written(replies, is_whole, asking);
            (answer, was_missing, replicas)
        };
        let [zero, one, long] = [0, 1, 4096].map(Value::Int);
        let plain = [zero.clone(), long.clone(), one.clone(), one.clone()];
        assert_eq!(read(&plain, false, false), (Answer::Done, true, 1));
        let plain = [one.clone(), long.clone(), one.clone(), Value::Int(2)];
        assert_eq!(read(&plain, false, false), (Answer::Done, false, 2));
        let asked: Vec<Value> = plain[..3]
            .iter()
            .flat_map(|reply| [ok.clone(), reply.clone()])
            .chain([one.clone()])
            .collect();
        assert_eq!(read(&asked, false, true), (Answer::Done, false, 1));
        assert_eq!(
            read(&[ok.clone(), one.clone()], true, false),
            (Answer::Done, false, 1)
        );
        assert_eq!(
            read(&[ok.clone(), ok.clone(), Value::Int(3)], true, true),
            (Answer::Done, false, 3)
        );
        let error = redis::parse_redis_value(b"-OOM x\r\n").expect("a reply");
        assert_eq!(read(&[error], true, false).0, Answer::Full);
        assert!(matches!(read(&[], true, false).0, Answer::Unknown(_)));
    }
}
