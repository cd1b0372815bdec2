//! `--memory` and `foreswap set memory=`: a fixed limit, or bounds within which the limit follows the program and the
//! machine.

use std::str::FromStr;

use foreswap_store::area::PAGE_BYTES;

use crate::memory;
use crate::size::{Size, SizeError, humane};

/// Below this, programs only swap, and the engine's staging does not fit.
pub const MIN_LIMIT: u64 = 16 << 20;

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Setting {
    /// `512M`, `40%`.
    Fixed(Size),
    /// `auto`: as much as the machine has to spare.
    Auto,
    /// `512M..8G`: the same within bounds.
    Range(Size, Size),
}

/// Why it was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// One size, and not a valid one.
    #[error("{0}; or auto, or auto within bounds, such as 512M..8G")]
    Size(#[from] SizeError),
    /// One side of a range.
    #[error("`{side}` in a range: {cause}; give both bounds, such as 512M..8G, or auto for none")]
    Side {
        /// As it was written.
        side: String,
        /// The fault.
        cause: SizeError,
    },
    /// Nothing on a side.
    #[error("a range without its {0} bound; give both, such as 512M..8G, or auto for none")]
    Open(&'static str),
    /// The wrong way around.
    #[error(
        "the least ({least}) is above the most ({most}); give the smaller size first: {most}..{least}"
    )]
    Reversed {
        /// The first size.
        least: String,
        /// The second one.
        most: String,
    },
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let Some((first, second)) = text.split_once("..") else {
            return Ok(Self::Fixed(text.parse()?));
        };
        let side = |text: &str, name| match text.trim() {
            "" => Err(SettingError::Open(name)),
            text => text.parse().map_err(|cause| SettingError::Side {
                side: text.to_owned(),
                cause,
            }),
        };
        let (least, most) = (side(first, "lower")?, side(second, "upper")?);
        let is_reversed = match (least, most) {
            (Size::Bytes(least), Size::Bytes(most)) => least > most,
            (Size::OfMemory(least), Size::OfMemory(most)) => least > most,
            // Known only together with the memory.
            _ => false,
        };
        if is_reversed {
            return Err(SettingError::Reversed {
                least: first.trim().to_owned(),
                most: second.trim().to_owned(),
            });
        }
        Ok(Self::Range(least, most))
    }
}

/// A setting in bytes, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The least that the limit may be.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// The limit follows the program and the machine.
    pub is_auto: bool,
}

impl Setting {
    /// In bytes, if it is usable here; `option` is the user's spelling.
    pub fn resolve(self, option: &str) -> anyhow::Result<Limits> {
        self.resolve_in(option, memory::available())
    }

    fn resolve_in(self, option: &str, memory: u64) -> anyhow::Result<Limits> {
        let whole = |bytes: u64| bytes / PAGE_BYTES * PAGE_BYTES;
        let (least, most) = match self {
            Self::Fixed(size) => {
                let limit = whole(check(option, size.resolve(memory), memory)?);
                return Ok(Limits {
                    least: limit,
                    most: limit,
                    is_auto: false,
                });
            }
            Self::Auto => (MIN_LIMIT.min(memory), memory),
            Self::Range(least, most) => (
                check(option, least.resolve(memory), memory)?,
                // More than there is does no harm: the machine bounds it as well.
                most.resolve(memory).min(memory),
            ),
        };
        if least > most {
            anyhow::bail!(
                "{option}: of {} memory, the least ({}) is above the most ({}); give the smaller size first, \
                 such as 512M..8G",
                humane(memory),
                humane(least),
                humane(most)
            );
        }
        Ok(Limits {
            least: whole(least),
            most: whole(most),
            is_auto: true,
        })
    }
}

fn check(option: &str, limit: u64, memory: u64) -> anyhow::Result<u64> {
    if limit < MIN_LIMIT {
        anyhow::bail!(
            "{option}{} is below what can work; the least is {}, such as {option}16M",
            humane(limit),
            humane(MIN_LIMIT)
        );
    }
    if limit > memory {
        anyhow::bail!(
            "{option}{} is more than the {} of memory available here; \
             give less, such as {option}80%",
            humane(limit),
            humane(memory)
        );
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1 << 30;

    #[test]
    fn settings() {
        let of = |text: &str| text.parse::<Setting>();
        assert_eq!(of("512M"), Ok(Setting::Fixed(Size::Bytes(512 << 20))));
        assert_eq!(of("40%"), Ok(Setting::Fixed(Size::OfMemory(0.4))));
        assert_eq!(of("auto"), Ok(Setting::Auto));
        assert_eq!(of(" Auto "), Ok(Setting::Auto));
        let range = Setting::Range(Size::Bytes(512 << 20), Size::Bytes(8 * G));
        assert_eq!(of("512M..8G"), Ok(range));
        assert_eq!(of("512M .. 8G"), Ok(range));
        let parts = Setting::Range(Size::Bytes(1 << 20), Size::OfMemory(0.5));
        assert_eq!(of("1M..50%"), Ok(parts));
        assert!(of("1G..1G").is_ok());
    }

    #[test]
    fn refusals_name_the_value_and_what_to_do() {
        for (text, words) in [
            ("8G..512M", ["8G", "512M..8G"]),
            ("50%..10%", ["50%", "10%..50%"]),
            ("512M..", ["upper", "512M..8G"]),
            ("..512M", ["lower", "512M..8G"]),
            ("..", ["lower", "auto"]),
            ("auto..8G", ["`auto`", "512M..8G"]),
            ("1G..2G..3G", ["`2G..3G`", "both bounds"]),
            ("lots", ["1.5G", "auto"]),
            ("0..1G", ["`0`", "zero"]),
        ] {
            let error = text.parse::<Setting>().expect_err(text).to_string();
            assert!(
                words.iter().all(|word| error.contains(word)),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn bounds_depend_on_the_machine() {
        let of = |text: &str, memory: u64| {
            let setting: Setting = text.parse().expect("valid");
            setting
                .resolve_in("--memory ", memory)
                .map_err(|why| why.to_string())
        };
        let limits = |least, most, is_auto| Limits {
            least,
            most,
            is_auto,
        };
        assert_eq!(of("1G", 2 * G), Ok(limits(G, G, false)));
        assert_eq!(of("auto", 2 * G), Ok(limits(16 << 20, 2 * G, true)));
        assert_eq!(of("1G..8G", 2 * G), Ok(limits(G, 2 * G, true)));
        assert_eq!(of("1G..100%", 4 * G), Ok(limits(G, 4 * G, true)));
        for (text, memory, word) in [
            ("4G..8G", 2 * G, "4 GiB is more than"),
            ("3G", 2 * G, "3 GiB is more than"),
            ("1M", 2 * G, "the least is 16 MiB"),
            ("1M..1G", 2 * G, "the least is 16 MiB"),
            ("1G..10%", 4 * G, "smaller size first"),
        ] {
            let error = of(text, memory).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
