//! Who waits for room, and in which order.

use std::collections::VecDeque;

use polypath_types::PathId;

/// Queue pairs that have something to send and found no room for it, in the order in which they get
/// theirs.
///
/// Each path has a queue of its own, since each has a window of its own: where the first finds no room,
/// those behind it need not ask. `None` is the queue of those that were given no path to ask of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocked {
    queues: Vec<(Option<PathId>, VecDeque<u16>)>,
    /// One that is empty, so that who is alone in waiting, again and again, allocates nothing.
    spare: VecDeque<u16>,
}

impl Blocked {
    /// The queue of this path.
    fn queue(&mut self, path: Option<PathId>) -> &mut VecDeque<u16> {
        let found = self.queues.iter().position(|(other, _)| *other == path);
        let at = found.unwrap_or_else(|| {
            self.queues.push((path, core::mem::take(&mut self.spare)));
            self.queues.len() - 1
        });
        &mut self.queues[at].1
    }

    /// Waits behind all others.
    pub(crate) fn push(&mut self, path: Option<PathId>, index: u16) {
        self.queue(path).push_back(index);
    }

    /// Waits before all others, where it waited already.
    pub(crate) fn push_again(&mut self, path: Option<PathId>, index: u16) {
        self.queue(path).push_front(index);
    }

    /// How many queues there are. Those that come while they are gone through are behind these.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Takes the first of queue number `at`, and gives whose queue that is.
    pub(crate) fn pop(&mut self, at: usize) -> Option<(Option<PathId>, u16)> {
        let (path, queue) = self.queues.get_mut(at)?;
        Some((*path, queue.pop_front()?))
    }

    /// Forgets queues that are empty.
    pub(crate) fn tidy(&mut self) {
        let spare = &mut self.spare;
        self.queues.retain_mut(|(_, queue)| {
            if queue.is_empty() && spare.capacity() < queue.capacity() {
                *spare = core::mem::take(queue);
            }
            !queue.is_empty()
        });
    }

    /// A queue pair is gone.
    pub(crate) fn remove(&mut self, index: u16) {
        for (_, queue) in &mut self.queues {
            queue.retain(|&other| other != index);
        }
    }

    /// How often a queue pair is in a queue.
    pub(crate) fn times(&self, index: u16) -> usize {
        let all = self.queues.iter().flat_map(|(_, queue)| queue);
        all.filter(|&&other| other == index).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Option<PathId> = Some(PathId(1));

    #[test]
    fn each_path_has_a_queue_in_which_who_waited_longest_is_first() {
        let mut blocked = Blocked::default();
        for index in [1, 2, 3] {
            blocked.push(ONE, index);
        }
        blocked.push(None, 4);
        assert_eq!(blocked.queues(), 2);
        assert_eq!(blocked.pop(0), Some((ONE, 1)));
        blocked.push_again(ONE, 1);
        assert_eq!(blocked.pop(0), Some((ONE, 1)), "it found no room, and is the first again");
        blocked.push(ONE, 1);
        assert_eq!(blocked.pop(1), Some((None, 4)));
        assert_eq!(blocked.pop(1), None);
        blocked.tidy();
        assert_eq!(blocked.queues(), 1, "an empty one is forgotten");
        blocked.remove(3);
        assert_eq!((blocked.times(3), blocked.times(1)), (0, 1));
        assert_eq!(
            [blocked.pop(0), blocked.pop(0), blocked.pop(0)],
            [Some((ONE, 2)), Some((ONE, 1)), None]
        );
    }
}
