//! What is said on a control socket: one JSON object a line.

use serde::{Deserialize, Serialize};

use crate::unmanaged::Unmanaged;

/// Bytes that a line has at the most.
pub const LINE_BYTES: usize = 256 << 10;

/// What a client asks for; one to a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Tell what is there.
    Ps,
    /// Change the limit.
    Set {
        /// As on the command line: `512M`, `40%`.
        memory: String,
    },
    /// Add a swap area.
    Swapon {
        /// Path of a folder, file or device, from the root.
        area: String,
        /// The highest is filled first; without one it is the last to be.
        priority: Option<i32>,
        /// Its size in bytes.
        swap_size: Option<u64>,
    },
    /// Empty a swap area and take it away.
    Swapoff {
        /// Its number or its path, as it was typed and from the root; without one the only area.
        area: Option<[String; 2]>,
    },
}

/// What the supervisor answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum Reply {
    /// To [`Request::Ps`].
    Run(Run),
    /// How far it is; more follows.
    Progress(Progress),
    /// It is done.
    Done {
        /// In words.
        text: String,
    },
    /// It was not done.
    Error {
        /// What was wrong, what was expected, what to do.
        text: String,
    },
}

/// How far a change is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes that are still on the area.
    pub left: u64,
    /// Bytes that were there at the start.
    pub total: u64,
    /// Processes that have not answered.
    pub waits_for: Vec<i32>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Pid of the supervisor.
    pub supervisor: i32,
    /// Pid of the command; `None` once it has ended and others go on.
    pub command_pid: Option<i32>,
    /// The command line.
    pub command: String,
    /// The limit.
    pub limit_bytes: u64,
    /// What all processes hold.
    pub resident_bytes: u64,
    /// What they hold beside that and foreswap does not manage.
    #[serde(default)]
    pub unmanaged_bytes: Unmanaged,
    /// The managed processes.
    pub processes: Vec<Process>,
    /// Others of the run that hold memory worth mentioning.
    #[serde(default)]
    pub others: Vec<Other>,
    /// The swap areas.
    pub areas: Vec<Area>,
    /// What was counted so far; `None` from a supervisor of a version that does not tell.
    #[serde(default)]
    pub totals: Option<Totals>,
}

/// What all processes of a run did since it began, those that have ended too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Bytes of pages that were read from areas.
    pub swap_in_bytes: u64,
    /// Bytes of pages that were written to areas.
    pub swap_out_bytes: u64,
    /// Faults that waited for an area.
    pub faults_major: u64,
    /// Huge pages that were split.
    pub huge_splits: u64,
}

/// A managed process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// Memory that is managed, resident or not.
    pub managed_bytes: u64,
    /// Memory that counts towards the limit.
    pub resident_bytes: u64,
    /// What it has on swap areas.
    pub swap_bytes: u64,
    /// Pages of readahead that were used, of those that were read; `None` when none were.
    pub readahead_hit_ratio: Option<f64>,
    /// Faults that waited for an area.
    pub faults_major: u64,
    /// What it holds beside that and foreswap does not manage.
    #[serde(default)]
    pub unmanaged_bytes: Unmanaged,
}

/// A process of the run that foreswap has no part in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// Its pid.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// What it holds.
    pub unmanaged_bytes: Unmanaged,
}

/// The memory of an area that is compressed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What it may take.
    pub capacity_bytes: u64,
    /// What it takes.
    pub held_bytes: u64,
    /// Of that, what the compressed pages are.
    pub live_bytes: u64,
}

/// A swap area.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Area {
    /// Its number.
    pub number: u8,
    /// The path it was given by.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What is in use.
    pub used_bytes: u64,
    /// Of compressed memory: what it takes, of how much it may; `bytes` and `used_bytes` are of the
    /// pages in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The highest is filled first.
    pub priority: i32,
    /// `usable`, `joining` or `draining`.
    pub state: String,
}
