//! Deliberate faults in the protocol cores, to see whether the simulator finds them.
//!
//! A test-suite that never fails says nothing. The lists under `list/` hold small faults, one idea
//! each; `polypath-mutations` puts one at a time into a copy of the cores, builds the simulator and
//! counts the seeds until it fails.
//!
//! A list is text: a title, then one or more edits, each with a file and what is to be replaced by what.
//!
//! ```text
//! Immediate data is lost
//! @ crates/transport/src/requester/build.rs
//! <<<<
//!                 headers.imm = Some(ImmDt(imm));
//! ====
//!                 headers.imm = Some(ImmDt([0; 4]));
//! >>>>
//! ```
//!
//! What is to be replaced must be in the file exactly once: whoever changes that code is told by a test
//! that the list has to follow.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// The crates in the copy: the cores, and what builds and judges them.
pub const CRATES: &[&str] =
    &["types", "wire", "telemetry", "transport", "paths", "lane", "cm", "sim"];
/// Those in the copy for faults of the engine and those around it, beside the cores.
pub const AROUND: &[&str] =
    &["topology", "verbs", "config", "ipc", "lacp", "engine", "broker", "abi"];

/// Replaces one piece of a file by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Relative to the root of the workspace.
    pub file: String,
    /// What is there: exactly once.
    pub old: String,
    /// What comes in its place.
    pub new: String,
}

/// A deliberate fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// What is wrong, in a few words.
    pub title: String,
    /// How to make it so.
    pub edits: Vec<Edit>,
}

/// Why a list or a mutation is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable(pub String);

impl core::fmt::Display for Unusable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

impl Edit {
    /// The file's text with the edit.
    ///
    /// # Errors
    /// The text to replace is not there, or more than once.
    pub fn apply(&self, text: &str) -> Result<String, Unusable> {
        match text.matches(&self.old).count() {
            1 => Ok(text.replacen(&self.old, &self.new, 1)),
            n => Err(Unusable(format!(
                "{}: found {n} times instead of once, so the list under crates/mutations/list must \
                 follow the code:\n{}",
                self.file, self.old
            ))),
        }
    }
}

impl Mutation {
    /// Puts the fault into the tree under `root`.
    ///
    /// # Errors
    /// An edit does not apply, or a file can't be read or written. Earlier edits stay then.
    pub fn apply(&self, root: &Path) -> Result<(), Unusable> {
        for edit in &self.edits {
            let path = root.join(&edit.file);
            let say = |e: std::io::Error| Unusable(format!("{}: {e}", path.display()));
            let text = fs::read_to_string(&path).map_err(say)?;
            let text =
                edit.apply(&text).map_err(|e| Unusable(format!("\"{}\": {e}", self.title)))?;
            fs::write(&path, text).map_err(say)?;
        }
        Ok(())
    }

    /// Whether all its edits apply to the tree under `root`, in their order; changes nothing.
    ///
    /// # Errors
    /// One does not.
    pub fn check(&self, root: &Path) -> Result<(), Unusable> {
        let mut files: Vec<(PathBuf, String)> = Vec::new();
        for edit in &self.edits {
            let path = root.join(&edit.file);
            let at = match files.iter().position(|f| f.0 == path) {
                Some(at) => at,
                None => {
                    let text = fs::read_to_string(&path)
                        .map_err(|e| Unusable(format!("{}: {e}", path.display())))?;
                    files.push((path, text));
                    files.len() - 1
                }
            };
            files[at].1 = edit
                .apply(&files[at].1)
                .map_err(|e| Unusable(format!("\"{}\": {e}", self.title)))?;
        }
        Ok(())
    }
}

/// Reads a list.
///
/// # Errors
/// It is not laid out as the crate's documentation says.
pub fn parse(text: &str) -> Result<Vec<Mutation>, Unusable> {
    let mut mutations: Vec<Mutation> = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let wrong = |what: &str| Unusable(format!("line {}: {what}", number + 1));
        let Some(file) = line.strip_prefix("@ ") else {
            if !line.is_empty() {
                mutations.push(Mutation { title: line.to_owned(), edits: Vec::new() });
            }
            continue;
        };
        let mut until = |end: &str| -> Option<String> {
            let mut piece = String::new();
            for (_, line) in lines.by_ref() {
                if line == end {
                    return Some(piece);
                }
                piece += line;
                piece.push('\n');
            }
            None
        };
        until("<<<<").filter(String::is_empty).ok_or_else(|| wrong("wants <<<< after the file"))?;
        let old = until("====").ok_or_else(|| wrong("has no ===="))?;
        let new = until(">>>>").ok_or_else(|| wrong("has no >>>>"))?;
        // The last line may go on: only whole lines are replaced by whole lines.
        let cut = |s: &str| s.strip_suffix('\n').unwrap_or(s).to_owned();
        let edit = Edit { file: file.to_owned(), old: cut(&old), new: cut(&new) };
        if edit.old.is_empty() || edit.old == edit.new {
            return Err(wrong("changes nothing"));
        }
        mutations.last_mut().ok_or_else(|| wrong("has no title before it"))?.edits.push(edit);
    }
    if let Some(m) = mutations.iter().find(|m| m.edits.is_empty()) {
        return Err(Unusable(format!("\"{}\" has no edit", m.title)));
    }
    Ok(mutations)
}

/// All lists of the project, in the order of their names.
///
/// # Errors
/// One can't be read or parsed.
pub fn lists(root: &Path) -> Result<Vec<Mutation>, Unusable> {
    let folder = root.join("crates/mutations/list");
    let say = |e: std::io::Error| Unusable(format!("{}: {e}", folder.display()));
    let entries = fs::read_dir(&folder).map_err(say)?;
    let mut files =
        entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>().map_err(say)?;
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(say)?;
        let list = parse(&text).map_err(|e| Unusable(format!("{}: {e}", file.display())))?;
        all.extend(list);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "Nothing works\n@ a.rs\n<<<<\n  one\n  two\n====\n  three\n>>>>\n";

    #[test]
    fn a_list_is_titles_with_edits() {
        let list = parse(LIST).unwrap();
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].title, "Nothing works");
        assert_eq!(list[0].edits[0].apply("x\n  one\n  two\ny").unwrap(), "x\n  three\ny");
    }

    #[test]
    fn what_is_not_there_exactly_once_is_an_error() {
        let edit = &parse(LIST).unwrap()[0].edits[0];
        assert!(edit.apply("zero").is_err());
        assert!(edit.apply("  one\n  two\n  one\n  two\n").is_err());
    }

    #[test]
    fn a_broken_list_is_an_error() {
        assert!(parse("@ a.rs\n<<<<\na\n====\nb\n>>>>\n").is_err());
        assert!(parse("t\n@ a.rs\na\n====\nb\n>>>>\n").is_err());
        assert!(parse("t\n@ a.rs\n<<<<\na\n====\na\n>>>>\n").is_err());
        assert!(parse("t\n@ a.rs\n<<<<\na\n====\nb\n").is_err());
        assert!(parse("title only\n").is_err());
    }
}
