//! From an address to a connection that has logged in.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{AbortHandle, spawn_local};

use crate::address::{PASSWORD_VARIABLE, Place, Redis};
use crate::stream::{self, Stream};
use crate::tls;

/// A connection that may be encrypted.
pub type Socket = Box<dyn Stream>;

/// The longest wait for a command of the relay's own.
const OWN: Duration = Duration::from_secs(2);

/// Carries out commands of the relay's own.
pub trait Ask {
    /// The reply. An error of the server, and none within two seconds, is an error.
    async fn ask(&mut self, command: &Cmd) -> Result<Value, String>;
}

impl Ask for MultiplexedConnection {
    async fn ask(&mut self, command: &Cmd) -> Result<Value, String> {
        answered(self.send_packed_command(command)).await
    }
}

/// A connection that has logged in and is not at work yet.
impl Ask for Socket {
    async fn ask(&mut self, command: &Cmd) -> Result<Value, String> {
        answered(async {
            self.write_all(&command.get_packed_command()).await?;
            self.flush().await?;
            read_one(self).await
        })
        .await
    }
}

async fn answered(reply: impl Future<Output = RedisResult<Value>>) -> Result<Value, String> {
    let late = |_| format!("the server has not answered for {} s", OWN.as_secs());
    let value = tokio::time::timeout(OWN, reply).await.map_err(late)?;
    let value = value.and_then(Value::extract_error);
    value.map_err(|error| in_words(&error, true))
}

/// Reads a reply that is one line, or one string; nothing comes behind it.
async fn read_one(from: &mut Socket) -> RedisResult<Value> {
    let mut reply = Vec::new();
    loop {
        let mut some = [0; 512];
        let count = from.read(&mut some).await?;
        if count == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        reply.extend_from_slice(&some[..count]);
        let Some(line) = reply.iter().position(|byte| *byte == b'\n') else {
            continue;
        };
        let text = str::from_utf8(&reply[..line]).unwrap_or("").trim_end();
        let length = text.strip_prefix('$').and_then(|text| text.parse().ok());
        let behind = length.map_or(0, |length: usize| length.saturating_add(2));
        if reply.len() > line.saturating_add(behind) {
            return redis::parse_redis_value(&reply);
        }
    }
}

/// A connection for the relay's own commands; closed on drop.
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
    password: Option<String>,
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
            (None, None) => std::env::var(PASSWORD_VARIABLE).ok(),
        };
        let mut info = RedisConnectionInfo::default()
            .set_db(i64::from(address.database))
            .set_skip_set_lib_name();
        if let Some(password) = &password {
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
            password,
            info,
        })
    }

    /// Connects for the relay's own commands, within `patience`.
    ///
    /// # Errors
    /// The text says why there is no connection.
    pub async fn connect(&self, place: &Place, patience: Duration) -> Result<Connection, String> {
        within(patience, async {
            let socket = self.reach(place).await?;
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let words = |error| in_words(&error, self.address.tls.is_some());
            let (mut send, driver) =
                MultiplexedConnection::new_with_config(&self.info, socket, config)
                    .await
                    .map_err(words)?;
            let driver = spawn_local(driver).abort_handle();
            // Without a password, the first command shows whether this is a server at all.
            let mut first = redis::cmd("INFO");
            let answer = send.send_packed_command(first.arg("server")).await;
            answer.and_then(Value::extract_error).map_err(words)?;
            Ok(Connection { send, driver })
        })
        .await
    }

    /// Connects for transfers, within `patience`.
    ///
    /// # Errors
    /// The text says why there is no connection.
    pub async fn open(&self, place: &Place, patience: Duration) -> Result<Socket, String> {
        within(patience, async {
            let mut socket = self.reach(place).await?;
            if let Some(password) = &self.password {
                let mut command = redis::cmd("AUTH");
                if !self.address.user.is_empty() {
                    command.arg(&self.address.user);
                }
                command.arg(password);
                socket.ask(&command).await?;
            }
            if self.address.database > 0 {
                let mut command = redis::cmd("SELECT");
                command.arg(self.address.database);
                socket.ask(&command).await?;
            }
            Ok(socket)
        })
        .await
    }

    /// A connection without a word on it.
    async fn reach(&self, place: &Place) -> Result<Socket, String> {
        let plain = stream::reach(place).await;
        let plain = plain.map_err(|error| error.to_string())?;
        let Some(tls) = &self.address.tls else {
            return Ok(plain);
        };
        let identity = tls::identity(tls, place)?;
        let encrypted = identity.connector.connect(identity.server, plain).await;
        Ok(Box::new(
            encrypted.map_err(|error| format!("TLS: {error}"))?,
        ))
    }
}

async fn within<T>(
    patience: Duration,
    connected: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let connected = tokio::time::timeout(patience, connected).await;
    let seconds = patience.as_secs_f64();
    connected.unwrap_or_else(|_| Err(format!("no answer within {seconds} s")))
}

/// What a user can do about an error of the first commands.
pub fn in_words(error: &RedisError, is_encrypted: bool) -> String {
    // Of a database that is not the first, there is no code.
    let wants_password = error.to_string().contains("Authentication required");
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS")) => refused(error),
        _ if wants_password => refused(error),
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

fn refused(error: &RedisError) -> String {
    format!(
        "the server refuses the user or the password ({error}); give redis://USER:PASSWORD@HOST, ?password-file=PATH, or \
         {PASSWORD_VARIABLE} in the environment"
    )
}
