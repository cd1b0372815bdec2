//! The settings of a run, and what is counted in it.

use foreswap_core::units::Nanos;

use super::workload::Workload;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Failure {
    /// Nothing
    None,
    /// A server stands still, as one that forks to save its memory
    Pause,
    /// A server falls silent, and is back after minutes, empty
    Crash,
}

impl Failure {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Failure::None => "none",
            Failure::Pause => "pause",
            Failure::Crash => "crash",
        }
    }
}

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Clients.
    pub clients: u32,
    /// Servers.
    pub servers: u32,
    /// Each page is on two servers.
    pub mirror: bool,
    /// What each client does.
    pub workload: Workload,
    /// What goes wrong.
    pub failure: Failure,
    /// Memory of a client, in pages.
    pub memory: u64,
    /// What its program touches, in pages.
    pub data: u64,
    /// Work of a program between two touches.
    pub think: Nanos,
    /// How long what is counted takes.
    pub time: Nanos,
    /// `--area-timeout`.
    pub timeout: Nanos,
    /// Bandwidth of a server's link, each way, in bytes a second.
    pub link: u64,
    /// Requests that a server works on at a time.
    pub threads: u32,
    /// Of the random numbers.
    pub seed: u64,
}

/// What became of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Bytes that clients have got.
    pub read: u64,
    /// Bytes of pages that are on a server, counted once.
    pub written: u64,
    /// Connections that were given up.
    pub broken: u64,
    /// Requests that went out again.
    pub retries: u64,
    /// Reads that failed because the time-out was over.
    pub timeouts: u64,
    /// Reads of pages that the server has lost.
    pub lost: u64,
    /// Writes that were refused because the server was away, or failed with its connection.
    pub unwritten: u64,
}

impl Counts {
    /// What has come since `begin`.
    pub fn since(&self, begin: &Counts) -> Counts {
        Counts {
            read: self.read - begin.read,
            written: self.written - begin.written,
            broken: self.broken - begin.broken,
            retries: self.retries - begin.retries,
            timeouts: self.timeouts - begin.timeouts,
            lost: self.lost - begin.lost,
            unwritten: self.unwritten - begin.unwritten,
        }
    }
}
