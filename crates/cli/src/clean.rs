//! `foreswap clean`: removes what killed runs have left in buckets.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use foreswap_far::address::{Address, AddressError, S3};
use foreswap_far::s3::clean::{Bucket, Left};

use crate::size::{self, humane};

/// `foreswap clean`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap clean s3://cold-pages/team
  foreswap clean s3://cold-pages --dry-run

A run removes its objects when it ends, whatever the reason, unless its machine goes down or its relay
(`foreswap-relay`) is killed. A run that lives gives a sign of it each minute, and is left alone. Only
objects of foreswap are looked at (PREFIX/foreswap-RUN/...).")]
pub struct CleanArgs {
    /// The address as --swap has it, with the same ?endpoint= and the same AWS_... variables
    #[arg(value_name = "ADDRESS", required = true, value_parser = address)]
    pub addresses: Vec<S3>,

    /// Only list what is there
    #[arg(long)]
    pub dry_run: bool,

    /// Remove what has given no sign of life for so long
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = size::duration)]
    pub older_than: Duration,
}

fn address(text: &str) -> Result<S3, String> {
    let parsed = Address::parse(text).map_err(|error: AddressError| error.to_string())?;
    match parsed {
        Address::S3(s3) => Ok(s3),
        _ => Err(
            "only object stores keep what a killed run has left: expected s3://BUCKET[/PREFIX]"
                .into(),
        ),
    }
}

/// Lists what runs have left, and removes what nobody needs. The exit status is 1 if anything could not be.
pub fn clean(args: &CleanArgs) -> Result<ExitCode, anyhow::Error> {
    let mut status = ExitCode::SUCCESS;
    let mut out = std::io::stdout().lock();
    for address in &args.addresses {
        let failed = |why: String| anyhow::anyhow!("{}: {why}", address.text);
        let bucket = Bucket::open(address).map_err(failed)?;
        let all = bucket.look().map_err(failed)?;
        if all.is_empty() {
            writeln!(out, "{}: no run has left anything", address.text)?;
        }
        for left in all {
            let what = match (left.age >= args.older_than, args.dry_run) {
                (false, _) => "may be in use, left alone".to_owned(),
                (true, true) => "would be removed".to_owned(),
                (true, false) => match bucket.remove(&left) {
                    Ok(()) => "removed".to_owned(),
                    Err(why) => {
                        status = ExitCode::FAILURE;
                        format!("not removed: {why}")
                    }
                },
            };
            writeln!(out, "{}", line(&left, &what))?;
        }
    }
    Ok(status)
}

fn line(left: &Left, what: &str) -> String {
    let objects = match left.objects {
        1 => "1 object".to_owned(),
        n => format!("{n} objects"),
    };
    format!(
        "run {}: {objects}, {}, last sign of life {} ago: {what}",
        left.run,
        humane(left.bytes),
        in_words(left.age)
    )
}

fn in_words(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use foreswap_far::s3::clean::DEAD;

    use super::*;

    #[test]
    fn the_default_is_when_a_run_counts_as_over() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            clean: CleanArgs,
        }
        let line = <Line as clap::Parser>::parse_from(["clean", "s3://bucket/here"]);
        assert_eq!(line.clean.older_than, DEAD);
        let error = address("nbd://host").expect_err("no bucket");
        assert!(error.contains("s3://BUCKET"), "{error}");
    }

    #[test]
    fn a_line_says_what_is_there() {
        let mut left = Left::default();
        (left.run, left.objects, left.bytes) = ("0f".to_owned(), 1, 8 << 20);
        left.age = Duration::from_secs(90);
        let text = line(&left, "removed");
        assert_eq!(
            text,
            "run 0f: 1 object, 8 MiB, last sign of life 90 s ago: removed"
        );
        let words = [150, 3 * 3600, 5 * 86_400].map(|age| in_words(Duration::from_secs(age)));
        assert_eq!(words, ["2 min", "3 h", "5 days"]);
    }
}
