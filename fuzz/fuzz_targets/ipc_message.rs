//! A datagram on the broker's socket, either way: decoding never panics, and what decodes is encoded
//! and decoded again to the same. A device selection, which comes along as text, likewise.
#![no_main]

use libfuzzer_sys::fuzz_target;
use polypath_ipc::message::{decode, encode};
use polypath_ipc::{Push, Reply, Request};
use polypath_topology::Selection;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn check<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let message: T = decode(bytes).ok()?;
    // Shorter encodings of the same numbers may come out, so compare from there on.
    let once = encode(&message).expect("it fitted into a datagram before");
    let again: T = decode(&once).expect("what we encode decodes");
    assert_eq!(encode(&again).expect("likewise"), once);
    Some(message)
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 4 {
        0 => {
            if let Some(Request::Hello(hello)) = check::<Request>(bytes) {
                let _ = Selection::parse(&hello.selection);
            }
        }
        1 => drop(check::<Reply>(bytes)),
        2 => drop(check::<Push>(bytes)),
        _ => {
            let Ok(text) = core::str::from_utf8(bytes) else { return };
            let _ = Selection::parse(text);
        }
    }
});
