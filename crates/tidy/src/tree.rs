//! The files of the tree.

use std::path::Path;
use std::{fs, io};

use crate::source::Source;

/// Where Rust code lies, from the root of the tree.
const FOLDERS: [&str; 4] = ["crates", "fuzz", "loom", "model"];

/// All Rust files below `root`, in the order of their paths. What was built is left out.
///
/// # Errors
/// A file or folder could not be read.
pub fn sources(root: &Path) -> io::Result<Vec<Source>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), folder, &mut found)?;
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn collect(folder: &Path, name: &str, found: &mut Vec<Source>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{name}/{file_name}");
        if entry.file_type()?.is_dir() {
            if file_name != "target" {
                collect(&entry.path(), &path, found)?;
            }
        } else if file_name.ends_with(".rs") {
            found.push(Source::new(&path, &fs::read_to_string(entry.path())?));
        }
    }
    Ok(())
}

/// The folder of the crate in which a file lies, from the root of the tree.
pub fn crate_of(path: &str) -> &str {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    path.match_indices('/').nth(depth - 1).map_or(path, |(at, _)| &path[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_of_the_crate_whose_folder_it_is_in() {
        assert_eq!(crate_of("crates/cm/src/cma/mod.rs"), "crates/cm");
        assert_eq!(crate_of("model/src/lib.rs"), "model");
    }
}
