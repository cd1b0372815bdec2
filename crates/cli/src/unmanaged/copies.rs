//! Children of forks that no engine saw.
//!
//! A program may fork by a system call of its own. The kernel reports that to the engine if it has CAP_SYS_PTRACE, and the
//! child is served. Without it nobody knows of the child, and the engine keeps the managed memory from it, once pages of its
//! parent are swapped out: a touch raises SIGSEGV. Such a child is found here, once it has lived for a while without another
//! program: a process of the run that no engine announced, at whose start the stack and the arguments were where its parent's
//! are.

use std::collections::HashSet;

use super::family::{Family, Member};

/// CAP_SYS_PTRACE, in the mask of /proc/PID/status.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// What is equal in a process and its fork, until one of them executes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Image {
    parent: i32,
    /// Where the stack and the arguments began.
    start: [u64; 2],
}

/// From /proc/PID/stat.
fn image(stat: &str) -> Option<Image> {
    // The name may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
    // Numbers of proc(5): the state is field 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let image = Image {
        parent: fields.get(1)?.parse().ok()?,
        start: [field(28)?, field(48)?],
    };
    // Zeros: they are not for this user to see.
    image.start.iter().all(|&at| at > 1).then_some(image)
}

fn image_of(member: &Member) -> Option<Image> {
    image(&member.text("stat").ok()?)
}

/// Whether the process may ask the kernel to report its forks.
fn sees_forks(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & CAP_SYS_PTRACE != 0)
}

/// The processes that were looked at.
#[derive(Debug, Default)]
pub struct Copies {
    /// Seen once. Their parents may be about to announce them.
    suspects: HashSet<i32>,
    /// Not looked at again: no process becomes a copy later.
    done: HashSet<i32>,
}

impl Copies {
    /// Looks at processes that nobody announced; `swapped`: the bytes on areas of a process whose engine may not have seen
    /// a fork. Returns the lines to report.
    pub fn look(
        &mut self,
        family: &Family,
        known: &HashSet<i32>,
        swapped: impl Fn(i32) -> u64,
    ) -> Vec<String> {
        let (mut lines, mut suspects) = (Vec::new(), HashSet::new());
        for (pid, member) in family.members() {
            if member.shares_with.is_some() || known.contains(&pid) || self.done.contains(&pid) {
                continue;
            }
            // It may be readable at the next look.
            let Some(parent) = copied_from(family, member) else {
                continue;
            };
            if parent.is_some() && !self.suspects.contains(&pid) {
                suspects.insert(pid);
                continue;
            }
            self.done.insert(pid);
            let lost = parent.map(|parent| (parent, swapped(parent)));
            if let Some((parent, bytes)) = lost.filter(|(_, bytes)| *bytes > 0) {
                lines.push(format!(
                    "process {parent} forked by a system call of its own, not by the C library, and foreswap cannot see \
                     such forks without CAP_SYS_PTRACE: its child {pid} has none of the memory that is managed (of \
                     which {} MiB are swapped out), and gets SIGSEGV where it uses it; run foreswap as root for this program",
                    bytes.div_ceil(1 << 20)
                ));
            }
        }
        self.suspects = suspects;
        self.done.retain(|&pid| family.member(pid).is_some());
        lines
    }
}

/// The parent of a process that has executed no file since its fork, if nobody reports forks of the parent. `None`: one
/// of them cannot be read.
fn copied_from(family: &Family, member: &Member) -> Option<Option<i32>> {
    let found = image_of(member)?;
    let Some(parent) = family.member(found.parent) else {
        return Some(None);
    };
    let is_copy = image_of(parent)?.start == found.start;
    let is_unseen = is_copy && !sees_forks(&parent.text("status").ok()?);
    Some(is_unseen.then_some(found.parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_found_behind_any_name() {
        let mut fields: Vec<String> = (3..=52).map(|n| (n * 1000).to_string()).collect();
        (fields[0], fields[1]) = ("S".into(), "17".into());
        let stat = format!("42 (a) b (c) {}", fields.join(" "));
        let expected = Image {
            parent: 17,
            start: [28_000, 48_000],
        };
        assert_eq!(image(&stat), Some(expected));
        fields[28 - 3] = "0".into();
        assert_eq!(image(&format!("42 (x) {}", fields.join(" "))), None);
        assert_eq!(image("42 (x"), None);
    }

    #[test]
    fn a_fork_has_the_image_of_its_parent_and_another_program_has_not() {
        let own = std::fs::read_to_string("/proc/self/stat").expect("a stat");
        let own = image(&own).expect("an image");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("a child");
        let path = format!("/proc/{}/stat", child.id());
        // It may still be about to execute the file.
        let other = loop {
            let found = image(&std::fs::read_to_string(&path).expect("a stat"));
            if let Some(found) = found.filter(|found| found.start != own.start) {
                break found;
            }
            std::thread::yield_now();
        };
        child.kill().expect("a kill");
        child.wait().expect("its end");
        assert_eq!(other.parent, std::process::id().cast_signed());
    }

    #[test]
    fn the_right_is_a_bit_of_the_mask() {
        assert!(sees_forks("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!sees_forks("Name:\tx\nCapEff:\t0000000000000000\n"));
        assert!(!sees_forks(""));
    }
}
