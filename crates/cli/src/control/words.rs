//! The messages on a control socket: one JSON object per line.

use serde::{Deserialize, Serialize};

use crate::auto_memory::Auto;
use crate::unmanaged::Unmanaged;

/// The most bytes of a line.
pub const LINE_BYTES: usize = 256 << 10;

/// A client's request; one per connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// List the run.
    Ps {
        /// With the mappings of this process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mappings_of: Option<i32>,
    },
    /// Change the limit.
    Set {
        /// As on the command line: `512M`, `40%`.
        memory: String,
    },
    /// Add a swap area.
    Swapon {
        /// Absolute path of a folder, file or device.
        area: String,
        /// The highest is filled first; by default the area is filled last.
        priority: Option<i32>,
        /// Its size in bytes.
        swap_size: Option<u64>,
    },
    /// Empty a swap area and remove it.
    Swapoff {
        /// Its number or path, as typed and as an absolute path; by default the only area.
        area: Option<[String; 2]>,
    },
    /// Start a command that shares the limit of this group. The connection stays open as long as the command runs.
    Join {
        /// The name of the group.
        group: String,
        /// The options of its command line.
        wish: Wish,
    },
}

/// The supervisor's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum Reply {
    /// The answer to [`Request::Ps`].
    Run(Box<Run>),
    /// Progress; more replies follow.
    Progress(Progress),
    /// The answer to [`Request::Join`]; messages of the group follow.
    Joined(Box<Joined>),
    /// A message about a process of the group, or about the group.
    Said {
        /// Whether `--quiet` lets it through.
        is_error: bool,
        /// The message.
        text: String,
    },
    /// It is done.
    Done {
        /// The message.
        text: String,
    },
    /// It was not done.
    Error {
        /// The fault, the expectation, the remedy.
        text: String,
    },
}

/// What a command needs to become part of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The name of the socket for its engines.
    pub engines: String,
    /// The size in bytes at which a process gets an engine.
    pub threshold: u64,
    /// The patterns of `--map-files`, as the variable of the environment has them.
    pub map_files: Vec<u8>,
}

/// The options of a command line that concern a whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// `--memory`, if it is given.
    pub memory: Option<Limit>,
    /// The others that are given: name and value.
    pub options: Vec<(String, String)>,
}

/// The limit of a command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// As the user means it: `auto` and 40% have other bytes at another moment.
    pub setting: String,
    /// The least and the most, in bytes.
    pub bytes: [u64; 2],
}

/// The progress of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes still on the area.
    pub left: u64,
    /// Bytes on the area at the start.
    pub total: u64,
    /// Processes that have not answered.
    pub waits_for: Vec<i32>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Pid of the supervisor.
    pub supervisor: i32,
    /// Pid of the command; `None` if it has ended while other processes continue.
    pub command_pid: Option<i32>,
    /// The command line.
    pub command: String,
    /// The name of its group, if other commands can join it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The limit now.
    pub limit_bytes: u64,
    /// Its bounds, if it is not fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<Auto>,
    /// Managed memory held by all processes.
    pub resident_bytes: u64,
    /// Unmanaged memory of the processes.
    #[serde(default)]
    pub unmanaged_bytes: Unmanaged,
    /// The managed processes.
    pub processes: Vec<Process>,
    /// Other processes of the run with memory worth listing.
    #[serde(default)]
    pub others: Vec<Other>,
    /// The swap areas.
    pub areas: Vec<Area>,
    /// The counters so far; `None` from an older supervisor.
    #[serde(default)]
    pub totals: Option<Totals>,
    /// The largest mappings of one process, by address, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<Mapping>,
}

/// The sums over all processes of a run since its start, ended ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Bytes read from areas.
    pub swap_in_bytes: u64,
    /// Bytes read from mapped files.
    #[serde(default)]
    pub file_in_bytes: u64,
    /// Bytes of mapped files that left memory without a write.
    pub file_dropped_bytes: u64,
    /// Of `readahead_pages`, those of mapped files, and the used ones among them.
    pub file_readahead_pages: u64,
    /// See above.
    pub file_readahead_hits: u64,
    /// Bytes written to areas.
    pub swap_out_bytes: u64,
    /// Faults that waited for an area.
    pub faults_major: u64,
    /// Faults served from memory.
    pub faults_minor: u64,
    /// Faults served with a zero page.
    pub faults_zero: u64,
    /// Faults whose time was taken.
    pub faults_timed: u64,
    /// Their time, at most 4 % off.
    pub fault_ns_sum: u64,
    /// Pages read without a fault on them.
    pub readahead_pages: u64,
    /// The touched ones among them.
    pub readahead_hits: u64,
    /// Time in which a thread waited for a page that more memory would have kept, summed over processes.
    pub stalled_ns: u64,
    /// Huge pages that were split.
    pub huge_splits: u64,
}

/// A managed mapping of a process, as of some tenths of a second ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Its bytes in memory.
    pub resident_bytes: u64,
    /// Its bytes on swap areas.
    pub swapped_bytes: u64,
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
    /// Bytes of mapped files that are served.
    #[serde(default)]
    pub file_bytes: u64,
    /// Its resident bytes where it maps these files; looked at every now and then.
    #[serde(default)]
    pub file_resident_bytes: u64,
    /// Its bytes on swap areas.
    pub swap_bytes: u64,
    /// Used pages of readahead over pages read; `None` without readahead.
    pub readahead_hit_ratio: Option<f64>,
    /// Faults that waited for an area.
    pub faults_major: u64,
    /// Bytes read from areas.
    #[serde(default)]
    pub swap_in_bytes: u64,
    /// Bytes written to areas.
    #[serde(default)]
    pub swap_out_bytes: u64,
    /// Time in which a thread waited for a page that more memory would have kept.
    #[serde(default)]
    pub stalled_ns: u64,
    /// Its unmanaged memory.
    #[serde(default)]
    pub unmanaged_bytes: Unmanaged,
    /// Load control lets it wait for memory.
    #[serde(default)]
    pub waits_for_memory: bool,
}

/// A process of the run without an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// Its pid.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// Its memory.
    pub unmanaged_bytes: Unmanaged,
}

/// The memory of a RAM area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Its capacity.
    pub capacity_bytes: u64,
    /// Its chunks in use.
    pub held_bytes: u64,
    /// Its compressed pages.
    pub live_bytes: u64,
}

/// A swap area.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Area {
    /// Its number.
    pub number: u8,
    /// The path as given.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// The used bytes.
    pub used_bytes: u64,
    /// For a RAM area: its memory; `bytes` and `used_bytes` count uncompressed pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The highest is filled first.
    pub priority: i32,
    /// `usable`, `joining` or `draining`.
    pub state: String,
    /// What is put there is encrypted.
    #[serde(default)]
    pub encrypted: bool,
}
