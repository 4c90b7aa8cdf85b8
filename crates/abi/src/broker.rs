//! The process's connection to the broker for what the engine does not handle: the CM device, and
//! the table of interfaces for the made-up files.

use polypath_ipc::{Client, Hello, IpcError};

use crate::lock::Lock;

/// The connection. It is made at its first use, and again in a child and after the broker was gone.
pub(crate) static CLIENT: Lock<Option<Client>> = Lock::new(None);

/// Asks the broker something. If `again` is set, the request may be sent on another connection if
/// this one turns out to be unusable.
pub(crate) fn ask<T>(
    again: bool,
    question: impl Fn(&mut Client) -> Result<T, IpcError>,
) -> Result<T, IpcError> {
    let mut client = CLIENT.lock();
    if let Some(open) = client.as_mut() {
        match question(open) {
            Err(IpcError::Refused { errno, text }) => {
                return Err(IpcError::Refused { errno, text });
            }
            Err(IpcError::Forked) => *client = None,
            Err(error) if !again => {
                *client = None;
                return Err(error);
            }
            Err(_) => *client = None,
            Ok(answer) => return Ok(answer),
        }
        if !again {
            return Err(IpcError::Closed);
        }
    }
    question(client.insert(connect()?))
}

/// Another connection.
pub(crate) fn connect() -> Result<Client, IpcError> {
    let selection = std::env::var("POLYPATH_DEVICE").unwrap_or_default();
    Client::connect_or_start(&Hello::of_this_process(&selection))
}
