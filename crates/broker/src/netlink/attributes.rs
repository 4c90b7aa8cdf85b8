//! Reads and writes netlink attributes: length, type and value, padded to 4 bytes.

use std::net::IpAddr;

/// The bits of an attribute's type that do not belong to its number.
const FLAGS: u16 = 0xc000;

/// Reads numbers at offsets, in the machine's byte order; `None` beyond the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    pub(super) fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    pub(super) fn u16(&self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_ne_bytes)
    }
}

/// The attributes of a message after `skip` bytes of its fixed part. It stops at the first
/// attribute that does not fit.
pub(super) fn attributes(body: &[u8], skip: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(skip..).unwrap_or_default();
    std::iter::from_fn(move || {
        let reader = Reader(rest);
        let len = usize::from(reader.u16(0)?);
        let kind = reader.u16(2)? & !FLAGS;
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Appends an attribute.
pub(super) fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = (value.len() + 4) as u16;
    message.extend(len.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Appends an attribute that holds an address.
pub(super) fn ip_attribute(message: &mut Vec<u8>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => attribute(message, kind, &ip.octets()),
        IpAddr::V6(ip) => attribute(message, kind, &ip.octets()),
    }
}

/// The family of an address, as messages begin with it.
pub(super) fn family(ip: IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// A text from the kernel, without the NUL at its end.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_written_are_read_back() {
        let mut message = vec![0; 8];
        attribute(&mut message, 3, b"eth0\0");
        attribute(&mut message, 4, &1500_u32.to_ne_bytes());
        let read: Vec<(u16, &[u8])> = attributes(&message, 8).collect();
        assert_eq!(read, [(3, &b"eth0\0"[..]), (4, &1500_u32.to_ne_bytes()[..])]);
        assert_eq!(text(read[0].1), "eth0");
    }

    #[test]
    fn an_attribute_that_lies_about_its_length_ends_the_list() {
        assert_eq!(attributes(&[0; 16], 0).count(), 0);
        assert_eq!(attributes(&[255; 16], 0).count(), 0);
        assert_eq!(attributes(&[1], 8).count(), 0);
    }
}
