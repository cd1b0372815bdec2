//! What goes to a server, and what its replies mean.

use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use super::chunks::Place;

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
    /// Seconds.
    pub expire: u64,
}

impl Keys {
    /// Of the run with this number.
    pub fn new(run: u128, expire: u64) -> Self {
        Self {
            prefix: format!("foreswap:{run:032x}:"),
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

    /// A read. `asking`: after ASK.
    pub fn read(&self, place: Place, asking: bool) -> Pipeline {
        let mut all = Pipeline::new();
        if asking {
            all.cmd("ASKING");
        }
        let last = place.from + place.bytes - 1;
        let key = self.chunk(place.chunk);
        all.cmd("GETRANGE").arg(key).arg(place.from).arg(last);
        all
    }

    /// A write: the first reply tells whether the chunk was there. `replicas`: how many must have it within so many
    /// milliseconds.
    pub fn write(
        &self,
        place: Place,
        bytes: &[u8],
        replicas: Option<(u32, u64)>,
        asking: bool,
    ) -> Pipeline {
        let key = self.chunk(place.chunk);
        let commands = [
            expire(&key, self.expire),
            {
                let mut set = redis::cmd("SETRANGE");
                set.arg(&key).arg(place.from).arg(bytes);
                set
            },
            expire(&key, self.expire),
        ];
        let mut all = Pipeline::new();
        for command in commands {
            if asking {
                all.cmd("ASKING");
            }
            all.add_command(command);
        }
        if let Some((count, ms)) = replicas {
            all.cmd("WAIT").arg(count).arg(ms);
        }
        all
    }
}

/// Sets when a key expires. The reply: whether it is there.
pub fn expire(key: &str, seconds: u64) -> Cmd {
    let mut command = redis::cmd("EXPIRE");
    command.arg(key).arg(seconds);
    command
}

/// The replies of a write, without those to ASKING.
pub fn written(mut replies: Vec<Value>, asking: bool) -> Vec<Value> {
    if asking {
        let mut at = 0;
        replies.retain(|_| {
            at += 1;
            at > 6 || at % 2 == 0
        });
    }
    replies
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
}
