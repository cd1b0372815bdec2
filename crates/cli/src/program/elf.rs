//! The loader of an ELF file: only glibc's loads the preload object.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Why an ELF file cannot be managed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// No loader at all.
    #[error("it is statically linked, so no preload object can be loaded into it")]
    Static,
    /// 32-bit.
    #[error("it is a 32-bit program")]
    ThirtyTwoBit,
    /// Another processor.
    #[error("it is built for another processor (ELF machine {0})")]
    Machine(u16),
    /// musl and others.
    #[error("it starts through {0}, not through glibc's loader")]
    Loader(String),
    /// Not a complete ELF file.
    #[error("its ELF headers are damaged")]
    Damaged,
}

impl Obstacle {
    /// The remedy, after "run it without foreswap, or".
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Static => "link it dynamically (without -static)",
            Self::ThirtyTwoBit | Self::Machine(_) => "use a build of it for this machine",
            Self::Loader(_) => "use a build of it for glibc",
            Self::Damaged => "get an intact copy of it",
        }
    }
}

/// EM_X86_64.
const MACHINE: u16 = 62;
const LOADER: &str = "ld-linux-x86-64.so.2";

const PT_INTERP: u32 = 3;
/// The kernel refuses more than 64 KiB of program headers.
const MAX_HEADERS: u64 = 64 << 10;

/// Checks that the program of these first bytes starts through glibc's loader.
pub fn loader(head: &[u8], file: &File) -> Result<(), Obstacle> {
    let name = interpreter(head, |at, bytes| file.read_exact_at(bytes, at).is_ok())?;
    let base = name.rsplit('/').next().unwrap_or_default();
    // Loaders in other places than /lib64 (Nix, Guix) are glibc's as well.
    if base == LOADER {
        Ok(())
    } else {
        Err(Obstacle::Loader(name))
    }
}

fn interpreter(head: &[u8], read: impl Fn(u64, &mut [u8]) -> bool) -> Result<String, Obstacle> {
    let short = |at: usize| {
        head.get(at..at + 2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
    };
    if head.get(4) != Some(&2) {
        return Err(Obstacle::ThirtyTwoBit);
    }
    // A big-endian file names another machine as well.
    let machine = short(18).ok_or(Obstacle::Damaged)?;
    if machine != MACHINE || head.get(5) != Some(&1) {
        return Err(Obstacle::Machine(machine));
    }
    let start = long(head, 32).ok_or(Obstacle::Damaged)?;
    let size = u64::from(short(54).ok_or(Obstacle::Damaged)?);
    let count = u64::from(short(56).ok_or(Obstacle::Damaged)?);
    if size < 56 || size * count > MAX_HEADERS {
        return Err(Obstacle::Damaged);
    }
    let mut headers = vec![0; (size * count) as usize];
    if !read(start, &mut headers) {
        return Err(Obstacle::Damaged);
    }
    for header in headers.chunks_exact(size as usize) {
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        if kind != PT_INTERP {
            continue;
        }
        let at = long(header, 8).ok_or(Obstacle::Damaged)?;
        let length = long(header, 32)
            .filter(|&n| n <= 4096)
            .ok_or(Obstacle::Damaged)?;
        let mut name = vec![0; length as usize];
        if !read(at, &mut name) {
            return Err(Obstacle::Damaged);
        }
        name.truncate(
            name.iter()
                .position(|&byte| byte == 0)
                .unwrap_or(name.len()),
        );
        return Ok(String::from_utf8_lossy(&name).into_owned());
    }
    Err(Obstacle::Static)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Result<String, Obstacle> {
        interpreter(bytes, |at, into| {
            let at = at as usize;
            bytes
                .get(at..at + into.len())
                .map(|from| into.copy_from_slice(from))
                .is_some()
        })
    }

    #[test]
    fn nothing_that_is_cut_short_or_flipped_panics() {
        let whole = std::fs::read("/bin/ls").expect("/bin/ls");
        let whole = &whole[..4096];
        assert!(of(whole).is_ok_and(|name| name.contains("ld-linux")));
        for length in 0..1200 {
            let _ = of(&whole[..length]);
        }
        for at in 0..1200 {
            let mut flipped = whole.to_vec();
            for bit in 0..8 {
                flipped[at] ^= 1 << bit;
                let _ = of(&flipped);
            }
        }
    }

    #[test]
    fn other_machines() {
        let mut bytes = std::fs::read("/bin/ls").expect("/bin/ls")[..4096].to_vec();
        bytes[18] = 243;
        assert_eq!(of(&bytes), Err(Obstacle::Machine(243)));
        bytes[4] = 1;
        assert_eq!(of(&bytes), Err(Obstacle::ThirtyTwoBit));
    }
}
