//! Queue pairs, memory and completion queues on lanes; UDP paths; the roce and mp devices.

pub mod memory;
pub mod udp;
