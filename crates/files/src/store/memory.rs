//! A file that exists only in memory: the fast part of a slow store, and a store for tests.

use std::io;
use std::sync::{PoisonError, RwLock};

use super::{Direction, Done, Span, Store};

/// The bytes.
#[derive(Debug, Default)]
pub struct MemoryStore(RwLock<Vec<u8>>);

impl MemoryStore {
    /// A file with this content.
    pub fn new(content: Vec<u8>) -> Self {
        MemoryStore(RwLock::new(content))
    }

    /// The content now.
    pub fn content(&self) -> Vec<u8> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "longer than memory can be")
}

impl Store for MemoryStore {
    fn start(&self, span: Span, done: Done) {
        done.end(self.carry_out(&span));
    }

    fn carry_out(&self, span: &Span) -> io::Result<u64> {
        let first = usize::try_from(span.offset()).map_err(|_| too_long())?;
        if span.direction() == Direction::Read {
            let content = self.0.read().unwrap_or_else(PoisonError::into_inner);
            return Ok(span.scatter(content.get(first..).unwrap_or_default()));
        }
        let mut content = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let end = first.checked_add(span.bytes()).ok_or_else(too_long)?;
        if content.len() < end {
            content.resize(end, 0);
        }
        span.gather(&mut content[first..end]);
        Ok(span.bytes() as u64)
    }

    fn bytes(&self) -> io::Result<u64> {
        let content = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Ok(content.len() as u64)
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(|_| too_long())?;
        let mut content = self.0.write().unwrap_or_else(PoisonError::into_inner);
        content.resize(bytes, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
