//! Functions without an object: texts for enumerations, rates, fork.
//!
//! The real library's answers are used, so that the texts are the usual ones. The tables here are
//! used if it is not installed.

use core::ffi::{CStr, c_char};

use libc::c_int;

use crate::forward::real_fn;

/// Calls the real library's function, or else uses `$own`.
macro_rules! text {
    ($fn_name:ident, $symbol:literal, $texts:expr, $first:literal) => {
        pub(crate) extern "C-unwind" fn $fn_name(value: c_int) -> *const c_char {
            if let Some(real) = real_fn!($symbol, c"IBVERBS_1.1", fn(c_int) -> *const c_char) {
                // SAFETY: the function takes any number.
                return unsafe { real(value) };
            }
            let texts: &[&CStr] = $texts;
            let text = usize::try_from(value - $first).ok().and_then(|at| texts.get(at));
            text.map_or(c"unknown", |text| *text).as_ptr()
        }
    };
}

text!(
    node_type_str,
    c"ibv_node_type_str",
    &[c"CA", c"switch", c"router", c"RNIC", c"usNIC", c"usNIC UDP", c"unspecified"],
    1
);
text!(
    port_state_str,
    c"ibv_port_state_str",
    &[c"no state change", c"down", c"init", c"armed", c"active", c"active defer"],
    0
);
text!(
    event_type_str,
    c"ibv_event_type_str",
    &[
        c"CQ error",
        c"QP fatal error",
        c"QP request error",
        c"QP access error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration error",
        c"device fatal error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID change",
        c"WQ fatal error",
        c"device speed change",
    ],
    0
);
text!(
    wc_status_str,
    c"ibv_wc_status_str",
    &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"flushed",
        c"memory window bind error",
        c"bad response",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retries exceeded",
        c"RNR retries exceeded",
        c"local RDD violation",
        c"remote invalid RD request",
        c"remote abort",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout",
        c"general error",
        c"tag matching error",
        c"tag matching rendezvous incomplete",
    ],
    0
);

/// `enum ibv_rate` with its multiple of 2.5 Gbit/s (0 if there is none) and its Mbit/s.
const RATES: [(c_int, c_int, c_int); 24] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10000),
    (6, 8, 20000),
    (4, 12, 30000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120_000),
    (11, 0, 14062),
    (12, 0, 56250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 10, 25781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28125),
    (20, 20, 53125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
    (0, 0, 0),
];

/// Calls the real library's function, or else uses `$own`.
macro_rules! rate {
    ($fn_name:ident, $symbol:literal, $version:literal, |$value:ident| $own:expr) => {
        pub(crate) extern "C-unwind" fn $fn_name($value: c_int) -> c_int {
            match real_fn!($symbol, $version, fn(c_int) -> c_int) {
                // SAFETY: the function takes any number.
                Some(real) => unsafe { real($value) },
                None => $own,
            }
        }
    };
}

fn find(
    value: c_int,
    key: fn(&(c_int, c_int, c_int)) -> c_int,
    result: fn(&(c_int, c_int, c_int)) -> c_int,
    otherwise: c_int,
) -> c_int {
    RATES.iter().find(|r| key(r) == value && key(r) != 0).map_or(otherwise, result)
}

rate!(rate_to_mult, c"ibv_rate_to_mult", c"IBVERBS_1.0", |rate| find(rate, |r| r.0, |r| r.1, -1));
rate!(mult_to_rate, c"mult_to_ibv_rate", c"IBVERBS_1.0", |mult| find(mult, |r| r.1, |r| r.0, 0));
rate!(rate_to_mbps, c"ibv_rate_to_mbps", c"IBVERBS_1.1", |rate| find(rate, |r| r.0, |r| r.2, -1));
rate!(mbps_to_rate, c"mbps_to_ibv_rate", c"IBVERBS_1.1", |mbps| find(mbps, |r| r.2, |r| r.0, 0));

/// Implements `ibv_fork_init`. Our devices never pin memory, so they need nothing.
pub(crate) extern "C-unwind" fn fork_init() -> c_int {
    match real_fn!(c"ibv_fork_init", c"IBVERBS_1.1", fn() -> c_int) {
        // SAFETY: the function takes no arguments.
        Some(real) => unsafe { real() },
        None => 0,
    }
}

/// `IBV_FORK_UNNEEDED`.
const FORK_UNNEEDED: c_int = 2;

/// `ibv_is_fork_initialized`.
pub(crate) extern "C-unwind" fn is_fork_initialized() -> c_int {
    match real_fn!(c"ibv_is_fork_initialized", c"IBVERBS_1.13", fn() -> c_int) {
        // SAFETY: takes nothing.
        Some(real) => unsafe { real() },
        None => FORK_UNNEEDED,
    }
}
