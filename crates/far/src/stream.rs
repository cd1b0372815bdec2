//! A connection to a server, whichever its protocol: bytes go between it and the memory of transfers without a copy in
//! between.

use std::io::{self, IoSlice};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};

use crate::address::Place;

/// The buffer of replies. A larger reply goes to its memory directly.
const BUFFER: usize = 16 << 10;

/// A connection to a server.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Connects, without TLS. What is sent leaves at once: a request is complete then.
pub async fn reach(place: &Place) -> io::Result<Box<dyn Stream>> {
    Ok(match place {
        Place::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Place::Unix(path) => Box::new(UnixStream::connect(path).await?),
    })
}

/// Sends all of `slices`.
pub async fn write_all<'a, S: Stream>(
    to: &mut WriteHalf<S>,
    slices: impl Iterator<Item = IoSlice<'a>>,
) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'a>> = slices.filter(|slice| !slice.is_empty()).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let written = to.write_vectored(left).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut left, written);
    }
    to.flush().await
}

/// Bytes that come, and those that have come and were not used.
pub struct Incoming<S> {
    from: ReadHalf<S>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<S: Stream> Incoming<S> {
    /// Of a connection.
    pub fn new(from: ReadHalf<S>) -> Self {
        Self {
            from,
            buffer: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
        }
    }

    /// Reads as many bytes as `to` has.
    pub async fn fill(&mut self, to: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < to.len() {
            if self.start == self.end {
                let rest = &mut to[filled..];
                if rest.len() >= self.buffer.len() {
                    return self.from.read_exact(rest).await.map(|_| ());
                }
                self.more().await?;
            }
            let count = (self.end - self.start).min(to.len() - filled);
            to[filled..filled + count]
                .copy_from_slice(&self.buffer[self.start..self.start + count]);
            self.start += count;
            filled += count;
        }
        Ok(())
    }

    async fn more(&mut self) -> io::Result<()> {
        (self.start, self.end) = (0, self.from.read(&mut self.buffer).await?);
        match self.end {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Reads a line of at most `most` bytes. It has its end.
    pub async fn line(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            if self.start == self.end {
                self.more().await?;
            }
            let there = &self.buffer[self.start..self.end];
            let end = there.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(there.len(), |at| at + 1);
            line.extend_from_slice(&there[..count]);
            self.start += count;
            match end {
                _ if line.len() > most => {
                    let text = "a line is too long";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                Some(_) => return Ok(line),
                None => {}
            }
        }
    }
}
