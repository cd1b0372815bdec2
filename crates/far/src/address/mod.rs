//! The address of a far area, as users write it. Each kind of server has a file of its own.
//!
//! What a user wrote may have a password in it. [`Address::text`] and [`Addresses::text`], which name the area in messages and
//! lists, never do; only [`Addresses::with_secrets`], for the relay, has it.

pub mod nbd;
pub mod redis;
pub mod s3;

use std::path::PathBuf;

use url::{Host, Url};

pub use nbd::Nbd;
pub use redis::Redis;
pub use s3::S3;

/// The variable with the password of Redis areas, if neither the address nor a file has it. Not for the command of a run.
pub const PASSWORD_VARIABLE: &str = "FORESWAP_REDIS_PASSWORD";

/// The kinds of addresses.
const SCHEMES: [&str; 10] = [
    "nbd",
    "nbds",
    "nbd+unix",
    "nbds+unix",
    "redis",
    "rediss",
    "redis+unix",
    "redis+cluster",
    "rediss+cluster",
    "s3",
];

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A host name or an address without brackets, and a port.
    Tcp(String, u16),
    /// A socket in the file system of this machine.
    Unix(PathBuf),
}

impl Place {
    /// The place in `url`, or `socket`.
    fn of(
        url: &Url,
        is_unix: bool,
        socket: Option<PathBuf>,
        port: u16,
        tls: &Tls,
    ) -> Result<Self, String> {
        // The supervisor of a run and the relay are in other folders.
        for path in [&socket, &tls.certificates].into_iter().flatten() {
            if path.is_relative() {
                return Err(format!("{} is no absolute path", path.display()));
            }
        }
        if is_unix {
            if url.host().is_some() || url.port().is_some() {
                return Err("a socket in the file system has no host".to_owned());
            }
            return Ok(Self::Unix(socket.ok_or("?socket=PATH is missing")?));
        }
        let host = match url.host() {
            Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            _ => return Err("the host is missing".to_owned()),
        };
        Ok(Self::Tcp(host, url.port().unwrap_or(port)))
    }

    /// For messages.
    pub fn in_words(&self) -> String {
        match self {
            Self::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp(host, port) => format!("{host}:{port}"),
            Self::Unix(path) => path.display().to_string(),
        }
    }
}

/// How the server is to be trusted, if the connection is encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A folder with `ca-cert.pem` and, if the server wants to know the client, `client-cert.pem` and `client-key.pem`.
    /// Without it, the certificates that this machine trusts.
    pub certificates: Option<PathBuf>,
    /// The name that the server's certificate must have, if it is not the host's.
    pub name: Option<String>,
}

impl Tls {
    /// Takes a parameter of an address. False: it is none of TLS.
    fn takes(&mut self, key: &str, value: &str) -> bool {
        match key {
            "tls-certificates" => self.certificates = Some(PathBuf::from(value)),
            "tls-hostname" => self.name = Some(value.to_owned()),
            _ => return false,
        }
        true
    }
}

/// A far area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An export of an NBD server.
    Nbd(Nbd),
    /// Keys of a Redis or Valkey server, or of a cluster.
    Redis(Redis),
    /// Objects in a bucket.
    S3(S3),
}

/// The text is no address of a far area.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "swap area {given}: {why}; expected nbd://HOST[:PORT][/EXPORT], nbds:// for TLS, nbd+unix:///[EXPORT]?socket=PATH, \
     redis://HOST[:PORT][/DB], rediss:// for TLS, redis+unix:///[DB]?socket=PATH, redis+cluster://HOST[:PORT],HOST[:PORT], or s3://BUCKET[/PREFIX] \
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
        let scheme = text.split_once("://").map_or(text, |(scheme, _)| scheme);
        let parsed = match scheme {
            _ if !SCHEMES.contains(&scheme) => Err(format!(
                "{scheme}: is no kind of server that foreswap knows"
            )),
            nbd if nbd.starts_with("nbd") => Nbd::parse(text).map(Self::Nbd),
            "s3" => S3::parse(text).map(Self::S3),
            _ => Redis::parse(text).map(Self::Redis),
        };
        parsed.map_err(|why| AddressError {
            given: redis::masked(text),
            why,
        })
    }

    /// As the user wrote it, without a password.
    pub fn text(&self) -> &str {
        match self {
            Self::Nbd(nbd) => &nbd.text,
            Self::Redis(redis) => &redis.text,
            Self::S3(s3) => &s3.text,
        }
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

/// Text that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("***")
    }
}

/// The servers of one area: one, or two that are each other's copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    all: Vec<Address>,
    text: String,
    given: Secret,
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
            let masked: Vec<String> = parts.iter().map(|part| redis::masked(part)).collect();
            return Err(AddressError {
                given: masked.join("+"),
                why: format!("{} servers are named; a mirror has two", parts.len()),
            });
        }
        let all = parts.into_iter().map(Address::parse);
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let texts: Vec<&str> = all.iter().map(Address::text).collect();
        Ok(Self {
            text: texts.join("+"),
            all,
            given: Secret(text.to_owned()),
        })
    }

    /// Each of them.
    pub fn all(&self) -> &[Address] {
        &self.all
    }

    /// As the user wrote it, without passwords.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether pages go to an object store.
    pub fn has_objects(&self) -> bool {
        let mut all = self.all.iter();
        all.any(|address| matches!(address, Address::S3(_)))
    }

    /// As the user wrote it.
    pub fn with_secrets(&self) -> &str {
        &self.given.0
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
            let Ok(Address::Nbd(nbd)) = Address::parse(text) else {
                panic!("{text} is no address of NBD");
            };
            (nbd.place, nbd.export, nbd.tls)
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
            ("memcached://server/", "memcached: is no kind"),
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
            ("nbd://a", "redis+cluster://b,c?replicas=1"),
            ("redis+cluster://b:1,c:2", "rediss+cluster://d"),
            ("redis+unix:///?socket=/a", "redis://b/1"),
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
