//! Checks the library's exports: every public symbol of rdma-core 44 to 65 in its version, and all
//! symbols that installed programs need.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn exported() -> BTreeSet<String> {
    common::symbols(common::library(), true).into_iter().collect()
}

#[test]
fn every_public_symbol_of_libibverbs_is_exported_in_its_version_and_no_other() {
    let wanted: BTreeSet<String> = include_str!("symbols.txt").lines().map(str::to_owned).collect();
    let ours = exported();
    let missing: Vec<_> = wanted.difference(&ours).collect();
    let surplus: Vec<_> = ours.difference(&wanted).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
    assert!(surplus.is_empty(), "exported, but not upstream's: {surplus:?}");
}

#[test]
fn nothing_else_is_exported_but_stand_ins_for_the_c_library() {
    let library = common::library();
    let text = common::output(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let stand_ins = [
        "dlopen",
        "open",
        "open64",
        "openat",
        "openat64",
        "__open_2",
        "__open64_2",
        "__openat_2",
        "__openat64_2",
        "fopen",
        "fopen64",
        "opendir",
        "stat",
        "stat64",
        "lstat",
        "lstat64",
        "__xstat",
        "__xstat64",
        "__lxstat",
        "__lxstat64",
        "fstatat",
        "fstatat64",
        "statx",
        "access",
        "faccessat",
        "readlink",
        "readlinkat",
        "realpath",
        "__realpath_chk",
        "fstat",
        "fstat64",
        "__fxstat",
        "__fxstat64",
        "write",
        "__write",
        "__fxstatat",
        "__fxstatat64",
        "__getcwd_chk",
        "__readlink_chk",
        "__readlinkat_chk",
        "canonicalize_file_name",
        "chdir",
        "eaccess",
        "euidaccess",
        "fchdir",
        "ftw",
        "ftw64",
        "get_current_dir_name",
        "getcwd",
        "getxattr",
        "glob",
        "glob64",
        "inotify_add_watch",
        "lgetxattr",
        "listxattr",
        "llistxattr",
        "nftw",
        "nftw64",
        "pathconf",
        "scandir",
        "scandir64",
        "scandirat",
        "scandirat64",
        "send",
        "sendmsg",
        "sendto",
        "socket",
        "statfs",
        "statfs64",
        "statvfs",
        "statvfs64",
        "sigaction",
        "signal",
        "bsd_signal",
        "sysv_signal",
        "__sysv_signal",
        "sigprocmask",
        "pthread_sigmask",
    ];
    // Our own.
    let own = ["polypath_modify_qp_lag_port", "polypath_query_qp_lag_port", "rdma_enable_apm"];
    for line in text.lines() {
        let symbol = line.split_whitespace().last().unwrap();
        let known =
            symbol.contains("IBVERBS_") || stand_ins.contains(&symbol) || own.contains(&symbol);
        assert!(known, "{symbol} is exported");
    }
}

/// The installed programs and libraries that import from libibverbs.
fn clients() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for program in [
        "ib_write_bw",
        "ib_read_lat",
        "ib_send_bw",
        "ib_atomic_bw",
        "ibv_devinfo",
        "ibv_devices",
        "ibv_rc_pingpong",
        "ibv_ud_pingpong",
        "ibv_srq_pingpong",
        "ibv_asyncwatch",
        "rping",
        "ucmatose",
        "udaddy",
        "mckey",
        "cmtime",
        "rdma_server",
        "qperf",
        "fio",
    ] {
        all.push(Path::new("/usr/bin").join(program));
    }
    all.push("/usr/lib/x86_64-linux-gnu/librdmacm.so.1".into());
    for dir in ["/usr/lib/python3/dist-packages/pyverbs", "/usr/lib/x86_64-linux-gnu/ucx"] {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        all.extend(entries.map(|e| e.path()).filter(|p| p.to_string_lossy().contains(".so")));
    }
    all.retain(|path| path.exists());
    all
}

#[test]
fn installed_clients_find_all_they_import() {
    let ours = exported();
    for client in clients() {
        let imports = common::symbols(&client, false);
        for import in imports.iter().filter(|import| import.contains("@IBVERBS_1.")) {
            assert!(ours.contains(import), "{} needs {import}", client.display());
        }
    }
}
