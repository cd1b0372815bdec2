//! The memory available to this process: the machine's, or less by a cgroup.
//!
//! The limits of the process' own cgroup and of all its parents count, in version 1 and version 2.

use std::fs;
use std::path::{Path, PathBuf};

use foreswap_core::auto_limit::Scope;
use foreswap_store::area::PAGE_BYTES;

/// Bytes of memory that this process and its children could use at most.
pub fn available() -> u64 {
    let total = machine_total();
    let groups = groups(Path::new("/"));
    let limits = groups.iter().filter_map(Group::limit);
    limits.chain([total]).min().unwrap_or(total)
}

fn machine_total() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit)
}

/// The memory that could be used now without a task having to wait, by scope: the machine, and each cgroup with a
/// limit from the process' own one up.
#[derive(Debug)]
pub struct Scopes {
    total: u64,
    root: PathBuf,
    groups: Vec<Group>,
}

impl Scopes {
    /// Of this process.
    pub fn find() -> Self {
        Self::below(Path::new("/"), machine_total())
    }

    fn below(root: &Path, total: u64) -> Self {
        Self {
            total,
            root: root.to_owned(),
            groups: groups(root),
        }
    }

    /// The scopes now, in pages. One that cannot be read is left out.
    pub fn now(&self) -> Vec<Scope> {
        let info = fs::read_to_string(self.root.join("proc/meminfo")).unwrap_or_default();
        let of_machine = field(&info, "MemAvailable:").map(|kib| (self.total, kib << 10));
        // A limit may be set or changed at any time.
        let of_groups = self.groups.iter().filter_map(|group| {
            let limit = group.limit().filter(|&limit| limit < self.total)?;
            Some((limit, group.room(limit)?))
        });
        let scopes = of_machine.into_iter().chain(of_groups);
        scopes
            .map(|(size, available)| Scope {
                size: size / PAGE_BYTES,
                available: available / PAGE_BYTES,
            })
            .collect()
    }

    /// The time in which tasks waited for memory so far, in nanoseconds; 0 where the kernel does not count it.
    pub fn pressed(&self) -> u64 {
        let text = fs::read_to_string(self.root.join("proc/pressure/memory")).unwrap_or_default();
        let some = text.lines().find(|line| line.starts_with("some"));
        let total = some.and_then(|line| line.rsplit_once("total=")?.1.trim().parse::<u64>().ok());
        total.unwrap_or(0).saturating_mul(1000)
    }
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A cgroup that this process belongs to. Inside a container the path may name a group that only the host sees; the top
/// of the mount is then the own group.
#[derive(Debug)]
struct Group {
    path: PathBuf,
    files: &'static Files,
}

/// The files of a version.
#[derive(Debug)]
struct Files {
    limits: &'static [&'static str],
    usage: &'static str,
    /// Pages of files: those not used lately, and the others.
    inactive: &'static str,
    active: &'static str,
}

const FIRST: Files = Files {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file ",
    active: "total_active_file ",
};

const SECOND: Files = Files {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    inactive: "inactive_file ",
    active: "active_file ",
};

impl Group {
    fn number(&self, file: &str) -> Option<u64> {
        let text = fs::read_to_string(self.path.join(file)).ok()?;
        text.trim().parse().ok()
    }

    fn limit(&self) -> Option<u64> {
        let limits = self.files.limits.iter();
        limits.filter_map(|file| self.number(file)).min()
    }

    /// What may be added without a task having to wait. The kernel drops pages of files when a group is full; those in
    /// use count half.
    fn room(&self, limit: u64) -> Option<u64> {
        let usage = self.number(self.files.usage)?;
        let free = limit.saturating_sub(usage);
        if free > limit / 4 {
            // It does not matter how much more: the figures below cost more to read.
            return Some(free);
        }
        let stat = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let pages = |name| field(&stat, name).unwrap_or(0);
        let of_files = pages(self.files.inactive) + pages(self.files.active) / 2;
        Some((free + of_files).min(limit))
    }
}

/// Every group that exists, from the own ones up to the roots of their hierarchies.
fn groups(root: &Path) -> Vec<Group> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = root.join("sys/fs/cgroup");
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (tops, files) = if controllers.is_empty() {
            (vec![mounts.clone(), mounts.join("unified")], &SECOND)
        } else if controllers.split(',').any(|c| c == "memory") {
            (vec![mounts.join("memory")], &FIRST)
        } else {
            continue;
        };
        let group = Path::new(group.trim_start_matches('/'));
        for top in tops {
            let paths = group.ancestors().map(|group| top.join(group));
            let paths =
                paths.filter(|path| files.limits.iter().any(|file| path.join(file).exists()));
            groups.extend(paths.map(|path| Group { path, files }));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        }
        root
    }

    fn available_below(root: &Path, total: u64) -> u64 {
        let groups = groups(root);
        let limits = groups.iter().filter_map(Group::limit);
        limits.chain([total]).min().unwrap_or(total)
    }

    #[test]
    fn the_tightest_group_counts() {
        let plain = tree(&[("proc/self/cgroup", "0::/\n")]);
        assert_eq!(available_below(plain.path(), 1000), 1000);
        let second = tree(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "600\n"),
        ]);
        assert_eq!(available_below(second.path(), 1000), 600);
        let first = tree(&[
            ("proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n0::/\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "400\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(available_below(first.path(), 1000), 400);
        let hidden = tree(&[
            ("proc/self/cgroup", "0::/only/the/host/sees\n"),
            ("sys/fs/cgroup/memory.max", "300\n"),
        ]);
        assert_eq!(available_below(hidden.path(), 1000), 300);
    }

    #[test]
    fn what_is_left_in_every_scope() {
        const M: u64 = 256;
        let root = tree(&[
            ("proc/self/cgroup", "4:memory:/x\n0::/y\n"),
            ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:  102400 kB\n"),
            (
                "proc/pressure/memory",
                "some avg10=0.00 total=25\nfull avg10=0.00 total=7\n",
            ),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "83886080\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "73400320\n"),
            (
                "sys/fs/cgroup/memory/x/memory.stat",
                "inactive_file 1\ntotal_inactive_file 10485760\ntotal_active_file 2097152\n",
            ),
            ("sys/fs/cgroup/unified/y/memory.max", "max\n"),
            ("sys/fs/cgroup/unified/y/memory.high", "104857600\n"),
            ("sys/fs/cgroup/unified/y/memory.current", "10485760\n"),
        ]);
        let scopes = Scopes::below(root.path(), 1 << 30);
        let scope = |size, available| Scope {
            size: size * M,
            available: available * M,
        };
        let found = scopes.now();
        assert_eq!(found, [scope(1024, 100), scope(80, 21), scope(100, 90)]);
        assert_eq!(scopes.pressed(), 25_000);
        let nothing = Scopes::below(Path::new("/nowhere"), 1 << 30);
        assert!(nothing.now().is_empty() && nothing.pressed() == 0);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available() > 64 << 20);
        assert!(available() <= machine_total());
        let scopes = Scopes::find().now();
        assert!(scopes[0].available > 0 && scopes[0].available <= scopes[0].size);
    }
}
