//! What a file's code says of other modules: `mod`, `use`, and paths.

use std::mem;

use crate::source::{block_end, is_word, words};

/// A path: the names between its double colons.
pub type Path = Vec<String>;

/// What a `use` declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The name that it declares; `*` for all names of a module.
    pub name: String,
    /// The path that the name stands for.
    pub path: Path,
}

/// Names of the modules that are files of their own (`mod name;`).
pub fn modules(code: &str) -> Vec<String> {
    let all: Vec<_> = words(code).collect();
    let declared = all.windows(2).filter(|pair| {
        let (at, name) = pair[1];
        pair[0].1 == "mod" && code[at + name.len()..].trim_start().starts_with(';')
    });
    declared.map(|pair| pair[1].1.to_owned()).collect()
}

/// What a file names of other modules.
#[derive(Debug, Default)]
pub struct Names {
    /// All that `use` declares.
    pub imports: Vec<Import>,
    /// All other paths of at least two names.
    pub paths: Vec<Path>,
}

/// Reads `code`. Inside of an inline module, a `super` that stays in the file becomes `self`.
pub fn names(code: &str) -> Names {
    let inline = inline_modules(code);
    let outside = |at: usize, path: Path| {
        let depth = inline.iter().filter(|(begin, end)| (*begin..*end).contains(&at)).count();
        let inner = path.iter().take_while(|name| *name == "super").count().min(depth);
        if inner == 0 { path } else { [vec!["self".to_owned()], path[inner..].to_vec()].concat() }
    };
    let mut names = Names::default();
    let mut at = 0;
    while let Some((begin, word)) =
        words(&code[at..]).next().map(|(begin, word)| (at + begin, word))
    {
        if word == "use" {
            let end = code[begin..].find(';').map_or(code.len(), |len| begin + len);
            let mut imports = Vec::new();
            read_tree(&code[begin + word.len()..end], &[], &mut imports);
            names
                .imports
                .extend(imports.into_iter().map(|i| Import { path: outside(begin, i.path), ..i }));
            at = end;
        } else {
            let (path, len) = read_path(&code[begin..]);
            at = begin + len;
            if path.len() > 1 {
                names.paths.push(outside(begin, path));
            }
        }
    }
    names
}

/// The path that `code` begins with, and its length.
fn read_path(code: &str) -> (Path, usize) {
    let (mut path, mut at) = (Path::new(), 0);
    loop {
        let rest = &code[at..];
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if len == 0 {
            return (path, at);
        }
        path.push(rest[..len].to_owned());
        at += len;
        match code[at..].strip_prefix("::") {
            Some(more) if more.starts_with(is_word) => at += 2,
            _ => return (path, at),
        }
    }
}

/// Reads one tree of `use`: `a::b`, `a::{self, b as c}`, `a::*`.
fn read_tree(tree: &str, prefix: &[String], imports: &mut Vec<Import>) {
    if let Some(open) = tree.find('{') {
        let group: Path =
            [prefix, &words(&tree[..open]).map(|(_, name)| name.to_owned()).collect::<Path>()[..]]
                .concat();
        let inner = &tree[open + 1..block_end(tree, open).saturating_sub(1)];
        for part in split(inner) {
            read_tree(part, &group, imports);
        }
        return;
    }
    let mut names: Path = words(tree).map(|(_, name)| name.to_owned()).collect();
    let alias = names.iter().position(|name| name == "as").map(|at| names.split_off(at));
    if tree.trim_end().ends_with('*') {
        names.push("*".to_owned());
    }
    if names == ["self"] && !prefix.is_empty() {
        names.clear();
    }
    let path = [prefix, &names].concat();
    let name = alias.as_ref().and_then(|alias| alias.get(1)).or_else(|| path.last());
    if let Some(name) = name.cloned() {
        imports.push(Import { name, path });
    }
}

/// The parts between commas that are in no braces.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => parts.push(&text[mem::replace(&mut begin, at + 1)..at]),
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Where the modules that are written inside the file begin and end.
fn inline_modules(code: &str) -> Vec<(usize, usize)> {
    let all: Vec<_> = words(code).collect();
    let inline = all.windows(2).filter_map(|pair| {
        let (at, name) = pair[1];
        let open = at + name.len() + code[at + name.len()..].find(|c: char| !c.is_whitespace())?;
        (pair[0].1 == "mod" && code[open..].starts_with('{')).then(|| (open, block_end(code, open)))
    });
    inline.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(code: &str) -> Vec<String> {
        let names = names(code);
        let imports = names.imports.iter().map(|i| format!("{}={}", i.name, i.path.join("::")));
        imports.chain(names.paths.iter().map(|path| path.join("::"))).collect()
    }

    #[test]
    fn a_module_with_a_file_is_one_without_a_body() {
        assert_eq!(modules("pub mod a;\nmod b { mod c; }\nmod d ;"), ["a", "c", "d"]);
    }

    #[test]
    fn a_use_declares_each_name_of_its_tree() {
        let wanted = ["A=crate::a::A", "b=crate::a::b", "d=crate::a::b::c", "*=crate::e::*"];
        assert_eq!(shown("pub(crate) use crate::{a::{A, b::{self, c as d}}, e::*};"), wanted);
        assert_eq!(shown("use super::x;"), ["x=super::x"]);
    }

    #[test]
    fn paths_are_found_anywhere() {
        assert_eq!(
            shown("fn f(a: b::C) -> u8 { crate::d::e::<u8>(a.f) }"),
            ["b::C", "crate::d::e"]
        );
    }

    #[test]
    fn super_in_an_inline_module_may_stay_in_the_file() {
        assert_eq!(
            shown("mod a { use super::b; use super::super::c; } use super::d;"),
            ["b=self::b", "c=self::super::c", "d=super::d"]
        );
    }
}
