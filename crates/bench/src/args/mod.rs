//! The command line of `foreswap bench` and of the hidden `foreswap workload`.
//!
//! Both name the parameters of a workload by the same words, and a bench passes them to its children by writing them
//! out again ([`UsememArgs::to_command`]). A turn can therefore be repeated by hand.

mod combined;
mod usemem;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

pub use combined::CombinedArgs;
pub use usemem::{Fill, Mode, Op, Pattern, UsememArgs};

use crate::{allocs, forks, hold, mapped, size, workset};

/// The benches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchName {
    /// The usemem workload with the parameters given (default: sequential reads)
    Usemem,
    /// usemem --pattern seq --op read
    SeqRead,
    /// usemem --pattern seq --op write
    SeqWrite,
    /// usemem --pattern rand --op read
    RandRead,
    /// usemem --pattern rand --op write
    RandWrite,
    /// usemem --pattern stride --op read (every 7th page, all in turn)
    Stride,
    /// usemem --pattern reverse --op read
    Reverse,
    /// usemem --pattern interleaved --op read (--scans of one array in turns)
    Interleaved,
    /// Sequential writers while random writers run beside them (seed 000)
    Combined,
    /// Swapping a whole program in from its swap area while it runs (seed 003)
    Swapoff,
    /// LU factorisation of a matrix larger than the limit, by SciPy (seed 000)
    Linpack,
    /// All of the above that measure readahead, with the targets of each: takes an hour
    Readahead,
    /// All of the above that measure huge pages swapped whole, and compressed memory against zram, with the targets of
    /// each: takes an hour
    Huge,
    /// A program that fits its limit: its time bare against its time under `foreswap run`
    Fits,
    /// The cost of a fork for a program that holds --total memory, if all fits and at a limit of a quarter
    Forks,
    /// Work that changes: scans after random touches, a hot set beside a scan, skewed touches, phases
    Workset,
    /// make -j4 (--tasks) of eight C++ files whose compilers fit one at a time, not together
    Build,
    /// Programs of others (Python, g++, R, xz ...), or the command after --, at a part of the memory that each wants: on
    /// foreswap, with its defaults and with other options, and on the kernel's swap
    Programs,
    /// The time that `foreswap run` adds to the start of /bin/true
    Startup,
    /// The time that a fault adds to the disk's own 4 KiB latency
    FaultLatency,
    /// The swap area's device alone: the reference for all others
    Areas,
    /// An area on a server (nbdkit or Redis on the loopback interface, which are started) against nbdcopy or
    /// redis-benchmark, and a plain client
    Far,
    /// A near area and a far one behind it (nbdkit, which is started), against all pages on either: --total is the memory of the
    /// program, --delay the milliseconds that the server takes to answer
    Tiers,
    /// The slot allocator alone, against one lock per slot (seed 002); --total is the area's size
    Slots,
    /// The hash of pages alone, beside memcpy; --total is the memory that is hashed
    Digest,
    /// Reads of a file through foreswap's page cache (Rust API) against pread, in several orders and from slow stores;
    /// --total is the file's size, --memory the cache's
    Files,
}

/// The servers of `far`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FarServer {
    /// nbdkit with an export in memory
    Nbd,
    /// redis-server, in memory only
    Redis,
    /// A Redis cluster of three masters and three replicas, in memory only; also kills one of them
    Cluster,
}

/// The memory managements under which a workload can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerName {
    /// `foreswap run`
    Foreswap,
    /// `foreswap run --encrypt`
    Encrypted,
    /// The kernel's swap at its best: page-cluster 5, non-rotational, THP always (needs root)
    Kernel,
    /// The kernel's swap with the system's settings: page-cluster 3 (needs root)
    #[value(alias = "kernel-default")]
    KernelDefaults,
    /// The kernel's swap on compressed memory at its best: zram with lz4, THP always (needs root)
    Zram,
    /// As `kernel`, with zswap and lz4 before the swap file (needs root; afterwards, until the next boot, the kernel
    /// reads only single pages from zram, which is then not at its best)
    Zswap,
    /// No limit at all
    Bare,
}

impl PeerName {
    /// Whether the workload asks for huge pages: the kernel's peers at their best.
    pub fn asks_for_huge_pages(self) -> bool {
        matches!(self, Self::Kernel | Self::Zram | Self::Zswap)
    }
}

/// `foreswap bench`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  foreswap bench seq-read --turns 5 --seconds 3 --against kernel
  foreswap bench rand-write --memory 256M --json figures.json
  foreswap bench seq-write --turns 5 --against encrypted
  foreswap bench programs --part 0.4 -- python3 job.py")]
pub struct BenchArgs {
    /// The bench to run
    #[arg(value_enum, required_unless_present = "undo")]
    pub name: Option<BenchName>,

    /// Peers to run in turns with foreswap, by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PEER")]
    pub against: Option<Vec<PeerName>>,

    /// The memory limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Turns of each peer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub turns: Option<u32>,

    /// Seconds of rest before each turn, for hosts that lend CPU time only for a while
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=3600))]
    pub pause: u64,

    /// For files and programs: only the rows whose names contain one of these texts, by commas
    #[arg(long, value_delimiter = ',', value_name = "TEXT")]
    pub rows: Option<Vec<String>>,

    /// For programs: the limit as a part of the peak that each program has without one (default: 0.45; --memory sets
    /// the limit itself)
    #[arg(long, value_name = "FRACTION", conflicts_with = "memory")]
    pub part: Option<f64>,

    /// For far: the server
    #[arg(long, value_enum, default_value = "nbd", value_name = "SERVER")]
    pub server: FarServer,

    /// For tiers, and for far on nbd: milliseconds that the server takes to answer
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub delay: Option<u64>,

    /// For programs: end a run after so many seconds (default: 20 times as long as without a limit, at least 60)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,

    /// Write all measurements to FILE, as one JSON object
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Directory of all swap areas and files (default: $TMPDIR, else /tmp)
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// foreswap's readahead policy, passed to `foreswap run`
    #[arg(long, value_name = "POLICY")]
    pub readahead: Option<String>,

    /// A further option for `foreswap run`, such as --run-option=--max-window=64
    #[arg(long = "run-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub run_options: Vec<String>,

    /// The peer that takes the first turn, if it is not foreswap itself
    #[arg(long, value_enum, default_value = "foreswap", value_name = "PEER")]
    pub runner: PeerName,

    /// The foreswap executable to measure (default: this one)
    #[arg(long, value_name = "FILE")]
    pub exe: Option<PathBuf>,

    /// The Python that runs linpack, which must have SciPy, and Polars for programs (default: .venv/bin/python of the checkout that contains
    /// this executable or the current directory, else python3)
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,

    /// Undo the changes to this system that a killed bench left
    #[arg(long)]
    pub undo: bool,

    /// For programs: the command to measure instead of the list; its output must be the same in each run, and small, as
    /// it is kept in memory
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,

    /// Parameters of the workload.
    #[command(flatten, next_help_heading = "Parameters of usemem")]
    pub usemem: UsememArgs,

    /// Parameters of combined.
    #[command(
        flatten,
        next_help_heading = "Parameters of combined, beside those of usemem"
    )]
    pub combined: CombinedArgs,
}

/// `foreswap workload`.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    #[command(subcommand)]
    what: Workload,
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Tasks that walk regions of their own, page by page
    Usemem(UsememArgs),
    /// Sequential writers and random writers side by side
    Combined(CombinedWorkload),
    /// Fills a region and keeps it; executes commands from standard input
    Hold(HoldArgs),
    /// Many small allocations
    Allocs(AllocsArgs),
    /// Forks children that end at once
    Forks(ForksArgs),
    /// Scans, random touches, a hot set and skewed touches of one region, in a given order
    Workset(WorksetArgs),
    /// Maps a file and touches its pages in an order
    Mapped(MappedArgs),
    /// Runs a command on a file of a slow file system (FUSE, root), whose path is its last word
    SlowFile(SlowFileArgs),
}

impl WorkloadArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            Workload::Usemem(args) => crate::usemem::main(&args),
            Workload::Combined(args) => crate::usemem::combined(&args.groups, &args.shared),
            Workload::Hold(args) => hold::main(&args),
            Workload::Allocs(args) => allocs::main(&args),
            Workload::Forks(args) => forks::main(&args),
            Workload::Workset(args) => workset::main(&args),
            Workload::Mapped(args) => mapped::main(&args),
            Workload::SlowFile(args) => mapped::slow_file(&args),
        }
    }
}

/// The arguments in these words, for tests.
#[cfg(test)]
pub fn parse<T: Args>(words: &str) -> T {
    #[derive(clap::Parser)]
    struct Line<T: Args> {
        #[command(flatten)]
        args: T,
    }
    let words = std::iter::once("test").chain(words.split_whitespace());
    <Line<T> as clap::Parser>::parse_from(words).args
}

/// The parameters of the combined workload.
#[derive(Debug, Clone, Args)]
struct CombinedWorkload {
    #[command(flatten)]
    groups: CombinedArgs,
    #[command(flatten)]
    shared: UsememArgs,
}

/// The parameters of the program that swapoff swaps in.
#[derive(Debug, Clone, Args)]
pub struct HoldArgs {
    /// Size of its region
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = size::parse)]
    pub bytes: u64,

    /// Content of the words
    #[arg(long, value_enum, default_value = "index")]
    pub fill: Fill,

    /// Seed of all pseudo-random numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Ask for transparent huge pages by madvise
    #[arg(long)]
    pub thp: bool,
}

/// The parameters of the forking workload.
#[derive(Debug, Clone, Args)]
pub struct ForksArgs {
    /// Memory that the parent holds
    #[arg(long, default_value = "400M", value_name = "SIZE", value_parser = size::parse)]
    pub bytes: u64,

    /// Children, one after the other
    #[arg(long, default_value_t = 40, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,

    /// Each executes /bin/true, instead of ending at once
    #[arg(long)]
    pub exec: bool,
}

/// The parameters of the workload that changes.
#[derive(Debug, Clone, Args)]
pub struct WorksetArgs {
    /// Size of its region
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = size::parse)]
    pub bytes: u64,

    /// The steps, by commas, in their order
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "STEP",
        required = true
    )]
    pub steps: Vec<workset::Kind>,

    /// Touches of the step `touch`
    #[arg(long, default_value_t = 40_000, value_name = "N")]
    pub touches: u64,

    /// Seed of all pseudo-random numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Ask for transparent huge pages by madvise
    #[arg(long)]
    pub thp: bool,
}

/// The parameters of the workload that maps a file.
#[derive(Debug, Clone, Args)]
pub struct MappedArgs {
    /// The order of its touches
    #[arg(long, value_enum, default_value = "loader")]
    pub order: mapped::Kind,

    /// Size of a tensor
    #[arg(long, default_value = "4M", value_name = "SIZE", value_parser = size::parse)]
    pub tensor: u64,

    /// How often the order is repeated
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub passes: u64,

    /// Advice before the first touch
    #[arg(long, value_enum, default_value = "none")]
    pub hint: mapped::Hint,

    /// Read the whole file before it is mapped
    #[arg(long)]
    pub first: bool,

    /// Size of an anonymous hot set, a page of which is touched at random after four pages of the file
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = size::parse)]
    pub hot: u64,

    /// Seed of all pseudo-random numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// The file: each page of 4 KiB begins with its number
    pub file: PathBuf,
}

/// The parameters of the slow file.
#[derive(Debug, Clone, Args)]
pub struct SlowFileArgs {
    /// Its size
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = size::parse)]
    pub bytes: u64,

    /// Delay of a request, in milliseconds
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=10_000))]
    pub delay: u64,

    /// Bandwidth of all requests together, in MB/s
    #[arg(long, default_value_t = 1000, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    pub bandwidth: u64,

    /// Where it is mounted, for this command alone (default: $TMPDIR, else /tmp)
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// The command
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// The parameters of the allocation workload.
#[derive(Debug, Clone, Args)]
pub struct AllocsArgs {
    /// Allocations made
    #[arg(long, default_value_t = 20_000_000, value_name = "N")]
    pub count: u64,

    /// Allocations alive at once
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub live: u64,

    /// Seed of sizes and places
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}
