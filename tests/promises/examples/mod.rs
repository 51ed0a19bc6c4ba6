//! The small examples run.

#[path = "../../../examples/custom_loop.rs"]
mod custom_loop;
mod language_model;
#[path = "../../../examples/learner.rs"]
mod learner;
#[path = "../../../examples/lora.rs"]
mod lora;
#[path = "../../../examples/resume.rs"]
mod resume;
#[path = "../../../examples/two_devices.rs"]
mod two_devices;
#[path = "../../../examples/two_optimizers.rs"]
mod two_optimizers;
mod vit;

#[test]
fn small_examples_run() {
    learner::main();
    custom_loop::main().unwrap();
    lora::main().unwrap();
    resume::main().unwrap();
    two_devices::main().unwrap();
    two_optimizers::main().unwrap();
}
