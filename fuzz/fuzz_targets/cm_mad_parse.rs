//! A MAD from anybody: parsing never panics, and what parses says the same when built anew.
#![no_main]

use libfuzzer_sys::fuzz_target;
use polypath_wire::cm::{CmMad, CmMessage, CmaHeader};
use polypath_wire::mad;

fuzz_target!(|data: &[u8]| {
    let _ = mad::parse(data);
    let _ = CmaHeader::parse(data);
    let Ok(parsed) = CmMad::parse(data) else { return };
    let _ = parsed.to_string();
    assert_eq!(CmMad::parse(&parsed.to_bytes()), Ok(parsed));
    let private_data: &[u8] = match &parsed.message {
        CmMessage::Req(m) => &m.private_data,
        CmMessage::SidrReq(m) => &m.private_data,
        _ => return,
    };
    if let Ok(ip) = CmaHeader::parse(private_data) {
        assert_eq!(CmaHeader::parse(&ip.to_bytes()), Ok(ip));
    }
});
