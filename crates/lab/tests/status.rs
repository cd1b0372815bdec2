//! The exit status of the commands that read traces.

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    lab: foreswap_lab::LabArgs,
}

fn lab(words: &[&str]) -> String {
    let args = Cli::parse_from(std::iter::once("lab").chain(words.iter().copied())).lab;
    format!("{:?}", foreswap_lab::lab(args).expect("written"))
}

#[test]
fn bad_traces_have_status_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bad.csv");
    let status = |words: &[&str]| lab(words);
    let two = format!("{:?}", std::process::ExitCode::from(2));
    std::fs::write(&path, "page\n1\nx\n").expect("written");
    let name = path.to_str().expect("text");
    assert_eq!(status(&["mrc", name]), two);
    assert_eq!(
        status(&[
            "convert",
            name,
            folder.path().join("out").to_str().expect("text")
        ]),
        two
    );
    // No part remains of a file that could not be converted.
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );
    assert_eq!(status(&["mrc", "/nowhere/at.all"]), two);
}
