//! Functions of our own: the member of a bond that a queue pair sends by. They mean what
//! `mlx5dv_modify_qp_lag_port(3)` and `mlx5dv_query_qp_lag_port(3)` mean for adapters. (Those belong to
//! libmlx5, which refuses other devices.) Programs find them by `dlsym`.

use core::ffi::c_int;

use crate::guard;
use crate::layout::ibv_qp;
use crate::ours::is_our_context;
use crate::qp::qp_of;

/// Makes a queue pair of a bond device send by one member: `port` counts from 1, in the order of the device's
/// interfaces. While that member does not carry, another one is used.
///
/// Returns 0, `EOPNOTSUPP` if the device is no bond or not Polypath's, or `EINVAL` if there is no such
/// member.
///
/// # Safety
/// `qp` is a queue pair of any provider, which is not destroyed meanwhile.
#[cfg_attr(test, allow(dead_code))]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn polypath_modify_qp_lag_port(
    qp: *mut ibv_qp,
    port: u8,
) -> c_int {
    // SAFETY: the queue pair of any provider begins with this structure.
    if qp.is_null() || unsafe { !is_our_context((*qp).context) } {
        return libc::EOPNOTSUPP;
    }
    guard::errno_of("polypath_modify_qp_lag_port", || {
        // SAFETY: it is one of ours, as its context says.
        unsafe { qp_of(qp) }.inner.set_lag_port(port)
    })
}

/// Writes the member that was set, and the one that the queue pair last sent by; 0 for none.
///
/// Returns 0, `EINVAL` if there is nowhere to write, or `EOPNOTSUPP` as [`polypath_modify_qp_lag_port`].
///
/// # Safety
/// As for [`polypath_modify_qp_lag_port`]; the pointers are null or valid for writing.
#[cfg_attr(test, allow(dead_code))]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn polypath_query_qp_lag_port(
    qp: *mut ibv_qp,
    port: *mut u8,
    active_port: *mut u8,
) -> c_int {
    // SAFETY: as above.
    if qp.is_null() || unsafe { !is_our_context((*qp).context) } {
        return libc::EOPNOTSUPP;
    }
    if port.is_null() || active_port.is_null() {
        return libc::EINVAL;
    }
    guard::errno_of("polypath_query_qp_lag_port", || {
        // SAFETY: it is one of ours, as its context says.
        let (set, active) = unsafe { qp_of(qp) }.inner.lag_ports()?;
        // SAFETY: both are valid for writing, as the caller says.
        unsafe {
            port.write(set);
            active_port.write(active);
        }
        Ok(())
    })
}
