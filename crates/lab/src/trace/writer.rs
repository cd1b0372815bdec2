//! Writes a trace while it is recorded, in self-contained blocks.
//!
//! A block is written with one write when it is full or on request. The written part is always a valid trace,
//! whatever happens to the writer.

use std::io::{self, Write};

use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use super::encoding::{Context, LONGEST};
use super::record::{Header, Order, Record};
use super::{BLOCK, BLOCK_BYTES, END, HEADER_BYTES, MAGIC, PAGE_BYTES, VERSION, check};

/// The most bytes of records in a block before compression.
pub(super) const BLOCK_MOST: usize = 256 << 10;
/// A fast level: traces are written while the traced program runs.
const LEVEL: i32 = 3;

/// Writes a trace to `W`.
pub struct TraceWriter<W: Write> {
    out: W,
    compressor: Compressor<'static>,
    context: Context,
    order: Order,
    raw: Vec<u8>,
    block: Vec<u8>,
    /// Records in the block, and in all before.
    records: u32,
    total: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace. `out` needs no buffer of its own.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn new(mut out: W, header: Header) -> io::Result<Self> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&PAGE_BYTES.to_le_bytes());
        bytes.extend_from_slice(&header.limit.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&check(&bytes).to_le_bytes());
        out.write_all(&bytes)?;
        let mut compressor = Compressor::new(LEVEL)?;
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        Ok(TraceWriter {
            out,
            compressor,
            context: Context::default(),
            order: Order::default(),
            raw: Vec::with_capacity(BLOCK_MOST),
            block: Vec::new(),
            records: 0,
            total: 0,
        })
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// `out` cannot be written; [`io::ErrorKind::InvalidInput`] if the record is invalid: its task has not started or
    /// its pages are in no address space.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        if let Some(problem) = self.order.problem(record) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        self.context.encode(record, &mut self.raw);
        self.records += 1;
        if self.raw.len() + LONGEST > BLOCK_MOST {
            self.flush()?;
        }
        Ok(())
    }

    /// Records added so far.
    pub fn records(&self) -> u64 {
        self.total + u64::from(self.records)
    }

    /// Writes the buffered records as a block.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        self.block.clear();
        self.block.resize(BLOCK_BYTES, 0);
        let compressed = self.compressor.compress(&self.raw)?;
        self.block.extend_from_slice(&compressed);
        let words = [compressed.len() as u32, self.raw.len() as u32, self.records];
        self.block[..4].copy_from_slice(&BLOCK);
        for (n, word) in words.into_iter().enumerate() {
            self.block[4 + 4 * n..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let check = check(&self.block[..BLOCK_BYTES - 4]);
        self.block[BLOCK_BYTES - 4..BLOCK_BYTES].copy_from_slice(&check.to_le_bytes());
        self.out.write_all(&self.block)?;
        self.total += u64::from(self.records);
        self.records = 0;
        self.raw.clear();
        self.context = Context::default();
        Ok(())
    }

    /// Ends the trace: a reader then knows that it is complete. Returns `out`.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        bytes.extend_from_slice(&END);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.total.to_le_bytes());
        bytes.extend_from_slice(&check(&bytes).to_le_bytes());
        self.out.write_all(&bytes)?;
        self.out.flush()?;
        Ok(self.out)
    }
}
