//! A UDP payload from anybody: parsing never panics, and what parses is rebuilt as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use polypath_wire::ext::{MpHeader, SackBlock};
use polypath_wire::grh::Grh;
use polypath_wire::{Bth, MAX_HEADERS_LEN, Packet};

fuzz_target!(|data: &[u8]| {
    let _ = Bth::parse(data);
    let _ = MpHeader::parse(data);
    let _ = Grh::parse(data);
    if let Ok(blocks) = SackBlock::list(data) {
        let rebuilt: Vec<u8> = blocks.iter().flat_map(|b| b.to_bytes()).collect();
        assert_eq!(rebuilt, data);
    }
    let Ok(packet) = Packet::parse(data) else { return };
    let _ = packet.to_string();
    let headers = packet.headers;
    assert!(headers.fit_opcode());
    let mut out = [0; MAX_HEADERS_LEN];
    let n = headers.emit(&mut out);
    assert_eq!(n, headers.len());
    assert_eq!(n + packet.payload.len() + usize::from(headers.bth.pad) + 4, data.len());
    // Reserved bits are not kept, everything else is: the rebuilt packet means the same.
    let mut rebuilt = out[..n].to_vec();
    rebuilt.extend_from_slice(&data[n..]);
    assert_eq!(Packet::parse(&rebuilt), Ok(packet));
});
