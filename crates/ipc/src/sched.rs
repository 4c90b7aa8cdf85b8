//! Prompt scheduling for threads that rarely run.

use std::io;

/// The shortest slice that the kernel gives, in nanoseconds (`0.1 ms`, linux/sched/syscalls.c).
const SHORTEST_SLICE: u64 = 100_000;

/// Requests short slices for the calling thread, so that it does not wait for the end of other
/// threads' slices when it wakes. Its reports, such as a link that went down, are urgent and take
/// microseconds. It gets no more time than before. This needs no privilege, and kernels before 6.12
/// ignore it.
///
/// # Errors
/// The kernel does not support it, or a sandbox forbids it. This only costs latency.
pub fn request_short_slices() -> io::Result<()> {
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes `size` bytes at most; thread 0 is the calling one.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if known < 0 {
        return Err(io::Error::last_os_error());
    }
    // If the user made this a real-time thread, it is already prompt.
    if attributes.sched_policy != libc::SCHED_OTHER.cast_unsigned() {
        return Ok(());
    }
    attributes.sched_runtime = SHORTEST_SLICE;
    // SAFETY: the kernel reads `attributes.size` bytes, which is the size that it reported.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn it_is_asked_for_without_privilege_and_changes_nothing_else() {
        // This uses its own thread, so that the other tests keep their slices.
        let nice = std::thread::spawn(|| {
            request_short_slices().expect("any kernel since 3.14 knows the call");
            getpriority_process(None)
        });
        assert_eq!(nice.join().unwrap(), getpriority_process(None));
    }
}
