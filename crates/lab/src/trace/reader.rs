//! Reads a trace block by block. Input is not trusted.
//!
//! Memory is bounded by the largest block that the format permits, whatever the file contains.

use std::io::{ErrorKind, Read};

use zstd::bulk::Decompressor;

use super::encoding::Context;
use super::error::TraceError;
use super::record::{Header, Order, Record};
use super::writer::BLOCK_MOST;
use super::{BLOCK, BLOCK_BYTES, END, HEADER_BYTES, MAGIC, PAGE_BYTES, VERSION, check};

/// How a trace ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// With its end mark: complete.
    Complete,
    /// Without: the writer was killed, or the file was cut. The part read so far is valid.
    CutOff,
}

/// Reads a trace from `R`.
pub struct TraceReader<R: Read> {
    input: R,
    decompressor: Decompressor<'static>,
    header: Header,
    order: Order,
    context: Context,
    compressed: Vec<u8>,
    raw: Vec<u8>,
    /// The position in `raw`.
    at: usize,
    /// Records of the block, and the number read so far.
    records: u32,
    read: u32,
    total: u64,
    /// The offset of the current block, and of the next.
    block: u64,
    offset: u64,
    ending: Option<Ending>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Reads as much of `buffer` as there is; returns the length.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize, TraceError> {
    let mut got = 0;
    while got < buffer.len() {
        match input.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(got)
}

impl<R: Read> TraceReader<R> {
    /// Begins to read; `input` should be buffered.
    ///
    /// # Errors
    ///
    /// It cannot be read, or does not begin as a trace of this version.
    pub fn new(mut input: R) -> Result<Self, TraceError> {
        let mut bytes = [0; HEADER_BYTES];
        let got = fill(&mut input, &mut bytes)?;
        if got < MAGIC.len() || bytes[..8] != MAGIC {
            return Err(TraceError::at(0, "no trace of foreswap begins like this"));
        }
        let version = word(&bytes, 8);
        if got == HEADER_BYTES && version != VERSION {
            return Err(TraceError::at(
                8,
                format!("version {version}; this foreswap reads version {VERSION}"),
            ));
        }
        if got < HEADER_BYTES || check(&bytes[..28]) != word(&bytes, 28) {
            return Err(TraceError::at(0, "the header is cut off or damaged"));
        }
        if word(&bytes, 12) != PAGE_BYTES {
            let found = word(&bytes, 12);
            return Err(TraceError::at(
                12,
                format!("pages of {found} bytes; expected {PAGE_BYTES}"),
            ));
        }
        Ok(TraceReader {
            input,
            decompressor: Decompressor::new()?,
            header: Header {
                limit: long(&bytes, 16),
            },
            order: Order::default(),
            context: Context::default(),
            compressed: Vec::new(),
            raw: Vec::new(),
            at: 0,
            records: 0,
            read: 0,
            total: 0,
            block: 0,
            offset: HEADER_BYTES as u64,
            ending: None,
        })
    }

    /// Its header.
    pub fn header(&self) -> Header {
        self.header
    }

    /// How it ended; `None` before the last record was read.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The next record; `None` after the last.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is damaged. There is nothing to be read after an error.
    #[expect(clippy::should_implement_trait, reason = "an error ends it")]
    pub fn next(&mut self) -> Result<Option<Record>, TraceError> {
        while self.read == self.records {
            if self.ending.is_some() || !self.next_block()? {
                return Ok(None);
            }
        }
        let mut rest = &self.raw[self.at..];
        let record = self.context.decode(&mut rest);
        self.at = self.raw.len() - rest.len();
        self.read += 1;
        let record = record.map_err(|problem| self.wrong(problem))?;
        if let Some(problem) = self.order.problem(&record) {
            return Err(self.wrong(problem));
        }
        if self.read == self.records && self.at < self.raw.len() {
            let more = self.raw.len() - self.at;
            return Err(self.wrong(format!("{more} bytes follow; expected it to be the last")));
        }
        Ok(Some(record))
    }

    fn wrong(&mut self, problem: String) -> TraceError {
        (self.records, self.ending) = (self.read, Some(Ending::CutOff));
        TraceError::Record {
            offset: self.block,
            record: self.read,
            problem,
        }
    }

    /// Whether there is a further block.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        let found = self.read_block();
        if found.is_err() {
            self.ending = Some(Ending::CutOff);
        }
        found
    }

    fn read_block(&mut self) -> Result<bool, TraceError> {
        let mut head = [0; BLOCK_BYTES];
        let at = self.offset;
        let got = fill(&mut self.input, &mut head)?;
        self.offset += got as u64;
        if got < BLOCK_BYTES {
            self.ending = Some(Ending::CutOff);
            return Ok(false);
        }
        if check(&head[..BLOCK_BYTES - 4]) != word(&head, BLOCK_BYTES - 4) {
            return Err(TraceError::at(at, "damaged; expected a block"));
        }
        if head[..4] == END {
            let total = long(&head, 8);
            if total != self.total {
                let here = self.total;
                return Err(TraceError::at(
                    at,
                    format!("the trace ends after {here} records; expected {total}"),
                ));
            }
            if fill(&mut self.input, &mut [0])? > 0 {
                let behind = at + BLOCK_BYTES as u64;
                return Err(TraceError::at(
                    behind,
                    "bytes follow; expected the end of the file",
                ));
            }
            self.ending = Some(Ending::Complete);
            return Ok(false);
        }
        let (compressed, raw, records) = (word(&head, 4), word(&head, 8), word(&head, 12));
        // Incompressible data grows a little.
        let most = zstd::zstd_safe::compress_bound(BLOCK_MOST);
        if head[..4] != BLOCK || raw as usize > BLOCK_MOST || compressed as usize > most {
            return Err(TraceError::at(
                at,
                format!(
                    "a block of {raw} bytes, {compressed} compressed; expected up to {BLOCK_MOST}"
                ),
            ));
        }
        if records == 0 || records > raw {
            return Err(TraceError::at(
                at,
                format!("{records} records in {raw} bytes; expected one to one a byte"),
            ));
        }
        self.compressed.resize(compressed as usize, 0);
        let got = fill(&mut self.input, &mut self.compressed)?;
        self.offset += got as u64;
        if got < compressed as usize {
            self.ending = Some(Ending::CutOff);
            return Ok(false);
        }
        self.raw.resize(raw as usize, 0);
        let unpacked = self
            .decompressor
            .decompress_to_buffer(&self.compressed, &mut self.raw[..]);
        match unpacked {
            Ok(n) if n == raw as usize => {}
            Ok(n) => {
                return Err(TraceError::at(
                    at,
                    format!("{n} bytes unpacked; expected {raw}"),
                ));
            }
            Err(why) => return Err(TraceError::at(at, format!("the block is damaged: {why}"))),
        }
        (self.block, self.at, self.read, self.records) = (at, 0, 0, records);
        self.total += u64::from(records);
        self.context = Context::default();
        Ok(true)
    }
}
