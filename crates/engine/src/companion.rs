//! What else of a process belongs to its host, and leaves and comes back with the engine: the connection
//! manager's ids, which the C interface knows.

use std::sync::Mutex;

use crate::notify::lock;

/// Brings back what has left.
pub type Return = Box<dyn FnOnce()>;

/// Leaves, and says how to come back. Both are called on one thread, one after the other.
pub type Leave = fn() -> Return;

#[derive(Debug)]
struct Companion {
    leave: Option<Leave>,
    is_away: bool,
}

static COMPANION: Mutex<Companion> = Mutex::new(Companion { leave: None, is_away: false });

/// Names what leaves and comes back with the engines of this process. It leaves with the first of them that
/// leaves, and comes back when that one has.
pub fn accompany(leave: Leave) {
    lock(&COMPANION).leave = Some(leave);
}

/// Something that is away until this is told to come back.
pub(crate) struct Away(Option<Return>);

impl Away {
    /// An engine leaves.
    pub(crate) fn leave() -> Self {
        let mut companion = lock(&COMPANION);
        let leave = if companion.is_away { None } else { companion.leave };
        companion.is_away |= leave.is_some();
        drop(companion);
        Self(leave.map(|leave| leave()))
    }

    /// The engine is back, or closes.
    pub(crate) fn come_back(self) {
        if let Some(come_back) = self.0 {
            come_back();
            lock(&COMPANION).is_away = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static AWAY: AtomicU32 = AtomicU32::new(0);
    static TIMES: AtomicU32 = AtomicU32::new(0);

    fn leave() -> Return {
        AWAY.fetch_add(1, Ordering::Relaxed);
        TIMES.fetch_add(1, Ordering::Relaxed);
        Box::new(|| {
            AWAY.fetch_sub(1, Ordering::Relaxed);
        })
    }

    #[test]
    fn it_leaves_with_the_first_engine_and_comes_back_with_that_one() {
        let now = || (AWAY.load(Ordering::Relaxed), TIMES.load(Ordering::Relaxed));
        Away::leave().come_back();
        assert_eq!(now(), (0, 0), "nothing was named");
        accompany(leave);
        let (one, other) = (Away::leave(), Away::leave());
        assert_eq!(now(), (1, 1));
        other.come_back();
        assert_eq!(now(), (1, 1));
        one.come_back();
        assert_eq!(now(), (0, 1));
        Away::leave().come_back();
        assert_eq!(now(), (0, 2));
    }
}
