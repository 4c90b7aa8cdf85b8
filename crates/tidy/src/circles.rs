//! The files of a crate do not use each other in a circle: a reader can begin at the bottom.
//!
//! A file uses another where a path (`crate::…`, `super::…`, a module's name) ends at an item of it. A
//! file with modules below it is two things, a floor and a roof: what it declares for the modules below, and
//! what it makes of them. Using the floor from below is no circle. Modules of tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{self, Path};
use crate::source::{Source, words};
use crate::tree::crate_of;

/// Files of one crate that use each other in a circle, in the order of their paths.
pub type Circle = BTreeSet<String>;

/// The circles of all crates' sources, and of tests that are folders.
pub fn circles(sources: &[Source]) -> Vec<Circle> {
    let roots = sources.iter().filter(|source| is_root(&source.path));
    let mut found: Vec<_> = roots.flat_map(|root| Modules::of(root, sources).circles()).collect();
    found.sort();
    found.dedup();
    found
}

/// Whether a file is the first of a library, program or test.
fn is_root(path: &str) -> bool {
    let Some(path) = path[crate_of(path).len()..].strip_prefix('/') else { return false };
    let program = path.strip_prefix("src/bin/").or_else(|| path.strip_prefix("tests/"));
    let program = program.or_else(|| path.strip_prefix("examples/"));
    matches!(path, "src/lib.rs" | "src/main.rs")
        || program.is_some_and(|path| {
            !path.contains('/') || path.matches('/').count() == 1 && path.ends_with("/main.rs")
        })
}

/// A module that has a file.
#[derive(Debug)]
struct Module {
    path: String,
    parent: Option<usize>,
    /// The modules below, by name.
    below: BTreeMap<String, usize>,
    /// What `use` declares: the name, and the path that it stands for.
    names: BTreeMap<String, Path>,
    /// Paths whose every name `use` declares.
    globs: Vec<Path>,
    /// All paths, those of `use` included.
    paths: BTreeSet<Path>,
    /// The names of modules below.
    modules: Vec<String>,
    /// The names of items that are declared here.
    items: BTreeSet<String>,
}

/// The modules of one library or program; the first is its root.
#[derive(Debug, Default)]
struct Modules(Vec<Module>);

impl Modules {
    fn of(root: &Source, sources: &[Source]) -> Self {
        let mut modules = Self::default();
        modules.add(root, None, sources);
        modules
    }

    fn add(&mut self, source: &Source, parent: Option<usize>, sources: &[Source]) -> usize {
        let this = self.0.len();
        let module = Module::read(source, parent);
        let declared = module.modules.clone();
        self.0.push(module);
        let folder = folder_of(&source.path, parent.is_none());
        for name in declared {
            let files = [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")];
            if let Some(file) = sources.iter().find(|source| files.contains(&source.path)) {
                let below = self.add(file, Some(this), sources);
                self.0[this].below.insert(name, below);
            }
        }
        this
    }

    /// The file in which a path that is written in module `from` ends, if it is of this crate and names an
    /// item.
    fn end_of(&self, from: usize, path: &[String], patience: usize) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.0[from].parent?,
            name => match self.0[from].below.get(name) {
                Some(&below) => below,
                None => return self.renamed(from, path, patience),
            },
        };
        while let Some((name, more)) = rest.split_first() {
            if name == "super" {
                at = self.0[at].parent?;
            } else if let Some(&below) = self.0[at].below.get(name) {
                at = below;
            } else {
                return self.renamed(at, rest, patience).or(Some(at));
            }
            rest = more;
        }
        None
    }

    /// The end of a path whose first name `use` declares in module `at`.
    fn renamed(&self, at: usize, path: &[String], patience: usize) -> Option<usize> {
        let patience = patience.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let module = &self.0[at];
        if let Some(target) = module.names.get(first) {
            if target.first() == Some(first) {
                return None;
            }
            return self.end_of(at, &[target, rest].concat(), patience);
        }
        let mut ends = module.globs.iter().filter_map(|glob| {
            let item = [&glob[..glob.len() - 1], path].concat();
            self.end_of(at, &item, patience).filter(|&end| self.0[end].items.contains(first))
        });
        ends.next()
    }

    fn is_below(&self, mut module: usize, other: usize) -> bool {
        while let Some(parent) = self.0[module].parent {
            if parent == other {
                return true;
            }
            module = parent;
        }
        false
    }

    /// The modules that each module uses, floors left out.
    fn uses(&self) -> Vec<BTreeSet<usize>> {
        let mut uses = vec![BTreeSet::new(); self.0.len()];
        for (from, module) in self.0.iter().enumerate() {
            for path in &module.paths {
                if let Some(to) =
                    self.end_of(from, path, 8).filter(|&to| to != from && !self.is_below(from, to))
                {
                    uses[from].insert(to);
                }
            }
        }
        uses
    }

    fn circles(&self) -> Vec<Circle> {
        let uses = self.uses();
        let reached: Vec<BTreeSet<usize>> = (0..uses.len())
            .map(|from| {
                let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
                while let Some(at) = next.pop() {
                    next.extend(uses[at].iter().filter(|&&to| reached.insert(to)));
                }
                reached
            })
            .collect();
        let in_circle = (0..uses.len()).filter(|&at| reached[at].contains(&at));
        let circles: BTreeSet<Circle> = in_circle
            .map(|at| {
                let others = reached[at].iter().filter(|&&other| reached[other].contains(&at));
                others.map(|&other| self.0[other].path.clone()).collect()
            })
            .collect();
        circles.into_iter().collect()
    }
}

impl Module {
    fn read(source: &Source, parent: Option<usize>) -> Self {
        let code = source.production();
        let names = imports::names(&code);
        let (globs, named): (Vec<_>, Vec<_>) =
            names.imports.into_iter().partition(|import| import.name == "*");
        let globs: Vec<_> = globs.into_iter().map(|import| import.path).collect();
        let named_paths = named.iter().map(|import| import.path.clone());
        Self {
            path: source.path.clone(),
            parent,
            below: BTreeMap::new(),
            paths: names
                .paths
                .into_iter()
                .chain(named_paths)
                .chain(globs.iter().cloned())
                .collect(),
            names: named.into_iter().map(|import| (import.name, import.path)).collect(),
            globs,
            modules: imports::modules(&code),
            items: declared_items(&code),
        }
    }
}

/// The names of items that `code` declares.
fn declared_items(code: &str) -> BTreeSet<String> {
    const KINDS: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];
    let all: Vec<_> = words(code).map(|(_, word)| word).collect();
    all.windows(2).filter(|pair| KINDS.contains(&pair[0])).map(|pair| pair[1].to_owned()).collect()
}

/// Where the files of a module's modules lie.
fn folder_of(path: &str, root: bool) -> &str {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    if root || file == "mod.rs" { folder } else { path.trim_end_matches(".rs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of crate `a`, whose files are given by their paths below `src`.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| Source::new(&format!("crates/a/src/{path}"), text))
            .collect();
        let short =
            |circle: &Circle| circle.iter().map(|path| &path[13..]).collect::<Vec<_>>().join(" ");
        circles(&sources).iter().map(short).collect()
    }

    #[test]
    fn two_files_that_use_each_other_are_a_circle() {
        let files = [
            ("lib.rs", "mod b; mod c; mod d;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "pub struct C; fn f() -> super::b::B {}"),
            ("d.rs", "use crate::{b::B, c::C};"),
        ];
        assert_eq!(found(&files), ["b.rs c.rs"]);
    }

    #[test]
    fn a_circle_is_found_through_names_of_modules_and_through_what_passes_a_name_on() {
        let files = [
            ("lib.rs", "mod b; mod c; mod d; use d::D; pub use b::*;"),
            ("b.rs", "use crate::c; struct B(c::C);"),
            ("c/mod.rs", "mod e; pub use e::C;"),
            ("c/e.rs", "use crate::D; pub struct C;"),
            ("d.rs", "use crate::B; pub struct D;"),
        ];
        assert_eq!(found(&files), ["b.rs c/e.rs d.rs"]);
    }

    #[test]
    fn the_floor_of_a_module_may_be_used_from_below() {
        let files = [
            ("lib.rs", "mod b; pub struct A; fn f() { b::f() }"),
            ("b.rs", "mod c; use crate::A; struct B; use c::C;"),
            ("b/c.rs", "use super::B; use crate::A; struct C;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn the_roof_of_a_module_may_not_be_used_by_what_is_below_it() {
        let files = [
            ("lib.rs", "mod b; mod d;"),
            ("b/mod.rs", "mod c; struct B; use c::C;"),
            ("b/c.rs", "use crate::d::D; struct C;"),
            ("d.rs", "use crate::b::B; struct D;"),
        ];
        assert_eq!(found(&files), ["b/c.rs b/mod.rs d.rs"]);
    }

    #[test]
    fn tests_and_comments_use_nothing() {
        let files = [
            ("lib.rs", "mod b; mod c;"),
            ("b.rs", "use crate::c::C; struct B;"),
            ("c.rs", "// crate::b::B\nstruct C; #[cfg(test)] mod tests { use crate::b::B; }"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn crates_and_programs_of_the_same_names_are_apart() {
        let sources = [
            Source::new("crates/a/src/lib.rs", "mod b;"),
            Source::new("crates/a/src/b.rs", "use crate::c::C; struct B;"),
            Source::new("crates/a/src/bin/x/main.rs", "mod b; mod c;"),
            Source::new("crates/a/src/bin/x/b.rs", "use crate::c::C; struct B;"),
            Source::new("crates/a/src/bin/x/c.rs", "use crate::b::B; struct C;"),
        ];
        let circle = circles(&sources);
        assert_eq!(circle.len(), 1);
        assert!(circle[0].iter().all(|path| path.starts_with("crates/a/src/bin/x/")), "{circle:?}");
    }
}
