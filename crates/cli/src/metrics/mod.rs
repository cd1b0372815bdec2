//! The figures of a run for monitoring: over HTTP (`--metrics`) and as a file (`--metrics-file`).
//!
//! Both are optional and served in the supervisor's loop. The text holds what `foreswap ps` shows, with the counters
//! behind it. Nothing is measured for it: unmanaged memory is that of the last regular look.

pub mod http;
mod text;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::stats_file;
pub use text::Figures;
use text::Format;

/// The interval between writes of the file.
const EVERY: Duration = Duration::from_secs(5);

/// The metrics cannot be written to the file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write metrics to {path}: {cause}; name another file with --metrics-file", path = path.display())]
pub struct MetricsFileError {
    path: PathBuf,
    cause: std::io::Error,
}

#[derive(Debug)]
struct MetricsFile {
    path: PathBuf,
    due: Instant,
}

/// Where the metrics of a run go.
#[derive(Debug, Default)]
pub struct Metrics {
    server: Option<http::Server>,
    file: Option<MetricsFile>,
}

impl Metrics {
    /// Listens at the address and checks that the file can be written, before the command starts.
    pub fn open(address: Option<SocketAddr>, file: Option<&Path>) -> anyhow::Result<Self> {
        let server = address.map(http::Server::open).transpose()?;
        let file = file.map(|path| {
            let path = stats_file::replaceable(path).map_err(|cause| MetricsFileError {
                path: path.to_owned(),
                cause,
            })?;
            let due = Instant::now();
            Ok::<_, MetricsFileError>(MetricsFile { path, due })
        });
        Ok(Self {
            server,
            file: file.transpose()?,
        })
    }

    /// The address at which clients are answered.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref()?.address().ok()
    }

    /// The descriptors to poll, with their events.
    pub fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.server.iter().flat_map(http::Server::watched)
    }

    /// How soon to serve without an event.
    pub fn due_in(&self) -> Option<Duration> {
        let file = self.file.as_ref();
        let file = file.map(|file| file.due.saturating_duration_since(Instant::now()));
        let server = self.server.as_ref().and_then(http::Server::due_in);
        file.into_iter().chain(server).min()
    }

    /// Answers clients, and writes the file if it is due. An error of the file is returned, and the file is tried
    /// again later.
    pub fn serve(&mut self, figures: impl Fn() -> Figures) -> Result<(), MetricsFileError> {
        if let Some(server) = &mut self.server {
            server.serve(|format| figures().text(format));
        }
        match &self.file {
            Some(file) if file.due <= Instant::now() => self.write(figures),
            _ => Ok(()),
        }
    }

    /// Writes the file, if there is one.
    pub fn write(&mut self, figures: impl Fn() -> Figures) -> Result<(), MetricsFileError> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        file.due = Instant::now() + EVERY;
        let text = figures().text(Format::Prometheus);
        stats_file::replace(&file.path, text.as_bytes()).map_err(|cause| MetricsFileError {
            path: file.path.clone(),
            cause,
        })
    }
}
