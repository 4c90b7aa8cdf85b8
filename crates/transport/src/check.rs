//! What must hold for a queue pair between any two calls, for simulators and tests.

use crate::qp::{Halves, QueuePair};
use polypath_types::PathId;

impl QueuePair {
    /// Checks whether counters, flags and lists agree. Takes time in proportion to what is
    /// outstanding.
    ///
    /// # Errors
    /// They do not agree; the text says how.
    pub fn check(&self) -> Result<(), String> {
        if self.core.broken {
            return Err("it is to end, and has not".to_owned());
        }
        match &self.halves {
            Halves::Rc(rc) => {
                rc.0.check(&self.core)?;
                rc.1.check(&self.core)
            }
            Halves::Uc(..) | Halves::Ud(..) => Ok(()),
        }
    }

    /// The bytes that it has charged to paths by [`crate::Paths::sent`] and not given back, packet
    /// by packet.
    pub fn charges(&self) -> impl Iterator<Item = (PathId, u32)> + '_ {
        let charges = match &self.halves {
            Halves::Rc(rc) => Some(rc.0.charges()),
            Halves::Uc(..) | Halves::Ud(..) => None,
        };
        charges.into_iter().flatten()
    }
}
