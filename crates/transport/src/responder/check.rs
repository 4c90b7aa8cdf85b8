//! What must hold between any two calls.

use super::Responder;
use crate::REACH;
use crate::common::Core;

impl Responder {
    /// # Errors
    /// A counter does not agree with what it counts, or a list is longer than it may be.
    pub(crate) fn check(&self, core: &Core) -> Result<(), String> {
        self.reorder.check(core.psns(REACH) as usize)?;
        self.resources.check(core)
    }
}
