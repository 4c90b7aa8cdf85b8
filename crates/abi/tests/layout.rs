//! Compares the structures of src/layout with the installed headers. A C program prints sizes and
//! offsets, which must be those that src/layout asserts.

mod common;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// One asserted structure.
struct Layout {
    name: String,
    size: usize,
    fields: Vec<(String, usize)>,
}

/// Reads the `assert_layout!` tables of the sources. The compiler checks them against the
/// structures.
fn asserted() -> Vec<Layout> {
    let mut all = Vec::new();
    for file in ["device", "object", "work", "attr"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/layout/{file}.rs"));
        let text = fs::read_to_string(path).unwrap();
        let (_, table) = text.split_once("assert_layout! {").unwrap();
        for entry in table.split('}') {
            let Some((head, fields)) = entry.split_once('{') else { continue };
            let mut head = head.split_whitespace();
            let name = head.next().unwrap().to_owned();
            let size = head.next().unwrap().parse().unwrap();
            let fields = fields.split(',').filter_map(|field| {
                let (name, offset) = field.trim().split_once(' ')?;
                Some((name.to_owned(), offset.parse().unwrap()))
            });
            all.push(Layout { name, size, fields: fields.collect() });
        }
    }
    assert!(all.len() > 30, "the tables are not where this test looks for them");
    all
}

/// Structures that are longer in newer headers.
const GROWN: [(&str, usize, usize); 3] = [
    // (structure, size in rdma-core 44, fields' shift: new ones come first)
    ("verbs_context", 648, 48),
    ("ibv_port_attr", 52, 0),
    ("ibv_qp_ex", 352, 0),
];

/// What older headers than rdma-core 65's do not have.
const NEW: [&str; 1] = ["ibv_mr_init_attr"];

/// The name of a C field that differs from ours, or of one that stands for a group of fields.
fn c_field(structure: &str, field: &str) -> Option<String> {
    let name = match (structure, field) {
        // Parts of structures that have no name of their own in C, or that only we have.
        ("verbs_device" | "wr_rdma" | "wr_atomic" | "wr_ud" | "wr_bind_mw", _) => return None,
        ("ibv_device", "ops") => "_ops",
        ("ibv_mw", "mw_type") => "type",
        ("ibv_send_wr", "remote_srqn") => "qp_type",
        ("verbs_context", "private") => "priv",
        ("ibv_device_attr_ex", "odp_general_caps") => "odp_caps",
        ("ibv_device_attr_ex", "max_cq_count") => "cq_mod_caps",
        ("ibv_modify_cq_attr", "cq_count") => "moderate.cq_count",
        ("ibv_modify_cq_attr", "cq_period") => "moderate.cq_period",
        ("ibv_port_attr", "active_speed_ex") | ("ibv_qp_ex", "wr_flush") => return None,
        (_, field) => field,
    };
    Some(name.to_owned())
}

#[test]
fn every_structure_is_that_of_the_installed_headers() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() || !common::installed("cc") {
        say("SKIPPED: layouts against the C headers: no libibverbs-dev or C compiler");
        return;
    }
    let mut source = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    let header = fs::read_to_string("/usr/include/infiniband/verbs.h").unwrap();
    let mut expected = Vec::new();
    for layout in asserted() {
        let Layout { name, size, fields } = layout;
        if NEW.contains(&name.as_str()) && !header.contains(&format!("struct {name} {{")) {
            continue;
        }
        let in_c = match name.as_str() {
            "verbs_device" | "wr_rdma" | "wr_atomic" | "wr_ud" | "wr_bind_mw" => continue,
            "ibv_modify_cq_attr" => {
                // C has a structure of the same size inside.
                "ibv_modify_cq_attr"
            }
            name => name,
        };
        let grown = GROWN.iter().find(|grown| grown.0 == name);
        writeln!(source, "printf(\"%zu\\n\", sizeof(struct {in_c}));").unwrap();
        expected.push((format!("sizeof {name}"), vec![size, grown.map_or(size, |grown| grown.1)]));
        for (field, offset) in fields {
            let Some(field) = c_field(&name, &field) else { continue };
            writeln!(source, "printf(\"%zu\\n\", offsetof(struct {in_c}, {field}));").unwrap();
            let older = offset - grown.map_or(0, |grown| grown.2);
            expected.push((format!("offsetof {name}.{field}"), vec![offset, older]));
        }
    }
    source.push_str("return 0; }\n");
    let dir = std::env::temp_dir().join(format!("polypath-layout-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("layout.c"), source).unwrap();
    common::output(Command::new("cc").args(["-w", "-o", "layout", "layout.c"]).current_dir(&dir));
    let printed = common::output(&mut Command::new(dir.join("layout")));
    fs::remove_dir_all(&dir).unwrap();
    let printed: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(printed.len(), expected.len());
    for ((what, allowed), in_c) in expected.iter().zip(printed) {
        assert!(allowed.contains(&in_c), "{what}: ours {allowed:?}, in C {in_c}");
    }
}

/// Prints a text that, unlike that of `println!`, is shown even if the test passes.
fn say(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{text}\n").as_bytes());
}
