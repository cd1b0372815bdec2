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
    let store = builder.build().map_err(|error| in_words(&error))?;
    Ok(Arc::new(store))
}

/// An error in a line.
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
    // Servers answer with pages of XML.
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(300).collect()
}
