//! From an address to a connection that has logged in.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::{AbortHandle, spawn_local};

use crate::address::{Place, Redis};
use crate::tls;

/// The password, if neither the address nor a file has it.
const VARIABLE: &str = "FORESWAP_REDIS_PASSWORD";

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection; closed on drop.
pub struct Connection {
    /// For commands.
    pub send: MultiplexedConnection,
    driver: AbortHandle,
}

impl Connection {
    /// Whether the server has hung up.
    pub fn is_over(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Who we are for all servers of an area.
pub struct Login {
    address: Redis,
    info: RedisConnectionInfo,
}

impl Login {
    /// Reads the password and the certificates.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn new(address: &Redis) -> Result<Self, String> {
        let password = match (&address.password, &address.password_file) {
            (Some(password), _) => Some(password.0.clone()),
            (None, Some(file)) => {
                let read = std::fs::read_to_string(file);
                let text = read.map_err(|error| format!("{}: {error}", file.display()))?;
                Some(text.trim_end_matches(['\n', '\r']).to_owned())
            }
            (None, None) => std::env::var(VARIABLE).ok(),
        };
        let mut info = RedisConnectionInfo::default()
            .set_db(i64::from(address.database))
            .set_skip_set_lib_name();
        if let Some(password) = password {
            info = info.set_password(password);
            if !address.user.is_empty() {
                info = info.set_username(&address.user);
            }
        }
        // A certificate that cannot be used is told at once.
        if let Some(tls) = &address.tls {
            tls::identity(tls, &address.places[0])?;
        }
        Ok(Self {
            address: address.clone(),
            info,
        })
    }

    /// Connects within `patience`.
    ///
    /// # Errors
    /// The text says why there is no connection.
    pub async fn connect(&self, place: &Place, patience: Duration) -> Result<Connection, String> {
        let connected = tokio::time::timeout(patience, self.try_connect(place)).await;
        let seconds = patience.as_secs_f64();
        connected.unwrap_or_else(|_| Err(format!("no answer within {seconds} s")))
    }

    async fn try_connect(&self, place: &Place) -> Result<Connection, String> {
        let plain: Box<dyn Stream> = match place {
            Place::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream = stream.map_err(|error| error.to_string())?;
                stream
                    .set_nodelay(true)
                    .map_err(|error| error.to_string())?;
                Box::new(stream)
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                Box::new(stream.map_err(|error| error.to_string())?)
            }
        };
        let stream: Box<dyn Stream> = match &self.address.tls {
            Some(tls) => {
                let identity = tls::identity(tls, place)?;
                let encrypted = identity.connector.connect(identity.server, plain).await;
                Box::new(encrypted.map_err(|error| format!("TLS: {error}"))?)
            }
            None => plain,
        };
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (send, driver) = MultiplexedConnection::new_with_config(&self.info, stream, config)
            .await
            .map_err(|error| in_words(&error, self.address.tls.is_some()))?;
        let driver = spawn_local(driver).abort_handle();
        Ok(Connection { send, driver })
    }
}

/// What a user can do about an error of the first commands.
pub fn in_words(error: &RedisError, is_encrypted: bool) -> String {
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => format!(
            "the server refuses the user or the password ({error}); give redis://USER:PASSWORD@HOST, ?password-file=PATH, or \
             {VARIABLE} in the environment"
        ),
        (_, Some("NOPERM")) => format!(
            "the server's user may not do what an area needs ({error}); allow the commands INFO, SETRANGE, GETRANGE, EXPIRE, \
             SET, GET, UNLINK, WAIT and CLUSTER for the keys foreswap:*"
        ),
        (ErrorKind::Parse, _) => {
            "this is no Redis server: its answer is of another protocol".to_owned()
        }
        _ if error.is_io_error() && !is_encrypted => format!(
            "the server hangs up ({error}); is it a Redis server, and does it want TLS (rediss://)?"
        ),
        _ => error.to_string(),
    }
}
