//! Recognises the contents of an area: overwritable, or a user's data.
//!
//! Overwritable are an empty area, zeros, the signature of `mkswap`, and foreswap's own mark. The mark and the
//! signature are accepted only if the whole first page agrees: a file system made on an old area changes that page.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;

use super::PAGE_BYTES;

/// Bytes inspected at the front and at the back. They contain the superblocks of the usual file systems (btrfs, the
/// farthest, at 64 KiB), partition tables, and the marks of RAID at the end.
pub const INSPECTED_BYTES: u64 = 128 << 10;
const MARK: &[u8] =
    b"foreswap swap area, version 1\nThe pages behind this one are temporary and private.\n";
const SWAP_SIGNATURE: &[u8] = b"SWAPSPACE2";

/// A page at an address that `O_DIRECT` accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE_BYTES as usize]);

impl Page {
    /// Zeros.
    pub fn zeroed() -> Box<Page> {
        Box::new(Page([0; PAGE_BYTES as usize]))
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}

/// What is on an area.
#[derive(Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing, or zeros.
    Blank,
    /// An earlier area of foreswap.
    Ours,
    /// Made by `mkswap`; the page is its header.
    KernelSwap(Box<Page>),
    /// A user's data, with its likely kind.
    Foreign(String),
}

/// The first page of a named area.
pub fn header() -> Box<Page> {
    let mut page = Page::zeroed();
    page.0[..MARK.len()].copy_from_slice(MARK);
    page
}

/// Reads one page; abandons `O_DIRECT` for good if the file system accepts the flag but not the transfer.
fn read_page(file: &File, offset: u64, direct: &mut bool) -> io::Result<Box<Page>> {
    let mut page = Page::zeroed();
    let mut filled = 0;
    while filled < page.0.len() {
        match file.read_at(&mut page.0[filled..], offset + filled as u64) {
            // The last page of a file may be partial; the rest counts as zeros.
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => give_up_direct(file, direct, error)?,
        }
    }
    Ok(page)
}

/// Writes the first page and reads it back, to prove that the area works.
pub(super) fn try_page(file: &File, page: &Page, direct: &mut bool) -> io::Result<()> {
    loop {
        match file.write_all_at(&page.0, 0) {
            Ok(()) => break,
            Err(error) => give_up_direct(file, direct, error)?,
        }
    }
    if *read_page(file, 0, direct)? == *page {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::InvalidData))
    }
}

fn give_up_direct(file: &File, direct: &mut bool, error: io::Error) -> io::Result<()> {
    if !*direct || error.kind() != io::ErrorKind::InvalidInput {
        return Err(error);
    }
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?;
    *direct = false;
    Ok(())
}

/// Looks at the front and the back of a file or device of `bytes`.
pub(super) fn recognise_file(file: &File, bytes: u64, direct: &mut bool) -> io::Result<Contents> {
    recognise(bytes, |offset| read_page(file, offset, direct))
}

/// Looks at the front and the back of an area of `bytes`, of which `read` reads the page at an offset.
///
/// # Errors
/// Those of `read`.
pub fn recognise(
    bytes: u64,
    mut read: impl FnMut(u64) -> io::Result<Box<Page>>,
) -> io::Result<Contents> {
    if bytes == 0 {
        return Ok(Contents::Blank);
    }
    let mut front = Vec::new();
    let mut offset = 0;
    while offset < bytes.min(INSPECTED_BYTES) {
        front.push(read(offset)?);
        offset += PAGE_BYTES;
    }
    if let Some(first) = front.first() {
        if *first == header() {
            return Ok(Contents::Ours);
        }
        if is_kernel_swap(first) {
            return Ok(Contents::KernelSwap(first.clone()));
        }
    }
    if let Some(index) = front.iter().position(|page| !page.is_zero()) {
        return Ok(Contents::Foreign(looks_like(&front, index)));
    }
    let tail = bytes.saturating_sub(INSPECTED_BYTES);
    let mut offset = (tail - tail % PAGE_BYTES).max(offset);
    while offset < bytes {
        if !read(offset)?.is_zero() {
            return Ok(Contents::Foreign(format!("not zero at byte {offset}")));
        }
        offset += PAGE_BYTES;
    }
    Ok(Contents::Blank)
}

/// `mkswap`'s header: a boot sector left empty, version 1, and the signature at the end of the page.
fn is_kernel_swap(page: &Page) -> bool {
    page.0[..1024].iter().all(|byte| *byte == 0)
        && page.0[1024..1028] == 1u32.to_ne_bytes()
        && page.0.ends_with(SWAP_SIGNATURE)
}

/// Names common formats, to help the user recognise the disk.
fn looks_like(front: &[Box<Page>], first_used: usize) -> String {
    let at = |offset: usize, magic: &[u8]| {
        front
            .get(offset / PAGE_BYTES as usize)
            .is_some_and(|page| page.0[offset % PAGE_BYTES as usize..].starts_with(magic))
    };
    let known: [(usize, &[u8], &str); 9] = [
        (1080, &[0x53, 0xef], "an ext2/3/4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
        (0, b"LUKS\xba\xbe", "a LUKS volume"),
        (536, b"LVM2 001", "an LVM volume"),
        (512, b"EFI PART", "a GPT partition table"),
        (
            4086,
            SWAP_SIGNATURE,
            "a swap signature on a page with other data",
        ),
        (0x8001, b"CD001", "an ISO 9660 image"),
        (510, &[0x55, 0xaa], "a boot sector or partition table"),
    ];
    match known.iter().find(|(offset, magic, _)| at(*offset, magic)) {
        Some((_, _, name)) => (*name).to_owned(),
        None => format!("not zero at byte {}", first_used as u64 * PAGE_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_with(pieces: &[(u64, &[u8])], bytes: u64) -> File {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(bytes).expect("a size");
        for (offset, piece) in pieces {
            file.write_all_at(piece, *offset).expect("a write");
        }
        file
    }

    fn recognised(file: &File) -> Contents {
        let bytes = file.metadata().expect("metadata").len();
        recognise_file(file, bytes, &mut false).expect("readable")
    }

    #[test]
    fn empty_and_zero_files_are_blank() {
        assert_eq!(recognised(&file_with(&[], 0)), Contents::Blank);
        assert_eq!(recognised(&file_with(&[], 1 << 20)), Contents::Blank);
        assert_eq!(recognised(&file_with(&[], 5000)), Contents::Blank);
    }

    #[test]
    fn our_mark_is_ours_whatever_follows() {
        let file = file_with(&[(0, &header().0), (4096, b"old pages")], 1 << 20);
        assert_eq!(recognised(&file), Contents::Ours);
    }

    #[test]
    fn our_mark_on_a_page_that_was_changed_is_not_believed() {
        let file = file_with(&[(0, &header().0), (1080, &[0x53, 0xef])], 1 << 20);
        assert_eq!(
            recognised(&file),
            Contents::Foreign("an ext2/3/4 file system".to_owned())
        );
    }

    #[test]
    fn mkswap_is_recognised_and_its_page_kept() {
        let file = file_with(
            &[(1024, &1u32.to_ne_bytes()), (4086, SWAP_SIGNATURE)],
            1 << 20,
        );
        assert!(
            matches!(recognised(&file), Contents::KernelSwap(page) if page.0.ends_with(SWAP_SIGNATURE))
        );
    }

    #[test]
    fn a_stale_swap_signature_under_a_file_system_is_foreign() {
        let file = file_with(&[(1080, &[0x53, 0xef]), (4086, SWAP_SIGNATURE)], 1 << 20);
        assert!(matches!(recognised(&file), Contents::Foreign(_)));
    }

    #[test]
    fn data_at_the_front_the_second_page_or_the_end_is_foreign() {
        for offset in [0, 4096, 100_000, (1 << 20) - 1] {
            let file = file_with(&[(offset, b"x")], 1 << 20);
            assert!(
                matches!(recognised(&file), Contents::Foreign(_)),
                "{offset}"
            );
        }
        let mut text = tempfile::tempfile().expect("a temporary file");
        text.write_all(b"hello").expect("a write");
        assert_eq!(
            recognised(&text),
            Contents::Foreign("not zero at byte 0".to_owned())
        );
    }
}
