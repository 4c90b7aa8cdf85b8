//! Describes in words what happens in a case, for `--plan`, `--events` and the failures that a hunt
//! prints.

use core::fmt;

use polypath_paths::Mode;

use crate::bout::Way;
use crate::case::{OpKind, Wrong};
use crate::cm::{CmFault, Decision, Forgery, Quit};
use crate::faults::{Change, Fault, When};
use crate::link_faults::{Bursts, Holes, LinkFaults};

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(time) => write!(f, "at {time:?}"),
            Self::Packet(count) => write!(f, "after {count} packets"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Cut { link, from, to, cut } => write_cut(f, link, from, to, cut),
            Self::Carrier { link, host, up: false } => {
                write!(f, "host {host} loses the carrier of link {link}")
            }
            Self::Carrier { link, host, up: true } => {
                write!(f, "host {host} gets the carrier of link {link} back")
            }
            Self::Address { host, link, change } => match change {
                Change::Gone => write!(f, "host {host} loses its address on link {link}"),
                Change::Other => write!(f, "host {host} gets another address on link {link}"),
                Change::Back => write!(f, "host {host} gets its first address on link {link} back"),
            },
            Self::Device { host, link, there: false } => {
                write!(f, "host {host} loses its device for link {link}")
            }
            Self::Device { host, link, there: true } => {
                write!(f, "host {host} gets its device for link {link} back")
            }
            Self::Admin { host, link, usable: false } => {
                write!(f, "host {host} takes its address on link {link} out of use by hand")
            }
            Self::Admin { host, link, usable: true } => {
                write!(f, "host {host} puts its address on link {link} into use again by hand")
            }
            Self::Pause { host, time } => write!(f, "host {host} does not run for {time:?}"),
            Self::LinkFaults { link, link_faults } => write!(f, "link {link} {link_faults}"),
            Self::Holes { link, holes } => write!(f, "link {link} {holes}"),
            Self::Ways { link, ways, loss } => {
                write!(f, "link {link} loses {loss} of 1000 packets by its ways {ways:#010b}")
            }
            Self::Die { host, reborn: false } => write!(f, "the process of host {host} dies"),
            Self::Die { host, reborn: true } => {
                write!(f, "the process of host {host} dies, and another takes its place")
            }
            Self::Error { pair, end } => {
                write!(f, "the application takes end {end} of pair {pair} to ERR")
            }
            Self::Drain { pair, end, pause, notify } => {
                let event = if notify { ", with an event" } else { "" };
                write!(
                    f,
                    "the application takes end {end} of pair {pair} to SQD{event}, and back to RTS \
                     once it is drained, after {pause:?} or later"
                )
            }
            Self::Migrate { pair, end } => {
                write!(f, "the application of end {end} of pair {pair} migrates, if it may")
            }
            Self::Freeze { pair, end } => {
                write!(f, "end {end} of pair {pair} is frozen and thawed")
            }
            Self::Away { pair, end, time } => {
                write!(f, "end {end} of pair {pair} is frozen, and thawed after {time:?}")
            }
            Self::Mode { host, mode } => write!(f, "host {host} uses its paths by {mode:?}"),
            Self::PeerMode { pair, end, mode } => {
                write!(f, "the host of end {end} of pair {pair} uses the paths to the other end ")?;
                write_mode(f, mode)
            }
            Self::OwnMode { pair, end, mode } => {
                write!(f, "end {end} of pair {pair} uses its paths ")?;
                write_mode(f, mode)
            }
            Self::Primary { host, link: Some(link) } => {
                write!(f, "host {host} prefers link {link}")
            }
            Self::Primary { host, link: None } => write!(f, "host {host} prefers no link"),
            Self::Ports { host, ports } => write!(f, "host {host} wants {ports} source ports"),
            Self::Heal => f.write_str("all links and addresses are whole again"),
        }
    }
}

fn write_mode(f: &mut fmt::Formatter<'_>, mode: Option<Mode>) -> fmt::Result {
    match mode {
        Some(mode) => write!(f, "by {mode:?}"),
        None => f.write_str("as the others"),
    }
}

fn write_cut(
    f: &mut fmt::Formatter<'_>,
    link: usize,
    from: usize,
    to: usize,
    cut: bool,
) -> fmt::Result {
    if cut {
        write!(f, "link {link} silently drops everything from host {from} to host {to}")
    } else {
        write!(f, "link {link} carries packets from host {from} to host {to} again")
    }
}

impl fmt::Display for LinkFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, bursts, double, overtake, straggle, corrupt } = *self;
        let fates = [
            (loss, "lost"),
            (double, "doubled"),
            (overtake, "overtaken"),
            (straggle, "held back"),
            (corrupt, "corrupted"),
        ];
        let some: Vec<String> = fates
            .iter()
            .filter(|(chance, _)| *chance > 0)
            .map(|(chance, fate)| format!("{chance} {fate}"))
            .collect();
        match (some.is_empty(), bursts == Bursts::default()) {
            (true, true) => f.write_str("does nothing to packets any more"),
            (false, true) => write!(f, "does to 1000 packets: {}", some.join(", ")),
            (true, false) => write!(f, "loses packets in bursts: {bursts}"),
            (false, false) => {
                write!(f, "does to 1000 packets: {}; and loses bursts: {bursts}", some.join(", "))
            }
        }
    }
}

impl fmt::Display for Bursts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { begin, end, loss } = self;
        write!(f, "begun by {begin} of 1000 packets, ended by {end}, with {loss} lost in between")
    }
}

impl fmt::Display for Holes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { over, classes } = *self;
        match (over, classes) {
            (0, 0) => f.write_str("loses no packets for certain any more"),
            (_, 0) => write!(f, "loses all datagrams over {over} bytes"),
            (0, _) => write!(f, "loses all packets of queue pair classes {classes:#010b}"),
            _ => write!(
                f,
                "loses all datagrams over {over} bytes, and all packets of queue pair classes \
                 {classes:#010b}"
            ),
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate",
            Self::SendInv => "SEND with invalidate",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE with immediate",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::Flush => "FLUSH",
            Self::Read => "READ",
            Self::FetchAdd => "fetch and add",
            Self::CompareSwap => "compare and swap",
            Self::SharedAdd => "fetch and add on a shared counter",
            Self::LocalInv => "local invalidate",
            Self::Bind => "bind of a memory window",
        })
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "remote key",
            Self::Range => "remote range",
            Self::Rights => "rights of the remote region",
            Self::LocalKey => "local key",
            Self::ShortReceive => "receive too short",
            Self::ReceiveKey => "local key of the receive",
            Self::Queue => "number of the shared receive queue",
            Self::NoReceive => "no receive",
            Self::QKey => "Q_Key",
            Self::Post => "not a work request",
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Guess => "guessed numbers",
            Self::Stranger => "right numbers from a stranger's address",
            Self::Replay => "packets seen lately",
            Self::Stale => "packets of long ago",
            Self::Forge => "packets seen lately and changed",
        })
    }
}

impl fmt::Display for CmFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Cut { link, from, to, cut } => write_cut(f, link, from, to, cut),
            Self::LinkFaults { link, link_faults } => write!(f, "link {link} {link_faults}"),
            Self::Pause { place, time, deaf: false } => {
                write!(f, "{place} does nothing for {time:?}")
            }
            Self::Pause { place, time, deaf: true } => {
                write!(f, "{place} reads no events for {time:?}")
            }
            Self::Kill { place } => write!(f, "{place} dies"),
            Self::Removal { place } => write!(f, "{place} loses its device"),
            Self::Address { host, link, there: false } => {
                write!(f, "host {host} loses its address on link {link}")
            }
            Self::Address { host, link, there: true } => {
                write!(f, "host {host} gets its address on link {link} back")
            }
            Self::Reboot { host } => write!(f, "host {host} starts afresh"),
            Self::Replay { host, back } => {
                write!(f, "host {host} gets a MAD of {back} MADs ago once more")
            }
            Self::Forge { host, attempt, what } => {
                write!(f, "host {host} gets a forged MAD about attempt {attempt}: {what}")
            }
        }
    }
}

impl fmt::Display for Forgery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DreqOfOtherQp => "a DREQ for another queue pair",
            Self::DreqFromOther => "a DREQ with a wrong communication id",
            Self::RepFromOther => "a REP from another connection of the peer",
            Self::RtuFromOther => "an RTU with a wrong communication id",
            Self::RejFromOther => "a REJ with a wrong communication id",
            Self::MraFromOther => "an MRA with a wrong communication id",
            Self::DrepFromOther => "a DREP with a wrong communication id",
            Self::DreqNotFromQp1 => "a DREQ that is not from QP1",
            Self::ReqForNobody => "a REQ for a service that nobody has",
            Self::ReqStale => "a REQ from elsewhere with the peer's queue pair",
            Self::Lap => "a LAP",
            Self::SidrRepOfOther => "a SIDR_REP for another service",
            Self::Noise(_) => "noise",
        })
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "accepted",
            Self::Reject => "rejected",
            Self::Destroy => "its id is destroyed",
            Self::Ignore => "ignored",
        })
    }
}

impl fmt::Display for Quit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disconnect => "disconnects",
            Self::Destroy => "destroys its id",
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::Case;
    use crate::cm::CmCase;

    /// Words of Rust's `Debug` that must not appear in a plan.
    const DEBUG: [&str; 8] = ["{", "}", "Some(", "None", "At(", "Packet(", "true", "false"];

    #[test]
    fn a_plan_is_written_without_rust_names() {
        for seed in 0..300 {
            for plan in [Case::draw(seed).to_string(), CmCase::draw(seed).to_string()] {
                let found = DEBUG.iter().find(|word| plan.contains(**word));
                assert_eq!(found, None, "seed {seed}:\n{plan}");
            }
        }
    }
}
