//! Reads recordings: one JSON object per line, plain or gzip. Input is not trusted.
//!
//! A recording is validated before it is replayed: an invalid one is reported by line and value, instead of as a
//! decision that differs.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;

use super::files::{self, File};

/// The longest line that is read. The longest existing recording has 130 KB.
const MAX_LINE: u64 = 64 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The largest `page-cluster` that the kernel accepts.
const MAX_PAGE_CLUSTER: u32 = 31;
/// Pages of an address space of 57 bits.
const MAX_PAGES: u64 = 1 << 45;

/// Why a file is invalid.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// A system error, or a damaged gzip stream.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The file is empty.
    #[error("holds no recording; expected one JSON object a line, plain or gzip")]
    Empty,
    /// One line is wrong.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// The fault.
        problem: Problem,
    },
}

/// The fault of a recording.
#[derive(Debug, Error)]
pub enum Problem {
    /// No recording is that long.
    #[error("longer than {} MiB; expected one recording a line", MAX_LINE >> 20)]
    TooLong,
    /// Unexpected JSON; the parser's message has the place.
    #[error("{0}; expected a recording, one JSON object")]
    Json(#[from] serde_json::Error),
    /// An object of another kind.
    #[error("expected `touches` (swap readahead) or `accesses` (file readahead) in the object")]
    Kind,
    /// An impossible value.
    #[error("{what} is {found}; expected {expected}")]
    Value {
        /// Its name.
        what: String,
        /// The value.
        found: u64,
        /// The permitted values.
        expected: String,
    },
    /// A field that this policy needs.
    #[error("`{0}` is missing; expected it with policy \"cluster\"")]
    Missing(&'static str),
    /// A page on the area without a slot.
    #[error(
        "page {0} has no slot; expected one for each page that is touched or read in `slot_of_page`"
    )]
    NoSlot(u64),
    /// A decision without a cause.
    #[error("a \"window\" or \"read\" event comes first; expected \"sync\" or \"async\" before it")]
    Causeless,
    /// Two windows at once.
    #[error("the decision at page {0} has two \"window\" events; expected at most one")]
    TwoWindows(u64),
    /// Reads of another kind.
    #[error("`kind` is {0:?}; expected \"read\"")]
    FileKind(String),
}

/// One recording.
pub enum Recording {
    /// Of swap readahead.
    Swap(Swap),
    /// Of file readahead.
    File(File),
}

/// The swap readahead policies of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapPolicy {
    /// By address.
    Vma,
    /// By slot.
    Cluster,
}

impl fmt::Display for SwapPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SwapPolicy::Vma => "vma",
            SwapPolicy::Cluster => "cluster",
        })
    }
}

/// Touches of a region that was all swapped out.
#[derive(Debug)]
pub struct Swap {
    /// Its name.
    pub name: String,
    /// The deciding policy.
    pub policy: SwapPolicy,
    /// log2 of the largest window.
    pub page_cluster: u32,
    /// Pages of the region.
    pub pages: u64,
    /// Pages in order, each with the pages read for it, sorted; none for a hit.
    pub touches: Vec<(u64, Vec<u64>)>,
    /// The slot of each page. Empty with policy `vma`.
    pub slots: HashMap<u64, u32>,
    /// The inverse of `slots`.
    pub owners: BTreeMap<u32, u64>,
    /// Hits and window left by earlier touches. None with policy `vma`.
    pub left: (u32, u32),
}

#[derive(Deserialize)]
struct Kind {
    touches: Option<IgnoredAny>,
    accesses: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Line {
    name: String,
    policy: SwapPolicy,
    page_cluster: u32,
    vma_pages: u64,
    touches: Vec<(u64, Vec<u64>)>,
    slot_of_page: Option<Vec<(u64, u32)>>,
    initial_hits: Option<u32>,
    initial_window: Option<u32>,
}

/// The value if it is below `limit`.
pub(super) fn below(what: &str, found: u64, limit: u64) -> Result<u64, Problem> {
    if found < limit {
        return Ok(found);
    }
    Err(Problem::Value {
        what: what.into(),
        found,
        expected: format!("less than {limit}"),
    })
}

impl Swap {
    fn new(line: Line) -> Result<Self, Problem> {
        let pages = below("`vma_pages`", line.vma_pages, MAX_PAGES)?;
        let order = line.page_cluster;
        below(
            "`page_cluster`",
            order.into(),
            u64::from(MAX_PAGE_CLUSTER) + 1,
        )?;
        let mut swap = Swap {
            name: line.name,
            policy: line.policy,
            page_cluster: order,
            pages,
            touches: line.touches,
            slots: HashMap::new(),
            owners: BTreeMap::new(),
            left: (0, 0),
        };
        if swap.touches.is_empty() {
            return Err(Problem::Value {
                what: "the number of `touches`".into(),
                found: 0,
                expected: "at least 1".into(),
            });
        }
        for (page, read) in &mut swap.touches {
            below("a page in `touches`", *page, pages)?;
            for other in read.iter() {
                below("a page read in `touches`", *other, pages)?;
            }
            read.sort_unstable();
        }
        if line.policy == SwapPolicy::Cluster {
            let hits = line.initial_hits.ok_or(Problem::Missing("initial_hits"))?;
            let window = line
                .initial_window
                .ok_or(Problem::Missing("initial_window"))?;
            swap.left = (hits, window);
            let slots = line.slot_of_page.ok_or(Problem::Missing("slot_of_page"))?;
            swap.place(&slots)?;
        }
        Ok(swap)
    }

    fn place(&mut self, slots: &[(u64, u32)]) -> Result<(), Problem> {
        let twice = |what: &str, found: u64| Problem::Value {
            what: what.into(),
            found,
            expected: "each once".into(),
        };
        for &(page, slot) in slots {
            below("a page in `slot_of_page`", page, self.pages)?;
            if self.slots.insert(page, slot).is_some() {
                return Err(twice("a page in `slot_of_page`", page));
            }
            if self.owners.insert(slot, page).is_some() {
                return Err(twice("a slot in `slot_of_page`", slot.into()));
            }
        }
        let named = self
            .touches
            .iter()
            .flat_map(|(page, read)| read.iter().chain([page]));
        let mut homeless = named.filter(|page| !self.slots.contains_key(page));
        homeless
            .next()
            .map_or(Ok(()), |&page| Err(Problem::NoSlot(page)))
    }
}

fn parse(line: &[u8]) -> Result<Recording, Problem> {
    let kind: Kind = serde_json::from_slice(line)?;
    if kind.touches.is_some() {
        return Swap::new(serde_json::from_slice(line)?).map(Recording::Swap);
    }
    if kind.accesses.is_some() {
        return File::new(serde_json::from_slice::<files::Line>(line)?).map(Recording::File);
    }
    Err(Problem::Kind)
}

/// The recordings of one file, in order.
pub struct Recordings {
    lines: Box<dyn BufRead>,
    line: usize,
    buffer: Vec<u8>,
}

impl Recordings {
    /// The first bytes show whether it is plain or gzip, whatever the file's name.
    pub fn new(file: impl Read + 'static) -> io::Result<Self> {
        let mut file = BufReader::new(file);
        let lines: Box<dyn BufRead> = if file.fill_buf()?.starts_with(&GZIP) {
            Box::new(BufReader::new(MultiGzDecoder::new(file)))
        } else {
            Box::new(file)
        };
        Ok(Recordings {
            lines,
            line: 0,
            buffer: Vec::new(),
        })
    }

    /// The next one; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Recording>, RecordingError> {
        loop {
            self.buffer.clear();
            let mut line = self.lines.by_ref().take(MAX_LINE + 1);
            if line.read_until(b'\n', &mut self.buffer)? == 0 {
                return Ok(None);
            }
            self.line += 1;
            let result = if self.buffer.len() as u64 > MAX_LINE {
                Err(Problem::TooLong)
            } else if self.buffer.trim_ascii().is_empty() {
                continue;
            } else {
                parse(&self.buffer)
            };
            let line = self.line;
            return result
                .map(Some)
                .map_err(|problem| RecordingError::Line { line, problem });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn error(bytes: &[u8]) -> String {
        let mut recordings = Recordings::new(Cursor::new(bytes.to_vec())).expect("readable");
        loop {
            match recordings.next() {
                Ok(Some(_)) => {}
                Ok(None) => return String::new(),
                Err(error) => return error.to_string(),
            }
        }
    }

    const VMA: &str =
        r#"{"name":"a","policy":"vma","page_cluster":3,"vma_pages":8,"touches":[[0,[0]]]}"#;
    const FILE: &str = r#"{"name":"a","read_ahead_pages":32,"file_pages":9,"kind":"read","advice":"none","drop_ahead_every":0,"accesses":[[0,4096,[["sync",0,1],["window",0,4,3,0],["read",0,4,3]]]]}"#;
    const CLUSTER: &str = r#"{"name":"a","policy":"cluster","page_cluster":3,"vma_pages":8,"touches":[[1,[1]]],"slot_of_page":[[1,7],[2,9]],"initial_hits":0,"initial_window":1}"#;

    #[test]
    fn an_error_names_its_line() {
        assert_eq!(error(format!("{VMA}\n\n{CLUSTER}\n{FILE}").as_bytes()), "");
        let vma =
            |from: &str, to: &str| error(format!("{VMA}\n{}", VMA.replace(from, to)).as_bytes());
        let cluster = |from: &str, to: &str| error(CLUSTER.replace(from, to).as_bytes());
        for (error, parts) in [
            (vma(VMA, "no JSON"), &["line 2: ", "expected"][..]),
            (vma(VMA, "[1]"), &["line 2: ", "expected"]),
            (vma(VMA, "{}"), &["line 2: ", "`touches`", "`accesses`"]),
            (vma("]]]}", "]"), &["line 2: ", "EOF"]),
            (vma("\"vma\"", "\"best\""), &["line 2: ", "best", "`vma`"]),
            (
                vma(":3", ":32"),
                &["line 2: ", "`page_cluster` is 32", "less than 32"],
            ),
            (vma(":3", ":-1"), &["line 2: ", "-1"]),
            (
                vma("[[0,", "[[8,"),
                &["line 2: a page in `touches` is 8; expected less than 8"],
            ),
            (
                vma("[0]", "[9]"),
                &["line 2: a page read in `touches` is 9"],
            ),
            (
                vma("[[0,[0]]]", "[]"),
                &["line 2: the number of `touches` is 0"],
            ),
            (vma("[0]", "0"), &["line 2: ", "sequence"]),
            (
                vma(":8", ":18446744073709551615"),
                &["line 2: `vma_pages` is 1844"],
            ),
            (
                vma("\"touches\"", "\"touched\""),
                &["line 2: ", "`touches`"],
            ),
            (
                cluster("slot_of_page", "slots"),
                &["line 1: `slot_of_page` is missing"],
            ),
            (
                cluster("initial_hits", "x"),
                &["line 1: `initial_hits` is missing"],
            ),
            (
                cluster("initial_window", "x"),
                &["line 1: `initial_window` is missing"],
            ),
            (
                cluster("[2,9]", "[2,7]"),
                &["line 1: a slot in `slot_of_page` is 7; expected each once"],
            ),
            (
                cluster("[2,9]", "[1,9]"),
                &["line 1: a page in `slot_of_page` is 1; expected each once"],
            ),
            (
                cluster("[2,9]", "[8,9]"),
                &["line 1: a page in `slot_of_page` is 8; expected less"],
            ),
            (
                cluster("[1,[1]]", "[3,[1]]"),
                &["line 1: page 3 has no slot"],
            ),
        ] {
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in {error:?}");
            }
        }
    }

    #[test]
    fn an_invalid_recording_of_files_is_named() {
        let file = |from: &str, to: &str| error(FILE.replace(from, to).as_bytes());
        for (error, parts) in [
            (
                file("\"sync\"", "\"best\""),
                &["line 1: ", "best", "`sync`"][..],
            ),
            (
                file("[\"sync\",0,1],", ""),
                &["line 1: ", "\"window\"", "\"sync\""],
            ),
            (
                file("[\"sync\",0,1]", "[\"sync\",0]"),
                &["\"sync\" ends after 1 numbers"],
            ),
            (
                file("[\"sync\",0,1]", "[\"sync\",0,1,2]"),
                &["\"sync\" has more numbers"],
            ),
            (file("[\"sync\",0,1]", "[]"), &["an event is empty"]),
            (
                file("[\"sync\",0,1]", "[\"sync\",9,1]"),
                &["is 9", "less than 9"],
            ),
            (file("[\"sync\",0,1]", "[\"sync\",-1,1]"), &["-1"]),
            (
                file("[\"read\",0,4,3]", "[\"read\",0,10,3]"),
                &["a \"read\" event is 10"],
            ),
            (
                file("[\"read\",0,4,3]", "[\"window\",0,4,3,0]"),
                &["page 0 has two"],
            ),
            (
                file("0,4,3,0]", "0,4,5,0]"),
                &["async size", "is 5", "less than 5"],
            ),
            (file("\"none\"", "\"never\""), &["never", "`random`"]),
            (
                file("\"kind\":\"read\"", "\"kind\":\"map\""),
                &["`kind` is \"map\""],
            ),
            (file(":32", ":3200000"), &["`read_ahead_pages` is 3200000"]),
            (file(":9", ":900000000"), &["`file_pages` is 900000000"]),
            (file(":9", ":0"), &["less than 0"]),
            (
                file("[[0,4096", "[[10000000000000000000,4096"),
                &["an offset in `accesses`"],
            ),
            (
                error(br#"{"name":"a","accesses":[]}"#),
                &["`read_ahead_pages`"],
            ),
        ] {
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in {error:?}");
            }
        }
        let empty =
            r#"{"name":"a","read_ahead_pages":1,"file_pages":9,"advice":"none","accesses":[]}"#;
        assert!(error(empty.as_bytes()).contains("the number of `accesses` is 0"));
    }

    #[test]
    fn bytes_that_are_no_gzip_and_no_text_are_refused() {
        for bytes in [
            &[0x1f, 0x8b, 8, 0, 1][..],
            &[0x1f, 0x8b],
            &[0xff, 0xfe, b'\n'],
            &[0],
        ] {
            assert!(!error(bytes).is_empty(), "{bytes:?}");
        }
    }

    /// There is a result whatever is cut off or changed.
    #[test]
    fn damage_never_panics() {
        for text in [VMA, CLUSTER, FILE] {
            for cut in 0..text.len() {
                error(&text.as_bytes()[..cut]);
                for byte in [b'9', b'"', b'[', b'}', b',', 0, 0xff] {
                    let mut bytes = text.as_bytes().to_vec();
                    bytes[cut] = byte;
                    match parse(&bytes) {
                        Ok(Recording::Swap(swap)) => drop(super::super::replay::replay(&swap)),
                        Ok(Recording::File(file)) => {
                            drop(super::super::replay_files::replay(&file));
                        }
                        Err(_) => {}
                    }
                }
            }
        }
    }
}
