//! The destination of asynchronous events.

use std::fmt::Debug;

use polypath_verbs::{AsyncEvent, Element};

/// A receiver of asynchronous events: the context that an object belongs to.
pub(crate) trait Raise: Debug + Send + Sync {
    /// Queues an event for the application.
    fn raise(&self, event: AsyncEvent);

    /// Takes back the events of an object that is destroyed, unless the application has got them.
    fn forget(&self, element: Element);

    /// Counts an object less in a protection domain of this context.
    fn release_pd(&self, _pd: u32) {}
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex, Weak};

    use super::*;

    /// Records the events that were raised.
    #[derive(Debug, Default)]
    pub(crate) struct Recorder(pub(crate) Mutex<Vec<AsyncEvent>>);

    impl Raise for Recorder {
        fn raise(&self, event: AsyncEvent) {
            self.0.lock().unwrap().push(event);
        }

        fn forget(&self, element: Element) {
            self.0.lock().unwrap().retain(|event| event.element != element);
        }
    }

    impl Recorder {
        pub(crate) fn owner(self: &Arc<Self>) -> Weak<dyn Raise> {
            let weak: Weak<Self> = Arc::downgrade(self);
            weak
        }
    }
}
