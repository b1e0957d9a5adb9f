//! A model of threads at work, and of one that wants to know of them, for the checker loom: `make loom`.
//!
//! Loom knows no fence in all threads, so here each thread makes it itself.
#![cfg(loom)]

use isthmus_lockfree::at_work::AtWork;
use isthmus_lockfree::sync::{Word, full_fence};
use loom::sync::Arc;
use loom::thread;

#[test]
fn nobody_is_at_work_in_what_was_let_go() {
    loom::model(|| {
        // A mark, whether it is over, what is worked on, and whether that is let go.
        let shared = Arc::new((AtWork::new(), Word::new(0), Word::new(0), Word::new(0)));
        let far = Arc::clone(&shared);
        let worker = thread::spawn(move || {
            let (mark, over, work, gone) = &*far;
            let working = mark.begin().unwrap();
            if over.get() == 0 {
                work.put(1);
                assert_eq!(gone.peek(), 0, "at work in what is somebody else's");
            }
            drop(working);
        });
        let (mark, over, work, gone) = &*shared;
        over.set(1);
        full_fence();
        if !mark.is_set() {
            let before = work.peek();
            gone.put(1);
            worker.join().unwrap();
            assert_eq!(work.peek(), before, "it was done before, and is seen");
        } else {
            worker.join().unwrap();
        }
    });
}
