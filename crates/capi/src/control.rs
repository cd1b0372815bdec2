//! The figures and the limit: by the supervisor's control socket, as `foreswap ps` and `foreswap set` do.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::Error;
use crate::open::{Mode, mode};
use crate::start::CONTROL;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answer to one request, and its text.
fn ask(request: &Value) -> Result<(Value, String), Error> {
    match mode() {
        None => return Err(Error::NotOpen),
        Some(Mode::Run) => return Err(Error::UnderRun),
        Some(Mode::Own) => {}
    }
    let path = CONTROL.get();
    if path.is_empty() {
        return Err(Error::Silent("it has no control socket".to_owned()));
    }
    let silent = |error: std::io::Error| Error::Silent(format!("{path}: {error}"));
    let mut socket = UnixStream::connect(&path).map_err(silent)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(silent)?;
    let line = format!("{request}\n");
    socket.write_all(line.as_bytes()).map_err(silent)?;
    let mut answer = String::new();
    BufReader::new(socket)
        .read_line(&mut answer)
        .map_err(silent)?;
    let value: Value =
        serde_json::from_str(&answer).map_err(|error| Error::Silent(format!("{path}: {error}")))?;
    if value["is"] == "error" {
        let text = value["text"].as_str().unwrap_or_default();
        return Err(Error::Refused(text.to_owned()));
    }
    Ok((value, answer))
}

/// Changes the limit.
pub fn set_memory(memory: &str) -> Result<(), Error> {
    ask(&json!({"do": "set", "memory": memory})).map(drop)
}

/// The figures of this process and of those that share its limit, as JSON.
pub fn figures() -> Result<String, Error> {
    let (_, text) = ask(&json!({"do": "ps"}))?;
    Ok(text.trim_end().to_owned())
}
