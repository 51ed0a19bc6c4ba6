//! The program of the README's picture, with a small model.

use std::process::Command;

#[test]
fn program_draws_pictures_of_each_variant() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_memory_timeline"))
        .args(["--preset", "digits", "--output"])
        .arg(folder.path())
        .output()
        .unwrap();
    let [printed, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{printed}{errors}");
    let files = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "fused-and-fused-gradient-checkpointing.png",
        "fused-and-fused-gradient-checkpointing.svg",
        "fused-gradient-checkpointing.json",
        "fused.json",
        "stock-and-fused.png",
        "stock-and-fused.svg",
        "stock.json",
    ];
    assert_eq!(names, expected);
}
