//! Caught panics.

use std::any::Any;
use std::fmt::{Debug, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The payload of a panic. A payload from user code may panic when it is dropped; `Caught` catches that.
pub struct Caught(Box<dyn Any + Send>);

/// Runs `work`. Returns its result or its panic.
pub fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Caught> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Caught)
}

/// Runs `work`. Returns its result or the message of its panic.
pub fn catch_message<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch(work).map_err(|panic| panic.message().to_string())
}

/// Runs `work`, then `after`, even if `work` panics.
pub fn finally<R>(work: impl FnOnce() -> R, after: impl FnOnce()) -> R {
    let ended = catch(work);
    after();
    ended.unwrap_or_else(|panic| panic.resume())
}

impl Caught {
    /// Creates a panic with this message.
    pub fn saying(text: String) -> Self {
        Self(Box::new(text))
    }

    /// Returns the message of the panic, if it has one.
    pub fn text(&self) -> Option<&str> {
        let text = self.0.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| self.0.downcast_ref::<&str>().copied())
    }

    /// Returns the message of the panic, or a default text.
    pub fn message(&self) -> &str {
        self.text().unwrap_or("it panicked without a message")
    }

    /// Returns the payload, if it is a `T`.
    pub fn downcast<T: 'static>(mut self) -> Result<T, Self> {
        self.take().downcast().map(|payload| *payload).map_err(Self)
    }

    /// Resumes the panic.
    pub fn resume(mut self) -> ! {
        resume_unwind(self.take())
    }

    fn take(&mut self) -> Box<dyn Any + Send> {
        std::mem::replace(&mut self.0, Box::new(()))
    }
}

impl Debug for Caught {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Caught").field(&self.text()).finish()
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        let carried = self.take();
        if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(carried))) {
            // Dropping the next payload could panic again without end.
            std::mem::forget(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic_any(Bomb);
        }
    }

    #[test]
    fn caught_payload_panicking_on_drop_is_contained() {
        let caught = catch(|| panic_any(Bomb)).unwrap_err();
        assert_eq!(caught.text(), None);
        drop(caught);
        // Also during another panic.
        let caught = catch(|| {
            let _dropped = catch(|| panic_any(Bomb));
            panic!("goes on")
        });
        assert_eq!(caught.unwrap_err().text(), Some("goes on"));
        let caught = catch(|| panic_any(Bomb)).unwrap_err();
        let again = catch(|| caught.resume()).unwrap_err();
        assert!(again.0.is::<Bomb>());
    }
}
