//! From a connection to an export that can be used.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Stream, flag};
use crate::address::Nbd;
use crate::stream::reach;
use crate::tls::Identity;

const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const ANSWER_MAGIC: u64 = 0x0003_e889_0455_65a9;
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPTION_STARTTLS: u32 = 5;
const OPTION_GO: u32 = 7;

const ANSWER_ACK: u32 = 1;
const ANSWER_INFO: u32 = 3;
const ERROR: u32 = 1 << 31;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// The longest data of an answer.
const MOST_DATA: u32 = 64 << 10;
/// Our unit of transfers.
const PAGE: u32 = 4096;
/// The longest request.
const PART: u32 = crate::transfer::PART;

/// An export, as the server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its size.
    pub bytes: u64,
    flags: u16,
}

impl Export {
    /// Several connections see the same bytes.
    pub fn allows_many(&self) -> bool {
        self.flags & flag::CAN_MULTI_CONN != 0
    }

    /// The command that discards a range, if the server has one.
    pub fn discards_by(&self) -> Option<u16> {
        if self.flags & flag::SEND_TRIM != 0 {
            Some(super::command::TRIM)
        } else if self.flags & flag::SEND_WRITE_ZEROES != 0 {
            Some(super::command::WRITE_ZEROES)
        } else {
            None
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The server cannot be reached, or has hung up.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It speaks, but will not serve us; another attempt is in vain.
    #[error("{0}")]
    Refused(String),
    /// No answer.
    #[error("no answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

fn refused<T>(why: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Refused(why.into()))
}

/// Connects to a server and chooses the export, within `patience`.
///
/// # Errors
/// See [`Problem`].
pub async fn connect(
    address: &Nbd,
    identity: Option<&Identity>,
    patience: Duration,
) -> Result<(Box<dyn Stream>, Export), Problem> {
    let connected = tokio::time::timeout(patience, try_connect(address, identity));
    connected.await.unwrap_or(Err(Problem::TimedOut(patience)))
}

async fn try_connect(
    address: &Nbd,
    identity: Option<&Identity>,
) -> Result<(Box<dyn Stream>, Export), Problem> {
    negotiate(reach(&address.place).await?, address, identity).await
}

async fn negotiate(
    mut stream: Box<dyn Stream>,
    address: &Nbd,
    identity: Option<&Identity>,
) -> Result<(Box<dyn Stream>, Export), Problem> {
    greet(&mut stream).await?;
    let Some(identity) = identity else {
        let export = choose(&mut stream, &address.export).await?;
        return Ok((stream, export));
    };
    ask(&mut stream, OPTION_STARTTLS, &[]).await?;
    match answer(&mut stream, OPTION_STARTTLS).await? {
        (ANSWER_ACK, _) => {}
        (kind, text) if kind & ERROR != 0 => {
            return refused(format!(
                "the server offers no TLS{}; nbd:// goes without",
                said(&text)
            ));
        }
        (kind, _) => return refused(format!("it answers STARTTLS with {kind}")),
    }
    let encrypted = identity
        .connector
        .connect(identity.server.clone(), stream)
        .await;
    let mut stream = encrypted.or_else(|error| refused(format!("TLS: {error}")))?;
    let export = choose(&mut stream, &address.export).await?;
    Ok((Box::new(stream), export))
}

async fn greet(stream: &mut impl Stream) -> Result<(), Problem> {
    let magic = stream.read_u64().await?;
    let second = stream.read_u64().await?;
    if (magic, second) != (MAGIC, OPTION_MAGIC) {
        return refused("this is no NBD server that negotiates (newstyle)");
    }
    let flags = stream.read_u16().await?;
    if flags & FIXED_NEWSTYLE == 0 {
        return refused(
            "the server does not know the fixed newstyle negotiation, which is of 2011",
        );
    }
    stream
        .write_u32(u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)))
        .await?;
    Ok(())
}

async fn choose(stream: &mut impl Stream, name: &str) -> Result<Export, Problem> {
    let mut data = Vec::with_capacity(name.len() + 8);
    data.extend_from_slice(&(name.len() as u32).to_be_bytes());
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
    ask(stream, OPTION_GO, &data).await?;
    let mut export = None;
    loop {
        match answer(stream, OPTION_GO).await? {
            (ANSWER_ACK, _) => break,
            (ANSWER_INFO, data) => look_at(&data, &mut export)?,
            (kind, text) if kind & ERROR != 0 => return refused(meaning(kind, name, &text)),
            // Answers that we did not ask for.
            _ => {}
        }
    }
    match export {
        Some(export) if export.flags & flag::READ_ONLY != 0 => refused("the export is read-only"),
        Some(export) => Ok(export),
        None => refused("the server does not say how large the export is"),
    }
}

fn look_at(data: &[u8], export: &mut Option<Export>) -> Result<(), Problem> {
    let Some((kind, rest)) = data.split_first_chunk::<2>() else {
        return refused("an answer of the server is too short");
    };
    match (u16::from_be_bytes(*kind), rest) {
        (INFO_EXPORT, rest) if rest.len() == 10 => {
            let (bytes, flags) = rest.split_at(8);
            *export = Some(Export {
                bytes: u64::from_be_bytes(bytes.try_into().unwrap_or_default()),
                flags: u16::from_be_bytes(flags.try_into().unwrap_or_default()),
            });
        }
        (INFO_BLOCK_SIZE, rest) if rest.len() == 12 => {
            let sizes = rest.as_chunks::<4>().0;
            let (least, most) = (u32::from_be_bytes(sizes[0]), u32::from_be_bytes(sizes[2]));
            if least > PAGE {
                return refused(format!(
                    "the server reads and writes at least {least} bytes at once; foreswap needs pages of {PAGE}"
                ));
            }
            if most < PART {
                return refused(format!(
                    "the server reads and writes at most {most} bytes at once; foreswap needs {PART}"
                ));
            }
        }
        _ => {}
    }
    Ok(())
}

async fn ask(stream: &mut impl Stream, option: u32, data: &[u8]) -> Result<(), Problem> {
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    Ok(())
}

async fn answer(stream: &mut impl Stream, option: u32) -> Result<(u32, Vec<u8>), Problem> {
    let magic = stream.read_u64().await?;
    let to = stream.read_u32().await?;
    let kind = stream.read_u32().await?;
    let bytes = stream.read_u32().await?;
    if magic != ANSWER_MAGIC || to != option || bytes > MOST_DATA {
        return refused("the server's answer is not of the NBD protocol");
    }
    let mut data = vec![0; bytes as usize];
    stream.read_exact(&mut data).await?;
    Ok((kind, data))
}

fn said(text: &[u8]) -> String {
    match String::from_utf8_lossy(text).trim() {
        "" => String::new(),
        text => format!(" ({})", text.escape_debug()),
    }
}

fn meaning(kind: u32, name: &str, text: &[u8]) -> String {
    let text = said(text);
    match kind & !ERROR {
        1 => format!("the server is too old: it does not know NBD_OPT_GO{text}"),
        2 => format!("the server does not allow it{text}"),
        5 => format!("the server wants TLS; write nbds://{text}"),
        6 if name.is_empty() => format!("the server has no default export; name one{text}"),
        6 => format!("the server has no export {name:?}{text}"),
        7 => format!("the server is shutting down{text}"),
        8 => format!("the server wants to agree on block sizes that foreswap cannot use{text}"),
        kind => format!("the server refuses the export with error {kind}{text}"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(future)
    }

    /// What a server says after the choice of the export.
    async fn serve(mut to: DuplexStream, answers: Vec<(u32, Vec<u8>)>) {
        let mut hello = Vec::new();
        hello.extend_from_slice(b"NBDMAGICIHAVEOPT");
        hello.extend_from_slice(&3u16.to_be_bytes());
        to.write_all(&hello).await.expect("written");
        assert_eq!(to.read_u32().await.expect("flags"), 3);
        assert_eq!(to.read_u64().await.expect("an option"), OPTION_MAGIC);
        let option = to.read_u32().await.expect("an option");
        let bytes = to.read_u32().await.expect("a length");
        let mut data = vec![0; bytes as usize];
        to.read_exact(&mut data).await.expect("data");
        for (kind, data) in answers {
            let mut bytes = ANSWER_MAGIC.to_be_bytes().to_vec();
            for word in [option, kind, data.len() as u32] {
                bytes.extend_from_slice(&word.to_be_bytes());
            }
            bytes.extend_from_slice(&data);
            to.write_all(&bytes).await.expect("written");
        }
    }

    fn chosen(answers: Vec<(u32, Vec<u8>)>) -> Result<Export, String> {
        run(async {
            let (mut ours, its) = duplex(1 << 16);
            let client = async {
                greet(&mut ours).await?;
                choose(&mut ours, "swap").await
            };
            let (export, ()) = tokio::join!(client, serve(its, answers));
            export.map_err(|problem| problem.to_string())
        })
    }

    fn export(flags: u16) -> (u32, Vec<u8>) {
        let mut data = vec![0, 0];
        data.extend_from_slice(&(1u64 << 30).to_be_bytes());
        data.extend_from_slice(&flags.to_be_bytes());
        (ANSWER_INFO, data)
    }

    fn blocks(least: u32, most: u32) -> (u32, Vec<u8>) {
        let mut data = vec![0, 3];
        for size in [least, 4096, most] {
            data.extend_from_slice(&size.to_be_bytes());
        }
        (ANSWER_INFO, data)
    }

    #[test]
    fn an_export_is_chosen() {
        let ack = || (ANSWER_ACK, Vec::new());
        let found = chosen(vec![blocks(1, 32 << 20), export(0x101), ack()]).expect("an export");
        assert_eq!((found.bytes, found.allows_many()), (1 << 30, true));
        let found =
            chosen(vec![export(1), (ANSWER_INFO, vec![0, 77, 1]), ack()]).expect("an export");
        assert_eq!((found.allows_many(), found.discards_by()), (false, None));
        for (flags, command) in [(1 << 5, 4), (1 << 6, 6), (3 << 5, 4)] {
            let found = chosen(vec![export(flags), ack()]).expect("an export");
            assert_eq!(found.discards_by(), Some(command));
        }
    }

    #[test]
    fn one_that_is_of_no_use_is_refused_with_the_reason() {
        let ack = || (ANSWER_ACK, Vec::new());
        for (answers, why) in [
            (vec![export(1 << 1), ack()], "read-only"),
            (
                vec![blocks(65536, 1 << 25), export(0), ack()],
                "at least 65536",
            ),
            (vec![blocks(512, 4096), export(0), ack()], "at most 4096"),
            (vec![ack()], "how large"),
            (
                vec![(ERROR | 6, b"no such thing".to_vec())],
                "no export \"swap\" (no such thing)",
            ),
            (vec![(ERROR | 5, Vec::new())], "nbds://"),
            (
                vec![(ERROR | 99, b"\x1b[31m".to_vec())],
                "error 99 (\\u{1b}[31m)",
            ),
            (vec![(ANSWER_INFO, vec![0])], "too short"),
        ] {
            let error = chosen(answers).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_no_such_server_is_refused() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53rest",
        ] {
            let refused = run(async {
                let (mut ours, mut its) = duplex(1 << 10);
                its.write_all(bytes).await.expect("written");
                greet(&mut ours).await
            });
            assert!(matches!(refused, Err(Problem::Refused(_))), "{refused:?}");
        }
        let cut = run(async {
            let (mut ours, its) = duplex(1 << 10);
            drop(its);
            greet(&mut ours).await
        });
        assert!(matches!(cut, Err(Problem::Io(_))));
    }
}
