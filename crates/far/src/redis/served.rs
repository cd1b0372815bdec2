//! An area on Redis from its opening to its end: what the server must allow, its connections, the renewal of what expires.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::task::spawn_local;

use super::chunks::{Chunks, Place};
use super::cluster::{self, Cluster, Node};
use super::command::{self, Keys};
use super::connect::{Ask, Connection, Login};
use super::link::{self, Kind};
use super::room::{Info, size};
use crate::address;
use crate::area::Area;
use crate::mark;
use crate::transfer::Part;

/// The interval of [`Area::tick`] and of looks at nodes.
const TICK: Duration = Duration::from_millis(50);
/// The interval at which the map of slots is asked for, and while a node is away.
const MAP: Duration = Duration::from_secs(1);
const MAP_SOON: Duration = Duration::from_millis(100);
/// The longest wait for a batch of commands of the relay's own, and for replicas.
const OWN: Duration = Duration::from_secs(2);
/// The pauses between attempts to connect: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_secs(1);
/// The longest attempt to connect.
const CONNECTING: Duration = Duration::from_secs(10);
/// How long removal at the end may take.
const REMOVING: Duration = Duration::from_secs(10);
/// Keys of one pipeline.
const BATCH: usize = 256;
/// Attempts at renewal in a row.
const RENEWALS: u32 = 20;

/// An area that is open.
pub(crate) struct Served {
    /// What its connections share.
    pub area: Rc<Area>,
    /// Bytes in use.
    pub bytes: u64,
    /// What is there.
    pub chunks: Chunks,
    /// Its keys.
    pub keys: Keys,
    cluster: Cluster,
    login: Login,
    address: address::Redis,
    /// The next connection's number.
    numbers: Cell<u32>,
    told_refused: Cell<bool>,
    /// Nothing is written any more: the keys are about to be removed.
    is_closing: Cell<bool>,
    /// Writes without a reply.
    writing: Cell<u32>,
    say: Box<dyn Fn(bool, String)>,
}

/// A write without a reply.
pub(crate) struct Writing<'a>(&'a Served);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.writing.set(self.0.writing.get() - 1);
    }
}

fn command(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command
}

impl Served {
    /// Connects, checks what the server allows, and tries it.
    pub(crate) async fn open(
        say: impl Fn(bool, String) + Clone + 'static,
        address: address::Redis,
        has_copy: bool,
        bytes: Option<u64>,
        timeout: Duration,
    ) -> Result<Rc<Self>, String> {
        let login = Login::new(&address)?;
        let (first, mut connection) = first(&login, &address, CONNECTING.min(timeout)).await?;
        let slots = match address.is_cluster {
            true => {
                let reply = connection.send.ask(&command(&["CLUSTER", "SLOTS"])).await?;
                let none = "the cluster has no slots assigned; see redis-cli --cluster check";
                Some(cluster::slots(&reply, &first).ok_or(none)?)
            }
            false => None,
        };
        let mut room = Info::of(&mut connection.send).await?.room()?;
        if let Some(slots) = &slots {
            let mut places: Vec<_> = slots.iter().map(|(_, _, place)| place.clone()).collect();
            places.sort();
            places.dedup();
            room = 0;
            for place in places {
                let node = login.connect(&place, CONNECTING.min(timeout)).await;
                let looked_at = match node {
                    Ok(mut node) => look_at(&address, &mut node.send).await,
                    Err(why) => Err(why),
                };
                room += looked_at.map_err(|why| format!("{}: {why}", place.in_words()))?;
            }
        }
        let run = mark::draw().map_err(|error| error.to_string())?;
        let name = address.text.clone();
        let to_area: crate::area::Say = Box::new(say.clone());
        let area = match has_copy {
            true => Area::with_copy(name, timeout, to_area),
            false => Area::new(name, timeout, to_area),
        };
        area.route();
        let served = Rc::new(Self {
            area: Rc::new(area),
            bytes: size(room, bytes)?,
            chunks: Chunks::default(),
            keys: Keys::new(run, address.expire.as_secs()),
            cluster: Cluster::default(),
            login,
            numbers: Cell::new(0),
            told_refused: Cell::new(false),
            is_closing: Cell::new(false),
            writing: Cell::new(0),
            say: Box::new(say),
            address,
        });
        served.begin(first, connection, slots).await?;
        Ok(served)
    }

    async fn begin(
        self: &Rc<Self>,
        first: address::Place,
        mut connection: Connection,
        slots: Option<cluster::Slots>,
    ) -> Result<(), String> {
        let new = match slots {
            Some(slots) => self.cluster.on_slots(&slots),
            None => {
                let probe = self.keys.mark();
                let expire = self.keys.expire.to_string();
                for words in [
                    &["SETRANGE", &probe, "0", "foreswap"][..],
                    &["GETRANGE", &probe, "0", "7"],
                    &["EXPIRE", &probe, &expire],
                    &["UNLINK", &probe],
                    &["SET", &probe, "here", "EX", &expire],
                ] {
                    connection.send.ask(&command(words)).await?;
                }
                has_replicas(&self.address, &mut connection.send).await?;
                vec![self.cluster.node(&first).0]
            }
        };
        drop(connection);
        for node in new {
            self.serve(&node);
        }
        let end = Instant::now() + CONNECTING.min(self.area.timeout);
        while !self.cluster.nodes().iter().all(|node| node.is_up()) {
            if Instant::now() > end {
                self.area.close();
                return Err("not all of its servers can be reached".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        spawn_local(Rc::clone(self).look_after());
        spawn_local(Rc::clone(self).renew_on());
        Ok(())
    }

    fn serve(self: &Rc<Self>, node: &Rc<Node>) {
        for kind in Kind::ALL {
            let number = self.numbers.replace(self.numbers.get() + 1);
            spawn_local(Rc::clone(self).keep(Rc::clone(node), kind, number));
        }
    }

    /// Keeps one connection until the area is closed or the node has no slots.
    async fn keep(self: Rc<Self>, node: Rc<Node>, kind: Kind, number: u32) {
        let mut pause = FIRST_PAUSE;
        while !self.area.is_closed() && !node.is_retired.get() {
            let worked = match kind {
                Kind::Own => self.with_own(&node, number).await,
                _ => self.with_parts(&node, kind, number).await,
            };
            if worked.is_ok() {
                pause = FIRST_PAUSE;
                continue;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(MOST_PAUSE);
        }
    }

    async fn with_parts(
        self: &Rc<Self>,
        node: &Rc<Node>,
        kind: Kind,
        number: u32,
    ) -> Result<(), String> {
        let patience = CONNECTING.min(self.area.timeout);
        let mut socket = self.login.open(&node.place, patience).await?;
        self.look_for_mark(&mut socket).await?;
        if kind == Kind::Write {
            self.look_at_replicas(node, &mut socket).await?;
        }
        self.on_up(node, kind);
        let (sent, why) = link::run(self, node, kind, number, socket).await;
        self.on_down(node, kind, number, sent, &why);
        Ok(())
    }

    async fn with_own(&self, node: &Node, number: u32) -> Result<(), String> {
        let patience = CONNECTING.min(self.area.timeout);
        let mut connection = self.login.connect(&node.place, patience).await?;
        self.look_for_mark(&mut connection.send).await?;
        *node.own.borrow_mut() = Some(connection.send.clone());
        self.on_up(node, Kind::Own);
        while !connection.is_over() && !self.area.is_closed() && !node.is_retired.get() {
            tokio::time::sleep(TICK).await;
        }
        *node.own.borrow_mut() = None;
        let why = "the server has closed the connection";
        self.on_down(node, Kind::Own, number, Vec::new(), why);
        Ok(())
    }

    fn on_up(&self, node: &Node, kind: Kind) {
        node.up.borrow_mut()[kind as usize] = true;
        self.area.on_up();
    }

    fn on_down(&self, node: &Node, kind: Kind, number: u32, sent: Vec<Part>, why: &str) {
        node.up.borrow_mut()[kind as usize] = false;
        self.cluster.is_old.set(true);
        self.area.on_down(number, sent, why);
    }

    /// Whether what was on the server still is.
    async fn look_for_mark(&self, send: &mut impl Ask) -> Result<(), String> {
        if self.address.is_cluster {
            return Ok(());
        }
        let mark = self.keys.mark();
        let found = send.ask(&command(&["GET", &mark])).await?;
        if found == Value::Nil {
            self.chunks.on_all_lost();
            self.area.on_lost();
            // Other connections need not say so again.
            let expire = self.keys.expire.to_string();
            send.ask(&command(&["SET", &mark, "here", "EX", &expire]))
                .await?;
        }
        Ok(())
    }

    /// Whether the node has as many replicas as a write needs.
    async fn look_at_replicas(&self, node: &Node, send: &mut impl Ask) -> Result<(), String> {
        if self.address.replicas == 0 {
            return Ok(());
        }
        let wait = command(&["WAIT", &self.address.replicas.to_string(), "100"]);
        let count = send.ask(&wait).await?;
        let is_short =
            !matches!(count, Value::Int(count) if count >= i64::from(self.address.replicas));
        node.is_short.set(is_short);
        Ok(())
    }

    /// A few times a second: time-outs, the map of slots, nodes that are away.
    async fn look_after(self: Rc<Self>) {
        let mut asked = Instant::now();
        while !self.area.is_closed() {
            self.area.tick();
            let nodes = self.cluster.nodes();
            let is_away = nodes.iter().any(|node| !node.is_up());
            let interval = match is_away || self.cluster.is_old.get() {
                true => MAP_SOON,
                false => MAP,
            };
            if self.address.is_cluster && asked.elapsed() >= interval {
                self.ask_for_map().await;
                asked = Instant::now();
            }
            for node in nodes {
                if let Some(mut own) = node.own().filter(|_| node.is_short.get()) {
                    let _ = self.look_at_replicas(&node, &mut own).await;
                }
                if !node.is_up() || node.is_short.get() {
                    let is_away = !node.is_up();
                    let meant = |part: &Part| {
                        (is_away || part.is_write())
                            && self.cluster.is_owner(&node, self.slot(part))
                    };
                    self.area.on_away(meant);
                }
            }
            tokio::time::sleep(TICK).await;
        }
    }

    async fn ask_for_map(self: &Rc<Self>) {
        let words = command(&["CLUSTER", "SLOTS"]);
        for node in self.cluster.nodes() {
            let Some(mut send) = node.own() else {
                continue;
            };
            let Ok(reply) = send.ask(&words).await else {
                continue;
            };
            if let Some(slots) = cluster::slots(&reply, &node.place) {
                self.cluster.is_old.set(false);
                for node in self.cluster.on_slots(&slots) {
                    self.serve(&node);
                }
                return;
            }
        }
    }

    /// The slot of the chunk of a part.
    fn slot(&self, part: &Part) -> u16 {
        match self.address.is_cluster {
            true => self.keys.slot(Place::of(part).chunk),
            false => 0,
        }
    }

    /// The next part for a connection.
    pub(crate) fn take(&self, node: &Rc<Node>, kind: Kind) -> Option<Part> {
        if kind == Kind::Write && (node.is_short.get() || self.is_closing.get()) {
            return None;
        }
        let is_small = |part: &Part| part.bytes <= crate::polling::SMALL;
        self.area.next_where(kind == Kind::Write, |part| {
            (kind == Kind::Write || (kind == Kind::Small) == is_small(part))
                && self.cluster.is_owner(node, self.slot(part))
        })
    }

    /// How many replicas must have a write, within so many milliseconds.
    pub(crate) fn replicas(&self) -> Option<(u32, u64)> {
        let patience = OWN.min(self.area.patience() / 2);
        let ms = u64::try_from(patience.as_millis()).unwrap_or(1).max(1);
        (self.address.replicas > 0).then_some((self.address.replicas, ms))
    }

    /// The node at `place`, with connections from now on.
    pub(crate) fn ensure(self: &Rc<Self>, place: &address::Place) -> Rc<Node> {
        let (node, is_new) = self.cluster.node(place);
        if is_new {
            self.serve(&node);
        }
        node
    }

    /// A server says that a chunk has moved.
    pub(crate) fn on_moved(self: &Rc<Self>, chunk: u64, to: &address::Place) {
        let slot = self.keys.slot(chunk);
        if let Some(node) = self.cluster.on_moved(slot, to) {
            self.serve(&node);
        }
    }

    /// A write is sent; until the value is dropped.
    pub(crate) fn begin_write(&self) -> Writing<'_> {
        self.writing.set(self.writing.get() + 1);
        Writing(self)
    }

    /// Tells once why a server refuses what it is asked.
    pub(crate) fn tell_refused(&self, why: &str) {
        if !self.told_refused.replace(true) {
            let name = &self.area.name;
            (self.say)(true, format!("swap area {name}: the server refuses: {why}"));
        }
    }

    /// Renews the expiry of all keys, until the area is closed.
    async fn renew_on(self: Rc<Self>) {
        let interval = self.address.expire / 4;
        let mut renewed = Instant::now();
        while !self.area.is_closed() {
            tokio::time::sleep(TICK).await;
            if renewed.elapsed() < interval {
                continue;
            }
            renewed = Instant::now();
            let mut left = self.chunks.used();
            for _ in 0..RENEWALS {
                left = self
                    .each(&left, |keys, key| command::expire(key, keys.expire))
                    .await;
                if left.is_empty() || self.area.is_closed() {
                    break;
                }
                tokio::time::sleep(MAP).await;
            }
            if let (false, Some(node)) = (self.address.is_cluster, self.cluster.owner(0))
                && let Some(mut send) = node.own()
            {
                let renewal = command::expire(&self.keys.mark(), self.keys.expire);
                let _ = send.ask(&renewal).await;
            }
        }
    }

    /// One command for each chunk. Returns those for which it was not carried out.
    async fn each(&self, chunks: &[u64], with: impl Fn(&Keys, &str) -> Cmd) -> Vec<u64> {
        let mut left = Vec::new();
        for node in self.cluster.nodes() {
            let its: Vec<u64> = chunks
                .iter()
                .copied()
                .filter(|chunk| {
                    let slot = self.keys.slot(*chunk);
                    self.cluster.is_owner(&node, slot)
                })
                .collect();
            let Some(mut send) = node.own() else {
                left.extend(its);
                continue;
            };
            for some in its.chunks(BATCH) {
                let mut all = redis::Pipeline::new();
                for chunk in some {
                    all.add_command(with(&self.keys, &self.keys.chunk(*chunk)));
                }
                let sent = send.send_packed_commands(&all, 0, some.len());
                match tokio::time::timeout(OWN, sent).await {
                    Ok(Ok(replies)) => {
                        let failed = some.iter().zip(replies);
                        let failed = failed
                            .filter(|(_, reply)| matches!(reply, Value::ServerError(_)))
                            .map(|(chunk, _)| *chunk);
                        left.extend(failed);
                    }
                    _ => left.extend(some),
                }
            }
        }
        left
    }

    /// Ends the area, and removes what is there.
    ///
    /// # Errors
    /// The text says why its contents may still be there.
    pub(crate) async fn close(&self) -> Result<(), String> {
        let removed = tokio::time::timeout(REMOVING, self.remove()).await;
        self.area.close();
        let seconds = self.keys.expire;
        match removed {
            Ok(()) => Ok(()),
            Err(_) => Err(format!(
                "not all keys could be removed; they expire within {seconds} s"
            )),
        }
    }

    async fn remove(&self) {
        // A write that the server carries out later would bring its chunk back.
        self.is_closing.set(true);
        self.area.on_away(Part::is_write);
        while self.writing.get() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut left = self.chunks.used();
        // As long as the caller waits: a node may be away for a moment.
        loop {
            left = self.each(&left, |_, key| command(&["UNLINK", key])).await;
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(MAP_SOON).await;
        }
        if let (false, Some(node)) = (self.address.is_cluster, self.cluster.owner(0))
            && let Some(mut send) = node.own()
        {
            let _ = send.ask(&command(&["UNLINK", &self.keys.mark()])).await;
        }
    }
}

/// The bytes that a master of a cluster has room for.
async fn look_at(address: &address::Redis, send: &mut impl Ask) -> Result<u64, String> {
    let room = Info::of(send).await?.room()?;
    has_replicas(address, send).await?;
    Ok(room)
}

/// Refuses a server with fewer replicas than a write needs: nothing could ever be written.
async fn has_replicas(address: &address::Redis, send: &mut impl Ask) -> Result<(), String> {
    let asked = address.replicas;
    if asked == 0 {
        return Ok(());
    }
    let have = match send
        .ask(&command(&["WAIT", &asked.to_string(), "1000"]))
        .await?
    {
        Value::Int(count) => count,
        _ => 0,
    };
    match have >= i64::from(asked) {
        true => Ok(()),
        false => Err(format!(
            "replicas={asked} asks for more replicas than the {have} that follow the server now; add some (REPLICAOF, or \
             redis-cli --cluster add-node NEW OLD --cluster-slave), or ask for fewer"
        )),
    }
}

/// A connection to the first server that answers.
async fn first(
    login: &Login,
    address: &address::Redis,
    patience: Duration,
) -> Result<(address::Place, Connection), String> {
    let mut whys = Vec::new();
    for place in &address.places {
        match login.connect(place, patience).await {
            Ok(connection) => return Ok((place.clone(), connection)),
            Err(why) => whys.push(why),
        }
    }
    Err(whys.join("; "))
}
