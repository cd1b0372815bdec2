//! The memory available to this process: the machine's, or less by a cgroup.
//!
//! The limits of the process' own cgroup and of all its parents count, in version 1 and version 2.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process and its children could use at most.
pub fn available() -> u64 {
    available_below(Path::new("/"), &machine_total)
}

fn machine_total() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit)
}

fn available_below(root: &Path, total: &dyn Fn() -> u64) -> u64 {
    let total = total();
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = root.join("sys/fs/cgroup");
    let mut least = total;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (tops, file) = if controllers.is_empty() {
            (vec![mounts.clone(), mounts.join("unified")], "memory.max")
        } else if controllers.split(',').any(|c| c == "memory") {
            (vec![mounts.join("memory")], "memory.limit_in_bytes")
        } else {
            continue;
        };
        for top in tops {
            least = least.min(tightest(&top, path, file).unwrap_or(total));
        }
    }
    least
}

/// The smallest limit from the group up to the root of its hierarchy. Inside a container the path may name a group
/// that only the host sees; the top of the mount is then the own group.
fn tightest(top: &Path, group: &str, file: &str) -> Option<u64> {
    let group = PathBuf::from(group.trim_start_matches('/'));
    group
        .ancestors()
        .filter_map(|group| fs::read_to_string(top.join(group).join(file)).ok())
        .filter_map(|text| text.trim().parse().ok())
        .min()
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

    #[test]
    fn the_tightest_group_counts() {
        let total = || 1000;
        let plain = tree(&[("proc/self/cgroup", "0::/\n")]);
        assert_eq!(available_below(plain.path(), &total), 1000);
        let second = tree(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "600\n"),
        ]);
        assert_eq!(available_below(second.path(), &total), 600);
        let first = tree(&[
            ("proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n0::/\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "400\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(available_below(first.path(), &total), 400);
        let hidden = tree(&[
            ("proc/self/cgroup", "0::/only/the/host/sees\n"),
            ("sys/fs/cgroup/memory.max", "300\n"),
        ]);
        assert_eq!(available_below(hidden.path(), &total), 300);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available() > 64 << 20);
        assert!(available() <= machine_total());
    }
}
