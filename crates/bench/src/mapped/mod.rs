//! A program that maps a file and touches its pages in an order, as loaders of weights and readers of arrays do.
//!
//! It knows nothing of foreswap. Each touch reads the number of the page and compares it. A file that is read *first*
//! goes through read(2), all of it, before it is mapped: what a program does that fetches a file before its use.

pub mod mount;
mod order;

use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use foreswap_files::store::Slowness;
use memmap2::{Advice, Mmap};
use serde::{Deserialize, Serialize};

use crate::args::{MappedArgs, SlowFileArgs};
use crate::files::PAGE;
use crate::interrupt;
use crate::output::put_json;
use crate::peer::end;
use crate::usemem::{Draw, Region};
pub use order::{Kind, Order};

/// Pages of the file for each touch of the hot set.
const BESIDE: u64 = 4;
/// Touches between two looks for a signal.
const LOOK: u64 = 1 << 12;
/// Between two looks whether a command has ended.
const LOOK_FOR_END: std::time::Duration = std::time::Duration::from_millis(5);
/// Bytes of a read of a file that is read first.
const READ: usize = 1 << 20;

/// What the program tells the kernel of its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hint {
    /// Nothing.
    None,
    /// MADV_SEQUENTIAL.
    Sequential,
    /// MADV_RANDOM.
    Random,
    /// MADV_WILLNEED of the whole file.
    Willneed,
    /// MADV_WILLNEED of each tensor, at its begin.
    Tensor,
    /// MADV_POPULATE_READ of the whole file.
    Populate,
}

/// The report of the program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Pages touched, in all passes.
    pub pages: u64,
    /// The time of all, with what was done before the first touch.
    pub elapsed_ns: u64,
    /// Touches of the anonymous hot set, and the part of them whose page was not in memory.
    pub hot_touches: u64,
    /// As above; of the second half of the touches, when all pages have been used.
    pub hot_absent: f64,
}

/// An anonymous hot set beside the file.
struct Hot {
    region: Region,
    draw: Draw,
    touches: u64,
    /// Of the later half of all touches, and how many of them were absent.
    late: u64,
    absent: u64,
    /// The touch with which the later half begins.
    half: u64,
}

impl Hot {
    fn new(bytes: u64, seed: u64, touches: u64) -> anyhow::Result<Self> {
        let mut region = Region::map(bytes).context("no memory for the hot set")?;
        for page in 0..region.pages() {
            region.write(page, 0, page + 1);
        }
        Ok(Hot {
            region,
            draw: Draw::new(seed, 2),
            touches: 0,
            late: 0,
            absent: 0,
            half: touches / 2,
        })
    }

    fn touch(&mut self) -> anyhow::Result<()> {
        if self.region.pages() == 0 {
            return Ok(());
        }
        let page = self.draw.below(self.region.pages());
        if self.touches >= self.half {
            self.late += 1;
            self.absent += u64::from(!self.region.is_mapped(page).context("mincore")?);
        }
        self.touches += 1;
        let found = self.region.read(page, 0);
        ensure!(
            found == page + 1,
            "wrong data: page {page} of the hot set has the number {found}"
        );
        Ok(())
    }
}

/// `foreswap workload mapped`.
pub fn main(args: &MappedArgs) -> anyhow::Result<ExitCode> {
    let path = args.file.display();
    let mut file = File::open(&args.file).with_context(|| format!("cannot open {path}"))?;
    let pages = file.metadata()?.len() / PAGE as u64;
    let tensor = args.tensor / PAGE as u64;
    ensure!(
        pages > 0 && tensor > 0,
        "{path} has {pages} pages, and a tensor (--tensor) {tensor}: expected one page at least"
    );
    let order = Order::new(args.order, pages, tensor, args.seed);
    let count = order.count();
    ensure!(
        count > 0,
        "{path} has {pages} pages, fewer than one tensor (--tensor) of {tensor}"
    );
    let mut hot = Hot::new(args.hot, args.seed, count * args.passes / BESIDE)?;
    let start = Instant::now();
    if args.first {
        let mut buffer = vec![0; READ];
        while file.read(&mut buffer)? > 0 {
            interrupt::check()?;
        }
    }
    // SAFETY: the file is the bench's own, which nobody changes.
    let map = unsafe { Mmap::map(&file) }.with_context(|| format!("cannot map {path}"))?;
    advise(&map, args.hint)?;
    for touch in (0..args.passes).flat_map(|_| 0..count) {
        let page = order.page(touch);
        if touch.is_multiple_of(LOOK) {
            interrupt::check()?;
        }
        if args.hint == Hint::Tensor && touch.is_multiple_of(tensor) {
            let (at, rest) = (page as usize * PAGE, (pages - page).min(tensor));
            map.advise_range(Advice::WillNeed, at, rest as usize * PAGE)
                .context("MADV_WILLNEED")?;
        }
        let at = page as usize * PAGE;
        let Some((number, _)) = map[at..].split_first_chunk() else {
            bail!("the file ends in page {page}");
        };
        let number = u64::from_le_bytes(*number);
        ensure!(
            number == page,
            "wrong data: page {page} of {path} has the number {number}"
        );
        if touch.is_multiple_of(BESIDE) {
            hot.touch()?;
        }
    }
    put_json(&Report {
        pages: count * args.passes,
        elapsed_ns: start.elapsed().as_nanos() as u64,
        hot_touches: hot.touches,
        hot_absent: hot.absent as f64 / hot.late.max(1) as f64,
    })
}

fn advise(map: &Mmap, hint: Hint) -> anyhow::Result<()> {
    let advice = match hint {
        Hint::None | Hint::Tensor => return Ok(()),
        Hint::Sequential => Advice::Sequential,
        Hint::Random => Advice::Random,
        Hint::Willneed => Advice::WillNeed,
        Hint::Populate => Advice::PopulateRead,
    };
    map.advise(advice)
        .with_context(|| format!("madvise {advice:?}"))
}

/// `foreswap workload slow-file`: mounts a slow file, runs a command with its path as the last word, and unmounts it.
pub fn slow_file(args: &SlowFileArgs) -> anyhow::Result<ExitCode> {
    let slowness = Slowness {
        delay: std::time::Duration::from_millis(args.delay),
        bandwidth: args.bandwidth * 1_000_000,
        ..Slowness::default()
    };
    let directory = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    // Before there is anything to undo.
    interrupt::watch();
    let mount = mount::SlowMount::new(&directory, args.bytes, slowness)?;
    let (program, words) = args.command.split_first().context("no command")?;
    let mut child = std::process::Command::new(program)
        .args(words)
        .arg(mount.path())
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(ExitCode::from(status.code().unwrap_or(1) as u8));
        }
        if let Err(interrupted) = interrupt::pause(LOOK_FOR_END) {
            // The mount cannot go while the command has it open.
            end(&mut child)?;
            return Ok(interrupted.exit_code());
        }
    }
}
