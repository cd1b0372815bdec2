//! The shell blocks of a document in Markdown, which tests run as a reader would.
//!
//! A block that begins with ```` ```sh ```` is run. One that cannot run in a test begins with ```` ```sh,norun REASON ````:
//! without a reason the document is refused, so that no block is left out silently.

/// A shell block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    /// Why it cannot run in a test; `None` if it is run.
    pub norun: Option<String>,
    /// Its lines.
    pub script: String,
}

/// The shell blocks of `text`, or what is wrong with one.
pub fn shell_blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((fence, line)) = lines.next() {
        let Some(info) = fence.strip_prefix("```") else {
            continue;
        };
        let norun = match info.strip_prefix("sh,norun") {
            Some(reason) if reason.trim().is_empty() => {
                return Err(format!("line {line}: `sh,norun` without a reason"));
            }
            Some(reason) => Some(reason.trim().to_owned()),
            None => None,
        };
        let mut script = String::new();
        loop {
            match lines.next() {
                Some(("```", _)) => break,
                Some((text, _)) => script += &format!("{text}\n"),
                None => return Err(format!("line {line}: a block without an end")),
            }
        }
        if info == "sh" || norun.is_some() {
            blocks.push(Block {
                line,
                norun,
                script,
            });
        } else if info.starts_with("sh") {
            return Err(format!("line {line}: `{info}`: expected sh or sh,norun"));
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_with_their_lines_and_reasons() {
        let text =
            "a\n```sh\none\ntwo\n```\n```text\nno\n```\n```sh,norun needs a cluster\nsrun x\n```\n";
        let found = shell_blocks(text).expect("a correct document");
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].line, &*found[0].script), (2, "one\ntwo\n"));
        assert_eq!(found[0].norun, None);
        assert_eq!(found[1].norun.as_deref(), Some("needs a cluster"));
    }

    #[test]
    fn what_would_be_left_out_silently_is_refused() {
        for (text, words) in [
            ("```sh,norun\nx\n```\n", "without a reason"),
            ("```shell\nx\n```\n", "expected sh"),
            ("```sh\nx\n", "without an end"),
        ] {
            let error = shell_blocks(text).expect_err("refused");
            assert!(error.contains(words), "{error}");
        }
    }
}
