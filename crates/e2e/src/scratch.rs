//! A directory for the files of one test.

use crate::Error;
use std::path::{Path, PathBuf};

/// A directory among the system's temporary files; removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one. No two of one process may have the same name at a time.
    ///
    /// # Errors
    /// When the system doesn't let us.
    pub fn new(name: &str) -> Result<Self, Error> {
        let name = format!("polypath-e2e-{}-{name}", std::process::id());
        let scratch = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&scratch.0)
            .map_err(|e| Error::os(format!("making {}", scratch.0.display()), e))?;
        Ok(scratch)
    }

    /// Where a file of this name is, or would be.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&self, name: &str, data: &[u8]) -> Result<PathBuf, Error> {
        let path = self.path(name);
        std::fs::write(&path, data)
            .map_err(|e| Error::os(format!("writing {}", path.display()), e))?;
        Ok(path)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let path = self.path(name);
        std::fs::read(&path).map_err(|e| Error::os(format!("reading {}", path.display()), e))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed lies in the directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
