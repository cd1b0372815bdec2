//! A bucket of an object store, and the prefix of the objects in it.
//!
//! Who we are is said by the environment (`AWS_ACCESS_KEY_ID` and the others), not by the address.

use std::path::PathBuf;

use url::Url;

use super::percent_decoded;

/// Bytes of an object, unless the address says otherwise.
const SEGMENT: u64 = 8 << 20;
/// What it may say.
const SEGMENTS: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// A bucket and a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3 {
    /// The bucket.
    pub bucket: String,
    /// Where in it; without slashes at its ends. May be empty.
    pub prefix: String,
    /// The service, such as `http://127.0.0.1:9000`. `None`: as the environment says, or Amazon's.
    pub endpoint: Option<String>,
    /// The region. `None`: as the environment says.
    pub region: Option<String>,
    /// A folder with `ca-cert.pem`, beside the certificates that this machine trusts.
    pub tls_certificates: Option<PathBuf>,
    /// Bytes of an object.
    pub segment: u64,
    /// As the user wrote it.
    pub text: String,
}

impl S3 {
    /// Reads `text`, whose scheme is that of S3.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "keys are taken from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), not from the address"
                    .to_owned(),
            );
        }
        if url.port().is_some() {
            return Err(
                "a bucket has no port: ?endpoint=http://HOST:PORT names the service".to_owned(),
            );
        }
        let bucket = url.host_str().filter(|bucket| !bucket.is_empty());
        let prefix = String::from_utf8(percent_decoded(url.path()))
            .map_err(|_| "the prefix is not UTF-8".to_owned())?;
        let mut found = Self {
            bucket: bucket.ok_or("the bucket is missing")?.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            endpoint: None,
            region: None,
            tls_certificates: None,
            segment: SEGMENT,
            text: text.to_owned(),
        };
        for (key, value) in url.query_pairs() {
            match &*key {
                "endpoint" => {
                    let is_url = value.starts_with("http://") || value.starts_with("https://");
                    if !is_url || Url::parse(&value).is_err() {
                        return Err(format!(
                            "endpoint={value}: expected http://HOST[:PORT] or https://HOST[:PORT]"
                        ));
                    }
                    found.endpoint = Some(value.trim_end_matches('/').to_owned());
                }
                "region" => found.region = Some(value.into_owned()),
                "tls-certificates" => {
                    let folder = PathBuf::from(&*value);
                    if folder.is_relative() {
                        return Err(format!("{value} is no absolute path"));
                    }
                    found.tls_certificates = Some(folder);
                }
                "segment" => found.segment = segment(&value)?,
                _ => return Err(format!("{key}= is not known here")),
            }
        }
        Ok(found)
    }
}

fn segment(value: &str) -> Result<u64, String> {
    let wrong = || format!("segment={value}: expected 1M to 64M");
    let mebibytes = value.strip_suffix(['M', 'm']).ok_or_else(wrong)?;
    let mebibytes: u64 = mebibytes.parse().map_err(|_| wrong())?;
    let bytes = mebibytes.saturating_mul(1 << 20);
    SEGMENTS.contains(&bytes).then_some(bytes).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_and_a_prefix_are_read() {
        let plain = S3::parse("s3://cold-pages").expect("a bucket");
        assert_eq!((&*plain.bucket, &*plain.prefix), ("cold-pages", ""));
        assert_eq!((plain.endpoint, plain.segment), (None, 8 << 20));
        let all = S3::parse(
            "s3://b/team/a%20b/?endpoint=http://127.0.0.1:9000/&region=eu-1&segment=64M&tls-certificates=/etc/pki",
        );
        let all = all.expect("all of it");
        assert_eq!((&*all.prefix, all.segment), ("team/a b", 64 << 20));
        assert_eq!(all.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(all.region.as_deref(), Some("eu-1"));
        assert_eq!(all.tls_certificates, Some(PathBuf::from("/etc/pki")));
    }

    #[test]
    fn others_are_refused_with_the_reason() {
        for (text, why) in [
            ("s3://", "bucket is missing"),
            ("s3:///prefix", "bucket is missing"),
            ("s3://key:secret@bucket/", "AWS_ACCESS_KEY_ID"),
            ("s3://bucket:9000/", "?endpoint="),
            ("s3://bucket?endpoint=127.0.0.1:9000", "expected http://"),
            ("s3://bucket?segment=8", "expected 1M to 64M"),
            ("s3://bucket?segment=65M", "expected 1M to 64M"),
            ("s3://bucket?tls-certificates=pki", "no absolute path"),
            ("s3://bucket?expire=5", "expire= is not known"),
        ] {
            let error = S3::parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
