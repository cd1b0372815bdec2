//! No readahead: only the page that is asked for.

use core::convert::Infallible;

use super::policy::{Answer, Readahead, Touch, Window};

/// Reads nothing ahead.
pub struct Nothing;

impl Readahead for Nothing {
    type History<'a> = ();
    type Follows = Infallible;

    fn on_hit(&self, _: &mut (), _: &Touch) -> Option<Infallible> {
        None
    }

    fn on_miss(&self, _: &mut (), touch: &Touch) -> Answer<Infallible> {
        Answer::Window(Window::of(&(touch.page..touch.page.plus(1))))
    }
}
