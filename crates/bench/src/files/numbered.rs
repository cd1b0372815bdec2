//! A file without memory: each page has its number, and is made when it is read.
//!
//! A slow store is measured on more bytes than a machine may have memory for, and a copy of 1 GiB would cost the reader
//! time that no real store takes from it.

use std::cell::RefCell;
use std::io;

use foreswap_files::store::{Direction, Done, Span, Store};

use super::{PAGE, number_pages};

thread_local! {
    /// The pages of a transfer, which stay in the processor's cache.
    static PAGES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file. It can only be read.
#[derive(Debug)]
pub(super) struct Numbered {
    bytes: u64,
}

impl Numbered {
    /// A file of so many bytes, a multiple of 4 KiB.
    pub fn new(bytes: u64) -> Self {
        Self { bytes }
    }
}

impl Store for Numbered {
    fn start(&self, span: Span, done: Done) {
        done.end(self.carry_out(&span));
    }

    fn carry_out(&self, span: &Span) -> io::Result<u64> {
        if span.direction() == Direction::Write {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let left = usize::try_from(self.bytes.saturating_sub(span.offset())).unwrap_or(usize::MAX);
        let bytes = span.bytes().min(left);
        PAGES.with_borrow_mut(|pages| {
            pages.resize(pages.len().max(bytes), 0);
            number_pages(&mut pages[..bytes], span.offset() / PAGE as u64);
            Ok(span.scatter(&pages[..bytes]))
        })
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn set_bytes(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
