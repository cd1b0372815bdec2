//! The parameters of usemem (docs/BENCH.md), and of its two groups in `combined`.

use clap::{Args, ValueEnum};

use crate::size;

/// The kinds of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A process, forked before anything is mapped
    Process,
    /// A thread of one process
    Thread,
}

/// The order in which pages are touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// From the first page to the last
    Seq,
    /// Word indices drawn uniformly; each pass draws as many as there are pages
    Rand,
    /// Every --stride'th page, starting one later after each wrap
    Stride,
    /// The first --row of every --stride pages, then the next, and so on: a matrix by blocks of columns
    Rows,
    /// From the last page to the first
    Reverse,
    /// --scans sequential scans of one region, a page of each in turn
    Interleaved,
}

/// The operation on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Verified, then overwritten
    Write,
    /// Read and verified
    Read,
}

/// The content of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fill {
    /// Each word its own index
    Index,
    /// Pseudo-random words, which do not compress
    Random,
    /// Pseudo-random words that repeat within their page: lz4 compresses it to about a third
    Compressible,
}

/// The parameters of usemem (`foreswap bench usemem --help`).
#[derive(Debug, Clone, Args, serde::Serialize, serde::Deserialize)]
pub struct UsememArgs {
    /// Tasks are processes or threads
    #[arg(long, value_enum, default_value = "process")]
    pub mode: Mode,

    /// How many tasks run side by side
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub tasks: u32,

    /// Size of each task's region
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "total")]
    pub bytes: Option<u64>,

    /// Size of all regions together (default 1G)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub total: Option<u64>,

    /// Order of the touches
    #[arg(long, value_enum, default_value = "seq")]
    pub pattern: Pattern,

    /// Distance of the stride pattern and of rows
    #[arg(long, default_value_t = 7, value_name = "PAGES", value_parser = clap::value_parser!(u64).range(1..))]
    pub stride: u64,

    /// Pages touched in each row of the rows pattern
    #[arg(long, default_value_t = 4, value_name = "PAGES", value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(default)]
    pub row: u64,

    /// Number of the interleaved pattern's scans
    #[arg(long, default_value_t = 2, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub scans: u64,

    /// Operation of the measured passes
    #[arg(long, value_enum, default_value = "read")]
    pub op: Op,

    /// Distance of the words used within a page
    #[arg(long, default_value_t = 8, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(8..=4096))]
    pub step: u64,

    /// Measured passes over the region
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,

    /// Passes before the measured ones, after the filling
    #[arg(long, default_value_t = 0, value_name = "N")]
    #[serde(default)]
    pub warm_up: u32,

    /// Measure for this long instead of --repeat passes
    #[arg(long, value_name = "SECONDS", conflicts_with = "repeat")]
    pub seconds: Option<f64>,

    /// Content of the words
    #[arg(long, value_enum, default_value = "index")]
    pub fill: Fill,

    /// Seed of all pseudo-random numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Ask for transparent huge pages by madvise
    #[arg(long)]
    pub thp: bool,

    /// Reports on standard output when the measured passes begin and end, and waits for a line on standard input each
    /// time
    #[arg(long, hide = true)]
    #[serde(default)]
    pub marks: bool,

    /// With --marks, reports also when this much of all regions is filled
    #[arg(long, hide = true, value_name = "SIZE", value_parser = size::parse, requires = "marks")]
    #[serde(default)]
    pub full: Option<u64>,

    /// Spoils this word after the fill: the verification must find it
    #[arg(long, hide = true, value_name = "INDEX")]
    pub corrupt_word: Option<u64>,
}

impl UsememArgs {
    /// Bytes of one task's region, in whole pages.
    pub fn region_bytes(&self) -> u64 {
        let bytes = match (self.bytes, self.total) {
            (Some(each), _) => each,
            (None, total) => total.unwrap_or(1 << 30) / u64::from(self.tasks.max(1)),
        };
        (bytes & !4095).max(4096)
    }

    /// Bytes of all regions.
    pub fn total_bytes(&self) -> u64 {
        self.region_bytes() * u64::from(self.tasks)
    }

    /// Pages of one task's region that are filled when all tasks together have filled `--full`.
    pub fn full_pages(&self) -> u64 {
        self.full.map_or(u64::MAX, |bytes| {
            bytes / 4096 / u64::from(self.tasks.max(1))
        })
    }

    /// The words after `EXE` that run this workload.
    pub fn to_command(&self) -> Vec<String> {
        fn word<T: ValueEnum>(value: T) -> String {
            value
                .to_possible_value()
                .map_or_else(String::new, |v| v.get_name().to_owned())
        }
        let mut command = vec!["workload".to_owned(), "usemem".to_owned()];
        let mut put = |name: &str, value: String| command.push(format!("--{name}={value}"));
        put("mode", word(self.mode));
        put("tasks", self.tasks.to_string());
        put("bytes", self.region_bytes().to_string());
        put("pattern", word(self.pattern));
        put("stride", self.stride.to_string());
        put("scans", self.scans.to_string());
        put("op", word(self.op));
        put("step", self.step.to_string());
        match self.seconds {
            Some(seconds) => put("seconds", seconds.to_string()),
            None => put("repeat", self.repeat.to_string()),
        }
        if self.warm_up > 0 {
            put("warm-up", self.warm_up.to_string());
        }
        put("fill", word(self.fill));
        put("seed", self.seed.to_string());
        if let Some(bytes) = self.full {
            put("full", bytes.to_string());
        }
        if let Some(word) = self.corrupt_word {
            put("corrupt-word", word.to_string());
        }
        for (flag, is_set) in [("--thp", self.thp), ("--marks", self.marks)] {
            if is_set {
                command.push(flag.to_owned());
            }
        }
        command
    }
}
