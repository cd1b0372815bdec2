//! `foreswap lab convert`: a trace in another format.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;

use super::csv::CsvWriter;
use super::{Source, TraceWriter};

/// The formats that are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Target {
    /// Foreswap's own
    Foreswap,
    /// Lines of text; the first one names the columns
    Csv,
}

/// Writes all of `source` to `path`, as CSV or in foreswap's own format. Returns the number of records.
///
/// # Errors
///
/// `source` is damaged, or `path` cannot be written; no new file is left then.
pub fn convert(
    source: &mut Source,
    from: &Path,
    path: &Path,
    format: Target,
) -> anyhow::Result<u64> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let result = copy(source, from, part, format).and_then(|records| {
        fs::rename(part, path).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(records)
    });
    if result.is_err() {
        let _ = fs::remove_file(part);
    }
    result
}

fn copy(source: &mut Source, from: &Path, part: &Path, format: Target) -> anyhow::Result<u64> {
    let name = || format!("{} cannot be written", part.display());
    let out = BufWriter::new(File::create(part).with_context(name)?);
    let header = source.header();
    let mut records = 0;
    let mut each = |push: &mut dyn FnMut(&super::Record) -> io::Result<()>| -> anyhow::Result<()> {
        while let Some(record) = source.next().with_context(|| from.display().to_string())? {
            push(&record).with_context(name)?;
            records += 1;
        }
        Ok(())
    };
    match format {
        Target::Csv => {
            let mut writer = CsvWriter::new(out).with_context(name)?;
            each(&mut |record| writer.push(record))?;
            writer.finish().with_context(name)?;
        }
        Target::Foreswap => {
            let mut writer = TraceWriter::new(out, header).with_context(name)?;
            each(&mut |record| writer.push(record))?;
            writer.finish().with_context(name)?;
        }
    }
    Ok(records)
}
