//! The two lists of a kernel's page cache, active and inactive, each in the order of arrival.
//!
//! Frames are linked through their numbers, so that one in the middle can be taken out at once.

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

/// The links of all frames. Each frame is on one list at the most.
#[derive(Default, Debug)]
pub struct Links(Vec<Link>);

impl List {
    /// Frames on it.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// The frame that is on it for longest.
    pub const fn oldest(&self) -> Option<u32> {
        match self.oldest {
            NONE => None,
            frame => Some(frame),
        }
    }

    /// Puts a frame on it that is on none.
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

    /// Takes a frame off that is on it.
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
