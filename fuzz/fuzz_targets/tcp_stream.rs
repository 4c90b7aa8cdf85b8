//! What anybody can send to the TCP port, and what a peer can send by a stream: a preamble in any pieces, or
//! none; then packets of a possible length, or messages of connection managers, or the end of the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use polypath_broker::{fuzz_mad_stream, fuzz_preamble};
use polypath_engine::fuzz::hostile_stream;

fuzz_target!(|data: &[u8]| {
    let Some((piece, bytes)) = data.split_first() else { return };
    let used = fuzz_preamble(bytes, usize::from(*piece));
    hostile_stream(&bytes[used..], usize::from(*piece));
    hostile_stream(bytes, usize::from(*piece));
    fuzz_mad_stream(&bytes[used..], usize::from(*piece));
    fuzz_mad_stream(bytes, usize::from(*piece));
});
