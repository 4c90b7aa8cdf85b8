//! Writes the linker's version script with rdma-core's version nodes, chained as upstream chains
//! them.
//!
//! The nodes are empty, because `.symver` beside each export (src/export.rs) tells which node a
//! symbol belongs to. There is no `local: *`: with it, lld drops the non-default `name@IBVERBS_1.0`
//! symbols, and rustc's own script already hides everything else.

use std::path::PathBuf;
use std::{env, fs};

/// Public nodes, each inheriting from the one before.
const NODES: [&str; 16] = [
    "1.0", "1.1", "1.5", "1.6", "1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "1.14",
    "1.15", "1.16", "1.17", "1.18",
];

/// The private ABIs of the rdma-core releases that existing programs are linked against.
const PRIVATE: [&str; 5] = ["34", "57", "59", "64", "65"];

fn main() {
    let mut script = String::new();
    let mut parent = String::new();
    for node in NODES {
        script += &format!("IBVERBS_{node} {{ }}{parent};\n");
        parent = format!(" IBVERBS_{node}");
    }
    for node in PRIVATE {
        script += &format!("IBVERBS_PRIVATE_{node} {{ }};\n");
    }
    let path =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("versions.map");
    fs::write(&path, script).expect("OUT_DIR is writable");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    // The library is never unmapped, so that threads, fork handlers and thread-local destructors
    // stay valid.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
