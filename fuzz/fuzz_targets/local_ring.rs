//! The memory that two lanes share: whatever the other process writes there, what is read are packets of a
//! possible length, or the end of the channel.
#![no_main]

use libfuzzer_sys::fuzz_target;
use polypath_engine::fuzz::hostile_ring;

fuzz_target!(|data: &[u8]| {
    hostile_ring(data);
});
