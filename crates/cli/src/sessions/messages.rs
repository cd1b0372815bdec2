//! The messages of engines, and the answers.

use super::*;

impl Sessions {
    pub(super) fn on_message(
        &mut self,
        index: usize,
        received: Received,
        voice: &mut Voice,
    ) -> bool {
        let Received {
            message,
            same_version,
            fds,
        } = received;
        let own = self.sessions[index].record;
        match (message, own) {
            (Message::Log { severity, text }, _) => voice.remark(severity, &text),
            (Message::Hello { .. }, None) if !same_version => {
                self.answer(index, &Message::Refused(Refusal::Version));
                return false;
            }
            (
                Message::Hello {
                    pid,
                    parent,
                    record,
                },
                None,
            ) => {
                if let Some(process) = fds.into_iter().next() {
                    self.on_introduction(index, process, pid);
                }
                self.sessions[index].inherits = parent.is_some();
                return self.on_hello(index, parent, record, voice);
            }
            (Message::Reserve, Some(parent)) => {
                let answer = match self.free_record(Some(parent)) {
                    Ok(record) => {
                        let reservation = Reservation {
                            parent,
                            child: None,
                            until: None,
                        };
                        self.reservations.insert(record, reservation);
                        Message::Reserved { record }
                    }
                    Err(why) => Message::Refused(why),
                };
                return self.answer(index, &answer);
            }
            (Message::Reap { record, child }, Some(parent)) => {
                self.on_reap(index, parent, record, child);
            }
            (Message::Unused { parent, record }, None) if same_version => {
                let known = self.reservations.get(&record);
                if known.is_some_and(|kept| kept.parent == parent) {
                    self.on_child_death(record);
                }
                return false;
            }
            (Message::Bye, Some(record)) => {
                self.sessions[index].record = None;
                self.orphan(record);
                self.end(record);
            }
            (Message::AreaDone { order, ok }, Some(_)) => self.on_area_done(index, order, ok),
            (Message::Connect, _) => return self.on_another(index),
            (Message::Device, Some(_)) => return self.on_device(index),
            (Message::Keep, Some(_)) => self.sessions[index].kept = fds,
            (Message::Guest, Some(_)) => {
                let guests = &mut self.sessions[index].guests;
                match fds.into_iter().next() {
                    Some(memory) => {
                        guests.retain(widows::memory_exists);
                        guests.push(Uffd::of_child(memory));
                    }
                    None => guests.clear(),
                }
            }
            (Message::MapFile { pages, shared }, Some(_)) => {
                let id = self.sessions[index].id;
                let file = fds.into_iter().next();
                let numbers = file.and_then(|file| self.mapped.add(id, file, pages, shared));
                return self.answer_file(index, numbers, false);
            }
            (Message::File { page }, Some(_)) => {
                let numbers = self.mapped.join(self.sessions[index].id, page);
                return self.answer_file(index, numbers, true);
            }
            (Message::Inherited, Some(_)) => self.sessions[index].inherits = false,
            (Message::DropFile { first }, Some(_)) => {
                self.mapped.leave(self.sessions[index].id, first);
            }
            (Message::Starved { area }, Some(_)) => self.starved = Some(area),
            // Other messages are invalid at this time.
            _ => return false,
        }
        true
    }

    /// `opened`: with the file.
    fn answer_file(&self, index: usize, numbers: Option<FileNumbers>, opened: bool) -> bool {
        let Some(numbers) = numbers else {
            return self.answer(index, &Message::Refused(Refusal::NoFile));
        };
        let FileNumbers {
            first,
            pages,
            sharing,
        } = numbers;
        let message = Message::FileAt {
            first,
            pages,
            sharing,
        };
        let file = opened.then(|| self.mapped.file(first)).flatten();
        let socket = &self.sessions[index].socket;
        protocol::send(socket, &message, file.as_slice()).is_ok()
    }

    /// A record for a child of `parent`, or for another process.
    fn free_record(&self, parent: Option<ProcId>) -> Result<ProcId, Refusal> {
        let processes = self.sessions.len() + self.reservations.len();
        match (processes + 1) * DESCRIPTORS + SPARE <= self.descriptors {
            true => self.ledger.reserve(parent).ok_or(Refusal::TooManyProcesses),
            false => Err(Refusal::TooFewDescriptors),
        }
    }

    /// An engine requests a connection for another one, which cannot reach the supervisor.
    fn on_another(&mut self, index: usize) -> bool {
        let made = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let Ok((ours, theirs)) = made else {
            return false;
        };
        if rustix::io::ioctl_fionbio(&ours, true).is_err() {
            return false;
        }
        let sent = protocol::send(
            &self.sessions[index].socket,
            &Message::Connected,
            &[theirs.as_fd()],
        );
        let Session { pid, user, .. } = self.sessions[index];
        self.add(ours, pid, user, false);
        sent.is_ok()
    }

    pub(super) fn add(&mut self, socket: OwnedFd, pid: Pid, user: Uid, is_direct: bool) {
        self.next_id += 1;
        self.sessions.push(Session {
            id: self.next_id,
            socket,
            pid,
            same_namespace: true,
            record: None,
            is_direct,
            user,
            process: None,
            kept: Vec::new(),
            inherits: false,
            guests: Vec::new(),
        });
    }

    /// The engine of another user's process needs the device of userfaultfd. A descriptor of it gives access to the
    /// holder's own memory alone.
    fn on_device(&mut self, index: usize) -> bool {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open(c"/dev/userfaultfd", flags, Mode::empty());
        match device.ok().filter(|_| self.other_users) {
            Some(device) => {
                let socket = &self.sessions[index].socket;
                protocol::send(socket, &Message::DeviceOpen, &[device.as_fd()]).is_ok()
            }
            None => self.answer(index, &Message::Refused(Refusal::NoDevice)),
        }
    }

    /// The engine named the process it serves, `pid` in that process' own namespace.
    fn on_introduction(&mut self, index: usize, process: OwnedFd, pid: u32) {
        let session = &mut self.sessions[index];
        if self.other_users
            && !session.user.is_root()
            && widows::user_of(&process) != Some(session.user)
        {
            // The supervisor ends this process if its engine is killed: nobody may name another user's.
            return;
        }
        // An invisible pid belongs to an ended process, or cannot be used here.
        if let Some(seen) = widows::pid_of(&process) {
            session.pid = seen;
        }
        let seen = session.pid.as_raw_nonzero().get().cast_unsigned();
        session.same_namespace = seen == pid;
        session.process = Some(process);
    }

    fn on_hello(
        &mut self,
        index: usize,
        parent: Option<ProcId>,
        reserved: Option<ProcId>,
        voice: &mut Voice,
    ) -> bool {
        let peer = self.sessions[index]
            .pid
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        let record = match reserved {
            None => self.free_record(parent),
            Some(record) => {
                let ours = self
                    .reservations
                    .get(&record)
                    .is_some_and(|r| Some(r.parent) == parent);
                if ours {
                    Ok(record)
                } else {
                    Err(Refusal::NotReserved)
                }
            }
        };
        let connected = record.and_then(|record| {
            let done = self.ledger.connect(record, peer);
            done.then_some(record).ok_or(Refusal::NotReserved)
        });
        match connected {
            Err(why) => {
                self.answer(index, &Message::Refused(why));
                false
            }
            Ok(record) => {
                self.reservations.remove(&record);
                self.sessions[index].record = Some(record);
                let own = self.areas.iter().map_while(|area| area.own(record));
                let own: Vec<OwnedFd> = own.collect();
                if own.len() < self.areas.len() {
                    let text = format!(
                        "process {peer} is not managed: no descriptor of a swap area could be opened for it; raise `ulimit -n`"
                    );
                    voice.remark(Severity::Warning, &text);
                    return false;
                }
                self.totals.processes += 1;
                let areas = self.areas.iter().map(|area| 1 << area.number.0).sum();
                let recording = self.recording.as_mut();
                let traced = recording.is_some_and(|to| to.begin(record, peer, parent));
                let welcome = Message::Welcome {
                    record,
                    areas,
                    encrypted: self.key.is_some(),
                    traced,
                };
                self.welcome(index, &welcome, record, &own)
            }
        }
    }

    fn on_reap(&mut self, index: usize, parent: ProcId, record: ProcId, child: Option<u32>) {
        let Some(reservation) = self.reservations.get_mut(&record) else {
            return;
        };
        if reservation.parent != parent {
            return;
        }
        let Some(child) = child else {
            self.reservations.remove(&record);
            self.end(record);
            return;
        };
        self.ledger.set_pid(record, child);
        // A pid of another namespace is meaningless here.
        if !self.sessions[index].same_namespace {
            return;
        }
        let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
        reservation.child =
            pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        if reservation.child.is_none() {
            // Dead already, and reaped by its parent. Its hello, if it was sent, waits in a connection: an
            // end-of-file descriptor in place of the pidfd lets that come first.
            reservation.child = readable_for_good();
        }
    }

    fn answer(&self, index: usize, message: &Message) -> bool {
        protocol::send(&self.sessions[index].socket, message, &[]).is_ok()
    }

    /// Sends a welcome with all its descriptors.
    fn welcome(&self, index: usize, message: &Message, record: ProcId, own: &[OwnedFd]) -> bool {
        let mut fds = vec![self.ledger.fd()];
        // By number, as the engine expects them.
        for (area, own) in self.areas.iter().zip(own) {
            fds.extend(area.descriptors(&self.ledger, own));
        }
        fds.extend(self.key.as_ref().map(RunKey::fd));
        if let Some(recording) = &self.recording {
            fds.extend(recording.ring(record));
        }
        protocol::send(&self.sessions[index].socket, message, &fds).is_ok()
    }
}
