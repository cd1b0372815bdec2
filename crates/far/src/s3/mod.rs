//! Areas in an object store: S3, or what speaks its protocol (MinIO, Ceph, R2 and others).
//!
//! An object takes tens of milliseconds, however small, is paid by the request, and cannot be changed. So pages go there by the
//! segment, and only those that have found no room on anything nearer: the supervisor wants another area before this one, and
//! the pager moves the coldest pages on to it.
//!
//! `log` decides which page is in which object and what is cleaned; `reads` makes few requests of many reads; `served`
//! carries out, from the opening of an area to its end; `connect` makes the client; `clean` finds and removes what killed
//! runs have left. Requests are those of the crate `object_store`.

pub mod clean;
mod connect;
mod log;
mod reads;
mod served;

pub(crate) use served::Served;

use object_store::path::Path;

/// Bytes of a page.
const PAGE: usize = foreswap_store::area::PAGE_BYTES as usize;

/// The folder of a run's objects under the prefix of an address.
fn folder(prefix: &str, run: &str) -> Path {
    Path::from(prefix).join(format!("foreswap-{run}"))
}

/// The object that says that a run lives: it is stored anew each minute.
fn mark(folder: &Path) -> Path {
    folder.clone().join("run")
}

/// The object of a segment.
fn object(folder: &Path, number: log::Number) -> Path {
    folder.clone().join(format!("{number:010}"))
}
