//! The active and inactive lists of a kernel's page cache, each in order of arrival.
//!
//! Frames are linked by their numbers, and can be removed from the middle in constant time.

/// No frame.
pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

/// One list.
#[derive(Clone, Copy, Debug)]
pub struct List {
    newest: u32,
    oldest: u32,
    len: u64,
}

impl Default for List {
    fn default() -> Self {
        List {
            newest: NONE,
            oldest: NONE,
            len: 0,
        }
    }
}

/// The links of all frames. Each frame is on at most one list.
#[derive(Default, Debug)]
pub struct Links(Vec<Link>);

impl List {
    /// Its number of frames.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Its oldest frame.
    pub const fn oldest(&self) -> Option<u32> {
        match self.oldest {
            NONE => None,
            frame => Some(frame),
        }
    }

    /// Adds a frame that is on no list.
    pub fn push(&mut self, links: &mut Links, frame: u32) {
        let at = frame as usize;
        if links.0.len() <= at {
            let none = Link {
                newer: NONE,
                older: NONE,
            };
            links.0.resize(at + 1, none);
        }
        links.0[at] = Link {
            newer: NONE,
            older: self.newest,
        };
        match self.newest {
            NONE => self.oldest = frame,
            newest => links.0[newest as usize].newer = frame,
        }
        self.newest = frame;
        self.len += 1;
    }

    /// Removes a frame.
    pub fn remove(&mut self, links: &mut Links, frame: u32) {
        let Link { newer, older } = links.0[frame as usize];
        match newer {
            NONE => self.newest = older,
            newer => links.0[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => links.0[older as usize].newer = newer,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_the_order_in_which_they_came() {
        let (mut links, mut list) = (Links::default(), List::default());
        assert_eq!(list.oldest(), None);
        for frame in [3, 0, 7, 5] {
            list.push(&mut links, frame);
        }
        list.remove(&mut links, 0);
        list.remove(&mut links, 5);
        list.push(&mut links, 0);
        let mut order = Vec::new();
        while let Some(frame) = list.oldest() {
            list.remove(&mut links, frame);
            order.push(frame);
        }
        assert_eq!((order, list.len()), (vec![3, 7, 0], 0));
    }
}
