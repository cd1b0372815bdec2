//! `foreswap lab decisions` on the recordings that the core is tested with.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use flate2::read::GzDecoder;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    lab: foreswap_lab::LabArgs,
}

/// The status, as text: an [`ExitCode`] cannot be compared.
fn status(files: &[&Path]) -> String {
    let words = ["lab".as_ref(), "decisions".as_ref()];
    let words = words
        .into_iter()
        .chain(files.iter().map(|path| path.as_os_str()));
    let args = Cli::parse_from(words).lab;
    format!("{:?}", foreswap_lab::lab(args).expect("written"))
}

fn code(n: u8) -> String {
    format!("{:?}", ExitCode::from(n))
}

fn data(name: &str) -> PathBuf {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/data");
    core.join(name)
}

fn file(text: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text).expect("written");
    file
}

fn unpacked(name: &str) -> String {
    let packed = std::fs::read(data(name)).expect("there");
    let mut text = String::new();
    GzDecoder::new(&packed[..])
        .read_to_string(&mut text)
        .expect("gzip");
    text
}

#[test]
fn every_recorded_decision_is_given() {
    let (vma, cluster) = (data("swap-vma.jsonl.gz"), data("swap-cluster.jsonl.gz"));
    assert_eq!(status(&[&vma, &cluster]), code(0));
    let (files, edges) = (data("file-read.jsonl.gz"), data("file-edges.jsonl.gz"));
    assert_eq!(status(&[&files, &edges]), code(0));
    // Not packed, and under a name that says nothing.
    let plain = file(unpacked("swap-vma.jsonl.gz").as_bytes());
    assert_eq!(status(&[plain.path()]), code(0));
}

#[test]
fn one_changed_decision_is_seen() {
    for (name, from, to) in [
        (
            "swap-vma.jsonl.gz",
            "[5,[5,6,7,8,9,10,11,12]]",
            "[5,[5,6,7,8,9,10,11]]",
        ),
        (
            "swap-cluster.jsonl.gz",
            "[1998,[1995,1996,1997,1998]]",
            "[1998,[1998]]",
        ),
        (
            "file-read.jsonl.gz",
            "[\"async\",60,1],[\"window\",92,32,32,2]",
            "[\"async\",60,1],[\"window\",92,31,31,2]",
        ),
    ] {
        let text = unpacked(name);
        assert!(text.contains(from));
        let changed = file(text.replacen(from, to, 1).as_bytes());
        assert_eq!(status(&[changed.path()]), code(1), "{name}");
        // Whatever the other files are.
        let bad = file(b"nonsense");
        assert_eq!(status(&[bad.path(), changed.path()]), code(1));
    }
}

#[test]
fn incomparable_recordings_are_not_equal() {
    let vma = data("swap-vma.jsonl.gz");
    let files = file(br#"{"name":"seq","read_ahead_pages":32,"kind":"map","accesses":[]}"#);
    let packed = std::fs::read(&vma).expect("there");
    let cut = file(&packed[..packed.len() / 2]);
    let (empty, bad) = (file(b""), file(b"{\"touches\": 1}\n"));
    let missing = Path::new("/no/such/file");
    for path in [files.path(), cut.path(), empty.path(), bad.path(), missing] {
        assert_eq!(status(&[path]), code(2), "{}", path.display());
        assert_eq!(status(&[path, &vma]), code(2), "{}", path.display());
    }
}
