//! The command line, in the words of `--help`.

mod choices;

use std::error::Error;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::{ParseFloatError, ParseIntError};
use std::path::PathBuf;
use std::time::Duration;

pub use choices::{Encrypt, Io, Readahead, Reclaim, Switch, Thp};
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Parser, Subcommand};
use foreswap_store::ring::MOST_HELPERS;

use crate::control::asking::Which;
use crate::size::{self, Size};
use crate::{clean, group, memory_setting, metrics, page, top, topics};

/// How long a fault waits while no area accepts a page, unless `--full-timeout` says.
pub const FULL_TIMEOUT: Duration = Duration::from_secs(10);
/// The default of `--area-timeout`.
pub const AREA_TIMEOUT: Duration = Duration::from_secs(30);

/// Run programs in less memory than they want.
#[derive(Debug, Parser)]
#[command(
    name = "foreswap",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  foreswap run --memory 1G -- sort big.txt
  foreswap ps

`foreswap help topics` lists texts about the limit, swap areas, permissions and more."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Subcommands,
}

impl Cli {
    /// Parses the command line. Where a number is expected and the value is none, the message says so; clap's own
    /// says what is wrong with the digits.
    pub fn read(
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        Self::try_parse_from(line).map_err(|error| {
            let expected = match error.source() {
                Some(source) if source.is::<ParseIntError>() => "a whole number",
                Some(source) if source.is::<ParseFloatError>() => "a number",
                _ => return error,
            };
            let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
            let (value, argument) = (
                context(ContextKind::InvalidValue),
                context(ContextKind::InvalidArg),
            );
            let help = "For more information, try '--help'.";
            clap::Error::raw(
                ErrorKind::ValueValidation,
                format!(
                    "invalid value '{value}' for '{argument}': expected {expected}\n\n{help}\n"
                ),
            )
        })
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Subcommands {
    /// Run an unmodified program with its memory held to a limit, the rest on a swap area
    Run(Box<RunArgs>),
    /// Carry the transfers of areas on servers; `run` starts it
    #[command(hide = true)]
    Relay,
    /// List the programs that are managed, with their memory and swap areas
    Ps(PsArgs),
    /// Watch the programs that are managed, live in the terminal
    Top(TopArgs),
    /// Change the limit of a run in progress
    Set(SetArgs),
    /// Add a swap area to a run in progress
    Swapon(SwaponArgs),
    /// Empty a swap area and remove it while the program runs
    Swapoff(SwapoffArgs),
    /// Remove what killed runs have left in an object store
    Clean(clean::CleanArgs),
    /// Make a page of a recorded run: what happened, and what other limits would have cost
    Report(page::command::ReportArgs),
    /// Check whether foreswap works here, and say what to do if it does not
    Doctor(DoctorArgs),
    /// Measure foreswap against the kernel's own swap on the same workload
    Bench(Box<foreswap_bench::BenchArgs>),
    /// Try the memory manager's decisions out without a kernel
    Lab(foreswap_lab::LabArgs),
    /// Print the help of a command, or about a topic; `help topics` lists these
    Help(topics::HelpArgs),
    /// Run one workload in this process, as `bench` does
    #[command(hide = true)]
    Workload(Box<foreswap_bench::WorkloadArgs>),
    /// Serve the regions of process COMMAND, which has started this one (`foreswap_open`)
    #[command(hide = true)]
    Serve(Box<RunArgs>),
    /// The job that `doctor` runs: fills 48 MiB and reads it back
    #[command(hide = true)]
    Trial,
}

const AFTER_HELP: &str = "\
Examples:
  foreswap run --memory 1G -- sort big.txt
  foreswap run --memory 40% --stats run.json -- python3 job.py
  foreswap run --memory 1G --report run.html -- ./simulation
  foreswap run --memory auto -- ./simulation
  foreswap run --group build --memory 4G -- make -j8
  foreswap run --memory 1G --metrics 9108 -- ./server
  foreswap run --memory 512M --swap /mnt/nvme --swap-size 20G -- ./simulation
  foreswap run --memory 1G --swap ram:512M --swap /var/tmp -- ./simulation
  foreswap run --memory 1G --swap /mnt/shared --encrypt -- ./simulation
  foreswap run --memory 2G --map-files '*.safetensors' -- python3 generate.py

The exit status, the standard streams, the terminal and the signals are COMMAND's own. foreswap
itself exits with 2 when an option is wrong, 125 when it cannot start or --strict ends COMMAND,
126 when COMMAND cannot be executed or managed, and 127 when it is not found. Programs that ignore
preload objects (static, setuid, 32-bit, not glibc) are refused.";

/// `foreswap run`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, allow_negative_numbers = true)]
pub struct RunArgs {
    /// Most memory that COMMAND and its descendants together may keep resident
    ///
    /// 512M, 1.5G, 64KiB (powers of two), a number of bytes, or 40% of the available memory
    /// (the machine's, or the cgroup's limit if that is less).
    ///
    /// `auto` gives COMMAND what the machine can spare: all that it needs while there is room, less when
    /// other programs need memory, and after some seconds no more than it uses. 512M..8G is auto
    /// within bounds.
    #[arg(
        long,
        short = 'm',
        value_name = "SIZE|auto|MIN..MAX",
        required_unless_present = "group"
    )]
    pub memory: Option<memory_setting::Setting>,

    /// Share the limit and the swap areas with the other commands that name this group
    ///
    /// The first `foreswap run --group NAME` begins the group: it names the limit and all other options. Those that
    /// come later, from any terminal of the same user, start their command in it, and need no --memory. The group ends
    /// with its last process.
    #[arg(long, value_name = "NAME")]
    pub group: Option<group::Name>,

    /// Where the rest goes: a directory, a file, a block device, ram:SIZE or nbd://HOST/EXPORT; may be repeated
    ///
    /// In a directory foreswap creates a file without a name, which no other user can open and which
    /// disappears when the run ends. The first area is filled first. Default: $TMPDIR, else /tmp.
    ///
    /// ram:SIZE keeps pages compressed in memory, in up to SIZE (512M, 1.5G, 40%) on top of --memory.
    /// It has slots for eight times SIZE. ram:SIZE,zstd packs more into it than lz4, the default, at
    /// about three times the work. Pages that do not compress go to the next area, and so do the coldest
    /// pages when SIZE is nearly used: ram:512M, then a directory, is a good pair. Without a next area,
    /// pages that do not compress are kept as they are.
    ///
    /// nbd://HOST:PORT/EXPORT is an export of an NBD server, nbds:// one that is reached by TLS, and
    /// nbd+unix:///EXPORT?socket=PATH one of a server on this machine. Two of them with a + in between keep a copy each.
    /// What is put there is encrypted. While the server is away, pages go to the next area.
    ///
    /// redis://HOST:PORT/DB is a Redis or Valkey server, rediss:// one that is reached by TLS, redis+unix:///?socket=PATH one of
    /// this machine, and redis+cluster://HOST:PORT,HOST:PORT a cluster. ?replicas=N: a page is written when N replicas have it.
    /// The size is --swap-size, else three quarters of what the server's maxmemory leaves free (without a maxmemory, of half of
    /// its machine). Its password is better in ?password-file=PATH or FORESWAP_REDIS_PASSWORD: arguments show in ps.
    ///
    /// s3://BUCKET/PREFIX?endpoint=URL is an object store, for the coldest pages; it needs another area beside it. Keys: AWS_... .
    #[arg(long, value_name = "AREA")]
    pub swap: Vec<String>,

    /// How long a read of an area on a server may take, before its thread gets SIGBUS
    ///
    /// Until then foreswap asks again and connects anew. 30s, 500ms, 2m.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = size::duration)]
    pub area_timeout: Duration,

    /// Size of each swap area that is not ram:SIZE
    ///
    /// Default: all of a device or of a file that has a size; else a size derived from the free room and
    /// the memory limit.
    #[arg(long, value_name = "SIZE", value_parser = absolute)]
    pub swap_size: Option<u64>,

    /// Encrypt what is put on swap areas
    ///
    /// Pages on servers are AES-256-GCM ciphertext, under a key that this run draws, keeps in locked memory and takes with
    /// it, and with --encrypt so are those in files and on block devices. A page that was changed there is an error,
    /// never another page. ram:SIZE stays as it is: memory of this machine. docs/SECURITY.md says who could still read
    /// what.
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Encrypt::Far,
          num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    pub encrypt: Encrypt,

    /// Serve the mappings of files that match GLOB, under the same limit; may be repeated
    ///
    /// For files that are read by mmap (model weights, arrays, indexes): their pages count, are read ahead
    /// and are evicted as the program's other memory is. A GLOB without a slash is that of a name in any folder
    /// ('*.safetensors'), any other that of a path ('/data/**/*.npy'). Private mappings are served, and shared ones that
    /// can only be read. Shared mappings that are written to, files on a tmpfs and files that are open for writing stay
    /// the kernel's.
    #[arg(long, value_name = "GLOB")]
    pub map_files: Vec<OsString>,

    /// Whether huge pages (2 MiB) are kept whole on their way out and in
    ///
    /// `adaptive` moves 2 MiB at a time where memory is touched in order, and single pages where touches
    /// are scattered.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Thp::Adaptive)]
    pub thp: Thp,

    /// Which pages are read ahead with a missing page
    ///
    /// `vma` and `cluster` decide as Linux 6.18 does.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Readahead::Streams)]
    pub readahead: Readahead,

    /// Largest readahead window, in pages of 4 KiB (1 to 512)
    ///
    /// Default: 512 with `streams`; 32 with `trend`; 8 with `vma` and `cluster`, as in the kernel.
    /// `vma` goes no further than 32, as the kernel's; `cluster` counts down to a power of two.
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub max_window: Option<u32>,

    /// Which page is evicted next
    ///
    /// A policy sees how pages come back, not the touches of those in memory. `foreswap lab replay --reclaim`
    /// compares the same policies on a recorded program.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Reclaim::Clock)]
    pub reclaim: Reclaim,

    /// How long a page fault waits when every swap area is full or away, before the thread gets SIGBUS
    ///
    /// 10s, 500ms, 2m, or 0 for not at all. Default: 10s, or --area-timeout if that is longer and an area is on a server.
    #[arg(long, value_name = "DURATION", value_parser = size::duration)]
    pub full_timeout: Option<Duration>,

    /// Whether some processes wait while the working sets of all do not fit together
    ///
    /// Without it, all of them wait for the disk then. With it, as many as fit have the memory, and the others wait for
    /// their turn. `foreswap ps` shows who waits.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = Switch::On)]
    pub load_control: Switch,

    /// How swap areas are read and written
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t = Io::Auto)]
    pub io: Io,

    /// Threads of each managed program that hash, compress and encrypt beside the one that serves faults
    ///
    /// They hash reads from swap files of 256 KiB and more and evicted huge pages, compress and
    /// decompress transfers of that size to and from ram:SIZE, and encrypt and decrypt them with --encrypt. 0 to 3.
    /// Default: the number of CPUs less one, at most 3.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MOST_HELPERS as i64))]
    pub helpers: Option<u32>,

    /// Write the run's statistics to FILE, as one JSON object
    ///
    /// FILE is replaced when the run has ended, also when COMMAND was killed.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    /// Serve the run's figures to Prometheus at http://ADDRESS:PORT/metrics
    ///
    /// A port alone is one of 127.0.0.1. Another interface must be written out (0.0.0.0:9108): everyone
    /// who reaches it can read the figures, with names of programs and areas. Port 0 takes a free port and prints it.
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = metrics::http::address)]
    pub metrics: Option<SocketAddr>,

    /// Write the run's figures to FILE every five seconds and at the end, in Prometheus' text format
    ///
    /// For the textfile collector of node_exporter (FILE ends with .prom). FILE is replaced by a rename and stays
    /// with the last figures when the run has ended.
    #[arg(long, value_name = "FILE")]
    pub metrics_file: Option<PathBuf>,

    /// Record the program's page faults to FILE
    ///
    /// Faults, hits of readahead, evictions and discards: for `foreswap lab mrc` and `foreswap lab
    /// replay`. Touches of pages that are in memory are not recorded.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Write a page about the run to FILE, as HTML
    ///
    /// What happened over time and by address, how long faults took, what other limits would have cost. FILE is replaced
    /// when the run has ended, also when COMMAND was killed. Faults are recorded as by --trace, but not kept.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// End COMMAND when memory that foreswap does not manage passes the limit by itself
    ///
    /// Shared and locked memory, and programs that run unmanaged: without --strict a line reports it and
    /// COMMAND continues. With it, COMMAND and all its descendants get SIGTERM, two seconds later SIGKILL, and the exit
    /// status is 125.
    #[arg(long)]
    pub strict: bool,

    /// Manage processes of COMMAND that run as other users as well
    ///
    /// For a container's entry point that gives up root before it starts a server. All processes of a run share the
    /// swap areas: each of them can then read what the others have swapped out, also those of root.
    #[arg(long)]
    pub other_users: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    pub quiet: bool,

    /// The program to run, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `foreswap ps`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap ps
  foreswap ps 4711 --json")]
pub struct PsArgs {
    /// As JSON: a list of runs, each with its processes, areas and totals, all sizes in bytes
    #[arg(long)]
    pub json: bool,

    /// Only the run that has this process (a managed program, or its `foreswap run`), or of this group
    #[arg(value_name = "PID|GROUP")]
    pub which: Option<Which>,
}

/// `foreswap top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap top
  foreswap top 4711 --interval 500ms

Keys: arrows select a process; l changes the limit of its run, a adds a swap area, e empties one; p
pauses, ? explains the screen, q quits. With a PID or a GROUP, top ends with that run and prints its
last figures.")]
pub struct TopArgs {
    /// The time between two looks
    #[arg(long, short = 'i', value_name = "DURATION", default_value = "1s", value_parser = top::interval)]
    pub interval: Duration,

    /// Only the run that has this process (a managed program, or its `foreswap run`), or of this group
    #[arg(value_name = "PID|GROUP")]
    pub which: Option<Which>,
}

/// `foreswap set`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap set 4711 memory=512M
  foreswap set 4711 memory=auto
  foreswap set build memory=6G

A lower limit makes the programs give memory back at once; a higher one they use as they need it.
A size ends `auto`, and `auto` or MIN..MAX begins it, also on a run that began with a size.")]
pub struct SetArgs {
    /// The pid of a managed program, or of its `foreswap run`, or the name of its group
    #[arg(value_name = "PID|GROUP")]
    pub which: Which,

    /// memory=SIZE: the limit, as `run --memory` takes it (512M, 1.5G, 40%, auto, 512M..8G)
    #[arg(value_name = "memory=SIZE", value_parser = setting)]
    pub setting: Setting,
}

/// A setting that can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The limit, as it was written.
    pub memory: String,
}

fn setting(text: &str) -> Result<Setting, String> {
    let Some(("memory", size)) = text.split_once('=') else {
        return Err("expected memory=SIZE, such as memory=512M or memory=auto".into());
    };
    size.parse::<memory_setting::Setting>()
        .map_err(|error| error.to_string())?;
    Ok(Setting {
        memory: size.to_owned(),
    })
}

/// `foreswap swapon`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap swapon 4711 /mnt/nvme --priority 5
  foreswap swapon 4711 ram:512M")]
pub struct SwaponArgs {
    /// The pid of a managed program, or of its `foreswap run`, or the name of its group
    #[arg(value_name = "PID|GROUP")]
    pub which: Which,

    /// A directory, a file, a block device or ram:SIZE, as `run --swap` takes it
    #[arg(value_name = "AREA")]
    pub area: String,

    /// The area of the highest priority is filled first [default: below all others]
    #[arg(long, short, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,

    /// Size of the area, as `run --swap-size` takes it
    #[arg(long, value_name = "SIZE", value_parser = absolute)]
    pub swap_size: Option<u64>,
}

/// `foreswap swapoff`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap swapoff 4711
  foreswap swapoff 4711 /mnt/nvme

What is on the area comes back into memory, or moves to another area where the limit has no room, in
competition with the program, which goes first. Where neither has room, swapoff refuses and says how
much is missing. Ctrl-C takes it back: the area is in use as before.")]
pub struct SwapoffArgs {
    /// The pid of a managed program, or of its `foreswap run`, or the name of its group
    #[arg(value_name = "PID|GROUP")]
    pub which: Which,

    /// Path or number of the area, as `foreswap ps` lists it; not needed where there is only one
    #[arg(value_name = "AREA")]
    pub area: Option<String>,
}

/// `foreswap doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap doctor
  foreswap doctor --swap /mnt/nvme
  foreswap doctor --quick --json

Each finding is ok, a note (nothing has to be done), a warning (foreswap works, with a loss) or a
failure (it does not work), with commands that help. The last one is a trial: a job of 48 MiB in
16 MiB, whose memory is compared. The exit status is 0 if foreswap works here and 1 if it does not.")]
pub struct DoctorArgs {
    /// Check this area instead of the default one; may be repeated, as in `run`
    #[arg(long, value_name = "AREA")]
    pub swap: Vec<String>,

    /// Do not measure the speed of the area, which takes two seconds
    #[arg(long)]
    pub quick: bool,

    /// As JSON: `works`, the name of the check to begin with (`first`), and a list of `checks`
    ///
    /// Each check has a name, a verdict (ok, note, warning, failure), `found` and `why` as text, its
    /// `facts` (keys end with their unit), and `remedies`: a place and commands.
    #[arg(long)]
    pub json: bool,
}

fn absolute(text: &str) -> Result<u64, String> {
    match text.parse::<Size>().map_err(|error| error.to_string())? {
        Size::Bytes(bytes) => Ok(bytes),
        Size::OfMemory(_) => {
            Err("a swap area is not a part of memory; expected a size such as 20G".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use foreswap::ledger::ReadaheadPolicy;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    fn run(line: &[&str]) -> Result<RunArgs, String> {
        let words = ["foreswap", "run"].iter().chain(line);
        match Cli::read(words) {
            Ok(Cli {
                command: Subcommands::Run(args),
            }) => Ok(*args),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn options_end_where_the_command_starts() {
        let args = run(&["--memory", "1G", "--", "ls", "--quiet", "--", "-l"]).expect("valid");
        assert_eq!(args.command, ["ls", "--quiet", "--", "-l"]);
        assert!(!args.quiet);
        let args = run(&["-m", "40%", "ls", "--stats", "x"]).expect("valid without --");
        assert_eq!(args.command, ["ls", "--stats", "x"]);
        assert_eq!(
            args.memory,
            Some(memory_setting::Setting::Fixed(Size::OfMemory(0.4)))
        );
        assert!(args.stats.is_none());
        // Each policy has a largest window of its own.
        assert_eq!(args.max_window, None);
        let windows = [
            Readahead::Streams,
            Readahead::Vma,
            Readahead::Cluster,
            Readahead::Trend,
        ]
        .map(|policy| ReadaheadPolicy::from(policy).default_window());
        assert_eq!(windows, [512, 8, 8, 32]);
    }

    #[test]
    fn settings_are_checked_before_anybody_is_asked() {
        let parse = |line: &[&str]| Cli::try_parse_from(line).map_err(|e| e.to_string());
        for setting in ["memory=40%", "memory=auto", "memory=1G..2G"] {
            assert!(parse(&["foreswap", "set", "1", setting]).is_ok());
        }
        for (line, words) in [
            (
                ["foreswap", "set", "1", "memory=lots"],
                ["'memory=lots'", "1.5G"],
            ),
            (
                ["foreswap", "set", "1", "cpu=2"],
                ["'cpu=2'", "memory=SIZE"],
            ),
            (
                ["foreswap", "set", "x/y", "memory=1G"],
                ["'x/y'", "PID|GROUP"],
            ),
            (["foreswap", "swapon", "0", "/tmp"], ["'0'", "PID"]),
        ] {
            let error = parse(&line).expect_err("refused");
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        let low = parse(&["foreswap", "swapon", "7", "/tmp", "--priority", "-3"]);
        assert!(
            matches!(&low, Ok(Cli { command: Subcommands::Swapon(args) }) if args.priority == Some(-3)),
            "{low:?}"
        );
    }

    #[test]
    fn errors_name_the_value_and_an_example() {
        let error = run(&["--memory", "lots", "--", "ls"]).expect_err("no size");
        assert!(
            error.contains("'lots'") && error.contains("1.5G"),
            "{error}"
        );
        let error =
            run(&["--memory", "1G", "--swap-size", "10%", "--", "ls"]).expect_err("no size");
        assert!(error.contains("'10%'") && error.contains("20G"), "{error}");
        let error = run(&["--memory", "1G", "--max-window", "0", "--", "ls"]).expect_err("zero");
        assert!(error.contains("1..=512"), "{error}");
        let error = run(&["--memory", "1G", "--helpers", "4", "--", "ls"]).expect_err("too many");
        assert!(error.contains("0..=3"), "{error}");
        let error = run(&["--memory", "1G", "--helpers", "x", "--", "ls"]).expect_err("no number");
        assert!(
            error.contains("'x'")
                && error.contains("--helpers <N>")
                && error.contains("whole number"),
            "{error}"
        );
        let error = run(&["--memory", "-5", "--", "ls"]).expect_err("below zero");
        assert!(error.contains("'-5'") && error.contains("1.5G"), "{error}");
        let error = run(&["--memory", "1G", "--full-timeout", "x", "--", "ls"]).expect_err("none");
        assert!(error.contains("500ms"), "{error}");
        assert!(run(&["--memory", "1G"]).is_err());
        assert!(run(&["--", "ls"]).is_err());
    }
}

#[cfg(test)]
#[path = "documented_tests.rs"]
mod documented_tests;
