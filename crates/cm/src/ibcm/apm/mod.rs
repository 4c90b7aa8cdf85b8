//! Automatic path migration of a connection (IBTA 12.8): the alternate path on which both ends
//! agreed, and the messages about it.
//!
//! The active end loads paths by LAP, the passive end answers by APR. The passive end suggests
//! addresses by SAP, the active end answers by SPR, and may follow with a LAP. This layer sends,
//! repeats and matches the messages; the layer above chooses paths and judges them.
//!
//! Only peers that are known to want it get such messages: the active end's REQ says so by the SAP
//! bit, the passive end's REP by the LAP bit.

mod messages;
mod standing;
pub(super) mod state;
pub(crate) mod told;
mod transactions;
