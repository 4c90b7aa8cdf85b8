//! Policies of single queue pairs, which decide in place of their peer's.

use std::collections::BTreeMap;

use super::AnyPolicy;
use crate::config::Mode;
use crate::id::Qpn;

/// The policies of those queue pairs of a peer that have another one than the peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnPolicies {
    /// One bit for each remainder of a queue pair number by 64. It is set if one of the queue pairs with that
    /// remainder has a policy of its own. So the others are told apart without a look-up.
    marks: u64,
    of: BTreeMap<Qpn, AnyPolicy>,
}

const fn mark(qpn: Qpn) -> u64 {
    1 << (qpn.0 % 64)
}

impl OwnPolicies {
    /// Whether a queue pair may have a policy of its own. If not, it has none.
    #[inline]
    pub(crate) fn may_have(&self, qpn: Qpn) -> bool {
        self.marks & mark(qpn) != 0
    }

    /// The policy of a queue pair, if it has one of its own.
    #[cold]
    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut AnyPolicy> {
        self.of.get_mut(&qpn)
    }

    /// Gives a queue pair a policy of its own, or none. Returns whether that is another one than before.
    pub(crate) fn set(&mut self, qpn: Qpn, mode: Option<Mode>) -> bool {
        if self.mode(qpn) == mode {
            return false;
        }
        match mode {
            Some(mode) => drop(self.of.insert(qpn, AnyPolicy::of(mode))),
            None => drop(self.of.remove(&qpn)),
        }
        self.marks = self.owners().fold(0, |marks, qpn| marks | mark(qpn));
        true
    }

    /// How settings name the policy of a queue pair, if it has one of its own.
    pub(crate) fn mode(&self, qpn: Qpn) -> Option<Mode> {
        self.of.get(&qpn)?.mode()
    }

    /// The queue pairs with a policy of their own.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Qpn> {
        self.of.keys().copied()
    }

    /// Whether data of one of them uses other paths than the main one.
    pub(crate) fn spread(&self) -> bool {
        self.of.values().any(AnyPolicy::spreads)
    }

    /// # Errors
    /// The marks do not agree with the policies.
    pub(crate) fn check(&self) -> Result<(), String> {
        let marks = self.owners().fold(0, |marks, qpn| marks | mark(qpn));
        if self.marks == marks {
            return Ok(());
        }
        Err(format!("the marks are {:#x}, and should be {marks:#x}", self.marks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_goes_with_the_last_queue_pair_that_has_it() {
        let mut own = OwnPolicies::default();
        let (one, other) = (Qpn(0x01_0011), Qpn(0x01_0051));
        assert!(own.set(one, Some(Mode::Balance)) && own.set(other, Some(Mode::ActiveBackup)));
        assert!(own.spread());
        assert!(own.set(one, None) && own.may_have(one), "the other one has the same remainder");
        assert!(own.get_mut(one).is_none() && own.get_mut(other).is_some() && !own.spread());
        assert!(!own.set(other, Some(Mode::ActiveBackup)), "it has that one already");
        assert!(own.set(other, None) && !own.may_have(other));
        assert_eq!(own.check(), Ok(()));
    }
}
