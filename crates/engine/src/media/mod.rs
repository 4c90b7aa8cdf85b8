//! What carries packets: one module for each kind of medium.

#[allow(unsafe_code)]
pub mod udp;
