//! A program that fills its memory and keeps running, for swapoff (seed 003).
//!
//! It reads commands from standard input, one word per line, and answers each with a line of JSON: `count` (how much of
//! the region is in memory) and `check` (compares every word with the fill). It ends with the input.

use std::io::BufRead;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::args::HoldArgs;
use crate::output::put_json;
use crate::usemem::{PAGE, Region, WORDS, Words};

/// An answer. The first comes when the region is filled.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// Bytes of the region.
    pub bytes: u64,
    /// The mapped bytes of the region.
    pub mapped_bytes: u64,
    /// Resident anonymous memory of the whole process, including pages that wait in memory for their next use, mapped
    /// or not.
    pub resident_bytes: u64,
    /// Time that the command took.
    pub took_ns: u64,
}

/// `foreswap workload hold`.
pub fn main(args: &HoldArgs) -> anyhow::Result<ExitCode> {
    let mut region = Region::map(args.bytes).context("no memory for the region")?;
    if args.thp {
        region.ask_for_huge_pages().context("huge pages refused")?;
    }
    let words = Words::new(args.fill, args.seed, 0);
    let start = Instant::now();
    for page in 0..region.pages() {
        let values = words.page(page, 0);
        for (i, word) in region.page_mut(page).iter_mut().enumerate() {
            *word = values.at(i);
        }
    }
    answer(&region, start)?;
    for line in std::io::stdin().lock().lines() {
        let start = Instant::now();
        match line?.trim() {
            "count" => {}
            "check" => check(&region, &words)?,
            other => bail!("{other:?} is nothing that hold can do"),
        }
        answer(&region, start)?;
    }
    // Mapped to the end: see the tasks of usemem.
    std::mem::forget(region);
    Ok(ExitCode::SUCCESS)
}

fn answer(region: &Region, start: Instant) -> anyhow::Result<()> {
    let took_ns = start.elapsed().as_nanos() as u64;
    let answer = Answer {
        bytes: region.pages() * PAGE as u64,
        mapped_bytes: region.mapped_pages().context("mincore")? * PAGE as u64,
        resident_bytes: resident().context("/proc/self/status has no RssAnon")?,
        took_ns,
    };
    put_json(&answer).map(drop)
}

fn check(region: &Region, words: &Words) -> anyhow::Result<()> {
    for page in 0..region.pages() {
        let (found, expected) = (region.page(page), words.page(page, 0));
        if let Some(word) = (0..WORDS).find(|&i| found[i] != expected.at(i)) {
            bail!(
                "wrong data: the word at {:#x} (page {page}, word {word} of it) should be {:#018x}, \
                 found {:#018x}",
                region.address(page, word),
                expected.at(word),
                found[word]
            );
        }
    }
    Ok(())
}

/// Resident anonymous bytes of this process.
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
