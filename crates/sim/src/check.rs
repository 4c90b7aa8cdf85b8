//! What holds inside a host after each of its steps.

use std::collections::BTreeMap;

use polypath_paths::PathId;

use crate::host::SimHost;
use crate::judge::{Verdict, breach};

const RULE: &str = "a host's tables agree";

impl SimHost {
    /// Counters, flags and lists agree; each path is charged what queue pairs have in flight on it.
    pub(crate) fn check(&self) -> Verdict {
        let mut charges: BTreeMap<u32, u64> = BTreeMap::new();
        for (qpn, entry) in &self.qps {
            if let Err(what) = entry.qp.check() {
                return breach(RULE, format!("queue pair {qpn:#x}: {what}"));
            }
            for (path, bytes) in entry.qp.charges() {
                *charges.entry(path.0).or_default() += u64::from(bytes);
            }
        }
        if let Err(what) = self.io.paths.check() {
            return breach(RULE, format!("path manager: {what}"));
        }
        for PathId(path) in self.io.paths.path_ids() {
            let charged = charges.get(&path).copied().unwrap_or(0);
            let in_flight = self.io.paths.in_flight(PathId(path)).map_or(0, u64::from);
            if charged != in_flight {
                let what = format!("path {path}: {in_flight} bytes count, {charged} are in flight");
                return breach(RULE, what);
            }
        }
        Ok(())
    }
}
