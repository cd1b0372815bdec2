//! TLS of a server: whom it is to be, and who we are.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::address::{Place, Tls};

/// What a connection needs.
#[derive(Clone)]
pub struct Identity {
    /// Makes TLS connections.
    pub connector: TlsConnector,
    /// The name that the server's certificate must have.
    pub server: ServerName<'static>,
}

/// Reads the certificates.
///
/// # Errors
/// A file cannot be read or used; the text names it.
pub fn identity(tls: &Tls, place: &Place) -> Result<Identity, String> {
    let mut roots = RootCertStore::empty();
    let mut own = None;
    match &tls.certificates {
        Some(folder) => {
            let file = folder.join("ca-cert.pem");
            for certificate in certificates(&file)? {
                let added = roots.add(certificate);
                added.map_err(|error| format!("{}: {error}", file.display()))?;
            }
            let [certificate, key] =
                ["client-cert.pem", "client-key.pem"].map(|name| folder.join(name));
            if certificate.exists() || key.exists() {
                let its_key = PrivateKeyDer::from_pem_file(&key)
                    .map_err(|error| format!("{}: {error}", key.display()))?;
                own = Some((certificates(&certificate)?, its_key));
            }
        }
        None => {
            let loaded = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(loaded.certs);
            if added == 0 {
                return Err(
                    "this machine trusts no certificates; install some (the package ca-certificates), or give \
                     ?tls-certificates=FOLDER with ca-cert.pem"
                        .to_owned(),
                );
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match own {
        Some((chain, key)) => config
            .with_client_auth_cert(chain, key)
            .map_err(|error| format!("client-cert.pem and client-key.pem: {error}"))?,
        None => config.with_no_client_auth(),
    };
    let name = match (&tls.name, place) {
        (Some(name), _) | (None, Place::Tcp(name, _)) => name.clone(),
        (None, Place::Unix(_)) => "localhost".to_owned(),
    };
    let server = ServerName::try_from(name.clone())
        .map_err(|_| format!("{name}: is no name that a certificate can have"))?;
    Ok(Identity {
        connector: TlsConnector::from(Arc::new(config)),
        server,
    })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error: rustls::pki_types::pem::Error| format!("{}: {error}", file.display());
    let found: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(failed)?;
    match found.is_empty() {
        true => Err(format!("{}: has no certificate", file.display())),
        false => Ok(found),
    }
}
