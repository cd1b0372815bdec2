//! Requests one after the other, on a connection that is not at work: a look at the mark before it is, and the discard at the end.

use std::io;
use std::ops::Range;

use foreswap_store::area::contents::Page;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{REPLY, Stream, command, reply, request};

/// Bytes of one request.
const STEP: u64 = 1 << 30;

/// Reads the first page.
///
/// # Errors
/// The connection breaks, or the server refuses.
pub async fn read_first_page(stream: &mut Box<dyn Stream>) -> io::Result<Box<Page>> {
    let mut page = Page::zeroed();
    let head = request(command::READ, 0, 0, page.0.len() as u32);
    stream.write_all(&head).await?;
    confirm(stream, 0).await?;
    stream.read_exact(&mut page.0).await?;
    Ok(page)
}

/// Writes it.
///
/// # Errors
/// As [`read_first_page`].
pub async fn write_first_page(stream: &mut Box<dyn Stream>, page: &Page) -> io::Result<()> {
    let head = request(command::WRITE, 0, 0, page.0.len() as u32);
    stream.write_all(&head).await?;
    stream.write_all(&page.0).await?;
    confirm(stream, 0).await
}

/// Discards `used` with `command`, if the server has one, writes `first` to the first page, and hangs up.
///
/// # Errors
/// The connection breaks, or the server refuses.
pub async fn leave(
    mut stream: Box<dyn Stream>,
    command: Option<u16>,
    used: Range<u64>,
    first: &Page,
) -> io::Result<()> {
    let mut cookie = 0;
    if let Some(command) = command {
        let mut at = used.start;
        while at < used.end {
            let bytes = STEP.min(used.end - at);
            cookie += 1;
            let head = request(command, cookie, at, bytes as u32);
            stream.write_all(&head).await?;
            confirm(&mut stream, cookie).await?;
            at += bytes;
        }
    }
    write_first_page(&mut stream, first).await?;
    let head = request(command::DISCONNECT, cookie + 1, 0, 0);
    stream.write_all(&head).await?;
    stream.shutdown().await
}

async fn confirm(stream: &mut Box<dyn Stream>, cookie: u64) -> io::Result<()> {
    stream.flush().await?;
    let mut head = [0; REPLY];
    stream.read_exact(&mut head).await?;
    match reply(&head) {
        Some((0, its)) if its == cookie => Ok(()),
        Some((errno, its)) if its == cookie => {
            Err(io::Error::from_raw_os_error(errno.cast_signed()))
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a reply to no request",
        )),
    }
}
