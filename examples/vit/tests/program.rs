//! The first command of the README, shortened.

use std::process::Command;

#[test]
fn program_trains_the_weights_of_stock_burn() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vit"))
        .args(["--epochs", "1", "--compare", "--output"])
        .arg(folder.path())
        .output()
        .unwrap();
    let [printed, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{printed}{errors}");
    let expected = "largest difference between the weights: 0e0";
    assert!(printed.contains(expected), "{printed}");
    assert!(folder.path().join("model.bpk").exists());
}
