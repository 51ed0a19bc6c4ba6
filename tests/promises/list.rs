//! The list of promises, `docs/promises.md`, is true: each is made on its page, and each test that keeps one is there.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Words, whatever the lines and marks that they stand in.
fn words(text: &str) -> String {
    let text = text.replace("**", "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether `source` has a test of this name: it is marked as one, or run by one, as are those of several backends, or a macro
/// makes it of a row that begins with the name.
fn has_test(source: &str, name: &str) -> bool {
    let row = format!("{name}: ");
    let mut lines = source.lines();
    if source.contains("fn $test()") && lines.any(|line| line.trim_start().starts_with(&row)) {
        return true;
    }
    let Some((before, after)) = source.split_once(&format!("fn {name}(")) else {
        return false;
    };
    let mut marks = before.lines().rev().take(4);
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut others = before
        .split(|c| !is_part(c))
        .chain(after.split(|c| !is_part(c)));
    marks.any(|line| line.trim() == "#[test]") || others.any(|word| word == name)
}

/// What is wrong with one row.
fn faults(page: &str, promise: &str, kept_by: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !page.contains(&words(promise)) {
        faults.push(format!("nobody promises `{}`", promise.trim()));
    }
    let mut file: Option<PathBuf> = None;
    let mut tests = 0;
    for name in quoted(kept_by) {
        let there = match (&file, name) {
            (_, name) if name.ends_with(".rs") => {
                file = Some(root().join("tests").join(name));
                file.as_ref().is_some_and(|file| file.exists())
            }
            // A benchmark or an example.
            (_, name) if name.contains('/') => {
                let path = root().join(name);
                path.is_dir() || path.with_extension("rs").exists()
            }
            (Some(file), name) => {
                tests += 1;
                read_to_string(file).is_ok_and(|source| has_test(&source, name))
            }
            (None, _) => false,
        };
        if !there {
            faults.push(format!("`{name}` is not there: {}", promise.trim()));
        }
    }
    if tests == 0 {
        faults.push(format!("no test keeps `{}`", promise.trim()));
    }
    faults
}

#[test]
fn every_promise_is_made_and_has_a_test() {
    let list = read_to_string(root().join("docs/promises.md")).unwrap();
    let mut page = None;
    let mut found = Vec::new();
    for line in list.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            page = Some(words(&read_to_string(root().join(name)).unwrap()));
        }
        let cells: Vec<_> = line.split('|').collect();
        if let (Some(page), [_, promise, kept_by, _]) = (&page, &cells[..])
            && quoted(kept_by).next().is_some()
        {
            found.extend(faults(page, promise, kept_by));
        }
    }
    assert!(page.is_some());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_promise_or_a_test_that_is_gone_shows() {
    let faults =
        |promise, kept_by| faults(&words("All of it,\nor **none**."), promise, kept_by).len();
    let kept = "`promises/list.rs`: `every_promise_is_made_and_has_a_test`; `benches/memory`";
    assert_eq!(faults(" it, or none ", kept), 0);
    assert_eq!(faults(" some of it ", kept), 1);
    assert_eq!(faults(" none ", "`promises/list.rs`: `is_gone`"), 1);
    assert_eq!(faults(" none ", "`promises/gone.rs`: `is_gone`"), 2);
    assert_eq!(faults(" none ", "`benches/memory`"), 1);
}

/// The pages that the summary names.
fn book() -> Vec<String> {
    let summary = read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1);
    let pages = links.filter_map(|link| link.split(')').next());
    pages.map(str::to_string).collect()
}

#[test]
fn every_page_is_in_the_book_and_every_program_in_it_is_run() {
    let book = book();
    let run = read_to_string(root().join("src/lib.rs")).unwrap();
    for file in root().join("docs").read_dir().unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".md") || name == "SUMMARY.md" {
            continue;
        }
        assert!(book.contains(&name), "{name} is not in the summary");
        let page = read_to_string(root().join("docs").join(&name)).unwrap();
        if page.contains("```rust") {
            let path = format!("\"../docs/{name}\"");
            assert!(run.contains(&path), "nobody runs the programs in {name}");
        }
    }
    for name in book {
        assert!(root().join("docs").join(&name).exists(), "{name}");
    }
}

/// What can be run or written right away: a program, commands, a manifest.
fn begins_with_something_to_run(page: &str) -> bool {
    let beginning: Vec<_> = page.lines().take(12).collect();
    let fences = ["```rust", "```sh", "```toml"];
    beginning
        .iter()
        .any(|line| fences.contains(line) || line.starts_with("```rust,no_run"))
}

#[test]
fn every_page_begins_with_something_to_run() {
    for name in book() {
        let page = read_to_string(root().join("docs").join(&name)).unwrap();
        let is_a_list = name == "promises.md";
        assert!(is_a_list || begins_with_something_to_run(&page), "{name}");
    }
    assert!(!begins_with_something_to_run(
        "# A page\n\nIt has none.\n```text\nHere.\n```\n"
    ));
}

/// The lines of the first program of a page that a book hides, but for the one that says what `?` returns.
fn hidden_at_the_beginning(page: &str) -> Vec<&str> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with("```"));
    let is_rust = lines.next().is_some_and(|line| line.starts_with("```rust"));
    let program = lines.take_while(|line| is_rust && *line != "```");
    let hidden = program.filter(|line| line.starts_with("# ") && !line.starts_with("# Ok::<"));
    hidden.collect()
}

/// That of the learner is the example `learner`, as its page says.
#[test]
fn the_first_program_of_a_page_can_be_copied_whole() {
    for name in book() {
        let page = read_to_string(root().join("docs").join(&name)).unwrap();
        let is_an_example = name == "learner.md";
        let hidden = hidden_at_the_beginning(&page);
        assert!(is_an_example || hidden.is_empty(), "{name}: {hidden:?}");
    }
    let hidden = "# A page\n```rust\n# let x = 1;\nprintln!(\"{x}\");\n# Ok::<(), ()>(())\n```\n";
    assert_eq!(hidden_at_the_beginning(hidden), ["# let x = 1;"]);
}

#[test]
fn the_front_page_is_short() {
    let page = read_to_string(root().join("README.md")).unwrap();
    assert!(page.lines().count() <= 130);
    // A host shows the lines that a book hides.
    let hashes = page.lines().filter(|line| line.starts_with("# "));
    assert_eq!(hashes.count(), 1, "the title, and no hidden line");
}

/// The cells of the tables of a page, without marks.
fn cells(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    rows.flat_map(|row| row.split('|'))
        .map(|cell| cell.trim().trim_end_matches(['*', '†', '‡']))
}

/// Whether `number` is a cell of a table of `page`, rounded to as many places.
fn prints(page: &str, number: &str) -> bool {
    let places = number.split_once('.').map_or(0, |(_, places)| places.len());
    let mut numbers = cells(page).filter_map(|cell| cell.parse::<f64>().ok());
    numbers.any(|found| format!("{found:.places$}") == number)
}

/// The numbers of `front` that no page has which names the benchmark in the last column of their row.
fn strange_numbers(front: &str, pages: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for row in front.lines().filter(|line| line.starts_with('|')) {
        let Some(bench) = quoted(row).last() else {
            continue;
        };
        let bench = format!("--bench {}", bench.split(' ').next().unwrap());
        let pages = pages.iter().filter(|page| page.contains(&bench));
        let cells = cells(row).map(|cell| cell.trim_end_matches(" (estimated)"));
        let numbers = cells.filter(|number| number.contains('.') && number.parse::<f64>().is_ok());
        for number in numbers {
            if !pages.clone().any(|page| prints(page, number)) {
                found.push(format!("{number} of `{bench}`"));
            }
        }
    }
    found
}

#[test]
fn the_numbers_of_the_front_page_stand_in_the_tables_of_the_book() {
    let read = |path: &str| read_to_string(root().join(path)).unwrap();
    let pages: Vec<String> = book()
        .iter()
        .map(|name| read(&format!("docs/{name}")))
        .collect();
    let found = strange_numbers(&read("README.md"), &pages);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let page = ["`cargo bench --bench muon`\n| Muon | 1.571 | 2.0* |\n".to_string()];
    let strange = |row| strange_numbers(row, &page).len();
    assert_eq!(strange("| Muon | 1.57 | 2.0 (estimated) | `muon` |"), 0);
    assert_eq!(strange("| Muon | 1.58 | 2.0 | `muon` |"), 1);
    assert_eq!(strange("| Muon | 1.57 | 2.0 | `memory` |"), 2);
}
