//! Options of ids.

use core::time::Duration;

use super::apm::named_alternate;
use crate::abi::command::SetOption;
use crate::abi::event::{Event, Kind};
use crate::abi::path::parse_option;
use crate::env::{Environment, FileId};
use crate::ids::{CmId, IdState, QpType};
use crate::{Cm, errno};

/// `RDMA_OPTION_ID` and `RDMA_OPTION_IB`.
const LEVEL_ID: u32 = 0;
const LEVEL_IB: u32 = 1;

const ID_TOS: u32 = 0;
const ID_REUSEADDR: u32 = 1;
const ID_AFONLY: u32 = 2;
const ID_ACK_TIMEOUT: u32 = 3;
const IB_PATH: u32 = 1;
/// `RDMA_OPTION_IB_APM`, at the level where the kernel that had it took it, and where its name says.
const ID_APM: u32 = 2;
const IB_APM: u32 = 2;

impl Cm {
    /// Sets an option to the value that follows the command.
    pub(super) fn set_option(
        &mut self,
        now: Duration,
        file: FileId,
        command: &SetOption,
        extra: &[u8],
        env: &mut dyn Environment,
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
            // The option has the number of an older one of the kernel. Only its size differs.
            (LEVEL_ID, ID_APM) if value.len() == 1 => {
                let migrates = migrates(id, value)?;
                self.set_apm(now, command.id, migrates, env);
            }
            (LEVEL_IB, IB_APM) => {
                let migrates = migrates(id, value)?;
                self.set_apm(now, command.id, migrates, env);
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
                let (path, alternate) = parse_option(value)?;
                let id = self.ids.named_with_device(file, command.id)?;
                if id.state != IdState::AddrResolved {
                    return Err(errno::EINVAL);
                }
                if let Some(alternate) = &alternate {
                    // An alternate path that is none, or that no device has, would never be used.
                    let same = (alternate.sgid, alternate.dgid) == (path.sgid, path.dgid);
                    if same || named_alternate(id, alternate, env).is_none() {
                        return Err(errno::EINVAL);
                    }
                    id.options.apm.get_or_insert(true);
                }
                id.alternate = alternate;
                id.path = Some(path);
                id.state = IdState::RouteResolved;
                self.emit(command.id, &Event::new(Kind::RouteResolved));
            }
            _ => return Err(errno::ENOSYS),
        }
        Ok(())
    }
}

/// Whether the connection may migrate: one byte or an `int`, not zero.
fn migrates(id: &CmId, value: &[u8]) -> Result<bool, i32> {
    if !matches!(id.qp_type, QpType::Rc | QpType::Uc) {
        return Err(errno::EINVAL);
    }
    byte(value).map(|byte| byte != 0).or_else(|_| flag(value))
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
