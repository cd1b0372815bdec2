//! Recordings of file readahead: reads of one file, each with the decisions that Linux made for it.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::recording::{Problem, below};

/// Largest file, in pages: 256 GiB.
const MAX_PAGES: u64 = 1 << 26;
/// Largest readahead limit, in pages: 4 GiB.
const MAX_LIMIT: u64 = 1 << 20;

/// The program's advice on its reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Advice {
    /// No advice.
    None,
    /// Sequential reads.
    Sequential,
    /// Random reads.
    Random,
}

/// The cause of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A read missed a page.
    Sync,
    /// A read reached a marked page.
    Async,
}

/// Pages that were submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// First page.
    pub start: u64,
    /// The number of pages.
    pub pages: u64,
    /// Pages from the mark to the end of the intended read.
    pub lookahead: u64,
}

/// A window that was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First page.
    pub start: u64,
    /// Pages.
    pub size: u64,
    /// Pages from the mark to its end.
    pub async_size: u64,
}

/// One decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The cause.
    pub cause: Cause,
    /// The page.
    pub page: u64,
    /// Pages that the read still needed, from this one on.
    pub req: u64,
    /// The new window, if there is one.
    pub window: Option<Window>,
    /// The submitted reads, in order.
    pub reads: Vec<Read>,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            Cause::Sync => "miss",
            Cause::Async => "mark",
        };
        write!(f, "{cause} at {} of {}:", self.page, self.req)?;
        if let Some(window) = self.window {
            let Window {
                start,
                size,
                async_size,
            } = window;
            write!(f, " window {start}+{size} async {async_size}")?;
        }
        for Read {
            start,
            pages,
            lookahead,
        } in &self.reads
        {
            write!(f, " read {start}+{pages} lookahead {lookahead}")?;
        }
        if self.window.is_none() && self.reads.is_empty() {
            f.write_str(" nothing")?;
        }
        Ok(())
    }
}

/// One read of the program.
#[derive(Debug)]
pub struct Access {
    /// First byte.
    pub offset: u64,
    /// Bytes requested.
    pub length: u64,
    /// Its decisions, in order.
    pub decisions: Vec<Decision>,
}

/// Reads of one file that was not cached at the start.
#[derive(Debug)]
pub struct File {
    /// Its name.
    pub name: String,
    /// The readahead limit, in pages, before the advice.
    pub limit: u64,
    /// Pages of the file.
    pub pages: u64,
    /// The program's advice.
    pub advice: Advice,
    /// Cached pages ahead of the program were dropped from time to time.
    pub drops: bool,
    /// The reads, in order.
    pub accesses: Vec<Access>,
}

/// One event of a recording, `["kind", number, ...]`.
enum Event {
    Asked(Cause, u64, u64),
    Window(Window),
    Read(Read),
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EventVisitor)
    }
}

struct EventVisitor;

impl EventVisitor {
    fn number<'de, A: SeqAccess<'de>>(
        seq: &mut A,
        kind: &str,
        nth: usize,
    ) -> Result<u64, A::Error> {
        let missing = || {
            let text = format!("event \"{kind}\" ends after {nth} numbers; expected more");
            de::Error::custom(text)
        };
        seq.next_element()?.ok_or_else(missing)
    }
}

impl<'de> Visitor<'de> for EventVisitor {
    type Value = Event;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event, [\"sync\", index, req] or the like")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Event, A::Error> {
        let kind: String = seq
            .next_element()?
            .ok_or_else(|| de::Error::custom("an event is empty; expected its kind first"))?;
        let mut number = |nth| Self::number(&mut seq, &kind, nth);
        let event = match kind.as_str() {
            "sync" => Event::Asked(Cause::Sync, number(0)?, number(1)?),
            "async" => Event::Asked(Cause::Async, number(0)?, number(1)?),
            "window" => {
                let window = Window {
                    start: number(0)?,
                    size: number(1)?,
                    async_size: number(2)?,
                };
                // The page size that Linux allocates for it: not the policy's decision.
                number(3)?;
                Event::Window(window)
            }
            "read" => Event::Read(Read {
                start: number(0)?,
                pages: number(1)?,
                lookahead: number(2)?,
            }),
            _ => {
                let known = &["sync", "async", "window", "read"];
                return Err(de::Error::unknown_variant(&kind, known));
            }
        };
        if seq.next_element::<de::IgnoredAny>()?.is_some() {
            let text = format!("event \"{kind}\" has more numbers than expected");
            return Err(de::Error::custom(text));
        }
        Ok(event)
    }
}

#[derive(Deserialize)]
pub(super) struct Line {
    name: String,
    read_ahead_pages: u64,
    file_pages: u64,
    kind: Option<String>,
    advice: Advice,
    drop_ahead_every: Option<u64>,
    accesses: Vec<(u64, u64, Vec<Event>)>,
}

/// `start + pages` may be the file's end, but not beyond it.
fn inside(what: &str, start: u64, pages: u64, file: u64) -> Result<(), Problem> {
    let end = start.saturating_add(pages);
    below(&format!("the end of {what}"), end, file + 1).map(drop)
}

fn decisions(events: Vec<Event>, file: u64) -> Result<Vec<Decision>, Problem> {
    let mut decisions: Vec<Decision> = Vec::new();
    for event in events {
        let last = decisions.last_mut();
        match (event, last) {
            (Event::Asked(cause, page, req), _) => {
                below("the page of a \"sync\" or \"async\" event", page, file)?;
                decisions.push(Decision {
                    cause,
                    page,
                    req,
                    window: None,
                    reads: Vec::new(),
                });
            }
            (_, None) => return Err(Problem::Causeless),
            (Event::Window(window), Some(last)) => {
                if last.window.replace(window).is_some() {
                    return Err(Problem::TwoWindows(last.page));
                }
                // A window may begin beyond the end of the file and is then not read.
                below(
                    "the start of a \"window\" event",
                    window.start,
                    2 * MAX_PAGES,
                )?;
                below("the size of a \"window\" event", window.size, MAX_PAGES)?;
                let size = window.size + 1;
                below(
                    "the async size of a \"window\" event",
                    window.async_size,
                    size,
                )?;
            }
            (Event::Read(read), Some(last)) => {
                inside("a \"read\" event", read.start, read.pages, file)?;
                last.reads.push(read);
            }
        }
    }
    Ok(decisions)
}

impl File {
    pub(super) fn new(line: Line) -> Result<Self, Problem> {
        let file = below("`file_pages`", line.file_pages, MAX_PAGES + 1)?;
        let limit = below("`read_ahead_pages`", line.read_ahead_pages, MAX_LIMIT + 1)?;
        if let Some(kind) = line.kind.filter(|kind| kind != "read") {
            return Err(Problem::FileKind(kind));
        }
        if line.accesses.is_empty() {
            return Err(Problem::Value {
                what: "the number of `accesses`".into(),
                found: 0,
                expected: "at least 1".into(),
            });
        }
        let access = |(offset, length, events): (u64, u64, Vec<Event>)| {
            let most = u64::MAX >> 1;
            Ok(Access {
                offset: below("an offset in `accesses`", offset, most)?,
                length: below("a length in `accesses`", length, most)?,
                decisions: decisions(events, file)?,
            })
        };
        Ok(File {
            name: line.name,
            limit,
            pages: file,
            advice: line.advice,
            drops: line.drop_ahead_every.is_some_and(|every| every > 0),
            accesses: line
                .accesses
                .into_iter()
                .map(access)
                .collect::<Result<_, Problem>>()?,
        })
    }
}
