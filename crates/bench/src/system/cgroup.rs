//! A memory cgroup of our own, in whichever version the system has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{ChangeError, Changes};

/// Which interface the memory controller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes`
    One,
    /// `memory.max`
    Two,
}

/// A cgroup with a memory limit, empty so far.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    version: Version,
}

impl MemoryCgroup {
    /// Makes the cgroup `name` with `limit` at the top of the hierarchy.
    pub fn make(changes: &mut Changes, name: &str, limit: u64) -> Result<Self, ChangeError> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let Some((version, root)) = memory_hierarchy(&mounts, |path| fs::read_to_string(path).ok())
        else {
            let what = "no memory cgroup controller is mounted (version 1 or 2)";
            return Err(ChangeError::Missing(what.to_owned()));
        };
        if version == Version::Two {
            let delegated = root.join("cgroup.subtree_control");
            let has = fs::read_to_string(&delegated).unwrap_or_default();
            if !has
                .split_whitespace()
                .any(|controller| controller == "memory")
            {
                enable_memory(changes, &delegated)?;
            }
        }
        let path = root.join(name);
        changes.make_cgroup(&path)?;
        let cgroup = Self { path, version };
        cgroup
            .set_limit(limit)
            .map_err(ChangeError::step("set the limit", cgroup.limit_file()))?;
        Ok(cgroup)
    }

    /// Sets the limit; the kernel reclaims down to it at once.
    pub fn set_limit(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.limit_file(), bytes.to_string())
    }

    fn limit_file(&self) -> PathBuf {
        self.path.join(match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        })
    }

    /// The file into which a process writes `0` to enter.
    pub fn door(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// The most memory that was ever charged, if the kernel reports it.
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        fs::read_to_string(self.path.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// How many processes inside the kernel killed because nothing could be reclaimed.
    pub fn oom_kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }

    /// `1` or `2`.
    pub fn version(&self) -> u32 {
        match self.version {
            Version::One => 1,
            Version::Two => 2,
        }
    }
}

/// Delegates the memory controller to the root's children; undone by taking it back.
fn enable_memory(changes: &mut Changes, delegated: &Path) -> Result<(), ChangeError> {
    changes.note.add(super::Change::Setting {
        path: delegated.to_owned(),
        was: "-memory".to_owned(),
    })?;
    fs::write(delegated, "+memory").map_err(ChangeError::step("enable memory in", delegated))
}

/// Finds the memory controller: version 1 first, as its presence rules out the other.
fn memory_hierarchy(
    mounts: &str,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<(Version, PathBuf)> {
    let fields = || {
        mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
    };
    for field in fields() {
        if let [_, path, "cgroup", options, ..] = field[..]
            && options.split(',').any(|option| option == "memory")
        {
            return Some((Version::One, PathBuf::from(path)));
        }
    }
    for field in fields() {
        if let [_, path, "cgroup2", ..] = field[..] {
            let controllers = read(&Path::new(path).join("cgroup.controllers"))?;
            let has = controllers.split_whitespace().any(|c| c == "memory");
            return has.then(|| (Version::Two, PathBuf::from(path)));
        }
    }
    None
}

/// Removes a cgroup. Processes still in it are ours, since we made it, and are killed.
pub fn remove(path: &Path, patience: Duration) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() != Some(libc::EBUSY) => return Err(error),
            Err(error) if start.elapsed() > patience => return Err(error),
            Err(_) => {
                let inside = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                for pid in inside
                    .lines()
                    .filter_map(|line| line.parse::<libc::pid_t>().ok())
                {
                    // SAFETY: a signal to a process that runs in our own cgroup.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(()) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_one_is_found_by_its_option() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = memory_hierarchy(mounts, |_| None);
        assert_eq!(
            found,
            Some((Version::One, PathBuf::from("/sys/fs/cgroup/memory")))
        );
    }

    #[test]
    fn version_two_must_have_the_controller() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        let with = memory_hierarchy(mounts, |_| Some("cpu io memory pids\n".to_owned()));
        assert_eq!(with, Some((Version::Two, PathBuf::from("/sys/fs/cgroup"))));
        let without = memory_hierarchy(mounts, |_| Some("cpu io\n".to_owned()));
        assert_eq!(without, None);
        assert_eq!(memory_hierarchy("", |_| None), None);
    }
}
