//! Files of the connection manager.

use std::os::fd::{AsFd, OwnedFd};

use super::{Client, UNEXPECTED};
use crate::error::IpcError;
use crate::message::{CM_PART_MAX, Reply, Request};
use crate::settings::Apm;

/// An open CM file.
#[derive(Debug)]
pub struct CmFile {
    /// The file's number in requests.
    pub file: u64,
    /// The application's end of the event socket: every datagram is one complete
    /// `rdma_ucm_event_resp`.
    pub events: OwnedFd,
}

impl Client {
    /// Opens a CM file. `apm` is about ids that did not ask for migration. `tcp`: the TCP port by which its
    /// messages may go, too.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn open_cm(&mut self, apm: Apm, tcp: Option<u16>) -> Result<CmFile, IpcError> {
        match self.call_with_fd(&Request::OpenCm { apm, tcp })? {
            (Reply::Cm { file }, Some(events)) => Ok(CmFile { file, events }),
            _ => Err(UNEXPECTED),
        }
    }

    /// Sends a command to a CM file. Returns the response structure. `number`: as in [`Request::CmCommand`].
    ///
    /// # Errors
    /// [`IpcError::Refused`] with the errno that the kernel's `write()` would give; otherwise those
    /// of [`call`](Self::call).
    pub fn cm_command(
        &mut self,
        file: u64,
        number: u64,
        bytes: &[u8],
    ) -> Result<Vec<u8>, IpcError> {
        match self.call(&Request::CmCommand { file, number, bytes: bytes.to_vec() })? {
            Reply::CmResponse { bytes } => Ok(bytes),
            _ => Err(UNEXPECTED),
        }
    }

    /// Takes a CM file away from the broker: what it holds, and the broker's end of its event socket.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `EBUSY` if something of it is under way.
    pub fn cm_take(&mut self, file: u64) -> Result<(Vec<u8>, OwnedFd), IpcError> {
        let (Reply::CmTaken { mut bytes, mut more }, Some(socket)) =
            self.call_with_fd(&Request::CmTake { file })?
        else {
            return Err(UNEXPECTED);
        };
        while more {
            let Reply::CmTaken { bytes: part, more: rest } = self.call(&Request::CmTakeMore)?
            else {
                return Err(UNEXPECTED);
            };
            bytes.extend(part);
            more = rest;
        }
        Ok((bytes, socket))
    }

    /// Gives a broker a CM file that [`cm_take`](Self::cm_take) took away from one.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `EADDRINUSE` if a number or a port is in use there.
    pub fn cm_put(
        &mut self,
        file: u64,
        (bytes, socket): (Vec<u8>, OwnedFd),
        apm: Apm,
        tcp: Option<u16>,
    ) -> Result<(), IpcError> {
        let mut parts = bytes.chunks(CM_PART_MAX).map(<[u8]>::to_vec);
        let last = parts.next_back().unwrap_or_default();
        for bytes in parts {
            self.done(&Request::CmPutPart { bytes })?;
        }
        let bytes = last;
        self.send_with_fd(&Request::CmPut { file, bytes, apm, tcp }, Some(socket.as_fd()))?;
        match self.receive()? {
            (Reply::Done, _) => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    /// Goes on with a CM file of a broker that was killed. The program's end of its event socket stays the
    /// same.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `EBADF` if the broker has no such file of this process.
    pub fn cm_resume(&mut self, file: u64, apm: Apm, tcp: Option<u16>) -> Result<(), IpcError> {
        self.done(&Request::CmResume { file, apm, tcp })
    }

    /// Adds an unread event to the CM file that its id moved to.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn cm_requeue(&mut self, file: u64, event: &[u8]) -> Result<(), IpcError> {
        self.done(&Request::CmRequeue { file, event: event.to_vec() })
    }
}
