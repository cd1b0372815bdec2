//! The names of mappings, from `/proc/PID/maps`.
//!
//! A trace has addresses only. While the process lives, the kernel knows what they are: the heap, a library's data, a file.
//! Mappings come and go, so the lists of several moments are joined, and the later one is right.

use std::ops::Range;

/// The most mappings that are remembered of a process: the largest.
const MOST: usize = 4096;
/// The end of the name of a `.bss`.
const BSS: &str = " .bss";

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its pages.
    pub pages: Range<u64>,
    /// Its name; empty if it has none.
    pub name: String,
}

/// The mappings of a process.
#[derive(Clone, Debug, Default)]
pub struct Names {
    known: Vec<Named>,
}

fn parse_line(line: &str) -> Option<Named> {
    // start-end perms offset device inode name
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let page = |text| Some(u64::from_str_radix(text, 16).ok()? >> 12);
    let pages = page(start)?..page(end)?;
    let name = fields.nth(4).unwrap_or_default().trim_start().to_owned();
    (!pages.is_empty()).then_some(Named { pages, name })
}

/// The lines of a maps file. Nameless memory right behind the data of a program or library is its `.bss`.
fn parse(text: &str) -> Vec<Named> {
    let mut found: Vec<Named> = Vec::new();
    for line in text.lines() {
        let Some(mut named) = parse_line(line) else {
            continue;
        };
        if named.name.is_empty()
            && let Some(last) = found.last()
            && last.pages.end == named.pages.start
            && last.name.starts_with('/')
            && named.pages.end - named.pages.start <= most_bss(&last.name)
        {
            named.name = format!("{}{BSS}", last.name);
        }
        found.push(named);
    }
    found
}

/// The most pages of a `.bss`. Other memory may come to lie right behind a library, and counts as one mapping with its
/// `.bss`; hardly any library has a large one of its own.
fn most_bss(file: &str) -> u64 {
    if file.ends_with(BSS) {
        0
    } else if file.contains(".so") {
        64
    } else {
        u64::MAX
    }
}

impl Names {
    /// Adds the content of a maps file, read now.
    pub fn learn(&mut self, text: &str) {
        let mut now = parse(text);
        if now.is_empty() {
            return;
        }
        // Of mappings of before, what no other mapping covers.
        let mut old = Vec::new();
        for Named { pages, name } in std::mem::take(&mut self.known) {
            let mut from = pages.start;
            let mut keep = |to: u64, from: u64| {
                if from < to {
                    let (pages, name) = (from..to, name.clone());
                    old.push(Named { pages, name });
                }
            };
            let at = now.partition_point(|new| new.pages.end <= from);
            for new in now[at..]
                .iter()
                .take_while(|new| new.pages.start < pages.end)
            {
                keep(new.pages.start, from);
                from = from.max(new.pages.end);
            }
            keep(pages.end, from);
        }
        now.append(&mut old);
        if now.len() > MOST {
            now.sort_by_key(|named| std::cmp::Reverse(named.pages.end - named.pages.start));
            now.truncate(MOST);
        }
        now.sort_by_key(|named| named.pages.start);
        self.known = now;
    }

    /// Reads the maps file of `pid`, if it lives and may be looked at.
    pub fn look(&mut self, pid: u32) {
        if let Ok(text) = std::fs::read(format!("/proc/{pid}/maps")) {
            self.learn(&String::from_utf8_lossy(&text));
        }
    }

    /// The mapping that has the most of `pages`.
    pub fn of(&self, pages: &Range<u64>) -> Option<&Named> {
        let at = self
            .known
            .partition_point(|named| named.pages.end <= pages.start);
        let there = self.known[at..].iter();
        let there = there.take_while(|named| named.pages.start < pages.end);
        there
            .max_by_key(|named| named.pages.end.min(pages.end) - named.pages.start.max(pages.start))
    }
}

/// What people call a mapping: the last part of a path, `[heap]`, or `anonymous`.
pub fn spoken(name: &str) -> String {
    match name {
        "" => "anonymous".to_owned(),
        path if path.starts_with('/') => {
            let path = path.trim_end_matches(" (deleted)");
            path.rsplit('/').next().unwrap_or(path).to_owned()
        }
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00410000 r-xp 00000000 fe:00 12   /usr/bin/a program
00410000-00420000 rw-p 00000000 00:00 0 
01000000-02000000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
7f0001000000-7f0001001000 rw-p 00003000 fe:00 13 /usr/lib/libm.so.6
7f0001001000-7f0001002000 rw-p 00000000 00:00 0 
7f0001002000-7f0001003000 r--p 00000000 00:00 0 
7f0001003000-7f0001004000 rw-p 00003000 fe:00 13 /usr/lib/libc.so.6
7f0001004000-7f0009004000 rw-p 00000000 00:00 0 
no line of such a file
";

    #[test]
    fn names_are_those_of_the_kernel() {
        let mut names = Names::default();
        names.learn(MAPS);
        let name =
            |names: &Names, pages: Range<u64>| names.of(&pages).map(|named| spoken(&named.name));
        assert_eq!(name(&names, 0x400..0x401).as_deref(), Some("a program"));
        assert_eq!(
            name(&names, 0x418..0x419).as_deref(),
            Some("a program .bss")
        );
        assert_eq!(
            name(&names, 0x0007_f000_0000..0x0007_f000_0001).as_deref(),
            Some("anonymous")
        );
        let name_at = |page| name(&names, page..page + 1).unwrap_or_default();
        let pages = [
            0x0007_f000_1000,
            0x0007_f000_1001,
            0x0007_f000_1002,
            0x0007_f000_1004,
        ];
        assert_eq!(
            pages.map(name_at),
            ["libm.so.6", "libm.so.6 .bss", "anonymous", "anonymous"]
        );
        // A block that reaches over an edge: the larger part.
        assert_eq!(name(&names, 0x40e..0x1f00).as_deref(), Some("[heap]"));
        assert_eq!(name(&names, 0x3000..0x4000), None);
        // Later, a file is where the heap was, and the rest is as it was.
        names.learn("01800000-03000000 r--p 00000000 fe:00 12 /data/weights.bin\n");
        assert_eq!(name(&names, 0x2000..0x2001).as_deref(), Some("weights.bin"));
        assert_eq!(name(&names, 0x17ff..0x1800).as_deref(), Some("[heap]"));
        assert_eq!(name(&names, 0x400..0x401).as_deref(), Some("a program"));
    }
}
