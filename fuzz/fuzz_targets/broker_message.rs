//! A datagram as a client of the broker may send it: nothing panics, and the connection manager
//! survives every command in it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| polypath_broker::fuzz_message(data));
