//! Queue pair numbers. The upper 8 bits are the lane's slot, which the broker assigns. The lane
//! assigns the lower 16 bits.

use polypath_ipc::SLOT_MAX;
use polypath_verbs::{Error, Result};

use super::{Core, State};
use crate::limits::MAX_QP_PER_LANE;

/// The destination of multicast packets (IBTA 10.5.1).
const MULTICAST: u32 = 0xff_ffff;

/// The slot of a number that the program requests for a queue pair.
pub(crate) fn slot_of(number: u32) -> Result<u8> {
    let reserved = |what| Err(Error::invalid(format!("queue pair number {number:#x} is {what}")));
    match number {
        0 | 1 => return reserved("that of subnet or connection management"),
        MULTICAST => return reserved("that of multicast groups"),
        0x100_0000.. => return reserved("longer than 24 bits"),
        _ => {}
    }
    let (slot, index) = (number >> 16, number & 0xffff);
    if !(1..=u32::from(SLOT_MAX)).contains(&slot) || index == 0 {
        return Err(not_available(format!(
            "no queue pair has the number {number:#x}: they are 0x10001 to 0xfeffff, without those \
             that end in 0000"
        )));
    }
    Ok(slot as u8)
}

fn not_available(reason: String) -> Error {
    Error::new(libc::EADDRNOTAVAIL, reason)
}

impl State {
    /// The number for a new queue pair: the `wanted` one, or a random one.
    pub(crate) fn number(&self, wanted: Option<u32>) -> Result<u32> {
        let qps = self.core.qps();
        if qps.len() >= MAX_QP_PER_LANE {
            return Err(Error::no_memory(format!(
                "a lane has at most {MAX_QP_PER_LANE} queue pairs"
            )));
        }
        if let Some(number) = wanted {
            let index = super::index_of(number);
            if qps.number(index) != number {
                return Err(not_available(format!("{number:#x} is not a number of this lane")));
            }
            if !qps.is_free(index) {
                return Err(Error::new(
                    libc::EADDRINUSE,
                    format!("another queue pair of this process has the number {number:#x}"),
                ));
            }
            return Ok(number);
        }
        free(&self.core)
    }
}

/// A random number that no queue pair of the lane has.
fn free(core: &Core) -> Result<u32> {
    let qps = core.qps();
    loop {
        let mut bytes = [0; 2];
        getrandom::fill(&mut bytes).map_err(|e| {
            Error::new(libc::EIO, format!("the system gives no random numbers: {e}"))
        })?;
        let index = u16::from_ne_bytes(bytes);
        // At least a quarter of the numbers is free, so this ends soon.
        if qps.is_free(index) {
            return Ok(qps.number(index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_no_queue_pair_may_have_is_refused() {
        for number in [0, 1, 0xff_ffff, 0x100_0001, u32::MAX] {
            assert_eq!(slot_of(number).unwrap_err().errno, libc::EINVAL, "{number:#x}");
        }
        for number in [2, 0xffff, 0x2_0000, 0xff_0001, 0xff_fffe] {
            assert_eq!(slot_of(number).unwrap_err().errno, libc::EADDRNOTAVAIL, "{number:#x}");
        }
        assert_eq!((slot_of(0x1_0001), slot_of(0xfe_ffff)), (Ok(1), Ok(254)));
    }
}
