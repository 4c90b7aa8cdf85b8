//! What holds for the messages of migration at all times.

use core::time::Duration;
use std::collections::BTreeMap;

use polypath_wire::cm::{CmMad, CmMessage};

use crate::judge::{Verdict, demand};

/// The least time between two LAPs or SAPs of one connection.
const DISTANCE: Duration = Duration::from_millis(100);
/// How often a message may be sent: once, and as many repetitions as the REQ allows.
const SENDS_MAX: u32 = 16;

/// The latest LAP or SAP of one end.
#[derive(Clone, Copy, Debug)]
struct Latest {
    at: Duration,
    tid: u64,
    sends: u32,
}

/// Watches what the hosts send.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    latest: BTreeMap<(usize, u32), Latest>,
    ended: BTreeMap<(usize, u32), Duration>,
    /// The number of different LAPs and SAPs.
    pub(super) asked: u64,
}

impl Watcher {
    /// Checks one MAD. Host 0 is the active end of every connection.
    pub(super) fn sent(&mut self, now: Duration, host: usize, mad: &CmMad) -> Verdict {
        let what = || format!("host {host}: {mad}");
        let id = match &mad.message {
            CmMessage::Lap(m) => {
                demand(host == 0, "only the active end loads paths", what)?;
                m.local_comm_id
            }
            CmMessage::Sap(m) => {
                demand(host == 1, "only the passive end suggests paths", what)?;
                m.local_comm_id
            }
            CmMessage::Dreq(m) => {
                self.ended.insert((host, m.local_comm_id), now);
                return Ok(());
            }
            _ => return Ok(()),
        };
        demand(
            !self.ended.contains_key(&(host, id)),
            "a connection that ends is left alone",
            what,
        )?;
        let latest = self.latest.get(&(host, id)).copied();
        let next = match latest {
            Some(latest) if latest.tid == mad.tid => Latest { sends: latest.sends + 1, ..latest },
            _ => {
                let is_far = latest.is_none_or(|latest| latest.at + DISTANCE <= now);
                demand(is_far, "paths are changed at a bounded rate", what)?;
                self.asked += 1;
                Latest { at: now, tid: mad.tid, sends: 1 }
            }
        };
        demand(next.sends <= SENDS_MAX, "a message is repeated a bounded number of times", what)?;
        self.latest.insert((host, id), next);
        Ok(())
    }
}
