//! The address of a far area, as users write it: the URIs of the NBD project.

use std::path::PathBuf;

use url::{Host, Url};

/// The kinds of addresses.
const SCHEMES: [&str; 4] = ["nbd", "nbds", "nbd+unix", "nbds+unix"];
/// The port of NBD servers.
const PORT: u16 = 10809;

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A host name or an address without brackets, and a port.
    Tcp(String, u16),
    /// A socket in the file system of this machine.
    Unix(PathBuf),
}

/// How the server is to be trusted, if the connection is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// A folder with `ca-cert.pem` and, if the server wants to know the client, `client-cert.pem` and `client-key.pem`.
    /// Without it, the certificates that this machine trusts.
    pub certificates: Option<PathBuf>,
    /// The name that the server's certificate must have, if it is not the host's.
    pub name: Option<String>,
}

/// A far area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The server.
    pub place: Place,
    /// The name of the export; empty for the server's default.
    pub export: String,
    /// `None`: the connection is not encrypted.
    pub tls: Option<Tls>,
    text: String,
}

/// The text is no address of a far area.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "swap area {given}: {why}; expected nbd://HOST[:PORT][/EXPORT], nbds:// for TLS, or nbd+unix:///[EXPORT]?socket=PATH \
     (a path that looks like one of these is written `./...`)"
)]
pub struct AddressError {
    given: String,
    why: String,
}

impl Address {
    /// Whether a `--swap` argument is an address and not a path.
    pub fn is_meant(text: &str) -> bool {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_letter)
    }

    /// Reads an address.
    ///
    /// # Errors
    /// The scheme is another, or a part is missing, wrong or unknown.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let refused = |why: String| AddressError {
            given: text.to_owned(),
            why,
        };
        let url = Url::parse(text).map_err(|error| refused(error.to_string()))?;
        let (is_unix, is_encrypted) = match url.scheme() {
            "nbd" => (false, false),
            "nbds" => (false, true),
            "nbd+unix" => (true, false),
            "nbds+unix" => (true, true),
            other => {
                return Err(refused(format!(
                    "{other}: is no kind of server that foreswap knows"
                )));
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("NBD knows no user names".to_owned()));
        }
        let (mut socket, mut certificates, mut name) = (None, None, None);
        for (key, value) in url.query_pairs() {
            match &*key {
                "socket" if is_unix => socket = Some(PathBuf::from(&*value)),
                "tls-certificates" if is_encrypted => certificates = Some(PathBuf::from(&*value)),
                "tls-hostname" if is_encrypted => name = Some(value.into_owned()),
                _ => return Err(refused(format!("{key}= is not known here"))),
            }
        }
        // The supervisor of a run and the relay are in other folders.
        for path in [&socket, &certificates].into_iter().flatten() {
            if path.is_relative() {
                let path = path.display();
                return Err(refused(format!("{path} is no absolute path")));
            }
        }
        let place = if is_unix {
            if url.host().is_some() || url.port().is_some() {
                return Err(refused(
                    "a socket in the file system has no host".to_owned(),
                ));
            }
            let path = socket.ok_or_else(|| refused("?socket=PATH is missing".to_owned()))?;
            Place::Unix(path)
        } else {
            let host = match url.host() {
                Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
                Some(Host::Ipv4(address)) => address.to_string(),
                Some(Host::Ipv6(address)) => address.to_string(),
                _ => return Err(refused("the host is missing".to_owned())),
            };
            Place::Tcp(host, url.port().unwrap_or(PORT))
        };
        let export = url.path().strip_prefix('/').unwrap_or(url.path());
        let decoded = percent_decoded(export);
        let export = String::from_utf8(decoded)
            .map_err(|_| refused("the name of the export is not UTF-8".to_owned()))?;
        if export.len() > 4096 {
            return Err(refused(
                "the name of the export is longer than 4096 bytes".to_owned(),
            ));
        }
        Ok(Self {
            place,
            export,
            tls: is_encrypted.then_some(Tls { certificates, name }),
            text: text.to_owned(),
        })
    }

    /// As the user wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The parts of `text` between each `+` that is followed by `scheme`.
fn split_before<'a>(text: &'a str, scheme: &str) -> Vec<&'a str> {
    let plus = format!("+{scheme}://");
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(&plus) {
        parts.push(&rest[..at]);
        rest = &rest[at + 1..];
    }
    parts.push(rest);
    parts
}

/// The servers of one area: one, or two that are each other's copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    all: Vec<Address>,
    text: String,
}

impl Addresses {
    /// Reads one address, or two with a `+` in between.
    ///
    /// # Errors
    /// As [`Address::parse`], or there are more than two.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let mut parts = vec![text];
        for scheme in SCHEMES {
            let split = parts
                .into_iter()
                .flat_map(|part| split_before(part, scheme));
            parts = split.collect();
        }
        if parts.len() > 2 {
            return Err(AddressError {
                given: text.to_owned(),
                why: format!("{} servers are named; a mirror has two", parts.len()),
            });
        }
        let all = parts.into_iter().map(Address::parse);
        Ok(Self {
            all: all.collect::<Result<_, _>>()?,
            text: text.to_owned(),
        })
    }

    /// Each of them.
    pub fn all(&self) -> &[Address] {
        &self.all
    }

    /// As the user wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// `%41` as `A`; what is no such escape stays.
fn percent_decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes
            .get(at + 1..at + 3)
            .and_then(|two| str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        match byte.filter(|_| bytes[at] == b'%') {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Place {
        Place::Tcp(host.to_owned(), port)
    }

    #[test]
    fn addresses_of_the_nbd_project_are_understood() {
        let parsed = |text: &str| {
            let address = Address::parse(text).expect("an address");
            (address.place, address.export, address.tls)
        };
        let plain = |place: Place, export: &str| (place, export.to_owned(), None);
        assert_eq!(parsed("nbd://server"), plain(tcp("server", 10809), ""));
        assert_eq!(parsed("nbd://server/"), plain(tcp("server", 10809), ""));
        assert_eq!(
            parsed("nbd://10.0.0.1:99/swap/one"),
            plain(tcp("10.0.0.1", 99), "swap/one")
        );
        assert_eq!(parsed("nbd://[::1]:99/a%20b"), plain(tcp("::1", 99), "a b"));
        let path = PathBuf::from("/run/nbd.sock");
        let unix = plain(Place::Unix(path.clone()), "x");
        assert_eq!(parsed("nbd+unix:///x?socket=/run/nbd.sock"), unix);
        let tls = |certificates: Option<&str>, name: Option<&str>| {
            Some(Tls {
                certificates: certificates.map(PathBuf::from),
                name: name.map(str::to_owned),
            })
        };
        let (place, _, found) = parsed("nbds://server?tls-certificates=/etc/pki");
        assert_eq!(
            (place, found),
            (tcp("server", 10809), tls(Some("/etc/pki"), None))
        );
        let (place, _, found) = parsed("nbds+unix:///?socket=/run/nbd.sock&tls-hostname=server");
        assert_eq!(
            (place, found),
            (Place::Unix(path), tls(None, Some("server")))
        );
    }

    #[test]
    fn others_are_refused_with_the_reason() {
        for (text, why) in [
            ("nbd:///export", "host is missing"),
            ("nbd://", "host"),
            ("nbd+unix:///export", "socket=PATH is missing"),
            ("nbd+unix:///export?socket=here", "here is no absolute path"),
            (
                "nbds://server?tls-certificates=pki",
                "pki is no absolute path",
            ),
            ("nbd+unix://host/export?socket=/x", "no host"),
            ("nbd://server?socket=/x", "socket= is not known"),
            (
                "nbd://server?tls-certificates=/x",
                "tls-certificates= is not known",
            ),
            ("nbd://me@server/", "user names"),
            ("nbd://server:99999/", "port"),
            ("redis://server/", "redis: is no kind"),
            ("nbd://server/%ff", "UTF-8"),
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(
                error.contains(why) && error.contains(text),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_mirror_has_two_addresses() {
        let parts = |text: &str| {
            let all = Addresses::parse(text).expect(text);
            all.all()
                .iter()
                .map(|address| address.text().to_owned())
                .collect::<Vec<_>>()
        };
        for (first, second) in [
            ("nbd://a/x", "nbd://b/y+z"),
            ("nbd+unix:///x?socket=/a+b", "nbds://c"),
            ("nbd://a", "nbd+unix:///?socket=/b"),
            ("nbds+unix:///?socket=/a", "nbds+unix:///?socket=/b"),
        ] {
            assert_eq!(parts(&format!("{first}+{second}")), [first, second]);
            assert_eq!(parts(first), [first]);
        }
        let error = Addresses::parse("nbd://a+nbd://b+nbd://c").expect_err("three");
        assert!(error.to_string().contains("a mirror has two"), "{error}");
    }

    #[test]
    fn paths_are_no_addresses() {
        for path in [
            "/tmp",
            "swap",
            "./nbd://x",
            "/a://b",
            "ram:1G",
            "://x",
            "a b://c",
        ] {
            assert!(!Address::is_meant(path), "{path}");
        }
        for address in ["nbd://x", "nbd+unix:///?socket=/x", "redis://y"] {
            assert!(Address::is_meant(address), "{address}");
        }
    }
}
