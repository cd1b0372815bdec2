//! A trace of any format, as one stream of records.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, ValueEnum};
use flate2::bufread::MultiGzDecoder;

use super::MAGIC;
use super::csv::CsvReader;
use super::error::TraceError;
use super::oracle::OracleReader;
use super::reader::{Ending, TraceReader};
use super::record::{Header, Record};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BUFFER: usize = 256 << 10;

/// How a file tells its trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Foreswap's own
    Foreswap,
    /// Lines of text; the first one names the columns
    Csv,
    /// libCacheSim's oracleGeneral: 24 bytes per access
    Oracle,
}

/// The meaning of the ids of an oracleGeneral trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Ids {
    /// Names: each object gets pages of its own, in the order in which objects first appear
    #[default]
    Objects,
    /// Page numbers: neighbours are neighbours
    Pages,
}

/// How to read a trace that does not say it itself.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct SourceOptions {
    /// The format of the file [default: according to its first bytes or its name]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<Format>,

    /// The meaning of the ids of an oracleGeneral trace
    #[arg(long, value_enum, value_name = "IDS", default_value_t)]
    pub ids: Ids,
}

type Input = Box<dyn BufRead + Send>;

enum Kind {
    Foreswap(Box<TraceReader<Input>>),
    Csv(Box<CsvReader<Input>>),
    Oracle(Box<OracleReader<Input>>),
}

/// An open trace.
pub struct Source {
    kind: Kind,
    position: Arc<AtomicU64>,
    bytes: u64,
}

/// A file that counts the bytes read.
struct Counted {
    file: File,
    position: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let got = self.file.read(buffer)?;
        self.position.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// The stream without gzip or zstd.
fn unpacked(mut input: Input) -> Result<Input, TraceError> {
    let start = input.fill_buf()?;
    if start.starts_with(&GZIP) {
        return Ok(Box::new(BufReader::with_capacity(
            BUFFER,
            MultiGzDecoder::new(input),
        )));
    }
    if start.starts_with(&ZSTD) {
        let decoder = zstd::stream::read::Decoder::with_buffer(input)?;
        return Ok(Box::new(BufReader::with_capacity(BUFFER, decoder)));
    }
    Ok(input)
}

fn by_name(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    let stem = [".zst", ".gz"]
        .iter()
        .find_map(|end| name.strip_suffix(end));
    let stem = stem.unwrap_or(&name);
    if stem.ends_with(".csv") {
        Some(Format::Csv)
    } else if stem.contains("oraclegeneral") {
        Some(Format::Oracle)
    } else {
        None
    }
}

impl Source {
    /// Opens a file, which may be compressed as a whole (gzip, zstd).
    ///
    /// # Errors
    ///
    /// It cannot be read, its format is unknown, or its start is invalid.
    pub fn open(path: &Path, options: &SourceOptions) -> Result<Self, TraceError> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let position = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            file,
            position: position.clone(),
        };
        let buffered: Input = Box::new(BufReader::with_capacity(BUFFER, counted));
        let mut input = unpacked(buffered)?;
        let ours = input.fill_buf()?.starts_with(&MAGIC);
        let format = options
            .format
            .or(ours.then_some(Format::Foreswap))
            .or_else(|| by_name(path));
        let kind = match format {
            Some(Format::Foreswap) => Kind::Foreswap(Box::new(TraceReader::new(input)?)),
            Some(Format::Csv) => Kind::Csv(Box::new(CsvReader::new(input)?)),
            Some(Format::Oracle) => Kind::Oracle(Box::new(OracleReader::new(input, options.ids))),
            None => {
                return Err(TraceError::Format(
                    "neither its first bytes nor its name tell what kind of trace it is; expected \
                     one by `foreswap run --trace`, NAME.csv or NAME.oracleGeneral, or say which \
                     by --format csv or --format oracle"
                        .into(),
                ));
            }
        };
        Ok(Source {
            kind,
            position,
            bytes,
        })
    }

    /// Its header.
    pub fn header(&self) -> Header {
        match &self.kind {
            Kind::Foreswap(reader) => reader.header(),
            Kind::Csv(_) | Kind::Oracle(_) => Header::default(),
        }
    }

    /// The next record; `None` after the last.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is damaged. There is nothing to be read after an error.
    #[expect(clippy::should_implement_trait, reason = "an error ends it")]
    pub fn next(&mut self) -> Result<Option<Record>, TraceError> {
        match &mut self.kind {
            Kind::Foreswap(reader) => reader.next(),
            Kind::Csv(reader) => reader.next(),
            Kind::Oracle(reader) => reader.next(),
        }
    }

    /// It ended without its end mark.
    pub fn was_cut_off(&self) -> bool {
        match &self.kind {
            Kind::Foreswap(reader) => reader.ending() == Some(Ending::CutOff),
            Kind::Csv(_) | Kind::Oracle(_) => false,
        }
    }

    /// Bytes of the file read so far, and in all.
    pub fn progress(&self) -> (u64, u64) {
        (self.position.load(Ordering::Relaxed), self.bytes)
    }
}
