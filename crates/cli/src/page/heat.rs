//! The picture of addresses over time, as a PNG inside the page.
//!
//! A row of the picture is a block of addresses in which something happened. What lies between is left out, and a thin gap
//! says so. The picture has one colour and many degrees of transparency, so that one file suits a light and a dark page.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::activity::Space;
use super::grid::{Cell, Row};
use super::names;

/// What a picture shows of a [`Cell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// Pages in memory, as a part of the block.
    Held,
    /// Pages that came back.
    Back,
    /// Pages that were evicted.
    Out,
}

impl Shows {
    /// All, in the order of the page.
    pub const ALL: [Self; 3] = [Self::Back, Self::Out, Self::Held];

    fn value(self, cell: &Cell) -> u32 {
        match self {
            Self::Held => cell.held,
            Self::Back => cell.back,
            Self::Out => cell.out,
        }
    }

    /// Of the theme: readable on white and on black.
    fn colour(self) -> [u8; 3] {
        match self {
            Self::Held => [0x2f, 0x7f, 0xc4],
            Self::Back => [0xd9, 0x6a, 0x14],
            Self::Out => [0x14, 0x93, 0x78],
        }
    }
}

/// Neighbouring rows of one mapping, or of memory whose name is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The mapping's full name; `None`: not known.
    pub name: Option<String>,
    /// Its rows, among those of the picture.
    pub rows: Range<usize>,
    /// From its first block to the end of its last.
    pub pages: Range<u64>,
    /// Pages that came back.
    pub back: u64,
    /// Pages that were evicted.
    pub out: u64,
}

/// The picture of a process.
#[derive(Debug)]
pub struct Heat {
    rows: Vec<(u64, Row)>,
    columns: usize,
    block_pages: u64,
    /// The mappings, by address.
    pub groups: Vec<Group>,
}

impl Heat {
    /// Of `space`, with the first `columns`.
    pub fn new(space: &Space, columns: usize) -> Self {
        let block_pages = space.grid.block_pages();
        let rows: Vec<(u64, Row)> = space.grid.rows(columns - 1).collect();
        let mut groups: Vec<Group> = Vec::new();
        for (number, (block, row)) in rows.iter().enumerate() {
            let pages = block * block_pages..(block + 1) * block_pages;
            let name = space.names.of(&pages).map(|named| named.name.clone());
            let sum =
                |figure: fn(&Cell) -> u32| row.cells.iter().map(figure).map(u64::from).sum::<u64>();
            let (back, out) = (sum(|cell| cell.back), sum(|cell| cell.out));
            match groups.last_mut() {
                Some(last) if last.name == name && last.pages.end == pages.start => {
                    last.rows.end = number + 1;
                    last.pages.end = pages.end;
                    last.back += back;
                    last.out += out;
                }
                _ => groups.push(Group {
                    name,
                    rows: number..number + 1,
                    pages,
                    back,
                    out,
                }),
            }
        }
        Self {
            rows,
            columns,
            block_pages,
            groups,
        }
    }

    /// Rows of the picture: one per block, one between groups.
    pub fn height(&self) -> usize {
        self.rows.len() + self.groups.len().saturating_sub(1)
    }

    /// The rows of the picture that a group fills.
    pub fn place(&self, group: usize) -> Range<usize> {
        let rows = &self.groups[group].rows;
        rows.start + group..rows.end + group
    }

    /// Pages of a row.
    pub fn block_pages(&self) -> u64 {
        self.block_pages
    }

    /// The most pages of a cell.
    pub fn most(&self, shows: Shows) -> u32 {
        let cells = self
            .rows
            .iter()
            .flat_map(|(_, row)| &row.cells[..self.columns]);
        cells.map(|cell| shows.value(cell)).max().unwrap_or(0)
    }

    /// The degree of a cell: 0 for nothing. Numbers of pages differ by orders of magnitude, so their logarithm counts.
    fn degree(shows: Shows, value: u32, most: u32) -> u8 {
        if value == 0 || most == 0 {
            return 0;
        }
        let degree = match shows {
            Shows::Held => f64::from(value) / f64::from(most),
            Shows::Back | Shows::Out => f64::from(value + 1).ln() / f64::from(most + 1).ln(),
        };
        ((degree * 15.0).ceil() as u8).clamp(1, 15)
    }

    /// The picture as a data URI.
    pub fn picture(&self, shows: Shows) -> String {
        let most = match shows {
            Shows::Held => self.block_pages as u32,
            _ => self.most(shows),
        };
        // Two cells of 4 bits per byte.
        let width = self.columns.div_ceil(2);
        let mut pixels = Vec::with_capacity(width * self.height());
        for (number, group) in self.groups.iter().enumerate() {
            if number > 0 {
                pixels.resize(pixels.len() + width, 0);
            }
            for (_, row) in &self.rows[group.rows.clone()] {
                let degree = |cell: &Cell| Self::degree(shows, shows.value(cell), most);
                let pairs = row.cells[..self.columns].chunks(2);
                pixels.extend(
                    pairs.map(|pair| degree(&pair[0]) << 4 | pair.get(1).map_or(0, degree)),
                );
            }
        }
        let file = png(
            self.columns as u32,
            self.height() as u32,
            shows.colour(),
            &pixels,
        );
        format!("data:image/png;base64,{}", STANDARD.encode(file))
    }
}

/// A picture in one colour with 16 degrees of transparency. Empty if it cannot be made, which sizes of a [`Heat`] do not
/// cause.
fn png(width: u32, height: u32, colour: [u8; 3], pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Four);
    encoder.set_palette(colour.repeat(16));
    encoder.set_trns((0..16_u8).map(|degree| degree * 17).collect::<Vec<_>>());
    let written = encoder
        .write_header()
        .and_then(|mut writer| writer.write_image_data(pixels));
    if written.is_err() {
        file.clear();
    }
    file
}

impl Group {
    /// Its name for people: the address of one whose name is not known.
    pub fn spoken(&self) -> String {
        match &self.name {
            Some(name) => names::spoken(name),
            None => format!("{:#x}", self.pages.start << 12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::Change;
    use super::*;

    fn space() -> Space {
        let mut space = Space::default();
        // Sixteen pages to a block: two blocks of the heap, one of a file, one of neither.
        space.grid.on_change(0, 0x1000..0x1020, Change::Came);
        space.grid.on_change(1, 0x1000..0x1004, Change::Evicted);
        space.grid.on_change(2, 0x1000..0x1001, Change::CameBack);
        space.grid.on_change(2, 0x1020..0x1022, Change::CameBack);
        space.grid.on_change(0, 0x9000..0x9001, Change::Came);
        space.names.learn("01000000-01020000 rw-p 00000000 00:00 0 [heap]\n01020000-01030000 r--p 00000000 00:01 5 /data/<b>\n");
        space
    }

    #[test]
    fn rows_are_grouped_by_mapping() {
        let heat = Heat::new(&space(), 3);
        let names: Vec<String> = heat.groups.iter().map(Group::spoken).collect();
        assert_eq!(names, ["[heap]", "<b>", "0x9000000"]);
        let heap = &heat.groups[0];
        assert_eq!((heap.back, heap.out, heap.rows.clone()), (1, 4, 0..2));
        assert_eq!((heat.height(), heat.place(1)), (6, 3..4));
    }

    #[test]
    fn the_picture_has_a_cell_per_block_and_column() {
        let heat = Heat::new(&space(), 3);
        let uri = heat.picture(Shows::Out);
        let file = STANDARD
            .decode(uri.trim_start_matches("data:image/png;base64,"))
            .expect("base64");
        let mut reader = png::Decoder::new(std::io::Cursor::new(file))
            .read_info()
            .expect("a picture");
        let mut pixels = vec![0; 12];
        reader.next_frame(&mut pixels).expect("pixels");
        assert_eq!((reader.info().width, reader.info().height), (3, 6));
        // Only the first row has evictions, in its second column.
        assert_eq!(pixels, [0x0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn degrees_tell_little_from_nothing() {
        let degree = Heat::degree;
        assert_eq!(
            [0, 1, 40, 1000].map(|n| degree(Shows::Back, n, 1000)),
            [0, 2, 9, 15]
        );
        assert_eq!(
            [0, 1, 8, 16].map(|n| degree(Shows::Held, n, 16)),
            [0, 1, 8, 15]
        );
        assert_eq!(degree(Shows::Out, 0, 0), 0);
    }
}
