//! A Redis or Valkey server, or a cluster of them.
//!
//! The host part of a cluster has several servers with commas in between, which no URI has: it is cut here, and each server is
//! read as an address of its own.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::{Place, Secret, Tls, percent_decoded};

/// The port of Redis servers.
const PORT: u16 = 6379;
/// The most replicas that may be asked for.
const MOST_REPLICAS: u32 = 16;
/// How long keys are kept without a sign of the run, unless the address says otherwise.
const EXPIRE: Duration = Duration::from_secs(3600);
/// The least: a quarter of it is the interval at which it is renewed.
const LEAST_EXPIRE: u64 = 60;

/// A server or a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redis {
    /// The server, or the members of the cluster that are asked for all others.
    pub places: Vec<Place>,
    /// Keys are spread over the masters of a cluster.
    pub is_cluster: bool,
    /// Empty: the default user.
    pub user: String,
    /// The password in the address.
    pub password: Option<Secret>,
    /// The file that has the password.
    pub password_file: Option<PathBuf>,
    /// The number of the database.
    pub database: u32,
    /// `None`: the connection is not encrypted.
    pub tls: Option<Tls>,
    /// A page is written when so many replicas have it.
    pub replicas: u32,
    /// Keys of a run that gives no sign any more are kept so long.
    pub expire: Duration,
    /// As the user wrote it, without the password.
    pub text: String,
}

/// The text without a password: `user:***@host`.
pub fn masked(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    // A password with a slash is wrong, and is not shown either.
    let end = rest[end..].rfind('@').map_or(end, |at| end + at);
    let at = rest[..end]
        .rfind('@')
        .or(rest[end..].starts_with('@').then_some(end));
    let Some(at) = at else {
        return text.to_owned();
    };
    let user = rest[..at].split_once(':').map(|(user, _)| user);
    match user {
        Some(user) => format!("{scheme}://{user}:***{}", &rest[at..]),
        None => text.to_owned(),
    }
}

fn decoded(text: &str) -> Result<String, String> {
    String::from_utf8(percent_decoded(text)).map_err(|_| "the user name is not UTF-8".to_owned())
}

fn number<T: std::str::FromStr>(key: &str, value: &str, what: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{key}={value}: expected {what}"))
}

impl Redis {
    /// Reads `text`, whose scheme is one of Redis'.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("no ://")?;
        let is_encrypted = scheme.starts_with("rediss");
        let (is_unix, is_cluster) = (scheme.ends_with("+unix"), scheme.ends_with("+cluster"));
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        let mut found = Self {
            places: Vec::new(),
            is_cluster,
            user: decoded(user)?,
            password: password
                .map(decoded)
                .transpose()
                .map_err(|_| "the password is not UTF-8")?
                .map(Secret),
            password_file: None,
            database: 0,
            tls: None,
            replicas: 0,
            expire: EXPIRE,
            text: masked(text),
        };
        let (mut tls, mut socket) = (Tls::default(), None);
        // The scheme is one without rules of its own.
        let url = |host: &str| {
            Url::parse(&format!("redis://{host}{rest}")).map_err(|error| error.to_string())
        };
        let hosts: Vec<&str> = hosts.split(',').collect();
        for (key, value) in url(hosts[0])?.query_pairs() {
            match &*key {
                "socket" if is_unix => socket = Some(PathBuf::from(&*value)),
                "password-file" => found.password_file = Some(PathBuf::from(&*value)),
                "replicas" => {
                    let what = "a number of replicas, at most 16";
                    found.replicas = number(&key, &value, what)?;
                    if found.replicas > MOST_REPLICAS {
                        return Err(format!("{key}={value}: expected {what}"));
                    }
                }
                "expire" => {
                    let what = "seconds, at least 60";
                    let seconds: u64 = number(&key, &value, what)?;
                    if !(LEAST_EXPIRE..=u64::from(u32::MAX)).contains(&seconds) {
                        return Err(format!("{key}={value}: expected {what}"));
                    }
                    found.expire = Duration::from_secs(seconds);
                }
                key if is_encrypted && tls.takes(key, &value) => {}
                _ => return Err(format!("{key}= is not known here")),
            }
        }
        if hosts.len() > 1 && !is_cluster {
            return Err("several servers are a cluster: redis+cluster://".to_owned());
        }
        if let Some(file) = found
            .password_file
            .as_ref()
            .filter(|file| file.is_relative())
        {
            return Err(format!("{} is no absolute path", file.display()));
        }
        if found.password.is_some() && found.password_file.is_some() {
            return Err("a password and password-file= are given; one is enough".to_owned());
        }
        for host in hosts {
            let place = Place::of(&url(host)?, is_unix, socket.clone(), PORT, &tls)?;
            found.places.push(place);
        }
        let path = rest.split('?').next().unwrap_or("").trim_start_matches('/');
        if !path.is_empty() {
            found.database = number("the database, /DB, is", path, "a number")
                .map_err(|why| why.replace("is=", "is "))?;
        }
        if is_cluster && found.database > 0 {
            return Err("a cluster has one database, 0".to_owned());
        }
        found.tls = is_encrypted.then_some(tls);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Redis {
        Redis::parse(text).expect(text)
    }

    fn tcp(host: &str, port: u16) -> Place {
        Place::Tcp(host.to_owned(), port)
    }

    #[test]
    fn servers_and_clusters_are_understood() {
        let one = parsed("redis://cache");
        assert_eq!(
            (&one.places[..], one.is_cluster),
            (&[tcp("cache", 6379)][..], false)
        );
        assert_eq!((one.user.as_str(), one.replicas, one.database), ("", 0, 0));
        let one = parsed("rediss://me:a%40b@[::1]:7000/3?replicas=2&expire=600&tls-hostname=x");
        assert_eq!(one.places, [tcp("::1", 7000)]);
        assert_eq!(
            (one.user.as_str(), one.database, one.replicas),
            ("me", 3, 2)
        );
        assert_eq!(one.password, Some(Secret("a@b".to_owned())));
        assert_eq!(one.expire, Duration::from_secs(600));
        assert_eq!(one.tls.and_then(|tls| tls.name).as_deref(), Some("x"));
        let all = parsed("redis+cluster://:pw@a:1,b,10.0.0.3:3?replicas=1");
        assert!(all.is_cluster && all.tls.is_none());
        assert_eq!(
            all.places,
            [tcp("a", 1), tcp("b", 6379), tcp("10.0.0.3", 3)]
        );
        assert!(parsed("rediss+cluster://a").tls.is_some());
        let unix = parsed("redis+unix:///2?socket=/run/r.sock&password-file=/run/pw");
        assert_eq!(unix.places, [Place::Unix(PathBuf::from("/run/r.sock"))]);
        assert_eq!(
            (unix.database, unix.password_file),
            (2, Some(PathBuf::from("/run/pw")))
        );
    }

    #[test]
    fn others_are_refused_with_the_reason() {
        for (text, why) in [
            ("redis://", "host"),
            ("redis:///3", "host"),
            ("redis://a,b", "redis+cluster://"),
            ("redis://a/x", "a number"),
            ("redis+cluster://a/1", "one database"),
            ("redis://a?replicas=x", "replicas=x"),
            ("redis://a?replicas=99", "at most 16"),
            ("redis://a?expire=5", "at least 60"),
            ("redis://a?tls-hostname=x", "is not known"),
            ("redis://a?password-file=pw", "no absolute path"),
            ("redis://:x@a?password-file=/pw", "one is enough"),
            ("redis+unix:///", "socket=PATH"),
            ("redis://a:99999", "port"),
        ] {
            let error = Redis::parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        for (text, shown) in [
            ("redis://:pw@a/1", "redis://:***@a/1"),
            ("redis://me:p:w@a,b", "redis://me:***@a,b"),
            ("redis://me:p@w@a", "redis://me:***@a"),
            ("redis://me:p/w@a", "redis://me:***@a"),
            ("redis://me@a", "redis://me@a"),
            ("nbd://a/x:y", "nbd://a/x:y"),
        ] {
            assert_eq!(masked(text), shown);
        }
        let shown = format!("{:?}", parsed("redis://me:hidden@a"));
        assert!(!shown.contains("hidden"), "{shown}");
        let error = super::super::Addresses::parse("redis://me:hidden@a?x=1").expect_err("x");
        assert!(!format!("{error}{error:?}").contains("hidden"), "{error}");
    }
}
