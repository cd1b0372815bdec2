//! The client of an object store.
//!
//! Who we are is said by the environment, as for other programs that use S3 (`AWS_ACCESS_KEY_ID` and the others), or by the
//! machine that this runs on. An address has no secrets.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig};

use crate::address;

/// The longest attempt to connect.
const CONNECTING: Duration = Duration::from_secs(5);
/// How often a request is repeated before it has failed: for a connection that was closed meanwhile, or a server that says that
/// it is busy. What fails is tried again later by [`super::served`].
const REPEATS: usize = 2;
/// The most characters of an error.
const MOST_WORDS: usize = 300;
/// Endpoints of services that are not Amazon's ignore it, but it is part of the signature.
const REGION: &str = "us-east-1";

/// A client for the bucket of `address`, whose requests take at most `patience`.
///
/// # Errors
/// What the address or the environment says cannot be used.
pub fn store(address: &address::S3, patience: Duration) -> Result<Arc<dyn ObjectStore>, String> {
    // For the process: reqwest, below, asks for one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut options = ClientOptions::new()
        .with_timeout(patience)
        .with_connect_timeout(CONNECTING.min(patience))
        .with_allow_http(true);
    if let Some(folder) = &address.tls_certificates {
        let file = folder.join("ca-cert.pem");
        let pem = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let certificate = Certificate::from_pem(&pem);
        let certificate = certificate.map_err(|error| format!("{}: {error}", file.display()))?;
        options = options.with_root_certificate(certificate);
    }
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(1),
            base: 2.0,
        },
        max_retries: REPEATS,
        retry_timeout: patience,
    };
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(&address.bucket)
        .with_client_options(options)
        .with_retry(retry);
    if let Some(endpoint) = &address.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    match &address.region {
        Some(region) => builder = builder.with_region(region),
        None if builder
            .get_config_value(&AmazonS3ConfigKey::Region)
            .is_none() =>
        {
            builder = builder.with_region(REGION);
        }
        None => {}
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    if endpoint.is_none_or(|endpoint| endpoint.starts_with("https:")) {
        // Pages are verified where they are used, and TLS protects the request: a hash of each object would keep the relay from
        // other transfers for milliseconds.
        builder = builder.with_unsigned_payload(true);
    }
    let store = builder.build().map_err(|error| with_remedy(&error))?;
    Ok(Arc::new(store))
}

/// An error in a line: what the store answers, or why it does not.
pub fn in_words(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(deeper) = source {
        let more = deeper.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = deeper.source();
    }
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let of = |name: &str| {
        let (_, rest) = line.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<').map_or(rest, |(inside, _)| inside))
    };
    let words = match (of("Code"), of("Message")) {
        (Some(code), Some(message)) => format!("the store answers {code}: {message}"),
        (Some(code), None) => format!("the store answers {code}"),
        // Before it are the request and how often it was tried.
        _ => line.rsplit(" - ").next().unwrap_or(&line).to_owned(),
    };
    words.chars().take(MOST_WORDS).collect()
}

/// The same, with what a user can do who has just named the store.
pub fn with_remedy(error: &object_store::Error) -> String {
    let words = in_words(error);
    match remedy(&format!("{words} {error}")) {
        Some(remedy) => format!("{words}; {remedy}"),
        None => words,
    }
}

fn remedy(line: &str) -> Option<&'static str> {
    let has = |text: &str| line.contains(text);
    if has("NoSuchBucket") {
        Some("make the bucket first (aws s3 mb s3://BUCKET), or name another one")
    } else if has("AccessKeyId") || has("SecretAccessKey") || has("credential") || has("169.254.") {
        Some(
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, such as by: eval \"$(aws configure export-credentials --format env)\"",
        )
    } else if has("AccessDenied") || has("SignatureDoesNotMatch") {
        Some("the key needs s3:PutObject, s3:GetObject, s3:DeleteObject and s3:ListBucket there")
    } else if has("error sending request") {
        Some("is ?endpoint=http://HOST:PORT or AWS_ENDPOINT_URL right?")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_what_the_store_answers() {
        let of = |text: &str| {
            with_remedy(&object_store::Error::Generic {
                store: "S3",
                source: text.to_owned().into(),
            })
        };
        let xml = "Error performing PUT http://h/b/o in 4ms - Server returned non-2xx status code: 404 Not Found: <?xml \
                   version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>There is none</Message></Error>";
        let words = of(xml);
        assert!(
            words.starts_with("the store answers NoSuchBucket: There is none; make"),
            "{words}"
        );
        let words = of(
            "Error performing PUT http://h/b/o in 4ms, after 2 retries - HTTP error: error sending request: refused",
        );
        assert!(
            words.starts_with("HTTP error: error sending request: refused; is ?endpoint="),
            "{words}"
        );
        // A store that cuts its answer.
        assert_eq!(of("x - y: <Code>Slow"), "the store answers Slow");
    }
}
