//! The processes of a run: the command and all its descendants, with or without an engine, in any namespace.
//!
//! Children are found in the kernel's lists. A child whose parent ended before the look is found by the variable with
//! which the command was started. A process is held by its folder in /proc, which never becomes another's. A process
//! that shares the memory of another (a child of vfork, an engine beside its program) is recognised and not counted.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::smaps::{self, Quick, Status};

/// The most bytes read of a process' file; 65,530 mappings take less.
const MOST_TEXT: usize = 128 << 20;
/// Room for the usual size.
const FIRST_TEXT: usize = 4 << 10;
/// The fraction of the descriptors for processes, each of which takes two.
const DESCRIPTORS: u64 = 4;
/// The start of the name of an engine's process.
const ENGINE: &str = "fs-pager";

/// A process of the run.
#[derive(Debug)]
pub struct Member {
    folder: OwnedFd,
    statm: std::fs::File,
    /// As of the last read of its `status`.
    threads: u64,
    /// Another process that has the same memory and represents it.
    pub shares_with: Option<i32>,
}

impl Member {
    fn open(pid: i32) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?;
        let statm = open_at(&folder, "statm")?;
        Ok(Self {
            folder,
            statm,
            threads: u64::MAX,
            shares_with: None,
        })
    }

    /// A living thread's view, if the first thread has ended and its folder is empty.
    fn of_another_thread(&self, pid: i32) -> Option<Self> {
        let tasks = self.tasks().into_iter().filter(|&task| task != pid);
        let mut views = tasks.filter_map(|task| Self::open(task).ok());
        views.find(|view| view.quick().is_some_and(|quick| quick.resident > 0))
    }

    /// `None` if it is gone.
    pub fn quick(&self) -> Option<Quick> {
        let mut text = [0; 256];
        let n = self.statm.read_at(&mut text, 0).ok()?;
        smaps::quick(std::str::from_utf8(&text[..n]).ok()?)
    }

    /// Its `status`.
    pub fn status(&self) -> io::Result<Status> {
        Ok(smaps::status(&self.text("status")?))
    }

    /// The text of a file in its folder.
    pub fn text(&self, name: &str) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(name)?).into_owned())
    }

    fn bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = open_at(&self.folder, name)?;
        let mut bytes = vec![0; FIRST_TEXT];
        let mut length = 0;
        // Without a query of the size, which the kernel does not know.
        while length < MOST_TEXT {
            if bytes.len() - length < FIRST_TEXT {
                bytes.resize(2 * bytes.len(), 0);
            }
            match rustix::io::read(&file, &mut bytes[length..]) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The target of a link in its folder.
    pub fn link(&self, name: &str) -> Option<String> {
        let link = rustix::fs::readlinkat(&self.folder, name, Vec::new()).ok()?;
        Some(link.to_string_lossy().into_owned())
    }

    /// Its program.
    pub fn program(&self) -> io::Result<std::fs::File> {
        open_at(&self.folder, "exe")
    }

    /// Whether a file exists at `path` in its view.
    pub fn has_file(&self, path: &str) -> bool {
        let path = format!("root/{}", path.trim_start_matches('/'));
        rustix::fs::statat(&self.folder, path, rustix::fs::AtFlags::empty()).is_ok()
    }

    /// Its initial environment.
    pub fn variables(&self) -> Vec<u8> {
        self.bytes("environ").unwrap_or_default()
    }

    /// Its parent, and when it started, in ticks of the clock.
    fn origin(&self) -> Option<(i32, u64)> {
        let text = self.text("stat").ok()?;
        // The name before may have blanks and brackets.
        let mut fields = text.rsplit(')').next()?.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        Some((parent, fields.nth(17)?.parse().ok()?))
    }

    fn is_engine(&self) -> bool {
        let status = self.status();
        status.is_ok_and(|status| status.name.starts_with(ENGINE))
    }

    /// Of two processes with the same memory, this one (`pid`) is the program: the other (`its`) is its engine or a child of
    /// vfork, and started later. Pids do not tell: they begin anew.
    fn is_program_of(&self, pid: i32, other: &Member, its: i32) -> bool {
        let origins = (self.origin(), other.origin());
        if let (Some((parent, start)), Some((its_parent, its_start))) = origins {
            if start != its_start {
                return start < its_start;
            }
            if parent == its || its_parent == pid {
                return its_parent == pid;
            }
        }
        match (self.is_engine(), other.is_engine()) {
            (false, true) => true,
            (true, false) => false,
            _ => pid < its,
        }
    }

    fn children(&self, pid: i32) -> Vec<i32> {
        let mut children = Vec::new();
        let mut add = |task: i32| {
            let list = self.bytes(&format!("task/{task}/children"));
            let list = list.unwrap_or_default();
            children.extend(list.split(|&byte| byte == b' ').filter_map(number));
        };
        if self.threads <= 1 {
            add(pid);
            return children;
        }
        self.tasks().into_iter().for_each(add);
        children
    }

    /// Its threads.
    fn tasks(&self) -> Vec<i32> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tasks = rustix::fs::openat(&self.folder, "task", flags, Mode::empty());
        let Ok(tasks) = tasks.and_then(rustix::fs::Dir::new) else {
            return Vec::new();
        };
        let tasks = tasks.flatten();
        tasks
            .filter_map(|task| number(task.file_name().to_bytes()))
            .collect()
    }
}

fn open_at(folder: &OwnedFd, name: &str) -> io::Result<std::fs::File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?.into())
}

fn most_members() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = descriptors.map_or(u64::MAX, |most| most / DESCRIPTORS / 2);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Whether /proc belongs to this pid namespace: otherwise its pids are those of other processes.
fn is_ours() -> bool {
    let shown = std::fs::read_link("/proc/self");
    let us = std::process::id().to_string();
    shown.is_ok_and(|shown| shown.as_os_str() == us.as_str())
}

fn number(name: &[u8]) -> Option<i32> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Whether two processes share one address space. False if the kernel does not tell.
fn same_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: libc::c_long = 1;
    // SAFETY: kcmp touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// The last pid assigned here and in the namespaces below: unchanged while no process or thread is created.
fn last_pid() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.rsplit(' ').next()?.trim().to_owned())
}

/// The known processes, by pid.
#[derive(Debug, Default)]
pub struct Family {
    members: BTreeMap<i32, Member>,
    /// `NAME=value` in the environment of all processes that the command starts.
    marker: Vec<u8>,
    last_pid: Option<String>,
    /// Pids outside the run, as of the last search through all.
    strangers: Vec<i32>,
    /// The relay to the servers of swap areas.
    relay: Option<i32>,
    /// The kernel's folder shows processes by pids of this namespace.
    readable: bool,
    /// Processes outside of the run whose children belong to it.
    starters: Vec<(i32, Member)>,
    /// Some processes may be found only by a search through all.
    pub may_miss: bool,
}

impl Family {
    /// Empty; `marker` is in the environment of the command.
    pub fn new(marker: String) -> Self {
        Self {
            marker: marker.into_bytes(),
            readable: is_ours(),
            ..Self::default()
        }
    }

    /// All living ones, with their pids.
    pub fn members(&self) -> impl Iterator<Item = (i32, &Member)> {
        self.members.iter().map(|(&pid, member)| (pid, member))
    }

    /// Whether they can be followed at all.
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// One of them.
    pub fn member(&self, pid: i32) -> Option<&Member> {
        self.members.get(&pid)
    }

    /// A process has this many threads, each of which may have children.
    pub fn has_threads(&mut self, pid: i32, threads: u64) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.threads = threads;
        }
    }

    /// The process shows nothing: it is a zombie, or only its first thread is. In the latter case another thread
    /// represents it from now on.
    pub fn look_behind(&mut self, pid: i32) {
        if let Some(member) = self.members.get_mut(&pid)
            && let Some(mut view) = member.of_another_thread(pid)
        {
            view.shares_with = member.shares_with;
            *member = view;
        }
    }

    /// The process that represents the memory of `pid`.
    pub fn stands_for(&self, pid: i32) -> i32 {
        let member = self.members.get(&pid);
        member.and_then(|member| member.shares_with).unwrap_or(pid)
    }

    /// Process `pid`, a child of this process perhaps, does not belong to the run.
    pub fn set_relay(&mut self, pid: Option<i32>) {
        self.relay = pid;
    }

    /// The children of `pid` belong to the run; it does not.
    pub fn add_starter(&mut self, pid: i32) {
        if self.readable
            && let Ok(starter) = Member::open(pid)
        {
            self.starters.push((pid, starter));
            self.last_pid = None;
        }
    }

    /// A process belongs to the run. True if that is new.
    pub fn add(&mut self, pid: i32) -> bool {
        if !self.readable
            || pid <= 0
            || self.members.contains_key(&pid)
            || pid == std::process::id().cast_signed()
        {
            return false;
        }
        if self.members.len() >= most_members() {
            return false;
        }
        let Ok(mut member) = Member::open(pid) else {
            return false;
        };
        match self.same_as(pid) {
            Some(other) if self.members[&other].is_program_of(other, &member, pid) => {
                member.shares_with = Some(other);
            }
            Some(other) => {
                for known in self.members.values_mut() {
                    if known.shares_with == Some(other) {
                        known.shares_with = Some(pid);
                    }
                }
                if let Some(known) = self.members.get_mut(&other) {
                    known.shares_with = Some(pid);
                }
            }
            None => {}
        }
        self.members.insert(pid, member);
        true
    }

    /// The number of living processes. Those that share memory count once, also while their representative has ended
    /// and no look has found another.
    pub fn living(&self) -> usize {
        let lives = |pid: i32| {
            let quick = self.members.get(&pid).and_then(Member::quick);
            quick.is_some_and(|quick| quick.resident > 0)
        };
        let each = self.members.iter().map(|(&pid, member)| {
            let with = member.shares_with.filter(|&with| lives(with));
            with.unwrap_or(pid)
        });
        let each: std::collections::BTreeSet<i32> = each.filter(|&pid| lives(pid)).collect();
        each.len()
    }

    /// Forgets ended processes, and updates which share memory.
    pub fn drop_dead(&mut self, dead: &[i32]) {
        for pid in dead {
            self.members.remove(pid);
            // The pid may already be reused by another process.
            self.last_pid = None;
        }
        let parted: Vec<i32> = self
            .members
            .iter()
            .filter(|(pid, member)| {
                let with = member.shares_with;
                with.is_some_and(|with| {
                    !self.members.contains_key(&with) || !same_memory(**pid, with)
                })
            })
            .map(|(&pid, _)| pid)
            .collect();
        for pid in parted {
            if let Some(mut member) = self.members.remove(&pid) {
                member.shares_with = self.same_as(pid);
                self.members.insert(pid, member);
            }
        }
    }

    fn same_as(&self, pid: i32) -> Option<i32> {
        let mut others = self.members.iter();
        let same = |(other, known): &(&i32, &Member)| {
            known.shares_with.is_none() && same_memory(pid, **other)
        };
        others.find(same).map(|(&other, _)| other)
    }

    /// Whether a process or thread was created since `pid` was.
    pub fn has_grown_since(&self, pid: i32) -> bool {
        let last = last_pid().and_then(|last| number(last.as_bytes()));
        last != Some(pid)
    }

    /// Finds new children, if there can be any. True if there are.
    pub fn find_children(&mut self) -> bool {
        let last = last_pid();
        if last.is_some() && last == self.last_pid {
            return false;
        }
        self.last_pid = last;
        self.may_miss = true;
        let mut found = false;
        let us = std::process::id();
        let ours = std::fs::read(format!("/proc/self/task/{us}/children")).unwrap_or_default();
        let ours = ours.split(|&b| b == b' ').filter_map(number);
        let mut to_ask: Vec<i32> = ours.filter(|pid| Some(*pid) != self.relay).collect();
        self.starters.retain(|(pid, starter)| {
            to_ask.extend(starter.children(*pid));
            starter.quick().is_some()
        });
        for (&pid, member) in &self.members {
            to_ask.extend(member.children(pid));
        }
        while let Some(pid) = to_ask.pop() {
            if self.add(pid) {
                found = true;
                to_ask.extend(self.members[&pid].children(pid));
            }
        }
        found
    }

    /// Searches all processes for descendants whose parents have ended.
    pub fn find_strays(&mut self) {
        self.may_miss = false;
        if !self.readable {
            return;
        }
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return;
        };
        let pids = entries.flatten();
        let pids = pids.filter_map(|entry| number(entry.file_name().as_encoded_bytes()));
        let before = std::mem::take(&mut self.strangers);
        for pid in pids {
            if self.members.contains_key(&pid) {
                continue;
            }
            let is_known = before.binary_search(&pid).is_ok();
            let is_ours = !is_known && Member::open(pid).is_ok_and(|other| self.is_marked(&other));
            if !is_ours || !self.add(pid) {
                self.strangers.push(pid);
            }
        }
        self.strangers.sort_unstable();
    }

    /// Whether the command or a descendant started it.
    pub fn is_marked(&self, member: &Member) -> bool {
        let variables = member.variables();
        variables
            .split(|&byte| byte == 0)
            .any(|one| one == self.marker)
    }

    /// Sends a signal to all of them. An engine beside its program ends with it: it is only killed.
    pub fn signal(&self, signal: Signal) {
        for (&pid, member) in &self.members {
            if signal != Signal::KILL && member.shares_with.is_some() && member.is_engine() {
                continue;
            }
            let Some(pid) = Pid::from_raw(pid) else {
                continue;
            };
            let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
                continue;
            };
            // It existed after the lookup of its pid: the pid was its own.
            if member.quick().is_some() {
                let _ = rustix::process::pidfd_send_signal(&process, signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    const MARKER: &str = "FORESWAP_TEST_FAMILY";

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn shell(script: &str, marker: &str) -> Killed {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env(MARKER, marker);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Killed(command.spawn().expect("a shell"))
    }

    fn until(mut done: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < end, "it never happens");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn grandchildren_are_found_and_strays_by_their_mark() {
        let mark = format!("stray-{}", std::process::id());
        let parent = shell("(sleep 61 & read nothing) ; exit", &mark);
        let mut family = Family::new(format!("{MARKER}={mark}"));
        let pid = parent.0.id().cast_signed();
        assert!(family.add(pid) && !family.add(pid));
        until(|| {
            family.find_children();
            family.members().count() >= 3
        });
        // The shells end, the sleeper remains with init.
        drop(parent);
        until(|| {
            let gone = |(pid, member): (i32, &Member)| {
                let alive = member.quick().is_some_and(|quick| quick.resident > 0);
                (!alive).then_some(pid)
            };
            let dead: Vec<i32> = family.members().filter_map(gone).collect();
            family.drop_dead(&dead);
            family.members().count() == 1
        });
        let (sleeper, _) = family.members().next().expect("the sleeper");
        let mut other = Family::new(format!("{MARKER}={mark}"));
        other.find_strays();
        assert!(other.members().any(|(pid, _)| pid == sleeper));
        let mut another = Family::new(format!("{MARKER}=another"));
        another.find_strays();
        assert_eq!(another.members().count(), 0);
        other.signal(Signal::KILL);
        until(|| {
            let alive = family.member(sleeper).and_then(Member::quick);
            alive.is_none_or(|quick| quick.resident == 0)
        });
    }

    /// Waits for a byte, as a process that shares this memory.
    extern "C" fn wait_beside(fd: *mut libc::c_void) -> libc::c_int {
        let mut byte = 0_u8;
        // SAFETY: one byte into a variable of ours.
        unsafe { libc::read(fd as libc::c_int, (&raw mut byte).cast(), 1) };
        0
    }

    #[test]
    fn a_process_that_shares_memory_is_not_counted() {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let mut stack = vec![0_u8; 64 << 10];
        let top = stack.as_mut_ptr_range().end;
        let first = shell("read nothing", "x");
        // SAFETY: the function uses nothing but its stack, which stays until it has ended.
        let beside = unsafe {
            let top = top.wrapping_sub(top as usize % 16).cast();
            let number = std::ptr::without_provenance_mut(ends[0] as usize);
            libc::clone(wait_beside, top, libc::CLONE_VM | libc::SIGCHLD, number)
        };
        assert!(beside > 0);
        let us = std::process::id().cast_signed();
        assert!(same_memory(us, beside) && !same_memory(us, first.0.id().cast_signed()));

        let mut family = Family::new(String::new());
        let member = Member::open(us).expect("ourselves");
        family.members.insert(us, member);
        assert!(family.add(beside) && family.add(first.0.id().cast_signed()));
        assert_eq!(family.stands_for(beside), us);
        // Whichever has the smaller pid.
        let (program, child) = (&family.members[&us], &family.members[&beside]);
        assert!(program.is_program_of(us, child, beside));
        assert!(!child.is_program_of(beside, program, us));
        assert_eq!(
            family.stands_for(first.0.id().cast_signed()),
            first.0.id().cast_signed()
        );
        // Two that share memory and the shell; then the two alone.
        assert_eq!(family.living(), 2);
        let shell = first.0.id().cast_signed();
        drop(first);
        assert_eq!(family.living(), 1);
        // No look has found yet that the representative has ended.
        family.members.remove(&us);
        family
            .members
            .get_mut(&beside)
            .expect("a member")
            .shares_with = Some(shell);
        assert_eq!(family.living(), 1);
        // The program is gone, or has executed another one: the remaining process represents the memory.
        family.drop_dead(&[us]);
        assert_eq!(family.stands_for(beside), beside);
        // SAFETY: descriptors of ours, and a child of ours.
        unsafe {
            libc::write(ends[1], [1_u8].as_ptr().cast(), 1);
            libc::waitpid(beside, std::ptr::null_mut(), 0);
            libc::close(ends[0]);
            libc::close(ends[1]);
        }
    }
}
