use std::cell::RefCell;

use burn::tensor::Device;

use crate::caught::catch;

thread_local! {
    static LOAD_ON: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// Lets `load` bring the states of this crate's optimizers to `device`. Burn brings states to its default device, and from there to
/// where they are used.
pub(crate) fn load_on<R>(device: &Device, load: impl FnOnce() -> R) -> R {
    let before = LOAD_ON.replace(Some(device.clone()));
    let loaded = catch(load);
    LOAD_ON.set(before);
    loaded.unwrap_or_else(|panic| panic.resume())
}

/// Where a state is loaded that Burn would bring to `device`.
pub(crate) fn loads_on(device: &Device) -> Device {
    let asked_for = LOAD_ON.with_borrow(Option::clone);
    asked_for.unwrap_or_else(|| device.clone())
}
