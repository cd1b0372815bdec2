//! Which code waited for pages: samples of the threads that wait, and the names of their functions.
//!
//! userfaultfd reports the address that a thread touched and not its instruction. But the kernel shows the instruction of
//! a thread that sleeps, in `/proc/PID/task/TID/syscall`. The supervisor looks at the threads of active processes each time
//! it empties the rings, so that a function is counted in proportion to the time that it waits. The memory of the program
//! is never read: a page of it may be on an area, and the supervisor must not wait for an engine.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use addr2line::{Loader, demangle_auto};
use maud::{Markup, html};
use object::read::{Object, ObjectSegment, ReadCache};

use super::section;

/// A process is looked at for so long after its last record, in ns.
const ACTIVE: u64 = 1_000_000_000;
/// The most threads of a process that are looked at in one go.
const THREADS: usize = 64;
/// The most instructions that are told apart.
const MOST: usize = 4096;
/// Functions in the page.
const ROWS: usize = 12;
/// The function of the kernel in which a thread waits for a page.
const WAITS_IN: &str = "handle_userfault";

/// An instruction: where it is in which file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    /// Empty for code that has no file, as that of a just-in-time compiler.
    path: PathBuf,
    inode: u64,
    /// In the file; the address where there is none.
    offset: u64,
}

/// A mapping with code.
#[derive(Debug, PartialEq, Eq)]
struct Text {
    addresses: Range<u64>,
    /// The place of its first byte.
    first: Place,
}

/// A process that is looked at.
#[derive(Debug, Default)]
struct Looked {
    /// The time of its last record.
    active_ns: u64,
    texts: Vec<Text>,
}

/// The samples of a run.
#[derive(Debug, Default)]
pub struct Samples {
    processes: HashMap<u32, Looked>,
    places: HashMap<Place, u64>,
    /// Those whose instruction was not told apart.
    others: u64,
}

/// A function and the samples in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, or an offset in its file.
    pub name: String,
    /// Its source file and line, if the file has them: of the instruction that waited most.
    pub line: Option<String>,
    /// The program or library.
    pub file: String,
    /// Samples in it.
    pub samples: u64,
}

impl Function {
    /// Where it is: `libm.so.6`, or `job, main.c:7`.
    fn place(&self) -> String {
        match &self.line {
            Some(line) => format!("{}, {line}", self.file),
            None => self.file.clone(),
        }
    }
}

impl Samples {
    /// Records of a process have come at `now`, ns.
    pub fn on_active(&mut self, pid: u32, now: u64) {
        self.processes.entry(pid).or_default().active_ns = now;
    }

    /// The process has ended, or executes another program.
    pub fn on_end(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Looks at the threads of active processes.
    pub fn look(&mut self, now: u64) {
        for (&pid, process) in &mut self.processes {
            if now.saturating_sub(process.active_ns) > ACTIVE {
                continue;
            }
            for instruction in waiting(pid) {
                let place = process.place(pid, instruction);
                let is_new = !self.places.contains_key(&place);
                if is_new && self.places.len() >= MOST {
                    self.others += 1;
                } else {
                    *self.places.entry(place).or_default() += 1;
                }
            }
        }
    }

    /// The functions, those that waited most first.
    pub fn finish(self) -> Vec<Function> {
        let mut by_file: HashMap<(PathBuf, u64), Vec<(u64, u64)>> = HashMap::new();
        for (place, samples) in self.places {
            let file = by_file.entry((place.path, place.inode)).or_default();
            file.push((place.offset, samples));
        }
        let mut functions: Vec<Function> = Vec::new();
        for ((path, inode), mut offsets) in by_file {
            offsets.sort_by_key(|&(offset, samples)| (std::cmp::Reverse(samples), offset));
            let symbols = Symbols::of(&path, inode);
            let file = file_name(&path);
            let mut of_file: Vec<Function> = Vec::new();
            for (offset, samples) in offsets {
                let (name, line) = symbols.name(offset);
                match of_file.iter_mut().find(|function| function.name == name) {
                    Some(function) => function.samples += samples,
                    None => of_file.push(Function {
                        name,
                        line,
                        file: file.clone(),
                        samples,
                    }),
                }
            }
            functions.append(&mut of_file);
        }
        if self.others > 0 {
            functions.push(Function {
                name: "other instructions".to_owned(),
                line: None,
                file: String::new(),
                samples: self.others,
            });
        }
        functions.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.name.cmp(&b.name)));
        functions
    }
}

impl Looked {
    fn place(&mut self, pid: u32, address: u64) -> Place {
        let known = self
            .texts
            .iter()
            .any(|text| text.addresses.contains(&address));
        if !known {
            let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
            self.texts = texts(&String::from_utf8_lossy(&maps));
        }
        let text = self
            .texts
            .iter()
            .find(|text| text.addresses.contains(&address));
        let Some(text) = text.filter(|text| !text.first.path.as_os_str().is_empty()) else {
            return Place {
                path: PathBuf::new(),
                inode: 0,
                // Generated code comes and goes: one row for all of it.
                offset: 0,
            };
        };
        Place {
            offset: text.first.offset + (address - text.addresses.start),
            ..text.first.clone()
        }
    }
}

/// The executable mappings of a maps file.
fn texts(maps: &str) -> Vec<Text> {
    let text = |line: &str| {
        // start-end perms offset device inode name
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let addresses = hex(start)?..hex(end)?;
        if !fields.next()?.contains('x') {
            return None;
        }
        let offset = hex(fields.next()?)?;
        let inode = fields.nth(1)?.parse().ok()?;
        let name = fields.next().unwrap_or_default().trim_start();
        Some(Text {
            addresses,
            first: Place {
                path: PathBuf::from(name.trim_end_matches(" (deleted)")),
                inode,
                offset,
            },
        })
    };
    maps.lines().filter_map(text).collect()
}

/// The instructions of the threads that wait for a page now.
fn waiting(pid: u32) -> Vec<u64> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let threads = threads.flatten().take(THREADS);
    let instruction = |folder: &Path| {
        let state = fs::read_to_string(folder.join("syscall")).ok()?;
        let instruction = sleeping_at(&state)?;
        // A thread can sleep for other reasons.
        let waits_in = fs::read_to_string(folder.join("wchan")).ok()?;
        (waits_in == WAITS_IN).then_some(instruction)
    };
    threads
        .filter_map(|thread| instruction(&thread.path()))
        .collect()
}

/// The instruction in a `syscall` file: `NUMBER ARGUMENTS SP PC`, or `-1 SP PC` outside of system calls. A thread that runs
/// has none.
fn sleeping_at(state: &str) -> Option<u64> {
    let mut words = state.split_ascii_whitespace();
    words.next()?.parse::<i64>().ok()?;
    u64::from_str_radix(words.next_back()?.strip_prefix("0x")?, 16).ok()
}

fn file_name(path: &Path) -> String {
    match path.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None if path.as_os_str().is_empty() => "code made at run time".to_owned(),
        None => path.to_string_lossy().into_owned(),
    }
}

/// The symbols of a program or library, as far as it has them.
struct Symbols {
    loader: Option<Loader>,
    /// Offsets in the file and the address of the first.
    segments: Vec<(Range<u64>, u64)>,
}

impl Symbols {
    /// Of the file at `path` if it is still the one that was mapped.
    fn of(path: &Path, inode: u64) -> Self {
        let none = Self {
            loader: None,
            segments: Vec::new(),
        };
        let is_same = fs::metadata(path).is_ok_and(|file| file.is_file() && file.ino() == inode);
        if !is_same {
            return none;
        }
        let Ok(file) = fs::File::open(path) else {
            return none;
        };
        let cache = ReadCache::new(file);
        let Ok(object) = object::File::parse(&cache) else {
            return none;
        };
        let segment = |segment: object::Segment<'_, '_, _>| {
            let (offset, bytes) = segment.file_range();
            (offset..offset.saturating_add(bytes), segment.address())
        };
        Self {
            segments: object.segments().map(segment).collect(),
            loader: Loader::new(path).ok(),
        }
    }

    /// The function at an offset of the file, and its source line.
    fn name(&self, offset: u64) -> (String, Option<String>) {
        let segment = self
            .segments
            .iter()
            .find(|(offsets, _)| offsets.contains(&offset));
        let address = segment.map(|(offsets, first)| offset - offsets.start + first);
        let (Some(loader), Some(address)) = (&self.loader, address) else {
            return (unnamed(offset), None);
        };
        let Some(symbol) = loader.find_symbol(address) else {
            return (unnamed(offset), None);
        };
        // Of the function itself, not of what was inlined into it.
        let mut line = None;
        if let Ok(mut frames) = loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                line = frame.location.and_then(|location| {
                    let file = Path::new(location.file?).file_name()?;
                    Some(format!("{}:{}", file.to_string_lossy(), location.line?))
                });
            }
        }
        (demangle_auto(symbol.into(), None).into_owned(), line)
    }
}

fn unnamed(offset: u64) -> String {
    match offset {
        0 => "no file".to_owned(),
        offset => format!("+{offset:#x}"),
    }
}

/// The section.
pub fn draw(functions: &[Function]) -> Markup {
    let all: u64 = functions.iter().map(|function| function.samples).sum();
    if all == 0 {
        return html! {};
    }
    let most = functions.first().map_or(1, |function| function.samples);
    let more = functions.len().saturating_sub(ROWS);
    let content = html! {
        p {
            "Where threads were in the program while they waited for a page, looked at a hundred times a second."
        }
        div .table { table .code {
            thead { tr {
                th scope="col" { "Function" } th scope="col" { "Part" }
            } }
            tbody {
                @for function in functions.iter().take(ROWS) {
                    tr {
                        th scope="row" .command {
                            (function.name)
                            small { (function.place()) }
                        }
                        td .bar {
                            span style=(format!("width:{:.1}%", 50.0 * function.samples as f64 / most as f64)) {}
                            (format!("{:.1} %", 100.0 * function.samples as f64 / all as f64))
                        }
                    }
                }
            }
        } }
        @if more > 0 { p .note { (more) " more functions waited less." } }
    };
    section("Which code waited", &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_an_instruction() {
        for (state, expected) in [
            ("running\n", None),
            ("-1 0x7ffe1000 0x401234\n", Some(0x40_1234)),
            (
                "0 0x3 0x7f00 0x1000 0x0 0x0 0x0 0x7ffe1000 0x7f0011\n",
                Some(0x7f_0011),
            ),
            ("", None),
            ("-1 0x7ffe1000 nonsense", None),
        ] {
            assert_eq!(sleeping_at(state), expected, "{state:?}");
        }
    }

    #[test]
    fn code_is_found_by_its_file_and_has_a_name() {
        // This test's own code.
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let address = code_is_found_by_its_file_and_has_a_name as fn() as usize as u64;
        let own = std::env::current_exe().expect("a path");
        let found = texts(&maps);
        let text = found
            .iter()
            .find(|text| text.addresses.contains(&address))
            .expect("a mapping");
        assert_eq!(text.first.path, own);
        let mut samples = Samples::default();
        let mut process = Looked::default();
        let place = process.place(std::process::id(), address);
        samples.places.insert(place, 3);
        let nowhere = process.place(std::process::id(), 0);
        samples.places.insert(nowhere, 1);
        let functions = samples.finish();
        let own = file_name(&own);
        assert!(
            functions[0].name.contains("code_is_found_by_its_file") && functions[0].file == own,
            "{functions:?}"
        );
        assert_eq!((functions[0].samples, functions[1].samples), (3, 1));
        assert_eq!(functions[1].file, "code made at run time");
    }

    #[test]
    fn a_file_that_was_replaced_has_no_names() {
        let own = std::env::current_exe().expect("a path");
        assert_eq!(
            Symbols::of(&own, 1).name(0x1000),
            ("+0x1000".to_owned(), None)
        );
    }

    #[test]
    fn the_most_waiting_function_is_first_and_names_are_text() {
        let function = |name: &str, samples| Function {
            name: name.to_owned(),
            line: Some("a.c:3".to_owned()),
            file: "job".to_owned(),
            samples,
        };
        let page = draw(&[function("f<int>", 3), function("main", 1)]).into_string();
        assert!(
            page.contains("f&lt;int&gt;") && page.contains("75.0 %") && page.contains("job, a.c:3")
        );
        assert_eq!(draw(&[]).into_string(), "");
    }
}
