//! Reads lines from a terminal, with editing keys and a history.

use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};

use crate::{Result, UserError};

pub struct LineEditor(Editor<(), MemHistory>);

pub enum Line {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the terminal was closed.
    End,
}

impl LineEditor {
    pub fn new() -> Result<LineEditor> {
        let config = Config::builder().auto_add_history(true).build();
        Editor::with_history(config, MemHistory::new())
            .map(LineEditor)
            .map_err(|e| UserError(format!("Cannot read from the terminal: {e}")))
    }

    /// Pasted text of several lines is one line.
    pub fn read(&mut self, prompt: &str) -> Result<Line> {
        match self.0.readline(prompt) {
            Ok(text) => Ok(Line::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(e) => Err(UserError(format!("Cannot read from the terminal: {e}"))),
        }
    }
}
