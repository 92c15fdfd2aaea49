//! Counts the heap memory that each thread holds through this archive, so that foreign inputs can
//! be limited.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local!(static HELD: Cell<isize> = const { Cell::new(0) });

fn count(bytes: isize) {
    // An ending thread has no counter any more, and nothing asks for it.
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_add(bytes)));
}

// SAFETY: every call is passed to the system's allocator unchanged; only counts are added.
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

/// Returns the bytes that this thread allocated minus those that it freed. Memory freed by another
/// thread stays counted here, so only differences over a short time are meaningful.
pub fn held() -> isize {
    HELD.with(Cell::get)
}
