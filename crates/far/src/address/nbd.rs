//! An export of an NBD server: the URIs of the NBD project.

use std::path::PathBuf;

use url::Url;

use super::{Place, Tls, percent_decoded};

/// The port of NBD servers.
const PORT: u16 = 10809;

/// An export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nbd {
    /// The server.
    pub place: Place,
    /// The name of the export; empty for the server's default.
    pub export: String,
    /// `None`: the connection is not encrypted.
    pub tls: Option<Tls>,
    /// As the user wrote it.
    pub text: String,
}

impl Nbd {
    /// Reads `text`, whose scheme is one of NBD's.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        let is_unix = url.scheme().ends_with("+unix");
        let is_encrypted = url.scheme().starts_with("nbds");
        if !url.username().is_empty() || url.password().is_some() {
            return Err("NBD knows no user names".to_owned());
        }
        let (mut socket, mut tls) = (None, Tls::default());
        for (key, value) in url.query_pairs() {
            match &*key {
                "socket" if is_unix => socket = Some(PathBuf::from(&*value)),
                key if is_encrypted && tls.takes(key, &value) => {}
                _ => return Err(format!("{key}= is not known here")),
            }
        }
        let place = Place::of(&url, is_unix, socket, PORT, &tls)?;
        let export = url.path().strip_prefix('/').unwrap_or(url.path());
        let export = String::from_utf8(percent_decoded(export))
            .map_err(|_| "the name of the export is not UTF-8".to_owned())?;
        if export.len() > 4096 {
            return Err("the name of the export is longer than 4096 bytes".to_owned());
        }
        Ok(Self {
            place,
            export,
            tls: is_encrypted.then_some(tls),
            text: text.to_owned(),
        })
    }
}
