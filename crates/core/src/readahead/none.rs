//! No readahead: only the page that is asked for.

use super::policy::{Readahead, Touch, Window};

/// Reads nothing ahead.
pub struct Nothing;

impl Readahead for Nothing {
    type History = ();

    fn on_hit(&self, _: &mut (), _: &Touch) {}

    fn on_miss(&self, _: &mut (), touch: &Touch) -> Window {
        Window::of(&(touch.page..touch.page.plus(1)))
    }
}
