//! The small examples run.

#[path = "../../examples/custom_loop.rs"]
mod custom_loop;
#[path = "../../examples/learner.rs"]
mod learner;
#[path = "../../examples/lora.rs"]
mod lora;
#[path = "../../examples/resume.rs"]
mod resume;
#[path = "../../examples/two_devices.rs"]
mod two_devices;
#[path = "../../examples/two_optimizers.rs"]
mod two_optimizers;

#[test]
fn a_loop_of_ones_own() {
    custom_loop::main().unwrap();
}

#[test]
fn a_launched_training() {
    learner::main();
}

#[test]
fn adapters() {
    lora::main().unwrap();
}

#[test]
fn a_resumed_training_ends_with_the_same_weights() {
    resume::main().unwrap();
}

#[test]
fn two_ranks() {
    two_devices::main().unwrap();
}

#[test]
fn a_generator_and_a_critic() {
    two_optimizers::main().unwrap();
}
