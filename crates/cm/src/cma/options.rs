//! Options of ids.

use crate::abi::command::SetOption;
use crate::abi::event::{Event, Kind};
use crate::abi::path::parse_option;
use crate::env::FileId;
use crate::ids::{IdState, QpType};
use crate::{Cm, errno};

/// `RDMA_OPTION_ID` and `RDMA_OPTION_IB`.
const LEVEL_ID: u32 = 0;
const LEVEL_IB: u32 = 1;

const ID_TOS: u32 = 0;
const ID_REUSEADDR: u32 = 1;
const ID_AFONLY: u32 = 2;
const ID_ACK_TIMEOUT: u32 = 3;
const IB_PATH: u32 = 1;

impl Cm {
    /// Sets an option to the value that follows the command.
    pub(super) fn set_option(
        &mut self,
        file: FileId,
        command: &SetOption,
        extra: &[u8],
    ) -> Result<(), i32> {
        let len = usize::try_from(command.len).map_err(|_| errno::EINVAL)?;
        let value = extra.get(..len).ok_or(errno::EINVAL)?;
        let id = self.ids.named(file, command.id)?;
        match (command.level, command.name) {
            (LEVEL_ID, ID_TOS) => id.options.tos = Some(byte(value)?),
            (LEVEL_ID, ID_REUSEADDR) => {
                let reuse = flag(value)?;
                if id.state != IdState::Idle && (!reuse || id.state == IdState::Listen) {
                    return Err(errno::EINVAL);
                }
                id.options.reuse_address = reuse;
            }
            (LEVEL_ID, ID_AFONLY) => {
                let family_only = flag(value)?;
                if !matches!(id.state, IdState::Idle | IdState::Bound) {
                    return Err(errno::EINVAL);
                }
                id.options.family_only = Some(family_only);
            }
            (LEVEL_ID, ID_ACK_TIMEOUT) => {
                let timeout = byte(value)?;
                if !matches!(id.qp_type, QpType::Rc | QpType::XrcSend) || timeout > 31 {
                    return Err(errno::EINVAL);
                }
                id.options.ack_timeout = Some(timeout);
            }
            (LEVEL_IB, IB_PATH) => {
                let path = parse_option(value)?;
                let id = self.ids.named_with_device(file, command.id)?;
                if id.state != IdState::AddrResolved {
                    return Err(errno::EINVAL);
                }
                id.path = Some(path);
                id.state = IdState::RouteResolved;
                self.emit(command.id, &Event::new(Kind::RouteResolved));
            }
            _ => return Err(errno::ENOSYS),
        }
        Ok(())
    }
}

fn byte(value: &[u8]) -> Result<u8, i32> {
    match value {
        [byte] => Ok(*byte),
        _ => Err(errno::EINVAL),
    }
}

fn flag(value: &[u8]) -> Result<bool, i32> {
    let value = <[u8; 4]>::try_from(value).map_err(|_| errno::EINVAL)?;
    Ok(i32::from_ne_bytes(value) != 0)
}
