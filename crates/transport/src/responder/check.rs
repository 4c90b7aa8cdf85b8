//! What holds between any two calls.

use super::{ATOMICS_REMEMBERED_MIN, Responder};
use crate::common::Core;

impl Responder {
    /// # Errors
    /// A counter does not agree with what it counts, or a list is longer than it may be.
    pub(crate) fn check(&self, core: &Core) -> Result<(), String> {
        self.reorder.check()?;
        let depth = usize::from(core.attr.max_dest_rd_atomic);
        let atomics = depth.max(ATOMICS_REMEMBERED_MIN);
        if self.atomics.len() > atomics {
            return Err(format!("{} atomics are remembered, of {atomics}", self.atomics.len()));
        }
        Ok(())
    }
}
