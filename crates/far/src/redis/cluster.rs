//! The nodes of an area, and which of them has a chunk.
//!
//! One server is a cluster of one node without slots. The map of slots comes from CLUSTER SLOTS, is asked for every second and
//! as soon as a node is away, and is corrected by each MOVED.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::link::Kind;
use crate::address::Place;
use crate::transfer::Part;

const SLOTS: usize = 16384;

/// A master.
pub struct Node {
    /// Where it is.
    pub place: Place,
    /// Whether its connections are up, by kind; see [`super::link::Kind`].
    pub up: RefCell<[bool; Kind::ALL.len()]>,
    /// For the relay's own commands.
    pub own: RefCell<Option<MultiplexedConnection>>,
    /// Parts that another node has sent here for once, by kind.
    pub asked: RefCell<[VecDeque<Part>; Kind::ALL.len()]>,
    /// Fewer replicas than were asked for have what it has: nothing is written.
    pub is_short: Cell<bool>,
    /// It has no slots any more.
    pub is_retired: Cell<bool>,
}

impl Node {
    /// Without a connection.
    pub fn new(place: Place) -> Rc<Self> {
        Rc::new(Self {
            place,
            up: RefCell::default(),
            own: RefCell::default(),
            asked: RefCell::default(),
            is_short: Cell::new(false),
            is_retired: Cell::new(false),
        })
    }

    /// The connection for the relay's own commands, if it is up.
    pub fn own(&self) -> Option<MultiplexedConnection> {
        self.own.borrow().clone()
    }

    /// Whether all kinds of connections are up.
    pub fn is_up(&self) -> bool {
        self.up.borrow().iter().all(|is_up| *is_up)
    }
}

/// A range of slots and its master.
pub type Slots = Vec<(usize, usize, Place)>;

/// All of them.
#[derive(Default)]
pub struct Cluster {
    nodes: RefCell<Vec<Rc<Node>>>,
    /// Of each slot, an index of `nodes`. Empty: the first has all.
    owners: RefCell<Vec<Option<Rc<Node>>>>,
    /// The map is known to be old.
    pub is_old: Cell<bool>,
}

impl Cluster {
    /// The nodes that have slots.
    pub fn nodes(&self) -> Vec<Rc<Node>> {
        self.nodes.borrow().clone()
    }

    /// The node at `place`, and whether it is new.
    pub fn node(&self, place: &Place) -> (Rc<Node>, bool) {
        let mut nodes = self.nodes.borrow_mut();
        if let Some(node) = nodes.iter().find(|node| node.place == *place) {
            return (Rc::clone(node), false);
        }
        let node = Node::new(place.clone());
        nodes.push(Rc::clone(&node));
        (node, true)
    }

    /// The node that has a slot.
    pub fn owner(&self, slot: u16) -> Option<Rc<Node>> {
        let owners = self.owners.borrow();
        match owners.is_empty() {
            true => self.nodes.borrow().first().cloned(),
            false => owners.get(usize::from(slot)).cloned().flatten(),
        }
    }

    /// Whether `node` has it.
    pub fn is_owner(&self, node: &Rc<Node>, slot: u16) -> bool {
        let owners = self.owners.borrow();
        match owners.get(usize::from(slot)) {
            Some(owner) => owner.as_ref().is_some_and(|owner| Rc::ptr_eq(owner, node)),
            None => owners.is_empty(),
        }
    }

    /// A server says that a slot has moved. Returns a node that is new.
    pub fn on_moved(&self, slot: u16, to: &Place) -> Option<Rc<Node>> {
        let (node, is_new) = self.node(to);
        if let Some(owner) = self.owners.borrow_mut().get_mut(usize::from(slot)) {
            *owner = Some(Rc::clone(&node));
        }
        self.is_old.set(true);
        is_new.then_some(node)
    }

    /// The whole map. Returns the nodes that are new; those without slots are retired.
    pub fn on_slots(&self, slots: &Slots) -> Vec<Rc<Node>> {
        let mut owners = vec![None; SLOTS];
        let mut new = Vec::new();
        for (first, last, place) in slots {
            let (node, is_new) = self.node(place);
            if is_new {
                new.push(Rc::clone(&node));
            }
            owners[*first..=(*last).min(SLOTS - 1)].fill(Some(node));
        }
        *self.owners.borrow_mut() = owners;
        self.nodes.borrow_mut().retain(|node| {
            let stays = slots.iter().any(|(_, _, place)| *place == node.place);
            node.is_retired.set(!stays);
            stays
        });
        new
    }
}

/// Reads the reply to CLUSTER SLOTS; `asked` is the node that gave it. `None`: it is none, or no node has slots.
pub fn slots(reply: &Value, asked: &Place) -> Option<Slots> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let number = |value: &Value| match value {
        Value::Int(number) => usize::try_from(*number).ok(),
        _ => None,
    };
    let range = |range: &Value| {
        let Value::Array(words) = range else {
            return None;
        };
        let (first, last) = (number(words.first()?)?, number(words.get(1)?)?);
        let Value::Array(master) = words.get(2)? else {
            return None;
        };
        let host = match master.first()? {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            _ => String::new(),
        };
        let port = u16::try_from(number(master.get(1)?)?).ok()?;
        (first <= last && last < SLOTS).then(|| (first, last, at(host, port, asked)))
    };
    let all: Option<Slots> = ranges.iter().map(range).collect();
    all.filter(|all| !all.is_empty())
}

/// The place that a node names; without a host, that of the node itself.
pub fn at(host: String, port: u16, asked: &Place) -> Place {
    match asked {
        Place::Tcp(its, _) if host.is_empty() || host == "?" => Place::Tcp(its.clone(), port),
        _ => Place::Tcp(host, port),
    }
}

/// CRC-16 with the polynomial of XMODEM, of more bytes behind those that gave `crc`.
pub fn crc(crc: u16, bytes: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc >> 15 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    };
    bytes.iter().fold(crc, step)
}

/// The slot of a key without braces, of which the first bytes have the sum `first`.
pub fn slot_of(first: u16, rest: &[u8]) -> u16 {
    crc(first, rest) % SLOTS as u16
}

/// The slot of a whole key without braces.
#[cfg(test)]
pub fn slot(key: &str) -> u16 {
    slot_of(0, key.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_servers() {
        // As `CLUSTER KEYSLOT` answers.
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("bar"), 5061);
    }

    #[test]
    fn nodes_come_go_and_take_over() {
        let place = |port| Place::Tcp("h".to_owned(), port);
        let cluster = Cluster::default();
        let first = vec![(0, 8000, place(1)), (8001, 16383, place(2))];
        assert_eq!(cluster.on_slots(&first).len(), 2);
        let old = cluster.owner(5).expect("an owner");
        assert!(old.place == place(1) && cluster.is_owner(&old, 8000));
        assert!(cluster.on_moved(5, &place(2)).is_none());
        assert!(!cluster.is_owner(&old, 5) && cluster.is_owner(&old, 6));
        assert!(cluster.on_moved(6, &place(3)).is_some());
        let second = vec![(0, 8000, place(3)), (8001, 16383, place(2))];
        assert!(cluster.on_slots(&second).is_empty());
        assert!(old.is_retired.get() && cluster.nodes().len() == 2);
    }
}
