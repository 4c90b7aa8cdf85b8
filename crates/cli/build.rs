//! Tells the command where Debian keeps libraries of its architecture.

fn main() {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    println!("cargo::rustc-env=POLYPATH_MULTIARCH={arch}-linux-gnu");
    println!("cargo::rerun-if-changed=build.rs");
}
