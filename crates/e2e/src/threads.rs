//! What the threads of a program do, for errors about programs that do not end.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// A line for each thread of a process: its name, state and processor time, what it waits for in the kernel,
/// and its system call with arguments (`man 5 proc_pid_syscall`). What can't be read, as without the right to
/// trace, is left out.
pub(crate) fn threads(pid: u32) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return String::new() };
    let mut text = String::new();
    for task in tasks.flatten() {
        let read = |name: &str| word(&task.path(), name);
        let _ = writeln!(
            text,
            "  {} {}: {}; waits in {}; system call {}",
            task.file_name().to_string_lossy(),
            read("comm"),
            times(&read("stat")),
            read("wchan"),
            read("syscall"),
        );
    }
    text
}

fn word(task: &Path, name: &str) -> String {
    fs::read_to_string(task.join(name)).unwrap_or_default().trim().to_owned()
}

/// The state and the processor time, in clock ticks, of a line of `/proc/PID/stat`.
fn times(stat: &str) -> String {
    // The name in parentheses may contain anything; the third field follows the last parenthesis.
    let fields: Vec<_> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or("?");
    format!("state {}, {} ticks as user, {} in the kernel", field(3), field(14), field(15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_after_a_name_with_parentheses_are_counted_from_its_end() {
        let stat = "7 (a) b) S 1 2 3 0 -1 4 5 6 7 8 91 92 0 0 20";
        assert_eq!(times(stat), "state S, 91 ticks as user, 92 in the kernel");
        assert_eq!(times(""), "state ?, ? ticks as user, ? in the kernel");
    }

    #[test]
    fn each_thread_has_a_line() {
        let own = std::thread::Builder::new().name("one-of-them".to_owned());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel();
        let thread = own.spawn(move || begin.send(()).map(|()| ended.recv())).expect("a thread");
        begun.recv().expect("it began");
        let text = threads(std::process::id());
        assert!(text.contains("one-of-them"), "{text}");
        drop(end);
        let _ = thread.join();
    }
}
