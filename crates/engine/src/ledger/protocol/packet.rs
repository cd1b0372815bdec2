//! Messages as the bytes of a packet.

use super::{AreaOrder, LOG_BYTES, Message, Refusal, Severity, Sharing};
use crate::ledger::layout::VERSION;
use crate::ledger::{AreaId, ProcId};

/// The layout of a message in its packet: five words, then the text of a log message.
#[repr(C)]
pub(super) struct Packet {
    kind: u32,
    pub(super) version: u32,
    words: [u32; 3],
    text_bytes: u32,
    text: [u8; LOG_BYTES],
}

pub(super) const PACKET_HEAD: usize = 24;
pub(super) const PACKET_BYTES: usize = PACKET_HEAD + LOG_BYTES;
const _: () = assert!(size_of::<Packet>() == PACKET_BYTES);
const _: () = assert!(std::mem::offset_of!(Packet, text) == PACKET_HEAD);

fn from_record(record: Option<ProcId>) -> u32 {
    record.map_or(u32::MAX, |r| r.index() as u32)
}

impl Packet {
    pub(super) fn of(message: &Message) -> Self {
        let none = u32::MAX;
        let (kind, words, text) = match message {
            Message::Hello {
                pid,
                parent,
                record,
            } => (1, [*pid, from_record(*parent), from_record(*record)], ""),
            Message::Welcome {
                record,
                areas,
                encrypted,
                traced,
            } => {
                let with = u32::from(*traced) | u32::from(*encrypted) << 1;
                (2, [from_record(Some(*record)), *areas, with], "")
            }
            Message::Refused(why) => (3, [*why as u32, 0, 0], ""),
            Message::Log { severity, text } => (4, [*severity as u32, 0, 0], text.as_str()),
            Message::Reserve => (5, [0; 3], ""),
            Message::Reserved { record } => (6, [from_record(Some(*record)), 0, 0], ""),
            Message::Reap { record, child } => (
                7,
                [from_record(Some(*record)), child.unwrap_or(none), 0],
                "",
            ),
            Message::Bye => (8, [0; 3], ""),
            Message::Area(order) => (9, order.words(0), ""),
            Message::AreaDone { order, ok } => (10, order.words(u32::from(*ok)), ""),
            Message::Keep => (12, [0; 3], ""),
            Message::Guest => (18, [0; 3], ""),
            Message::MapFile { pages, shared } => (19, [*pages, u32::from(*shared), 0], ""),
            Message::File { page } => (20, [*page, 0, 0], ""),
            Message::FileAt {
                first,
                pages,
                sharing,
            } => (21, [*first, *pages, *sharing as u32], ""),
            Message::Inherited => (23, [0; 3], ""),
            Message::DropFile { first } => (22, [*first, 0, 0], ""),
            Message::Connect => (13, [0; 3], ""),
            Message::Connected => (14, [0; 3], ""),
            Message::Device => (16, [0; 3], ""),
            Message::DeviceOpen => (17, [0; 3], ""),
            Message::Unused { parent, record } => {
                let [parent, record] = [parent, record].map(|record| from_record(Some(*record)));
                (15, [parent, record, 0], "")
            }
            Message::Starved { area } => (11, [area.0.into(), 0, 0], ""),
        };
        let kept = text.floor_char_boundary(LOG_BYTES);
        let mut packet = Self {
            kind,
            version: VERSION,
            words,
            text_bytes: kept as u32,
            text: [0; LOG_BYTES],
        };
        packet.text[..kept].copy_from_slice(&text.as_bytes()[..kept]);
        packet
    }

    pub(super) fn message(&self) -> Option<Message> {
        let [first, second, third] = self.words;
        Some(match self.kind {
            1 => Message::Hello {
                pid: first,
                parent: ProcId::new(second),
                record: ProcId::new(third),
            },
            2 => Message::Welcome {
                record: ProcId::new(first)?,
                areas: second,
                encrypted: third & 2 != 0,
                traced: third & 1 != 0,
            },
            3 => Message::Refused(match first {
                0 => Refusal::Version,
                1 => Refusal::TooManyProcesses,
                2 => Refusal::TooFewDescriptors,
                4 => Refusal::NoDevice,
                5 => Refusal::NoFile,
                _ => Refusal::NotReserved,
            }),
            4 => Message::Log {
                severity: match first {
                    0 => Severity::Note,
                    1 => Severity::Warning,
                    _ => Severity::Error,
                },
                text: String::from_utf8_lossy(self.text.get(..self.text_bytes as usize)?).into(),
            },
            5 => Message::Reserve,
            6 => Message::Reserved {
                record: ProcId::new(first)?,
            },
            7 => Message::Reap {
                record: ProcId::new(first)?,
                child: (second != u32::MAX).then_some(second),
            },
            8 => Message::Bye,
            9 => Message::Area(AreaOrder::from_words(first, second)?),
            10 => Message::AreaDone {
                order: AreaOrder::from_words(first, second)?,
                ok: third != 0,
            },
            11 => Message::Starved {
                area: AreaId(u8::try_from(first).ok()?),
            },
            12 => Message::Keep,
            18 => Message::Guest,
            19 => Message::MapFile {
                pages: first,
                shared: second != 0,
            },
            20 => Message::File { page: first },
            21 => Message::FileAt {
                first,
                pages: second,
                sharing: Sharing::from_word(third)?,
            },
            23 => Message::Inherited,
            22 => Message::DropFile { first },
            13 => Message::Connect,
            14 => Message::Connected,
            16 => Message::Device,
            17 => Message::DeviceOpen,
            15 => Message::Unused {
                parent: ProcId::new(first)?,
                record: ProcId::new(second)?,
            },
            _ => return None,
        })
    }

    /// Only the used bytes of the text are sent.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PACKET_HEAD + self.text_bytes as usize);
        let [first, second, third] = self.words;
        for word in [
            self.kind,
            self.version,
            first,
            second,
            third,
            self.text_bytes,
        ] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&self.text[..self.text_bytes as usize]);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, text) = bytes.split_at_checked(PACKET_HEAD)?;
        let words = words.as_chunks::<4>().0;
        let word = |at: usize| words.get(at).map(|bytes| u32::from_ne_bytes(*bytes));
        let mut packet = Self {
            kind: word(0)?,
            version: word(1)?,
            words: [word(2)?, word(3)?, word(4)?],
            text_bytes: word(5)?,
            text: [0; LOG_BYTES],
        };
        packet.text.get_mut(..text.len())?.copy_from_slice(text);
        Some(packet)
    }
}
