//! Limits of one rendering of a chat template. Templates come with models: they are foreign
//! programs. All limits grow with the messages, so that long conversations pass.

use std::cell::Cell;
use std::fmt::{self, Write};

use minijinja::value::Value;
use minijinja::Error;

use crate::held_memory::held;
use crate::python;

const MIB: u64 = 1 << 20;

/// The deepest nesting that any reader of this archive accepts.
pub const MAX_DEPTH: usize = 512;

/// Limits for messages of `input` bytes of JSON.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Steps of the template's program.
    steps: u64,
    /// Bytes of its output.
    text: u64,
    /// Bytes of heap that it holds at any time.
    memory: u64,
    /// Bytes that its operations read and make.
    work: u64,
}

impl Bounds {
    pub const fn of(input: u64) -> Bounds {
        Bounds {
            steps: 20_000_000 + 1_000 * input,
            text: 64 * MIB + 16 * input,
            memory: 256 * MIB + 64 * input,
            work: 8192 * MIB + 65_536 * input,
        }
    }
}

struct Left {
    bounds: Cell<Bounds>,
    steps: Cell<u64>,
    text: Cell<u64>,
    work: Cell<u64>,
    memory_end: Cell<isize>,
}

thread_local!(static LEFT: Left = const {
    Left {
        bounds: Cell::new(Bounds::of(0)),
        steps: Cell::new(0),
        text: Cell::new(0),
        work: Cell::new(0),
        memory_end: Cell::new(isize::MAX),
    }
});

/// Begins a rendering on this thread.
pub fn start(bounds: Bounds) {
    LEFT.with(|left| {
        left.bounds.set(bounds);
        left.steps.set(bounds.steps);
        left.text.set(bounds.text);
        left.work.set(bounds.work);
        left.memory_end.set(held().saturating_add(bounds.memory as isize));
    })
}

/// A limit that a template exceeded, in words.
#[derive(Debug)]
pub struct Spent(String);
impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Spent {}

#[cold]
pub fn spent(what: String) -> Error {
    python::error(what.clone()).with_source(Spent(what))
}

fn amount(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

fn take(cell: &Cell<u64>, bytes: usize) -> bool {
    let left = cell.get().checked_sub(bytes as u64);
    cell.set(left.unwrap_or(0));
    left.is_some()
}

/// Counts steps of the program.
pub fn steps(count: usize) -> Result<(), Error> {
    LEFT.with(|left| match take(&left.steps, count) {
        true => Ok(()),
        false => Err(spent(format!("takes more than {} steps", left.bounds.get().steps))),
    })
}

/// Counts bytes of output.
pub fn text(bytes: usize) -> Result<(), Error> {
    LEFT.with(|left| match take(&left.text, bytes) {
        true => room(0),
        false => Err(spent(format!("writes more than {} of text", amount(left.bounds.get().text)))),
    })
}

/// Counts bytes that an operation reads or makes.
pub fn work(bytes: usize) -> Result<(), Error> {
    LEFT.with(|left| match take(&left.work, bytes) {
        true => Ok(()),
        false => Err(spent(format!(
            "copies and compares more than {}",
            amount(left.bounds.get().work)
        ))),
    })
}

/// Checks that the heap may grow by `bytes`, before they are allocated.
pub fn room(bytes: usize) -> Result<(), Error> {
    LEFT.with(|left| {
        let free = left.memory_end.get().saturating_sub(held()).max(-1);
        match free >= 0 && bytes as u128 <= free as u128 {
            true => Ok(()),
            false => Err(spent(format!(
                "holds more than {} of memory",
                amount(left.bounds.get().memory)
            ))),
        }
    })
}

/// Counts the work of a new value of `bytes`, and checks its memory.
pub fn make(bytes: usize) -> Result<(), Error> {
    work(bytes)?;
    room(bytes)
}

/// Text that grows within the limits.
#[derive(Default)]
struct Growing {
    text: String,
    failed: Option<Error>,
}

impl Write for Growing {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        // A growing string briefly has its old and its new buffer.
        let needed = if self.text.capacity() - self.text.len() < more.len() {
            2 * self.text.len() + more.len()
        } else {
            0
        };
        if let Err(e) = work(more.len()).and_then(|()| room(needed)) {
            self.failed = Some(e);
            return Err(fmt::Error);
        }
        self.text.push_str(more);
        Ok(())
    }
}

/// Returns the concatenated text of the values.
pub fn joined(values: &[&Value]) -> Result<String, Error> {
    let mut out = Growing::default();
    for value in values {
        if write!(out, "{value}").is_err() {
            return Err(out.failed.unwrap_or_else(|| python::error("a value cannot be printed")));
        }
    }
    Ok(out.text)
}
