//! Peers of processes that have ended: who asks by a handshake is told, and does not wait for a path.

use polypath_wire::Packet;
use polypath_wire::ended::Question;

use super::Broker;
use crate::host::canonical;
use crate::sys::process;
use crate::sys::udp::Datagram;

impl Broker {
    /// Whether a packet, whose check sum is right, is a HELLO for a slot that is free. It is answered if the
    /// slot's process has ended. Nothing is said of one that has left this host, that had given its slot
    /// back, or that may go on: its peers wait for it.
    pub(super) fn is_hello(&mut self, datagram: &Datagram, buffer: &[u8]) -> bool {
        let bytes = buffer.get(..datagram.len).unwrap_or_default();
        let question = Packet::parse_with(bytes, Question::of);
        let Some(question) = question.ok().flatten() else { return false };
        if self.slots.cut_off(question.slot()).is_some_and(process::has_ended) {
            let (local, remote) = (canonical(datagram.to), canonical(datagram.from.ip()));
            let through = self.host.forces(local, remote, datagram.ifindex);
            // Whoever gets no answer asks again.
            if self.qp1.pass_on(local, remote, through, &question.answer()).is_ok() {
                self.counters.endings_told += 1;
            }
        }
        true
    }
}
