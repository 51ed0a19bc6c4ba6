//! No module of the crate imports from one above it, and no files in a cycle.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, iter};

/// Returns the modules in the table of `lib.rs`, each above all that it imports from.
fn order(root: &str) -> Vec<&str> {
    let rows = root.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let names = rows
        .filter_map(|row| row.split_once("` |"))
        .map(|(name, _)| name);
    names
        .filter(|name| !name.starts_with("backburn-"))
        .collect()
}

/// The crates below all modules.
const CRATES: &[&str] = &["backburn_base", "backburn_memory", "backburn_optim"];

/// Returns `source` without comments and code for tests alone.
fn code(source: &str) -> String {
    let lines = source.lines().map(str::trim_start);
    let mut lines = lines.filter(|line| !line.starts_with("//"));
    let mut kept = String::new();
    while let Some(line) = lines.next() {
        if line.starts_with("#[cfg(") && line.contains("test") {
            match lines.next() {
                // The last item of its file.
                Some(item) if item.starts_with("mod tests {") => break,
                _ => continue,
            }
        }
        kept.push_str(line);
        kept.push(' ');
    }
    kept
}

/// Returns the names that `source` imports from the root of the crate.
fn imports(source: &str) -> Vec<String> {
    let code = code(source);
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == ':';
    let paths = code.match_indices("crate::").filter_map(|(at, word)| {
        let is_whole = !code[..at].ends_with(is_part);
        is_whole.then(|| &code[at + word.len()..])
    });
    paths.flat_map(first_names).collect()
}

/// Returns the first names of `path`, or of the group of paths that it begins with.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| -> String {
        let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
        path.trim_start().chars().take_while(is_part).collect()
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let mut depth = 0;
    let mut names = vec![name(group)];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(&group[at + 1..])),
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Returns the module or crate that each name at the root comes from.
fn origins(root: &str) -> HashMap<String, String> {
    let code = code(root);
    let statements = code.split(';').filter_map(|statement| {
        let (_, import) = statement.split_once("use ")?;
        let (from, rest) = import.split_once("::").or(import.split_once(' '))?;
        Some((from.to_string(), rest.to_string()))
    });
    let of = |(from, rest): (String, String)| {
        let names = rest.split_once("as ").map_or(&*rest, |(_, name)| name);
        let names = first_names(names);
        names.into_iter().zip(iter::repeat(from))
    };
    statements.flat_map(of).collect()
}

fn visit(folder: &Path, file: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => visit(&path, file),
            false => file(&path),
        }
    }
}

#[test]
fn modules_import_only_from_below() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = fs::read_to_string(src.join("lib.rs")).unwrap();
    let origins = origins(&root);
    let order = order(&root);
    let place = |module: &str| order.iter().position(|it| *it == module);
    let mut upward = Vec::new();
    let mut read = 0;
    visit(&src, &mut |path| {
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let module = inside.iter().next().unwrap().to_str().unwrap();
        if module == "lib" || path.ends_with("tests.rs") {
            return;
        }
        let Some(own) = place(module) else {
            panic!(
                "`{module}` is not in the table of `lib.rs`: put it above all that it imports from"
            );
        };
        for name in imports(&fs::read_to_string(path).unwrap()) {
            let from = origins.get(&name).unwrap_or(&name);
            read += 1;
            match place(from) {
                Some(other) if other < own => {
                    upward.push(format!("{} imports {name}", inside.display()))
                }
                Some(_) => {}
                None => assert!(
                    CRATES.contains(&&**from),
                    "{} imports {name}: is it in the table of `lib.rs`?",
                    inside.display()
                ),
            }
        }
    });
    assert!(read > 300, "only {read} imports were found");
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}

/// Returns the files of `folder` by the name of their module, with the files beside them that each imports from.
fn siblings(folder: &Path) -> HashMap<String, Vec<String>> {
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let files = files.filter(|path| path.is_file() && !path.ends_with("mod.rs"));
    let imports = |path: PathBuf| {
        let code = code(&fs::read_to_string(&path).unwrap());
        let paths = code.match_indices("use super::");
        let names = paths.flat_map(|(at, word)| first_names(&code[at + word.len()..]));
        let module = path.file_stem().unwrap().to_str().unwrap().to_string();
        (module, names.collect())
    };
    files.map(imports).collect()
}

/// Returns a module that imports from itself, through modules beside it.
fn cycle(imports: &HashMap<String, Vec<String>>) -> Option<&String> {
    let imported = |module: &String| imports.get(module).into_iter().flatten();
    imports.keys().find(|module| {
        let mut reached: Vec<_> = imported(module).collect();
        let mut next = 0;
        while let Some(other) = reached.get(next) {
            let new: Vec<_> = imported(other).filter(|it| !reached.contains(it)).collect();
            reached.extend(new);
            next += 1;
        }
        reached.contains(module)
    })
}

#[test]
fn files_of_folder_import_without_cycle() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![src];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        let siblings = siblings(&folder);
        let found = cycle(&siblings);
        assert_eq!(found, None, "in a cycle of {}", folder.display());
        read += siblings.len();
        let inside = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path());
        folders.extend(inside.filter(|path| path.is_dir()));
    }
    assert!(read > 150, "only {read} files were found");
}
