//! Rows for mapped files: `foreswap run --map-files` against the kernel's mmap, from the disk and from a slow file system.
//!
//! The slow file system is FUSE (`mapped/mount.rs`), so the kernel maps the same store. The kernel reads 12 MB/s from it
//! whatever it is told; its rows read a part of the bytes, and the rates are compared. A file that is touched twice does
//! not fit in the kernel's memory either: its row has a cgroup, a file and a limit of an eighth each.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Context;

use super::{Bench, OURS, PREFETCH, TWICE_ON, row, slowness};
use crate::mapped::Report;
use crate::mapped::mount::SlowMount;
use crate::peer::{Figures, plain};
use crate::system::cgroup::MemoryCgroup;

/// The kernel reads this part of the slow file, and of the memory where its file does not fit.
const KERNEL_PART: u64 = 16;
const TWICE_PART: u64 = 8;
/// The file beside a hot set, in limits, and the part of the limit that the hot set has.
const BESIDE: u64 = 8;
const HOT_PART: u64 = 2;

/// A program's order.
struct Program {
    name: &'static str,
    words: &'static [&'static str],
}

const fn program(name: &'static str, words: &'static [&'static str]) -> Program {
    Program { name, words }
}

pub(super) const LOADER: &str = "mapped loader's order";
pub(super) const TWICE: &str = "mapped twice";
const RANDOM: &str = "mapped random";
pub(super) const HOT: &str = "mapped scan beside a hot set";

const ONCE: [Program; 6] = [
    program(LOADER, &["--order=loader"]),
    program(
        "mapped shuffled 4 MiB",
        &["--order=shuffled", "--tensor=4M"],
    ),
    program(
        "mapped shuffled 256 KiB",
        &["--order=shuffled", "--tensor=256K"],
    ),
    program("mapped reverse", &["--order=reverse"]),
    program("mapped every 7th page", &["--order=stride"]),
    program(RANDOM, &["--order=random"]),
];

/// What the kernel is told.
pub(super) const HINTS: [&str; 4] = ["none", "sequential", "willneed", "populate"];

/// The part of the hot set's touches that miss.
pub(super) const ABSENT: &str = "hot_absent";

pub(super) fn kernel(hint: &str) -> String {
    format!("mmap, {hint}")
}

pub(super) fn on_slow(name: &str, of: &str) -> String {
    let (millis, megabytes) = TWICE_ON;
    row(name, &format!("{of}, {millis} ms, {megabytes} MB/s"))
}

fn figures(output: &[u8]) -> anyhow::Result<Figures> {
    let report: Report =
        serde_json::from_slice(output).context("the workload's report is broken")?;
    let seconds = report.elapsed_ns as f64 / 1e9;
    let bytes = (report.pages * crate::files::PAGE as u64) as f64;
    let mut figures = Figures::from([
        ("bytes_per_s".to_owned(), bytes / seconds),
        (
            "ns_per_read".to_owned(),
            report.elapsed_ns as f64 / report.pages as f64,
        ),
    ]);
    if report.hot_touches > 0 {
        figures.insert(ABSENT.to_owned(), report.hot_absent);
    }
    Ok(figures)
}

impl Bench<'_> {
    /// All rows of mapped files.
    pub(super) fn mapped(&mut self) -> anyhow::Result<()> {
        let disk = self.made.path().to_owned();
        for Program { name, words } in ONCE {
            if self.wants(&row(name, OURS)) {
                drop(self.made.cold()?);
                self.map_ours(row(name, OURS), words, &disk)?;
            }
            for hint in HINTS {
                let name = row(name, &kernel(hint));
                if self.wants(&name) {
                    drop(self.made.cold()?);
                    self.map_plain(name, words, &[hint_word(hint)], &disk, None)?;
                }
            }
        }
        self.mapped_slow()
    }

    fn mapped_slow(&mut self) -> anyhow::Result<()> {
        let names = ONCE.iter().map(|program| program.name);
        let mut names = names.chain([TWICE, HOT]);
        let of = [OURS, PREFETCH].map(str::to_owned).into_iter();
        let of: Vec<String> = of.chain(HINTS.map(kernel)).collect();
        if !names.any(|name| of.iter().any(|of| self.wants(&on_slow(name, of)))) {
            return Ok(());
        }
        if let Err(error) = self.mount(1 << 20) {
            let note = format!("no mapped files on a slow file system: {error:#}");
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
            return Ok(());
        }
        for Program { name, words } in ONCE {
            if self.wants(&on_slow(name, OURS)) {
                // Each page at random costs a latency.
                let part = if name == RANDOM { KERNEL_PART } else { 1 };
                let mount = self.mount(self.bytes / part)?;
                self.map_ours(on_slow(name, OURS), words, &mount.path())?;
            }
            let hints = if name == LOADER {
                &HINTS[..]
            } else {
                &HINTS[..1]
            };
            let others = hints.iter().map(|hint| (kernel(hint), hint_word(hint)));
            let first = (name == LOADER).then(|| (PREFETCH.to_owned(), "--first".to_owned()));
            for (of, word) in others.chain(first) {
                let name = on_slow(name, &of);
                if self.wants(&name) {
                    let mount = self.mount(self.bytes / KERNEL_PART)?;
                    self.map_plain(name, words, &[word], &mount.path(), None)?;
                }
            }
        }
        self.mapped_twice()?;
        if self.wants(&on_slow(HOT, OURS)) {
            let mount = self.mount(BESIDE * self.session.limit)?;
            let hot = format!("--hot={}", self.session.limit / HOT_PART);
            self.map_ours(on_slow(HOT, OURS), &[&hot, "--passes=2"], &mount.path())?;
        }
        Ok(())
    }

    /// A file of four times the memory, touched twice.
    fn mapped_twice(&mut self) -> anyhow::Result<()> {
        let words = ["--passes=2"];
        if self.wants(&on_slow(TWICE, OURS)) {
            let mount = self.mount(self.bytes)?;
            self.map_ours(on_slow(TWICE, OURS), &words, &mount.path())?;
        }
        let name = on_slow(TWICE, PREFETCH);
        if self.wants(&name)
            && let Some(changes) = &mut self.ahead.changes
        {
            let limit = self.session.limit / TWICE_PART;
            let group = format!("foreswap-bench-{}", std::process::id());
            let door = MemoryCgroup::make(changes, &group, limit)?.door();
            let mount = self.mount(self.bytes / TWICE_PART)?;
            let first = "--first".to_owned();
            self.map_plain(name, &words, &[first], &mount.path(), Some(&door))?;
            self.ahead.set(self.ahead.default)?;
        }
        Ok(())
    }

    fn mount(&self, bytes: u64) -> anyhow::Result<SlowMount> {
        SlowMount::new(&self.session.directory, bytes, slowness(TWICE_ON))
    }

    fn command(&self, words: &[&str], more: &[String], file: &Path) -> Vec<OsString> {
        let words = ["workload", "mapped"].iter().chain(words).copied();
        let words: Vec<String> = words.map(str::to_owned).chain(more.to_vec()).collect();
        let mut command = self.session.own_command(&words);
        command.push(file.into());
        command
    }

    fn map_ours(&mut self, name: String, words: &[&str], file: &Path) -> anyhow::Result<()> {
        self.progress.tick();
        let command = self.command(words, &[], file);
        let turn = self.session.under_foreswap(
            &command,
            &["--map-files=foreswap-bench-*.file", "--map-files=*.mapped"],
            &self.progress,
        )?;
        self.rows.add(name, figures(&turn)?);
        Ok(())
    }

    fn map_plain(
        &mut self,
        name: String,
        words: &[&str],
        more: &[String],
        file: &Path,
        door: Option<&Path>,
    ) -> anyhow::Result<()> {
        self.progress.tick();
        let command = self.command(words, more, file);
        self.rows
            .add(name, figures(&plain(&command, door, &self.progress)?)?);
        Ok(())
    }
}

fn hint_word(hint: &str) -> String {
    format!("--hint={hint}")
}
