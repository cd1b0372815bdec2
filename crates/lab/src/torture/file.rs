//! Files that `--shrink` writes and `--replay` reads: JSON, the machine in the first line, then one step per line.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use foreswap_model::{Plan, Step};

/// The most steps of a file.
const MOST: usize = 10_000_000;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    /// Version of this format.
    foreswap_torture: u32,
    plan: Plan,
}

/// The text of a file.
pub fn write(plan: &Plan, steps: &[Step]) -> Result<String, serde_json::Error> {
    let head = Head {
        foreswap_torture: 1,
        plan: plan.clone(),
    };
    let mut text = serde_json::to_string(&head)?;
    text.push('\n');
    for step in steps {
        // Into a string: it cannot fail.
        let _ = writeln!(text, "{}", serde_json::to_string(step)?);
    }
    Ok(text)
}

/// The contents of a file.
///
/// # Errors
///
/// The line, and the expected form.
pub fn read(text: &str) -> Result<(Plan, Vec<Step>), String> {
    let mut lines = (1..).zip(text.lines());
    let (_, first) = lines
        .next()
        .ok_or("line 1: there is nothing; expected what `lab torture --shrink` writes")?;
    let head: Head = serde_json::from_str(first)
        .map_err(|error| format!("line 1: {error}; expected the machine, as JSON"))?;
    if head.foreswap_torture != 1 {
        let version = head.foreswap_torture;
        return Err(format!("line 1: version {version}; expected 1"));
    }
    head.plan
        .check()
        .map_err(|error| format!("line 1: {error}"))?;
    let mut steps = Vec::new();
    for (n, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let step = serde_json::from_str(line)
            .map_err(|error| format!("line {n}: {error}; expected a step, as JSON"))?;
        if steps.len() == MOST {
            return Err(format!("line {n}: more than {MOST} steps"));
        }
        steps.push(step);
    }
    Ok((head.plan, steps))
}

#[cfg(test)]
mod tests {
    use foreswap_model::Steps;

    use super::*;

    #[test]
    fn a_written_file_is_read_back() {
        for seed in 0..50 {
            let plan = Plan::draw(seed);
            assert_eq!(plan.check(), Ok(()));
            let steps: Vec<Step> = Steps::new(seed, &plan).take(300).collect();
            let text = write(&plan, &steps).expect("text");
            assert_eq!(read(&text), Ok((plan, steps)));
        }
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        let plan = Plan::draw(1);
        let steps: Vec<Step> = Steps::new(1, &plan).take(3).collect();
        let text = write(&plan, &steps).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        let error = |text: &str| read(text).expect_err("an error");
        assert!(error("").starts_with("line 1: there is nothing"));
        assert!(error("{}").starts_with("line 1: missing field"));
        let bad = text.replace(lines[2], "{\"who\":0}");
        assert!(error(&bad).starts_with("line 3: "), "{}", error(&bad));
        let pages = format!("\"pages\":{}", plan.pages);
        assert_eq!(
            error(&text.replace(&pages, "\"pages\":0")),
            "line 1: `pages` is 0; expected 8 to 16384"
        );
        let version = text.replace("torture\":1", "torture\":7");
        assert_eq!(error(&version), "line 1: version 7; expected 1");
    }
}
