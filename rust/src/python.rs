//! Formats values as Python does: str(), json.dumps(), str.isspace().

use std::fmt::Write;

use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind};

use crate::budget;

pub fn error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// str.isspace(): Unicode white space and the four separators U+001C to U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// float.__repr__: the shortest digits that round-trip, with an exponent below 1e-4 and from 1e16.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("{:e} writes an exponent");
    let exponent: i32 = exponent.parse().expect("an exponent is an integer");
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

pub fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    if is_float { f64::try_from(value.clone()).ok() } else { None }
}

/// str(value)
pub fn to_str(value: &Value) -> String {
    match as_float(value) {
        Some(float) => float_repr(float),
        None => value.to_string(),
    }
}

fn json_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

struct Dumper {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    out: String,
}

impl Dumper {
    fn scalar(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match as_float(value) {
                Some(float) if float.is_nan() => self.out.push_str("NaN"),
                Some(float) if float.is_infinite() => {
                    self.out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" })
                }
                _ => self.out.push_str(&to_str(value)),
            },
            ValueKind::String => {
                json_string(value.as_str().unwrap_or_default(), self.ensure_ascii, &mut self.out)
            }
            kind => return Err(error(format!("Object of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    /// Counts the output since `before` bytes, and checks the memory for as much again.
    fn spend(&self, before: usize) -> Result<(), Error> {
        budget::work(self.out.len() - before)?;
        budget::room(self.out.len())
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            budget::room(depth * indent.len())?;
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
        Ok(())
    }

    fn items<T>(
        &mut self,
        brackets: [char; 2],
        items: Vec<T>,
        depth: usize,
        mut write: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        let empty = items.is_empty();
        for (i, item) in items.into_iter().enumerate() {
            let before = self.out.len();
            if i > 0 {
                self.out.push_str(&self.item_separator);
            }
            self.new_line(depth + 1)?;
            write(self, item)?;
            self.spend(before)?;
        }
        if !empty {
            self.new_line(depth)?;
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items(['[', ']'], items, depth, |d, item| d.value(&item, depth + 1))
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    let text = match key.kind() {
                        ValueKind::String => key.to_string(),
                        _ => {
                            // json.dumps writes the keys None, True and 1 as "null", "true", "1".
                            let start = self.out.len();
                            self.scalar(&key)?;
                            self.out.split_off(start)
                        }
                    };
                    pairs.push((text, item));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.items(['{', '}'], pairs, depth, |d, (key, item)| {
                    json_string(&key, d.ensure_ascii, &mut d.out);
                    d.out.push_str(&d.key_separator.clone());
                    d.value(&item, depth + 1)
                })
            }
            _ => self.scalar(value),
        }
    }
}

/// The `tojson` filter of transformers: json.dumps with its arguments, without ensure_ascii by
/// default.
pub fn tojson(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    type Given = (Option<bool>, Option<Value>, Option<Value>, Option<bool>, Kwargs);
    let args = args.into_values();
    let (ensure_ascii, indent, separators, sort_keys, kwargs) = from_args::<Given>(&args)?;
    let ensure_ascii = ensure_ascii.or(kwargs.get("ensure_ascii")?).unwrap_or(false);
    let indent = indent.or(kwargs.get("indent")?).filter(|v| !v.is_none());
    let separators = separators.or(kwargs.get("separators")?).filter(|v| !v.is_none());
    let sort_keys = sort_keys.or(kwargs.get("sort_keys")?).unwrap_or(false);
    kwargs.assert_all_used()?;

    let indent = match indent {
        None => None,
        Some(text) if text.as_str().is_some() => Some(text.to_string()),
        Some(count) => {
            let count = count.as_i64().ok_or_else(|| error("tojson: indent is no integer"))?;
            Some(" ".repeat(count.clamp(0, 64) as usize))
        }
    };
    let (item_separator, key_separator) = match separators {
        Some(pair) => (pair.get_item(&0.into())?.to_string(), pair.get_item(&1.into())?.to_string()),
        None => ((if indent.is_some() { "," } else { ", " }).to_string(), ": ".to_string()),
    };
    let out = String::new();
    let mut dumper = Dumper { ensure_ascii, indent, item_separator, key_separator, sort_keys, out };
    dumper.value(value, 0)?;
    Ok(Value::from(dumper.out))
}
