//! Counts the heap that each thread holds through this archive, so that what it does for a stranger
//! can be bounded.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local!(static HELD: Cell<isize> = const { Cell::new(0) });

fn count(bytes: isize) {
    // A thread that ends has no counter any more; nobody asks for it then.
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_add(bytes)));
}

// SAFETY: every call goes to the system's allocator as it is; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        System.alloc_zeroed(layout)
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        System.dealloc(memory, layout)
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        System.realloc(memory, layout, size)
    }
}

/// Bytes that this thread allocated less those that it freed. What another thread frees stays
/// counted here, so only differences over a short while mean something.
pub fn held() -> isize {
    HELD.with(Cell::get)
}
