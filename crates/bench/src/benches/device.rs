//! Rows of the area's device alone, measured turn by turn beside the peers: 2 MiB transfers with direct I/O, several at
//! once, from or to a file on the same file system. No stream can be faster.
//!
//! Reads go to as much memory as the peers have, in turn, as a stream's do. The row with one buffer shows the effect of
//! the processor's cache.
//!
//! Writes go to a file that is allocated and was written before, like a swap file. No two sectors of them are equal.
//! First writes go to a new sparse file, like the area that foreswap makes if none is named: the file system, and the
//! layers below it, must allocate each place. The row that reads and writes at once is for streams of writes over more
//! than memory, which do both: each page is read before it is written.

use std::path::Path;

use crate::disk::{DEPTHS, Disk, Rates, TRANSFER, Transfers};
use crate::peer::Figures;
use crate::report::{PeerReport, Report};
use crate::size::humane;

/// The measurements of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// Reads.
    Reads,
    /// Writes, and both at once.
    Writes,
}

/// A device and its measurements so far.
pub struct Device {
    disk: Disk,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    transfers: Transfers,
    depth: usize,
    turns: Vec<Figures>,
}

impl Device {
    /// Makes the file, of `bytes`; pages are moved to and from `memory` bytes.
    pub fn make(
        directory: &Path,
        bytes: u64,
        memory: u64,
        measured: Measured,
    ) -> anyhow::Result<Self> {
        let disk = Disk::make(directory, bytes, memory)?;
        let row = |transfers, depth: usize| Row {
            name: row_name(transfers, depth),
            transfers,
            depth,
            turns: Vec::new(),
        };
        let rows = match measured {
            Measured::Reads => {
                let reads = DEPTHS.map(|depth| row(Transfers::Reads, depth));
                let to_cache = row(Transfers::ReadsToCache, DEPTHS[0]);
                reads.into_iter().chain([to_cache]).collect()
            }
            Measured::Writes => {
                let writes = DEPTHS.map(|depth| row(Transfers::Writes, depth));
                let first = DEPTHS.map(|depth| row(Transfers::FirstWrites, depth));
                let both = row(Transfers::Both, DEPTHS[DEPTHS.len() - 1]);
                writes.into_iter().chain(first).chain([both]).collect()
            }
        };
        Ok(Self { disk, rows })
    }

    /// One turn of all rows.
    pub fn turn(&mut self) -> anyhow::Result<()> {
        for row in &mut self.rows {
            let rates = self.disk.stream(row.depth, row.transfers)?;
            row.turns.push(figures_of(rates));
        }
        Ok(())
    }

    /// Puts the rows below the peers, after all comparisons with the first peer: they are not compared.
    pub fn show(self, report: &mut Report) {
        let rows = self.rows.into_iter();
        let rows = rows.map(|row| PeerReport::new(row.name, row.turns, Vec::new()));
        report.peers.extend(rows);
    }
}

/// The fastest of the rows in `report` of one kind: the largest median, in bytes per second.
pub fn fastest(report: &Report, transfers: Transfers) -> Option<f64> {
    let names = DEPTHS.map(|depth| row_name(transfers, depth));
    let rows = names.iter().filter_map(|name| report.peer(name));
    let rates = rows.filter_map(|row| row.median("bytes_per_s"));
    rates.reduce(f64::max)
}

fn row_name(transfers: Transfers, depth: usize) -> String {
    let size = humane(TRANSFER as u64);
    match transfers {
        Transfers::Reads => format!("device, {depth} x {size}"),
        Transfers::ReadsToCache => format!("device, {depth} x {size}, one buffer"),
        Transfers::Writes => format!("device, {depth} x {size} writes"),
        Transfers::FirstWrites => format!("device, {depth} x {size} first writes"),
        Transfers::Both => format!("device, {depth} x {size}, half writes"),
    }
}

fn figures_of(rates: Rates) -> Figures {
    let (read, written) = (rates.read_bytes_per_s, rates.written_bytes_per_s);
    let mut figures = Figures::from([("bytes_per_s".to_owned(), read + written)]);
    for (figure, rate) in [
        ("pass_in_bytes_per_s", read),
        ("pass_out_bytes_per_s", written),
    ] {
        if rate > 0.0 {
            figures.insert(figure.to_owned(), rate);
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Machine;
    use serde_json::Value;

    #[test]
    fn the_fastest_row_is_by_its_median_and_of_its_kind() {
        let machine = Machine::here(Path::new("/"));
        let mut report = Report::new("seq-read", String::new(), machine, Value::Null);
        assert_eq!(fastest(&report, Transfers::Reads), None);
        for (transfers, depth, rates) in [
            (Transfers::Reads, 1, [1.0, 2.0, 90.0]),
            (Transfers::Reads, 8, [4.0, 5.0, 3.0]),
            (Transfers::ReadsToCache, 1, [6.0, 6.0, 6.0]),
            (Transfers::Writes, 4, [7.0, 7.0, 7.0]),
            (Transfers::FirstWrites, 1, [3.0, 3.0, 3.0]),
            (Transfers::Both, 8, [50.0, 50.0, 50.0]),
        ] {
            let name = row_name(transfers, depth);
            let turns = rates.map(|rate| [("bytes_per_s", rate)]);
            report.peers.push(PeerReport::of(name, turns));
        }
        assert_eq!(fastest(&report, Transfers::Reads), Some(4.0));
        assert_eq!(fastest(&report, Transfers::Writes), Some(7.0));
        assert_eq!(fastest(&report, Transfers::FirstWrites), Some(3.0));
    }
}
