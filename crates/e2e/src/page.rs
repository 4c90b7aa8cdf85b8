//! Pages that programs write, with a directory of pictures beside each.

use crate::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Makes the directory for the pictures of a page: it has the page's name without its extension.
///
/// # Errors
/// Those of the system.
pub fn pictures_of(page: &Path) -> Result<PathBuf, Error> {
    let pictures = page.with_extension("");
    let make = |e| Error::os(format!("making {}", pictures.display()), e);
    fs::create_dir_all(&pictures).map_err(make)?;
    Ok(pictures)
}

/// Writes a page or a picture.
///
/// # Errors
/// Those of the system.
pub fn write_page(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|e| Error::os(format!("writing {}", path.display()), e))
}
