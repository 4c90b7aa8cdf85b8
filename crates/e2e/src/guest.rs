//! Linux in a virtual machine: Debian's kernel, programs of this machine, and commands that run in it.
//!
//! QEMU emulates the processor, so that no machine lacks a feature that a test needs. Several tests use
//! this: what they have in common is here, and what each wants of its guest is in its own files.

mod cpio;
mod image;
mod kernel;
mod machine;
mod needs;
mod ours;
mod port;
mod problem;
mod qmp;

pub use image::Image;
pub use kernel::Kernel;
pub use machine::{ANSWER, Guest, Machine};
pub use needs::{can_run, directory, installed};
pub use ours::stripped;
pub use port::{Answer, Port};
pub use problem::Problem;
