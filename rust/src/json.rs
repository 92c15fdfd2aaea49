//! Parses foreign JSON with limits that are checked before a tree is built.

use serde::de::DeserializeOwned;

use crate::budget::MAX_DEPTH;

/// Maximum number of values in a text. Each takes tens of bytes of memory; the largest tokenizers
/// have 3 million.
const MAX_VALUES: usize = 8_000_000;

/// An error in a text: its place, as ", line 1, column 2" or empty, and the reason.
pub struct Broken {
    pub place: String,
    pub what: String,
}

/// Refuses deep nesting and too many values, with the place. The text may be invalid JSON.
fn check(text: &str) -> Result<(), Broken> {
    let (mut depth, mut values, mut line) = (0usize, 0usize, 1usize);
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            b'[' | b'{' => {
                depth += 1;
                values += 1;
                if depth > MAX_DEPTH {
                    let place = format!(", line {line}");
                    let what = format!("nested deeper than {MAX_DEPTH} levels");
                    return Err(Broken { place, what });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            b'\n' => line += 1,
            _ => {}
        }
    }
    if values > MAX_VALUES {
        let what = format!("it holds more than {MAX_VALUES} values");
        return Err(Broken { place: String::new(), what });
    }
    Ok(())
}

/// Parses one JSON value.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Broken> {
    check(text)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    // The check above is the limit.
    reader.disable_recursion_limit();
    T::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value)).map_err(|e| {
        let what = e.to_string();
        let end = what.rfind(" at line ").unwrap_or(what.len());
        Broken {
            place: format!(", line {}, column {}", e.line(), e.column()),
            what: format!("broken JSON: {}", &what[..end]),
        }
    })
}
