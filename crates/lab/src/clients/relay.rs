//! How a client uses its servers: the rules of the relay of a run (`foreswap-far`: `area.rs`, `mirror.rs`, `nbd/link.rs`), in
//! simulated time. Those modules read the machine's clock and speak to sockets, so their rules are written again here; a
//! change there belongs here too.
//!
//! The area is cut into chunks, which lie on the servers by a hash, as in a Redis cluster. A transfer goes in one part per
//! chunk; a read goes before writes; a connection has a bounded number of parts under way. A connection whose oldest part gets
//! no answer for half of the time-out is given up: its reads go again, its writes fail. While there is none, writes are
//! refused and reads wait, until the time-out is over. With a mirror each chunk is on a second server too: a page counts as
//! written when one has it, and a read that fails is made from the other.

use foreswap_core::units::Nanos;
use foreswap_core::world::IoId;

use super::agenda::Event;
use super::pool::{CHUNK, Client, Connection, Part, Place, Pool, Transfer, Write};
use super::published;
use super::server::{Job, Ticket};
use crate::replay::Request;

/// Parts under way on a connection.
const MOST: usize = 64;
/// Attempts at a read of a mirror.
const MOST_TRIES: u8 = 3;
/// The pause before a second attempt to connect; it doubles.
const FIRST_PAUSE: Nanos = 50_000_000;
const MOST_PAUSE: Nanos = 2_000_000_000;
const SECOND: u128 = 1_000_000_000;

const IO: i32 = 5;
const NO_SPACE: i32 = 28;
const IN_DOUBT: i32 = 104;
const TIMED_OUT: i32 = 110;

impl Pool {
    fn client(&mut self, number: u32) -> &mut Client {
        &mut self.clients[number as usize]
    }

    fn connection(&mut self, client: u32, server: u32) -> &mut Connection {
        &mut self.clients[client as usize].connections[server as usize]
    }

    /// A client's machine begins a transfer.
    pub(super) fn submit(&mut self, number: u32, request: Request) {
        self.begun += 1;
        let first = request.slot.index;
        let end = first + request.pages;
        let client = self.client(number);
        let at = request.io.0 as usize;
        if client.transfers.len() <= at {
            client.transfers.resize(at + 1, Transfer::default());
        }
        client.transfers[at] = Transfer {
            left: end.div_ceil(CHUNK) - first / CHUNK,
            errno: 0,
            began: request.at,
        };
        if client.copies.len() < end as usize {
            client
                .copies
                .resize(end.next_multiple_of(512) as usize, [0; 2]);
        }
        let mut from = first;
        while from < end {
            let to = ((from / CHUNK + 1) * CHUNK).min(end);
            match request.write {
                true => self.write(number, request.io, from, to - from),
                false => self.read(number, request.io, from, to - from),
            }
            from = to;
        }
    }

    fn write(&mut self, number: u32, io: IoId, slot: u32, pages: u32) {
        let copies = 1 + u8::from(self.setting.mirror);
        let client = self.client(number);
        let servers = client.servers(slot);
        let write = Write {
            left: copies,
            results: [0; 2],
        };
        let write_of = match client.free.pop() {
            Some(at) => {
                client.writes[at as usize] = write;
                at
            }
            None => {
                client.writes.push(write);
                client.writes.len() as u32 - 1
            }
        };
        for copy in 0..copies {
            self.start(Part {
                client: number,
                server: servers[usize::from(copy)],
                pages,
                write: true,
                round_trip: 0,
                io,
                slot,
                copy,
                tries: 1,
                write_of,
                attempt: 0,
                place: Place::Free,
                sent: 0,
            });
        }
    }

    /// Reads from the first copy that has all, or page by page.
    fn read(&mut self, number: u32, io: IoId, slot: u32, pages: u32) {
        let client = &self.clients[number as usize];
        let servers = client.servers(slot);
        let copies: &[usize] = match (self.setting.mirror, servers.map(|at| client.is_up(at))) {
            (false, _) => &[0],
            (true, [false, true]) => &[1, 0],
            (true, _) => &[0, 1],
        };
        let has = |copy: &&usize| client.has(servers[**copy], **copy, slot..slot + pages);
        match copies.iter().find(has) {
            Some(&copy) => self.read_from(number, io, slot, pages, copy as u8, 1),
            None if pages > 1 => self.read_by_page(number, io, slot, pages),
            None => {
                self.counts.lost += 1;
                self.ended(number, io, IO);
            }
        }
    }

    fn read_by_page(&mut self, number: u32, io: IoId, slot: u32, pages: u32) {
        self.client(number).transfers[io.0 as usize].left += pages - 1;
        for page in slot..slot + pages {
            self.read(number, io, page, 1);
        }
    }

    fn read_from(&mut self, number: u32, io: IoId, slot: u32, pages: u32, copy: u8, tries: u8) {
        self.counts.retries += u64::from(tries > 1);
        let server = self.client(number).servers(slot)[usize::from(copy)];
        self.start(Part {
            client: number,
            server,
            pages,
            write: false,
            round_trip: 0,
            io,
            slot,
            copy,
            tries,
            write_of: 0,
            attempt: 0,
            place: Place::Free,
            sent: 0,
        });
    }

    /// A part waits for its connection, unless that is away for a write, or for too long.
    fn start(&mut self, mut part: Part) {
        let (now, timeout) = (self.now, self.setting.timeout);
        let connection = self.connection(part.client, part.server);
        let (is_down, since) = (connection.is_down, connection.since);
        if is_down && part.write {
            return self.part_ended(part, NO_SPACE);
        }
        if is_down && now >= since + timeout {
            return self.part_ended(part, TIMED_OUT);
        }
        part.place = Place::Queued;
        let name = match self.free.pop() {
            Some(name) => {
                // Late answers to the last user of the entry are known by their attempt.
                part.attempt = self.parts[name as usize].attempt + 1;
                self.parts[name as usize] = part;
                name
            }
            None => {
                self.parts.push(part);
                self.parts.len() as u32 - 1
            }
        };
        let connection = self.connection(part.client, part.server);
        match part.write {
            true => connection.writes.push_back(name),
            false => connection.reads.push_back(name),
        }
        if is_down {
            self.expires(name);
        } else {
            self.pump(part.client, part.server);
        }
    }

    /// A read that waits for a connection fails when the time-out of its transfer is over.
    fn expires(&mut self, name: u32) {
        let part = self.parts[name as usize];
        let began = self.client(part.client).transfers[part.io.0 as usize].began;
        self.at(began + self.setting.timeout, Event::Late(part.ticket(name)));
    }

    /// Parts go out.
    fn pump(&mut self, client: u32, server: u32) {
        loop {
            let connection = self.connection(client, server);
            if connection.is_down || connection.under_way >= MOST {
                return;
            }
            let read = connection.reads.pop_front();
            let Some(name) = read.or_else(|| connection.writes.pop_front()) else {
                return;
            };
            self.send(name);
        }
    }

    fn send(&mut self, name: u32) {
        let (now, patience) = (self.now, self.setting.timeout / 2);
        let round_trip = published::NETWORK.draw(&mut self.rng);
        let part = &mut self.parts[name as usize];
        part.attempt += 1;
        part.place = Place::Sent;
        part.sent = now;
        part.round_trip = round_trip;
        let part = *part;
        let ticket = part.ticket(name);
        let client = self.client(part.client);
        let out = match part.write {
            true => transfer(&mut client.link[1], now, part.bytes()),
            false => now,
        };
        let connection = &mut client.connections[part.server as usize];
        connection.under_way += 1;
        connection.sent.push_back(ticket);
        let life = connection.life;
        let is_checked = std::mem::replace(&mut connection.is_checked, true);
        self.at(out + round_trip / 2, Event::Arrive(ticket, life));
        if !is_checked {
            self.at(now + patience, Event::Check(part.client, part.server));
        }
    }

    /// A part reaches its server, over a connection to this life of it.
    pub(super) fn arrive(&mut self, ticket: Ticket, life: u32) {
        let part = self.parts[ticket.part as usize];
        if !part.is_sent(ticket) {
            return;
        }
        let server = &self.servers[part.server as usize];
        if server.is_up() && server.life() != life {
            // Its kernel does not know the connection.
            return self.broken(part.client, part.server);
        }
        let pages = u64::from(part.pages);
        let service = published::SERVICE.draw(&mut self.rng) + published::SERVICE_PAGE * pages;
        let job = Job {
            ticket,
            write: part.write,
            bytes: part.bytes(),
            service,
        };
        self.act(part.server, |server, now, effects| {
            server.arrive(now, job, effects)
        });
    }

    /// The first byte of an answer is there.
    pub(super) fn landed(&mut self, ticket: Ticket) {
        let part = self.parts[ticket.part as usize];
        if !part.is_sent(ticket) {
            return;
        }
        if part.write {
            return self.answered(ticket);
        }
        let now = self.now;
        let link = &mut self.client(part.client).link[0];
        let at = transfer(link, now, part.bytes());
        self.at(at, Event::Answered(ticket));
    }

    /// A part has been carried out.
    pub(super) fn answered(&mut self, ticket: Ticket) {
        let part = self.parts[ticket.part as usize];
        if !part.is_sent(ticket) {
            return;
        }
        self.connection(part.client, part.server).under_way -= 1;
        self.forget(ticket.part);
        self.forget_answered(part.client, part.server);
        self.part_ended(part, 0);
        self.pump(part.client, part.server);
    }

    fn forget(&mut self, name: u32) {
        self.parts[name as usize].place = Place::Free;
        self.free.push(name);
    }

    /// The oldest of `sent` is one that has no answer.
    fn forget_answered(&mut self, client: u32, server: u32) -> Option<Ticket> {
        let connection = &mut self.clients[client as usize].connections[server as usize];
        while let Some(&ticket) = connection.sent.front() {
            if self.parts[ticket.part as usize].is_sent(ticket) {
                return Some(ticket);
            }
            connection.sent.pop_front();
        }
        None
    }

    /// Whether the oldest part has waited for too long.
    pub(super) fn check(&mut self, client: u32, server: u32) {
        self.connection(client, server).is_checked = false;
        let Some(oldest) = self.forget_answered(client, server) else {
            return;
        };
        let due = self.parts[oldest.part as usize].sent + self.setting.timeout / 2;
        if due <= self.now {
            self.broken(client, server);
        } else {
            self.connection(client, server).is_checked = true;
            self.at(due, Event::Check(client, server));
        }
    }

    /// A connection is given up.
    pub(super) fn broken(&mut self, client: u32, server: u32) {
        let now = self.now;
        let connection = self.connection(client, server);
        if std::mem::replace(&mut connection.is_down, true) {
            return;
        }
        connection.since = now;
        connection.pause = FIRST_PAUSE;
        connection.under_way = 0;
        let sent = std::mem::take(&mut connection.sent);
        let reads = std::mem::take(&mut connection.reads);
        let writes = std::mem::take(&mut connection.writes);
        self.counts.broken += 1;
        self.at(now + FIRST_PAUSE, Event::Connect(client, server));
        let (mut again, mut failed) = (reads, Vec::new());
        for ticket in sent {
            let part = self.parts[ticket.part as usize];
            match part.is_sent(ticket) {
                true if part.write => failed.push((ticket.part, IN_DOUBT)),
                true => again.push_back(ticket.part),
                false => {}
            }
        }
        failed.extend(writes.into_iter().map(|name| (name, NO_SPACE)));
        if self.setting.mirror {
            failed.extend(again.drain(..).map(|name| (name, IO)));
        }
        for &name in &again {
            self.parts[name as usize].place = Place::Queued;
            self.expires(name);
        }
        self.counts.retries += again.len() as u64;
        self.connection(client, server).reads = again;
        for (name, errno) in failed {
            let part = self.parts[name as usize];
            self.forget(name);
            self.part_ended(part, errno);
        }
    }

    /// A client tries to connect again.
    pub(super) fn connect(&mut self, client: u32, server: u32) {
        let now = self.now;
        let peer = &self.servers[server as usize];
        let (answers, life) = (peer.answers(now), peer.life());
        let connection = self.connection(client, server);
        if answers {
            connection.is_down = false;
            connection.life = life;
            self.pump(client, server);
        } else {
            connection.pause = (connection.pause * 2).min(MOST_PAUSE);
            let at = now + connection.pause;
            self.at(at, Event::Connect(client, server));
        }
    }

    /// A read waits for a connection, and the time-out may be over.
    pub(super) fn late(&mut self, ticket: Ticket) {
        let part = self.parts[ticket.part as usize];
        if part.place != Place::Queued || part.attempt != ticket.attempt {
            return;
        }
        let connection = self.connection(part.client, part.server);
        connection.reads.retain(|name| *name != ticket.part);
        self.forget(ticket.part);
        self.part_ended(part, TIMED_OUT);
    }

    /// A part has ended, with an errno or 0.
    fn part_ended(&mut self, part: Part, errno: i32) {
        match part.write {
            true => self.copy_written(part, errno),
            false if errno == 0 => {
                self.counts.read += part.bytes();
                self.client(part.client).bytes += part.bytes();
                self.ended(part.client, part.io, 0);
            }
            false if self.setting.mirror => self.read_failed(part, errno),
            false => self.read_ended(part, errno),
        }
    }

    fn copy_written(&mut self, part: Part, errno: i32) {
        self.counts.unwritten += u64::from(errno != 0);
        let client = &mut self.clients[part.client as usize];
        let life = client.connections[part.server as usize].life + 1;
        let slots = part.slot as usize..(part.slot + part.pages) as usize;
        for copies in &mut client.copies[slots] {
            copies[usize::from(part.copy)] = if errno == 0 { life } else { 0 };
        }
        let write = &mut client.writes[part.write_of as usize];
        write.results[usize::from(part.copy)] = errno;
        write.left -= 1;
        if write.left > 0 {
            return;
        }
        let results = write.results;
        client.free.push(part.write_of);
        let result = match results {
            [0, _] | [_, 0] if self.setting.mirror => 0,
            [NO_SPACE, NO_SPACE] => NO_SPACE,
            [IN_DOUBT | NO_SPACE, IN_DOUBT | NO_SPACE] => IN_DOUBT,
            [errno, _] => errno,
        };
        if result == 0 {
            self.counts.written += part.bytes();
            self.client(part.client).bytes += part.bytes();
        }
        self.ended(part.client, part.io, result);
    }

    /// A read of one copy has failed.
    fn read_failed(&mut self, part: Part, errno: i32) {
        let client = &self.clients[part.client as usize];
        let other = 1 - part.copy;
        let servers = client.servers(part.slot);
        let server = servers[usize::from(other)];
        let slots = part.slot..part.slot + part.pages;
        let may_help = part.tries == 1 || part.tries < MOST_TRIES && client.is_up(server);
        let has = client.has(server, usize::from(other), slots);
        let is_up = client.is_up(part.server);
        let (number, io, slot, pages) = (part.client, part.io, part.slot, part.pages);
        if may_help && has {
            self.read_from(number, io, slot, pages, other, part.tries + 1);
        } else if may_help && pages > 1 {
            self.read_by_page(number, io, slot, pages);
        } else if errno == IO && part.tries < MOST_TRIES && !is_up {
            self.read_from(number, io, slot, pages, part.copy, part.tries + 1);
        } else {
            self.read_ended(part, errno);
        }
    }

    fn read_ended(&mut self, part: Part, errno: i32) {
        self.counts.timeouts += u64::from(errno == TIMED_OUT);
        self.ended(part.client, part.io, errno);
    }

    /// A part of a transfer has ended for good.
    fn ended(&mut self, number: u32, io: IoId, errno: i32) {
        let now = self.now;
        let client = self.client(number);
        let transfer = &mut client.transfers[io.0 as usize];
        let Some(left) = transfer.left.checked_sub(1) else {
            self.problem = Some(format!("a transfer of client {number} ends twice"));
            return;
        };
        transfer.left = left;
        if transfer.errno == 0 {
            transfer.errno = errno;
        }
        if transfer.left == 0 {
            let errno = transfer.errno;
            client.machine.ended(io, now, errno);
            self.ended += 1;
            self.touched.push(number);
        }
    }
}

/// The time at which a link of a client has carried `bytes` more.
fn transfer(free: &mut Nanos, now: Nanos, bytes: u64) -> Nanos {
    let time = u128::from(bytes) * SECOND / u128::from(published::CLIENT_LINK);
    *free = now.max(*free) + time as Nanos;
    *free
}
