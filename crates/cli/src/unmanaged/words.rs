//! The messages about unmanaged memory: its holder, size and kind, and the remedy.

use std::io::Read;

use super::family::{Family, Member};
use super::figures::Kind;
use crate::program::elf;
use crate::size::humane;

/// Bytes at the start of a program that identify its loader.
const HEAD: u64 = 4096;

/// A holder of unmanaged memory.
#[derive(Debug)]
pub struct Holder<'a> {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: &'a str,
    /// The kind of its memory.
    pub kind: Kind,
    /// Its size.
    pub bytes: u64,
    /// Why it has no engine, if it has none.
    pub why: Option<String>,
}

/// A description and a remedy.
fn kind(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Shared => (
            "of shared memory",
            "use a private mapping (MAP_PRIVATE; in Python mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE))",
        ),
        Kind::Locked => ("of locked memory", "do not lock it (mlock, mlockall)"),
        Kind::Executable => (
            "of executable memory",
            "map what is not code without PROT_EXEC",
        ),
        Kind::Stacks => (
            "of threads' stacks",
            "use fewer threads, or smaller stacks (ulimit -s)",
        ),
        Kind::Files => (
            "in private copies of pages of files",
            "read the file into memory of its own instead of writing to a mapping of it",
        ),
        Kind::Unknown => (
            "of memory that is not taken up",
            "allocate it with malloc or mmap",
        ),
    }
}

/// The line about it.
pub fn line(holder: &Holder<'_>, total: u64, limit: u64) -> String {
    let (what, remedy) = kind(holder.kind);
    let Holder { pid, name, .. } = holder;
    let who = format!("process {pid} ({name}) has {}", humane(holder.bytes));
    let much = humane(total);
    let limit = humane(limit);
    // Memory that an engine would manage.
    let (what, remedy) = match (&holder.why, holder.kind) {
        (Some(why), Kind::Unknown | Kind::Executable) => {
            (format!("and runs unmanaged: {why}"), None)
        }
        (Some(why), Kind::Locked) => (format!("{what} and runs unmanaged: {why}"), None),
        _ => (what.to_owned(), Some(remedy)),
    };
    let remedy = remedy.map_or(String::new(), |remedy| {
        format!("; {remedy}, or raise --memory")
    });
    format!("{much} are not managed, more than the limit of {limit}: {who} {what}{remedy}")
}

/// Why a process has no engine, and the remedy.
pub fn why_unmanaged(member: &Member, family: &Family) -> String {
    let mut head = Vec::new();
    let program = member.program();
    if let Ok(file) = program
        && file
            .try_clone()
            .is_ok_and(|file| file.take(HEAD).read_to_end(&mut head).is_ok())
        && let Err(obstacle) = elf::loader(&head, &file)
    {
        return format!("{obstacle}; {}", obstacle.remedy());
    }
    let variables = member.variables();
    let mut each = variables.split(|&byte| byte == 0);
    if each.clone().any(|one| one == b"FORESWAP_SOCKET=") {
        return "FORESWAP_SOCKET is set to nothing, which keeps a program from being managed; do not set it".into();
    }
    let preload = each.find_map(|one| one.strip_prefix(b"LD_PRELOAD="));
    if !variables.is_empty() && preload.is_none() {
        return "it was started without LD_PRELOAD; keep the environment".into();
    }
    let object = preload.and_then(|list| list.split(|byte| b" :".contains(byte)).next());
    if let Some(object) = object.and_then(|object| std::str::from_utf8(object).ok())
        && !object.is_empty()
        && !member.has_file(object)
    {
        return format!(
            "its file system has no {object}; show it there (bwrap --ro-bind {object} {object})"
        );
    }
    if !variables.is_empty() && !family.is_marked(member) {
        return "it was started without FORESWAP_SOCKET; keep the environment".into();
    }
    let own = std::fs::read_link("/proc/self/ns/net");
    let net = member.link("ns/net");
    if let (Ok(own), Some(net)) = (own, net)
        && own.to_string_lossy() != net
    {
        return "it is in a network namespace of its own, from which it cannot reach foreswap; \
                keep the network namespace (without --unshare-net, unshare -n)"
            .into();
    }
    "its memory did not come from malloc or the C library's mmap, or it gained privileges; \
     foreswap has no part in it"
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_line_says_who_how_much_what_and_what_to_do() {
        let mut holder = Holder {
            pid: 4711,
            name: "python3",
            kind: Kind::Shared,
            bytes: 400 * MIB,
            why: None,
        };
        let text = line(&holder, 412 * MIB, 64 * MIB);
        assert_eq!(
            text,
            "412 MiB are not managed, more than the limit of 64 MiB: process 4711 (python3) has 400 MiB of \
             shared memory; use a private mapping (MAP_PRIVATE; in Python mmap.mmap(-1, n, \
             flags=mmap.MAP_PRIVATE)), or raise --memory"
        );
        holder.kind = Kind::Unknown;
        holder.why = Some("it is statically linked".into());
        let text = line(&holder, 412 * MIB, 64 * MIB);
        assert!(
            text.ends_with("has 400 MiB and runs unmanaged: it is statically linked"),
            "{text}"
        );
        for each in Kind::ALL {
            let holder = Holder {
                kind: each,
                why: None,
                ..holder
            };
            let text = line(&holder, 412 * MIB, 64 * MIB);
            assert!(
                text.contains("; ") && text.ends_with("or raise --memory"),
                "{text}"
            );
            assert_eq!(text.lines().count(), 1);
        }
    }
}
