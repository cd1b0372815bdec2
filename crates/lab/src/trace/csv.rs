//! Traces as lines of text. The first line names the columns, in any order; a missing column or an empty field has
//! its default. Numbers are decimal, or hexadecimal with prefix `0x`.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};

use foreswap_core::units::{PageRange, Vpn, len};

use super::error::TraceError;
use super::record::{Event, Found, Order, Record, Start};

/// The most bytes of a line.
const LONGEST: u64 = 4096;
const COLUMNS: [&str; 10] = [
    "time", "task", "space", "op", "page", "pages", "write", "found", "to", "file",
];
const TIME: usize = 0;
const TASK: usize = 1;
const SPACE: usize = 2;
const OP: usize = 3;
const PAGE: usize = 4;
const PAGES: usize = 5;
const WRITE: usize = 6;
const FOUND: usize = 7;
const TO: usize = 8;
const FILE: usize = 9;
const OPS: &str = "touch, map, unmap, discard, move, file, prefetched, evicted, lost or end";

/// Reads records from lines of `R`.
pub(super) struct CsvReader<R: BufRead> {
    input: R,
    /// The column of each field.
    columns: Vec<usize>,
    /// Tasks by the file's numbers, with their address space.
    tasks: HashMap<(u32, u32), u32>,
    order: Order,
    line: u64,
    text: Vec<u8>,
    /// The record after the start of its task.
    next: Option<Record>,
}

impl<R: BufRead> CsvReader<R> {
    /// Reads the names of the columns.
    pub(super) fn new(input: R) -> Result<Self, TraceError> {
        let mut reader = CsvReader {
            input,
            columns: Vec::new(),
            tasks: HashMap::new(),
            order: Order::default(),
            line: 0,
            text: Vec::new(),
            next: None,
        };
        let known = || format!("expected the columns' names, of {}", COLUMNS.join(", "));
        if !reader.read_line()? {
            return Err(TraceError::line(
                1,
                format!("the file is empty; {}", known()),
            ));
        }
        let text = String::from_utf8_lossy(&reader.text).into_owned();
        for name in text.split(',').map(str::trim) {
            let Some(column) = COLUMNS.iter().position(|known| *known == name) else {
                let name = name.escape_debug();
                return Err(TraceError::line(
                    reader.line,
                    format!("\"{name}\"; {}", known()),
                ));
            };
            if reader.columns.contains(&column) {
                return Err(TraceError::line(
                    reader.line,
                    format!("two columns are \"{name}\""),
                ));
            }
            reader.columns.push(column);
        }
        if !reader.columns.contains(&PAGE) {
            return Err(TraceError::line(
                reader.line,
                "no column is \"page\"; expected one",
            ));
        }
        Ok(reader)
    }

    /// Reads the next non-empty line into `text`; returns whether there is one.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        loop {
            self.text.clear();
            self.line += 1;
            let mut limited = self.input.by_ref().take(LONGEST);
            if limited.read_until(b'\n', &mut self.text)? == 0 {
                return Ok(false);
            }
            if self.text.len() as u64 == LONGEST && !self.text.ends_with(b"\n") {
                let problem = format!("longer than {LONGEST} bytes; expected a record");
                return Err(TraceError::line(self.line, problem));
            }
            self.text.truncate(self.text.trim_ascii_end().len());
            if !self.text.is_empty() {
                return Ok(true);
            }
        }
    }

    /// As [`super::Source::next`].
    pub(super) fn next(&mut self) -> Result<Option<Record>, TraceError> {
        if let Some(record) = self.next.take() {
            return self.checked(record).map(Some);
        }
        if !self.read_line()? {
            return Ok(None);
        }
        let text = std::mem::take(&mut self.text);
        let parsed = self.parse(&text);
        self.text = text;
        let (mut record, space) = parsed.map_err(|problem| TraceError::line(self.line, problem))?;
        let named = (record.task, space);
        if let Some(&task) = self.tasks.get(&named) {
            record.task = task;
            return self.checked(record).map(Some);
        }
        let task = self.tasks.len() as u32;
        self.tasks.insert(named, task);
        let start = Start {
            space,
            pid: 0,
            tid: named.0,
            parent: None,
        };
        let start = Record {
            time: record.time,
            task,
            event: Event::Start(start),
        };
        record.task = task;
        self.next = Some(record);
        self.checked(start).map(Some)
    }

    fn checked(&mut self, record: Record) -> Result<Record, TraceError> {
        match self.order.problem(&record) {
            Some(problem) => Err(TraceError::line(self.line, problem)),
            None => Ok(record),
        }
    }

    /// The record of a line, with the file's number of its task, and the address space.
    fn parse(&self, line: &[u8]) -> Result<(Record, u32), String> {
        let line = std::str::from_utf8(line).map_err(|_| "no text; expected UTF-8")?;
        let mut fields = [""; COLUMNS.len()];
        let mut columns = self.columns.iter();
        for field in line.split(',') {
            let Some(&column) = columns.next() else {
                let most = self.columns.len();
                return Err(format!("more than {most} fields; expected one a column"));
            };
            fields[column] = field.trim();
        }
        let number = |column: usize, default: u64| match fields[column] {
            "" => Ok(default),
            text => {
                let parsed = match text.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16),
                    None => text.parse(),
                };
                let (name, text) = (COLUMNS[column], text.escape_debug());
                parsed.map_err(|_| format!("{name} is \"{text}\"; expected a number of 64 bits"))
            }
        };
        let small = |column: usize| {
            let value = number(column, 0)?;
            let name = COLUMNS[column];
            u32::try_from(value).map_err(|_| format!("{name} is {value}; expected one of 32 bits"))
        };
        let needed = |column: usize| match fields[column] {
            "" => Err(format!("{} is missing", COLUMNS[column])),
            _ => number(column, 0),
        };
        let pages = || -> Result<PageRange, String> {
            let (first, count) = (needed(PAGE)?, number(PAGES, 1)?);
            let end = first
                .checked_add(count)
                .ok_or("the pages end above 64 bits")?;
            Ok(Vpn(first)..Vpn(end))
        };
        let write = match fields[WRITE] {
            "" | "0" | "r" => false,
            "1" | "w" => true,
            other => {
                let other = other.escape_debug();
                return Err(format!("write is \"{other}\"; expected 0, 1, r or w"));
            }
        };
        let event = match fields[OP] {
            "" | "touch" => Event::Touch {
                page: Vpn(needed(PAGE)?),
                found: found(fields[FOUND])?,
                write,
            },
            "map" => Event::Map(pages()?),
            "unmap" => Event::Unmap(pages()?),
            "discard" => Event::Discard(pages()?),
            "move" => Event::Move {
                from: pages()?,
                to: Vpn(needed(TO)?),
            },
            "file" => Event::File {
                file: small(FILE)?,
                pages: pages()?,
                write,
            },
            "prefetched" => Event::Prefetched(pages()?),
            "evicted" => Event::Evicted(pages()?),
            "lost" => Event::Lost(needed(PAGES)?),
            "end" => Event::End,
            other => {
                let other = other.escape_debug();
                return Err(format!("op is \"{other}\"; expected {OPS}"));
            }
        };
        let (time, task) = (number(TIME, 0)?, small(TASK)?);
        Ok((Record { time, task, event }, small(SPACE)?))
    }
}

fn found(text: &str) -> Result<Found, String> {
    Ok(match text {
        "" | "unknown" => Found::Unknown,
        "new" => Found::New,
        "kept" => Found::Kept,
        "ahead" => Found::Ahead,
        "away" => Found::Away,
        other => {
            let other = other.escape_debug();
            return Err(format!(
                "found is \"{other}\"; expected unknown, new, kept, ahead or away"
            ));
        }
    })
}

/// Writes records as lines.
pub(super) struct CsvWriter<W: Write> {
    out: W,
    spaces: Vec<u32>,
}

impl<W: Write> CsvWriter<W> {
    /// Writes the names of the columns.
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        writeln!(out, "{}", COLUMNS.join(","))?;
        Ok(CsvWriter {
            out,
            spaces: Vec::new(),
        })
    }

    /// Adds a record. The first line of a task implies its start; pid and parent are left out.
    pub(super) fn push(&mut self, record: &Record) -> io::Result<()> {
        let (mut pages, mut write, mut of) = (None, false, "");
        let (mut to, mut file) = (String::new(), String::new());
        let mut count = None;
        let op = match &record.event {
            Event::Start(start) => {
                self.spaces.push(start.space);
                return Ok(());
            }
            Event::End => "end",
            Event::Touch {
                page,
                found,
                write: writes,
            } => {
                (pages, write) = (Some(*page..page.plus(1)), *writes);
                of = match found {
                    Found::Unknown => "",
                    Found::New => "new",
                    Found::Kept => "kept",
                    Found::Ahead => "ahead",
                    Found::Away => "away",
                };
                "touch"
            }
            Event::Map(range) => named("map", range, &mut pages),
            Event::Unmap(range) => named("unmap", range, &mut pages),
            Event::Discard(range) => named("discard", range, &mut pages),
            Event::Prefetched(range) => named("prefetched", range, &mut pages),
            Event::Evicted(range) => named("evicted", range, &mut pages),
            Event::Move { from, to: target } => {
                to = target.0.to_string();
                named("move", from, &mut pages)
            }
            Event::File {
                file: which,
                pages: range,
                write: writes,
            } => {
                (file, write) = (which.to_string(), *writes);
                named("file", range, &mut pages)
            }
            Event::Lost(records) => {
                count = Some(*records);
                "lost"
            }
        };
        let space = self.spaces.get(record.task as usize).copied().unwrap_or(0);
        let first = pages
            .as_ref()
            .map_or(String::new(), |p| p.start.0.to_string());
        let count = count.or_else(|| pages.as_ref().map(len));
        let count = count.map_or(String::new(), |n| n.to_string());
        let (time, task, write) = (record.time, record.task, u8::from(write));
        writeln!(
            self.out,
            "{time},{task},{space},{op},{first},{count},{write},{of},{to},{file}"
        )
    }

    /// All records were written.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn named(op: &'static str, range: &PageRange, pages: &mut Option<PageRange>) -> &'static str {
    *pages = Some(range.clone());
    op
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Record>, TraceError> {
        let mut reader = CsvReader::new(text.as_bytes())?;
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            records.push(record);
        }
        Ok(records)
    }

    #[test]
    fn columns_come_in_any_order() {
        let text = "page,write,task\n0x10,w,900\n\n17,,\n";
        let records = read(text).expect("read");
        let touch = |page, write| Event::Touch {
            page: Vpn(page),
            found: Found::Unknown,
            write,
        };
        let events: Vec<_> = records.iter().map(|r| (r.task, &r.event)).collect();
        assert!(matches!(
            events[0],
            (0, Event::Start(Start { tid: 900, .. }))
        ));
        assert_eq!(events[1], (0, &touch(16, true)));
        assert!(matches!(events[2], (1, Event::Start(_))));
        assert_eq!(events[3], (1, &touch(17, false)));
    }

    #[test]
    fn problems_name_the_line_and_the_value() {
        for (text, expected) in [
            ("", "line 1: the file is empty; expected the columns' names"),
            (
                "page,colour\n",
                "line 1: \"colour\"; expected the columns' names",
            ),
            ("page,page\n", "line 1: two columns are \"page\""),
            ("time\n", "line 1: no column is \"page\""),
            ("page\nx\n", "line 2: page is \"x\"; expected a number"),
            ("page\n\n5,6\n", "line 3: more than 1 fields"),
            (
                "page,op\n5,jump\n",
                "line 2: op is \"jump\"; expected touch, map",
            ),
            ("page,op\n5,move\n", "line 2: to is missing"),
            (
                "page,op,pages\n5,map,0\n",
                "line 2: pages 0x5 to 0x5; expected at least one page",
            ),
            (
                "page,op,pages,to\n5,move,9,7\n",
                "line 2: 9 pages move from 0x5 to 0x7; expected a place beside them",
            ),
            (
                "page,op,pages\n5,file,1048577\n",
                "line 2: 1048577 pages; expected up to 1048576 at once",
            ),
            ("page\n0x10000000000000\n", "line 2: pages 0x10000000000000"),
            ("page,write\n1,2\n", "line 2: write is \"2\""),
            (
                "page,task\n1,4294967296\n",
                "line 2: task is 4294967296; expected one of 32 bits",
            ),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let long = format!("page\n{}\n", "1".repeat(5000));
        assert!(
            read(&long)
                .expect_err("long")
                .to_string()
                .contains("longer than 4096")
        );
    }
}
