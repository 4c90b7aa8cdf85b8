//! The order in which queue pairs send, acknowledge and time out.

use core::cmp::Reverse;
use core::time::Duration;

use polypath_transport::TransmitState;
use polypath_types::QpState;

use crate::lane::Lane;
use crate::outside::Outside;
use crate::table::QpTable;

/// The number of turns of sending per round. After that, packets that have arrived are handled
/// again.
const MAX_TURNS: usize = 64;

impl<Q> Lane<Q> {
    /// Notes what a queue pair wants next. This follows every call of its methods.
    #[inline]
    pub(crate) fn schedule(&mut self, index: u16, more: bool) {
        let Some(entry) = self.qps.get_mut(index) else { return };
        if entry.waits && !matches!(entry.qp.state(), QpState::Rts | QpState::Sqd) {
            // What it had to send is flushed, or forgotten: it needs no room any more.
            (entry.waits, entry.blocked) = (false, false);
            self.blocked.remove(index);
        }
        if (more || (entry.qp.wants_transmit() && !entry.blocked)) && !entry.queued {
            entry.queued = true;
            self.ready.push_back(index);
        }
        if entry.qp.acks_due() && !entry.owes_ack {
            entry.owes_ack = true;
            self.acks.push(index);
        }
        if !entry.stale {
            entry.stale = true;
            self.stale.push(index);
        }
    }

    /// Carries out the path manager's decisions, and lets queue pairs send.
    pub fn transmit<O: Outside<Q>>(&mut self, out: &mut O) {
        self.carry_out_path_events(out);
        self.fail_overrun(out);
        // Control packets go before data, because the peer must know what they tell (a fence, a
        // path's number) when the data arrives.
        self.transmit_control(out);
        if core::mem::take(&mut self.shared.window_opened) {
            self.serve_blocked(out);
        }
        for _ in 0..MAX_TURNS {
            let Some(index) = self.ready.pop_front() else { break };
            self.turn(index, false, out);
        }
        self.fail_overrun(out);
    }

    /// Sends the path manager's packets.
    fn transmit_control<O: Outside<Q>>(&mut self, out: &mut O) {
        while let Some(packet) = self.shared.paths.poll_transmit(self.shared.now) {
            out.control(packet);
        }
    }

    /// Gives one queue pair its turn to send. `waited` says that it was the first of those that
    /// wait for room.
    #[inline]
    fn turn<O: Outside<Q>>(&mut self, index: u16, waited: bool, out: &mut O) {
        let Some(entry) = self.qps.get_mut(index) else { return };
        entry.queued = false;
        let (now, charged) = (self.shared.now, self.shared.charged);
        let mut visit = entry.visit(&mut self.shared, out);
        let state = visit.qp.poll_transmit(now, &mut visit.host);
        if state == TransmitState::Blocked && !entry.blocked {
            entry.blocked = true;
            if !entry.waits {
                entry.waits = true;
                if waited && self.shared.charged == charged {
                    self.blocked.push_again(self.shared.asked, index);
                } else {
                    self.blocked.push(self.shared.asked, index);
                }
            }
            if let Some(peer) = entry.peer {
                self.shared.paths.wake_when_open(peer);
            }
        }
        self.schedule(index, state == TransmitState::More);
    }

    /// Lets blocked queue pairs send, because a window has opened. They take the room in their
    /// order, until one of them finds none.
    fn serve_blocked<O: Outside<Q>>(&mut self, out: &mut O) {
        let mut turns = MAX_TURNS;
        for at in 0..self.blocked.queues() {
            while turns > 0
                && let Some((path, index)) = self.blocked.pop(at)
            {
                let Some(entry) = self.qps.get_mut(index) else { continue };
                entry.waits = false;
                // It may have been told to go on meanwhile.
                if !core::mem::take(&mut entry.blocked) {
                    continue;
                }
                self.turn(index, true, out);
                turns -= 1;
                let full = self.qps.get(index).is_some_and(|entry| entry.blocked);
                if full && self.shared.asked == path {
                    break;
                }
            }
        }
        self.blocked.tidy();
        // The others get their turn in the next round.
        self.shared.window_opened |= turns == 0;
    }

    /// Fails the queue pairs that lost a completion because its queue was full. They cannot go on
    /// as if nothing was lost, so they enter the error state (IBTA 11.6.3.2, `man 3 ibv_poll_cq`).
    #[inline]
    fn fail_overrun<O: Outside<Q>>(&mut self, out: &mut O) {
        if !self.shared.overrun.is_empty() {
            self.fail_all_overrun(out);
        }
    }

    #[cold]
    fn fail_all_overrun<O: Outside<Q>>(&mut self, out: &mut O) {
        while let Some(qpn) = self.shared.overrun.pop() {
            let Some(entry) = self.qps.by_qpn_mut(qpn) else { continue };
            if !matches!(entry.qp.state(), QpState::Reset | QpState::Err) {
                out.overran(&entry.own, qpn);
            }
            let mut visit = entry.visit(&mut self.shared, out);
            visit.qp.fail(&mut visit.host);
            self.schedule(QpTable::<Q>::index_of(qpn), false);
        }
    }

    /// Sends the acknowledgements that are owed.
    #[inline]
    pub fn acknowledge<O: Outside<Q>>(&mut self, out: &mut O) {
        while let Some(index) = self.acks.pop() {
            let Some(entry) = self.qps.get_mut(index) else { continue };
            entry.owes_ack = false;
            let mut visit = entry.visit(&mut self.shared, out);
            visit.qp.flush_acks(&mut visit.host);
        }
    }

    /// Sets the timers of the queue pairs that were used. This is done after sending, because a
    /// peer waits for what is sent.
    #[inline]
    pub fn set_timers(&mut self) {
        if !self.stale.is_empty() {
            self.set_stale_timers();
        }
    }

    fn set_stale_timers(&mut self) {
        while let Some(index) = self.stale.pop() {
            let Some(entry) = self.qps.get_mut(index) else { continue };
            entry.stale = false;
            if let Some(deadline) = entry.qp.next_deadline()
                && entry.timer.is_none_or(|t| deadline < t)
            {
                entry.timer = Some(deadline);
                self.timers.push(Reverse((deadline, index)));
            }
        }
    }

    /// Runs the timers that are due. Returns whether any was.
    pub fn handle_timeouts<O: Outside<Q>>(&mut self, out: &mut O) -> bool {
        self.set_timers();
        let now = self.shared.now;
        let mut due = false;
        while let Some(Reverse((at, index))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            due = true;
            let Some(entry) = self.qps.get_mut(index) else { continue };
            if entry.timer != Some(at) {
                // An earlier deadline was set meanwhile; it has its own entry in the heap.
                continue;
            }
            entry.timer = None;
            if entry.qp.next_deadline().is_some_and(|d| d <= now) {
                let mut visit = entry.visit(&mut self.shared, out);
                visit.qp.handle_timeout(now, &mut visit.host);
                // It may send a probe now, which does not wait for the window.
                entry.blocked = false;
            }
            self.schedule(index, false);
        }
        if self.shared.paths.next_deadline().is_some_and(|d| d <= now) {
            self.shared.paths.handle_timeout(now);
            due = true;
        }
        due
    }

    /// Whether no queue pair waits for a turn.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.acks.is_empty() && !self.shared.window_opened
    }

    /// Whether acknowledgements are owed.
    #[inline]
    pub fn owes_acks(&self) -> bool {
        !self.acks.is_empty()
    }

    /// The time at which the next round is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.next_deadline_with_acks_by(self.shared.now)
    }

    /// The same for an owner that sends owed acknowledgements at `acks_by` at the latest.
    pub fn next_deadline_with_acks_by(&self, acks_by: Duration) -> Option<Duration> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let paths = self.shared.paths.next_deadline();
        let more = !self.ready.is_empty() || self.shared.window_opened;
        let soon = more.then_some(self.shared.now);
        let acks = self.owes_acks().then_some(acks_by);
        [timer, paths, soon, acks].into_iter().flatten().min()
    }
}
