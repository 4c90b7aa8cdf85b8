//! A directory for the files of one test.

use crate::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory among the system's temporary files. It is removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory whose name begins with `name`.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(name: &str) -> Result<Self, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("polypath-e2e-{name}-{}-{number}", std::process::id());
        let scratch = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&scratch.0)
            .map_err(|e| Error::os(format!("making {}", scratch.0.display()), e))?;
        Ok(scratch)
    }

    /// The path of a file of this name, whether it exists or not.
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
        // A directory that can't be removed stays among the temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_one_name_are_two() -> Result<(), Error> {
        let (one, other) = (Scratch::new("twice")?, Scratch::new("twice")?);
        let file = one.write("file", b"here")?;
        drop(other);
        assert!(file.exists());
        Ok(())
    }
}
