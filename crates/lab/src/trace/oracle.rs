//! libCacheSim's oracleGeneral layout: 24 bytes per access, little-endian and without padding: time in seconds (u32),
//! object id (u64), size in bytes (u32), the next access to the same object (i64, not needed here).
//!
//! An object of several pages is touched from its first to its last. If ids are names, each object gets the pages
//! after those of the object before it; that takes about 20 bytes of memory per object.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{ErrorKind, Read};

use foreswap_core::units::{PageRange, Vpn};

use super::PAGE_BYTES;
use super::error::TraceError;
use super::record::{Event, Found, MAX_PAGES, Record, Start};
use super::source::Ids;
use crate::hash::Spread;

/// Bytes of an access.
const ACCESS: usize = 24;
const SECOND: u64 = 1_000_000_000;

/// Reads accesses from `R`.
pub(super) struct OracleReader<R: Read> {
    input: R,
    ids: Ids,
    /// The first page of each object, and its number of pages.
    objects: HashMap<u64, (u64, u32), Spread>,
    /// The first unused page.
    free: u64,
    offset: u64,
    time: u64,
    /// The untouched rest of the last access.
    pages: PageRange,
    started: bool,
}

impl<R: Read> OracleReader<R> {
    /// Begins to read; `input` should be buffered.
    pub(super) fn new(input: R, ids: Ids) -> Self {
        OracleReader {
            input,
            ids,
            objects: HashMap::default(),
            free: 0,
            offset: 0,
            time: 0,
            pages: Vpn(0)..Vpn(0),
            started: false,
        }
    }

    /// As [`super::Source::next`].
    pub(super) fn next(&mut self) -> Result<Option<Record>, TraceError> {
        if self.pages.is_empty() && !self.read_access()? {
            if self.offset == 0 {
                let expected =
                    "empty; expected accesses of 24 bytes (time u32, id u64, size u32, next i64)";
                return Err(TraceError::at(0, expected));
            }
            return Ok(None);
        }
        let time = self.time;
        let event = if self.started {
            let page = self.pages.start;
            self.pages.start = page.plus(1);
            Event::Touch {
                page,
                found: Found::Unknown,
                write: false,
            }
        } else {
            self.started = true;
            Event::Start(Start {
                space: 0,
                pid: 0,
                tid: 0,
                parent: None,
            })
        };
        Ok(Some(Record {
            time,
            task: 0,
            event,
        }))
    }

    fn read_access(&mut self) -> Result<bool, TraceError> {
        let mut bytes = [0u8; ACCESS];
        let mut got = 0;
        while got < ACCESS {
            match self.input.read(&mut bytes[got..]) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        if got == 0 {
            return Ok(false);
        }
        if got < ACCESS {
            return Err(TraceError::at(
                self.offset,
                format!("the file ends after {got} bytes of an access; expected {ACCESS}"),
            ));
        }
        let (mut time, mut id, mut size) = ([0; 4], [0; 8], [0; 4]);
        time.copy_from_slice(&bytes[..4]);
        id.copy_from_slice(&bytes[4..12]);
        size.copy_from_slice(&bytes[12..16]);
        self.time = u64::from(u32::from_le_bytes(time)) * SECOND;
        let pages = u32::from_le_bytes(size).div_ceil(PAGE_BYTES).max(1);
        let id = u64::from_le_bytes(id);
        let (first, pages) = match self.ids {
            Ids::Pages if id >= MAX_PAGES - u64::from(pages) => {
                return Err(TraceError::at(
                    self.offset + 4,
                    format!(
                        "id {id:#x} is no page number; expected one below {MAX_PAGES:#x}, or leave --ids pages out"
                    ),
                ));
            }
            Ids::Pages => (id, pages),
            Ids::Objects => match self.objects.entry(id) {
                Entry::Occupied(known) => {
                    let &(first, most) = known.get();
                    (first, pages.min(most))
                }
                Entry::Vacant(unknown) => {
                    let first = self.free;
                    if first >= MAX_PAGES - u64::from(pages) {
                        return Err(TraceError::at(
                            self.offset,
                            "the objects fill more than 64 bits of bytes",
                        ));
                    }
                    self.free += u64::from(pages);
                    *unknown.insert((first, pages))
                }
            },
        };
        self.pages = Vpn(first)..Vpn(first + u64::from(pages));
        self.offset += ACCESS as u64;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(time: u32, id: u64, size: u32) -> Vec<u8> {
        let mut bytes = time.to_le_bytes().to_vec();
        bytes.extend(id.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend((-1i64).to_le_bytes());
        bytes
    }

    fn touches(bytes: &[u8], ids: Ids) -> Result<Vec<(u64, u64)>, TraceError> {
        let mut reader = OracleReader::new(bytes, ids);
        let mut found = Vec::new();
        while let Some(record) = reader.next()? {
            if let Event::Touch { page, .. } = record.event {
                found.push((record.time / SECOND, page.0));
            }
        }
        Ok(found)
    }

    #[test]
    fn objects_have_pages_of_their_own() {
        let bytes = [
            access(1, u64::MAX, 5000),
            access(2, 7, 0),
            access(9, u64::MAX, 1),
        ]
        .concat();
        assert_eq!(
            touches(&bytes, Ids::Objects).unwrap(),
            [(1, 0), (1, 1), (2, 2), (9, 0)]
        );
        let error = touches(&bytes, Ids::Pages)
            .expect_err("no page")
            .to_string();
        assert!(
            error.starts_with("offset 4: id 0xffffffffffffffff"),
            "{error}"
        );
        let bytes = [access(0, 100, 8192), access(0, 101, 4096)].concat();
        assert_eq!(
            touches(&bytes, Ids::Pages).unwrap(),
            [(0, 100), (0, 101), (0, 101)]
        );
    }

    #[test]
    fn a_truncated_file_is_named() {
        let mut bytes = [access(1, 2, 3), access(1, 2, 3)].concat();
        bytes.pop();
        let error = touches(&bytes, Ids::Objects).expect_err("cut").to_string();
        assert_eq!(
            error,
            "offset 24: the file ends after 23 bytes of an access; expected 24"
        );
        assert!(touches(&[], Ids::Objects).is_err());
    }
}
