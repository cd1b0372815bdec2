//! Huge pages: whether the kernel gives any.

use std::fs;

use super::check::Check;

/// What is read.
#[derive(Clone, Debug)]
pub struct HugeFacts {
    /// The chosen word of `transparent_hugepage/enabled`; `None` if the kernel has none, or /sys is not mounted.
    pub mode: Option<String>,
    /// This process, and all that it starts, have none (PR_SET_THP_DISABLE).
    pub disabled_here: bool,
}

impl HugeFacts {
    /// Of this process.
    pub fn read() -> Self {
        let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        // SAFETY: it only asks.
        let disabled = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
        Self {
            mode: text.ok().and_then(|text| chosen(&text)),
            disabled_here: disabled > 0,
        }
    }
}

fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// The check of this file.
pub fn judge(facts: &HugeFacts) -> Vec<Check> {
    const NAME: &str = "huge-pages";
    let why = "Memory moves in pages of 4 KiB instead of 2 MiB; scans are slower.";
    let warning = |found: &str| Check::warning(NAME, found, why);
    let check = match facts.mode.as_deref() {
        Some("never") => warning("transparent_hugepage/enabled is never").remedy(
            "as root, until the next boot (for good: transparent_hugepage=madvise on the kernel's \
             command line)",
            ["echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"],
        ),
        _ if facts.disabled_here => {
            warning("disabled for this process and its children (PR_SET_THP_DISABLE)")
        }
        Some(mode) => Check::ok(NAME, format!("transparent_hugepage/enabled is {mode}")),
        None => Check::note(
            NAME,
            "/sys/kernel/mm/transparent_hugepage cannot be read",
            "Where the kernel has no huge pages, scans are slower.",
        ),
    };
    vec![
        check
            .fact("enabled", facts.mode.as_deref())
            .fact("disabled_for_process", facts.disabled_here),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn modes() {
        let verdict = |mode: Option<&str>, disabled_here| {
            let mode = mode.map(str::to_owned);
            judge(&HugeFacts {
                mode,
                disabled_here,
            })[0]
                .verdict
        };
        assert_eq!(verdict(Some("madvise"), false), Verdict::Ok);
        assert_eq!(verdict(Some("always"), false), Verdict::Ok);
        assert_eq!(verdict(Some("never"), false), Verdict::Warning);
        assert_eq!(verdict(Some("always"), true), Verdict::Warning);
        assert_eq!(verdict(None, false), Verdict::Note);
        let text = "always [madvise] never\n";
        assert_eq!(chosen(text).as_deref(), Some("madvise"));
    }
}
