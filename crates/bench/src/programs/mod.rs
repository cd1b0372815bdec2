//! Programs of others, unmodified, each with a job of some seconds and 80 to 430 MiB: interpreters, a compiler, a
//! compressor, a sort, a database.
//!
//! The output of each is small and always the same, so that a wrong byte shows. A program that is not installed is left
//! out, and named. The jobs are lines for Bash: what they read lies in a folder of the bench, which is `$1`, and the Python
//! that has packages is `$2`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::system::swap;

/// A program and its job.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its name in the report.
    pub name: String,
    /// The words that run it.
    pub command: Vec<OsString>,
}

/// A job of the list.
struct Job {
    name: &'static str,
    line: &'static str,
    /// Succeeds if the program is here.
    check: &'static str,
    /// How to get it on Debian.
    remedy: &'static str,
}

const JOBS: [Job; 13] = [
    Job {
        name: "python: dictionaries",
        line: "exec python3 \"$1\"/dicts.py",
        check: "python3 -c 'import json'",
        remedy: "apt install python3",
    },
    Job {
        name: "python: dictionaries with jemalloc",
        line: "LD_PRELOAD=\"libjemalloc.so.2${LD_PRELOAD:+:$LD_PRELOAD}\" exec python3 \"$1\"/dicts.py",
        // The loader only warns of an object that it does not find.
        check: "python3 -c 'import ctypes; ctypes.CDLL(\"libjemalloc.so.2\")'",
        remedy: "apt install python3 libjemalloc2",
    },
    Job {
        name: "python: SQLite in memory",
        line: "exec python3 \"$1\"/sqlite.py",
        check: "python3 -c 'import sqlite3'",
        remedy: "apt install python3",
    },
    Job {
        name: "python: Polars",
        line: "exec \"$2\" \"$1\"/frames.py",
        check: "\"$2\" -c 'import numpy, polars'",
        remedy: "pip install polars numpy, and name that Python by --python",
    },
    Job {
        name: "perl: hashes",
        line: "exec perl \"$1\"/table.pl",
        check: "perl -MDigest::SHA -e 1",
        remedy: "apt install perl",
    },
    Job {
        name: "ruby: compaction",
        line: "exec ruby \"$1\"/compact.rb",
        check: "ruby -rdigest -e 'GC.compact'",
        remedy: "apt install ruby",
    },
    Job {
        name: "node: objects",
        line: "exec node \"$1\"/objects.js",
        check: "node -e 1",
        remedy: "apt install nodejs",
    },
    Job {
        name: "R: data frames",
        line: "exec Rscript --vanilla \"$1\"/frames.R",
        check: "Rscript -e 1",
        remedy: "apt install r-base-core",
    },
    Job {
        name: "lua: tables",
        line: "exec lua5.4 \"$1\"/tables.lua",
        check: "lua5.4 -v",
        remedy: "apt install lua5.4",
    },
    Job {
        name: "g++: templates",
        line: "g++ -std=c++20 -O2 -S -o - \"$1\"/templates.cc | sha256sum",
        check: "g++ --version",
        remedy: "apt install g++",
    },
    Job {
        name: "xz -9",
        line: "xz -9 --threads=1 --stdout \"$1\"/text | sha256sum",
        check: "xz --version",
        remedy: "apt install xz-utils",
    },
    Job {
        name: "sort",
        line: "LC_ALL=C sort --parallel=1 --buffer-size=1G \"$1\"/text | sha256sum",
        check: "sort --version",
        remedy: "apt install coreutils",
    },
    Job {
        name: "jq: group by",
        line: "jq --compact-output 'group_by(.group) | map([.[0].group, length, (map(.value) | add)])' \"$1\"/json | sha256sum",
        check: "jq --version",
        remedy: "apt install jq",
    },
];

const SOURCES: [(&str, &str); 9] = [
    ("dicts.py", include_str!("dicts.py")),
    ("sqlite.py", include_str!("sqlite.py")),
    ("frames.py", include_str!("frames.py")),
    ("table.pl", include_str!("table.pl")),
    ("compact.rb", include_str!("compact.rb")),
    ("objects.js", include_str!("objects.js")),
    ("frames.R", include_str!("frames.R")),
    ("tables.lua", include_str!("tables.lua")),
    ("templates.cc", include_str!("templates.cc")),
];
/// Lines of the text, of about 25 bytes each, and objects of the JSON file.
const LINES: u64 = 1_600_000;
const OBJECTS: u64 = 220_000;

const SUFFIX: &str = "-programs";

/// The folder of the jobs' sources and inputs, removed on drop.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Writes all of it below `directory`.
    pub fn make(directory: &Path) -> anyhow::Result<Self> {
        for folder in swap::left_behind(directory, SUFFIX) {
            let _ = fs::remove_dir_all(folder);
        }
        let path = directory.join(format!("foreswap-bench-{}{SUFFIX}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let folder = Self(path);
        for (name, text) in SOURCES {
            fs::write(folder.0.join(name), text)?;
        }
        folder.write("text", |to| write_text(to, LINES))?;
        folder.write("json", |to| write_json(to, OBJECTS))?;
        Ok(folder)
    }

    fn write(
        &self,
        name: &str,
        content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let path = self.0.join(name);
        let mut file = BufWriter::new(File::create(&path)?);
        content(&mut file)
            .and_then(|()| file.flush())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The programs of the list that are here, in the part of the list whose names contain one of `wanted` (all, if that
    /// is empty), and a line for each that is not.
    pub fn programs(&self, python: &Path, wanted: &[String]) -> (Vec<Program>, Vec<String>) {
        let (mut here, mut missing) = (Vec::new(), Vec::new());
        for job in &JOBS {
            if !wanted.is_empty() && !wanted.iter().any(|part| job.name.contains(part)) {
                continue;
            }
            let words = |line: &str| -> Vec<OsString> {
                let shell = ["bash", "-o", "pipefail", "-c", line, "programs"].map(OsString::from);
                let places = [self.0.clone().into(), python.into()];
                shell.into_iter().chain(places).collect()
            };
            if succeeds(&words(job.check)) {
                here.push(Program {
                    name: job.name.to_owned(),
                    command: words(job.line),
                });
            } else {
                missing.push(format!("{}: not here ({})", job.name, job.remedy));
            }
        }
        (here, missing)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The names of the list.
pub fn names() -> impl Iterator<Item = &'static str> {
    JOBS.iter().map(|job| job.name)
}

fn succeeds(command: &[OsString]) -> bool {
    let Some((program, arguments)) = command.split_first() else {
        return false;
    };
    let mut tried = Command::new(program);
    tried
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    tried.status().is_ok_and(|status| status.success())
}

/// A bijective mix of `x`, for contents that neither repeat nor depend on anything else.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 29
}

/// Lines of words, some of which come often, as in a text.
fn write_text(to: &mut dyn Write, lines: u64) -> std::io::Result<()> {
    for line in 0..lines {
        let x = mix(line);
        writeln!(
            to,
            "{:06x} word{} {}",
            x & 0xff_ffff,
            x >> 24 & 0x3ff,
            line * 7919 % 1_000_003
        )?;
    }
    Ok(())
}

fn write_json(to: &mut dyn Write, objects: u64) -> std::io::Result<()> {
    write!(to, "[")?;
    for number in 0..objects {
        let x = mix(number);
        let comma = if number == 0 { "" } else { "," };
        write!(
            to,
            "{comma}\n{{\"group\":\"g{}\",\"value\":{},\"name\":\"name {number}\"}}",
            x % 997,
            x >> 40
        )?;
    }
    writeln!(to, "]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_what_the_jobs_read() {
        let (mut text, mut json) = (Vec::new(), Vec::new());
        write_text(&mut text, 3).unwrap();
        write_json(&mut json, 3).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.lines().all(|line| line.split(' ').count() == 3),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json[2]["name"], "name 2");
        assert!(json[0]["value"].is_u64() && json[0]["group"].is_string());
    }

    #[test]
    fn programs_are_chosen_by_parts_of_their_names() {
        let scratch = Folder(std::env::temp_dir().join("foreswap-no-such-folder"));
        let chosen = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|part| (*part).to_owned()).collect();
            let (here, missing) = scratch.programs(Path::new("no-such-python"), &wanted);
            (here.len(), missing)
        };
        assert_eq!(chosen(&["no program"]), (0, Vec::new()));
        assert_eq!(chosen(&["sort"]), (1, Vec::new()));
        let (here, missing) = chosen(&["Polars"]);
        assert!(here == 0 && missing[0].contains("--python"), "{missing:?}");
    }
}
