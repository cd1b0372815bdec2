//! Runs a command under one memory management, one turn at a time.
//!
//! A turn prepares the machine for its peer, runs the command, and undoes the preparation, so that each peer finds the
//! same machine. The result of a turn is a flat list of named figures: those of the command's own report, and those of
//! the memory management. Figures with the same meaning have the same name for all peers (`hit_ratio`, `swap_in_bytes`,
//! `swap_out_bytes`, `major_faults`, `peak_bytes`).

mod child;
mod foreswap;
mod kernel;
mod passes;
mod swapoff;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::PeerName;
use crate::progress::Progress;
use crate::system::ChangeError;
pub use foreswap::ForeswapOptions;
pub use kernel::Kernels;
use kernel::{Kind, Place};

pub use child::{TimedOut, end};

/// Figures by name, in base units (bytes, nanoseconds, pages, ratios).
pub type Figures = BTreeMap<String, f64>;

/// These figures, for tests.
#[cfg(test)]
pub fn figures<'a>(named: impl IntoIterator<Item = (&'a str, f64)>) -> Figures {
    let named = named.into_iter();
    named
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The result of one turn.
#[derive(Debug)]
pub struct Turn {
    /// The command's standard output.
    pub output: Vec<u8>,
    /// The figures of its peer.
    pub figures: Figures,
    /// Further data: foreswap's whole statistics, for the JSON report.
    pub details: Option<serde_json::Value>,
}

/// The state that a bench needs to run turns.
pub struct Session {
    /// The executable that has `run` and `workload`.
    pub exe: PathBuf,
    /// The directory of all swap areas and files.
    pub directory: PathBuf,
    /// The memory limit.
    pub limit: u64,
    /// The swap size of the kernel's peers.
    pub swap_bytes: u64,
    /// Whether the workload touches its pages in an order; the kernel's peers are set accordingly.
    pub in_order: bool,
    /// The rest before each turn.
    pub pause: Duration,
    /// After which time a command is ended.
    pub timeout: Option<Duration>,
    /// How foreswap is run.
    pub foreswap: ForeswapOptions,
    /// The kernel's peers; they share one swap file.
    pub kernels: Kernels,
}

/// The part of a turn that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// The whole of it.
    Whole,
    /// Its measured passes separately as well (see [`passes`]); the command has `--marks`.
    Passes,
}

/// Why a peer has no turn, or why its turn failed.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// It cannot be run here. The others continue.
    #[error("{0}")]
    NotRun(#[from] ChangeError),
    /// The command failed, or read a wrong byte. The bench ends.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

impl Session {
    /// One turn of `peer` with `command`, whose first word is a program.
    pub fn turn(
        &mut self,
        peer: PeerName,
        command: &[OsString],
        counting: Counting,
        progress: &Progress,
    ) -> Result<Turn, TurnError> {
        match peer {
            PeerName::Foreswap | PeerName::Encrypted => {
                let options = options_of(peer);
                Ok(foreswap::turn(self, options, command, counting, progress)?)
            }
            PeerName::Kernel | PeerName::KernelDefaults | PeerName::Zram | PeerName::Zswap => {
                let (kernels, place) = self.kernels();
                kernels.turn(kind_of(peer), place, command, counting, progress)
            }
            PeerName::Bare => {
                let finished = match counting {
                    Counting::Whole => child::run(command, None, self.timeout, progress),
                    Counting::Passes => child::run_marked(command, None, progress, |_, _| Ok(())),
                }?;
                let mut figures = Figures::new();
                figures.insert("elapsed_ns".to_owned(), finished.elapsed.as_nanos() as f64);
                figures.insert("peak_bytes".to_owned(), finished.peak as f64);
                Ok(Turn {
                    output: finished.output,
                    figures,
                    details: None,
                })
            }
        }
    }

    /// One turn of swapping `command`'s memory in; see [`swapoff`].
    pub fn swapoff_turn(
        &mut self,
        peer: PeerName,
        command: &[OsString],
        progress: &Progress,
    ) -> Result<Turn, TurnError> {
        match peer {
            PeerName::Foreswap | PeerName::Encrypted => {
                let options = options_of(peer);
                Ok(swapoff::of_foreswap(self, options, command, progress)?)
            }
            PeerName::Bare => Err(ChangeError::Missing("it swaps nothing".to_owned()).into()),
            PeerName::Kernel | PeerName::KernelDefaults | PeerName::Zram | PeerName::Zswap => {
                swapoff::of_kernel(self, kind_of(peer), command, progress)
            }
        }
    }

    fn kernels(&mut self) -> (&mut Kernels, Place<'_>) {
        let place = Place {
            directory: &self.directory,
            limit: self.limit,
            swap_bytes: self.swap_bytes,
            in_order: self.in_order,
            timeout: self.timeout,
        };
        (&mut self.kernels, place)
    }

    /// The directory of foreswap's area, if that is a file of its own.
    pub fn area_directory(&self) -> Option<&Path> {
        let mut areas = self.foreswap.areas();
        match (areas.next(), areas.next()) {
            (None, _) => Some(&self.directory),
            (Some(area), None) => Some(Path::new(area)).filter(|path| path.is_dir()),
            (Some(_), Some(_)) => None,
        }
    }

    /// The output of `command` under `foreswap run` with these options.
    pub fn under_foreswap(
        &self,
        command: &[OsString],
        options: &[&str],
        progress: &Progress,
    ) -> anyhow::Result<Vec<u8>> {
        let run = foreswap::Run::with(self, options, command);
        Ok(child::run(&run.line, None, self.timeout, progress)?.output)
    }

    /// The executable, followed by words for it.
    pub fn own_command(&self, words: &[String]) -> Vec<OsString> {
        let exe = self.exe.clone().into_os_string();
        std::iter::once(exe)
            .chain(words.iter().map(OsString::from))
            .collect()
    }
}

/// The output of `command` without foreswap, in the cgroup whose `cgroup.procs` is `door` if there is one.
pub fn plain(
    command: &[OsString],
    door: Option<&Path>,
    progress: &Progress,
) -> anyhow::Result<Vec<u8>> {
    Ok(child::run(command, door, None, progress)?.output)
}

/// Adds a figure derived from the common ones: pages read per major fault, the average reach of a fault.
fn derive(figures: &mut Figures) {
    let of = |name| figures.get(name).copied();
    if let (Some(bytes), Some(faults)) = (of("swap_in_bytes"), of("major_faults"))
        && faults > 0.0
    {
        figures.insert("pages_per_major".to_owned(), bytes / 4096.0 / faults);
    }
}

/// The options of `foreswap run` that make the peer.
fn options_of(peer: PeerName) -> &'static [&'static str] {
    match peer {
        PeerName::Encrypted => &["--encrypt"],
        _ => &[],
    }
}

fn kind_of(peer: PeerName) -> Kind {
    match peer {
        PeerName::Kernel => Kind::Best,
        PeerName::Zram => Kind::Zram,
        PeerName::Zswap => Kind::Zswap,
        _ => Kind::Defaults,
    }
}

/// A file that is removed on drop.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// This process' file name for `name` in `directory`.
    pub fn new(directory: &Path, name: &str) -> Self {
        Self(directory.join(format!("foreswap-bench-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
