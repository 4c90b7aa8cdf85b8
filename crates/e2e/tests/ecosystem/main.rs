//! Unmodified programs and libraries of Debian that use verbs, between two hosts: UCX, libfabric, MPI,
//! rsockets and others, on plain RoCE devices and on the multi-path device.
//!
//! Most take long and need additional packages. `make ecosystem` installs the packages and runs all
//! tests. The shortest test of each library is part of `make test`.

/// Makes each case a test between two hosts, on plain RoCE and on the multi-path device.
macro_rules! programs {
    ($($(#[$about:meta])* $name:ident: $case:expr;)+) => {
        programs!(@ roce, Some("roce"); $($(#[$about])* $name: $case;)+);
        programs!(@ mp, None; $($(#[$about])* $name: $case;)+);
    };
    (@ $module:ident, $device:expr; $($(#[$about:meta])* $name:ident: $case:expr;)+) => {
        mod $module {
            #[allow(unused_imports, reason = "the cases' expressions may use anything of their file")]
            use super::*;
            $(
                $(#[$about])*
                #[test]
                fn $name() -> Result<(), polypath_e2e::Error> {
                    polypath_e2e::check(&$case, $device, polypath_e2e::Place::TwoHosts)
                }
            )+
        }
    };
}

/// The time limit for any of the programs here, on a busy machine.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Cuts the first link silently, for a second from when the clients' paths have failed over.
fn cut_silently(lab: &polypath_e2e::Lab) -> Result<(), polypath_e2e::Error> {
    lab.cut(0, polypath_e2e::Direction::Both)?;
    polypath_e2e::wait_failover(lab.host(1), &[], LIMIT)?;
    polypath_e2e::pass(std::time::Duration::from_secs(1));
    lab.heal(0)
}

mod fabric;
mod iser;
mod mpi;
mod others;
mod qemu;
mod rsockets;
mod ucx;
mod udapl;
