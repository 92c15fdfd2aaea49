//! Methods of Python's str and list for templates, where minijinja-contrib's pycompat has none or
//! differs from Python (white space, line ends).

use minijinja::value::{from_args, Kwargs, Value, ValueKind};
use minijinja::{Error, State};
use minijinja_contrib::pycompat;

use crate::python::{error, is_space};

fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let strip_char = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let text = if left { text.trim_start_matches(strip_char) } else { text };
    if right { text.trim_end_matches(strip_char) } else { text }
}

/// The `trim` filter.
pub fn trim(value: &Value, chars: Option<&str>) -> String {
    strip(&crate::python::to_str(value), chars, true, true).to_string()
}

fn split_on_space(text: &str, max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if parts.len() == max {
            parts.push(rest.trim_end_matches(is_space));
            break;
        }
        let end = rest.find(is_space).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    parts
}

fn rsplit_on_space(text: &str, max: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if parts.len() == max {
            parts.push(rest.trim_start_matches(is_space));
            break;
        }
        let space = rest.char_indices().rev().find(|&(_, c)| is_space(c));
        let begin = space.map_or(0, |(at, c)| at + c.len_utf8());
        parts.push(&rest[begin..]);
        rest = rest[..begin].trim_end_matches(is_space);
    }
    parts.reverse();
    parts
}

/// str.split and str.rsplit
fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (sep, max, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let sep = sep.or(kwargs.get("sep")?);
    let max = max.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let parts: Vec<&str> = match (sep, from_right) {
        (Some(""), _) => return Err(error("empty separator")),
        (Some(sep), false) => text.splitn(max.saturating_add(1), sep).collect(),
        (Some(sep), true) => {
            let mut parts: Vec<_> = text.rsplitn(max.saturating_add(1), sep).collect();
            parts.reverse();
            parts
        }
        (None, false) => split_on_space(text, max),
        (None, true) => rsplit_on_space(text, max),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn splitlines(text: &str, keep_ends: bool) -> Value {
    const ENDS: &[char] = &[
        '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}',
        '\u{2029}',
    ];
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let at = rest.find(ENDS).unwrap_or(rest.len());
        let end = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(Value::from(&rest[..if keep_ends { at + end } else { at }]));
        rest = &rest[at + end..];
    }
    Value::from(lines)
}

fn partition(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (sep,): (&str,) = from_args(args)?;
    let found = if from_right { text.rsplit_once(sep) } else { text.split_once(sep) };
    let parts = match found {
        Some((before, after)) => [before, sep, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let one = |args| from_args::<(&str,)>(args).map(|(s,)| s);
    let stripped = |left, right| {
        let (chars,): (Option<&str>,) = from_args(args)?;
        Ok(Value::from(strip(text, chars, left, right)))
    };
    Some(match method {
        "strip" => stripped(true, true),
        "lstrip" => stripped(true, false),
        "rstrip" => stripped(false, true),
        "split" => split(text, args, false),
        "rsplit" => split(text, args, true),
        "partition" => partition(text, args, false),
        "rpartition" => partition(text, args, true),
        "splitlines" => from_args(args).and_then(|(keep, kwargs): (Option<bool>, Kwargs)| {
            Ok(splitlines(text, keep.or(kwargs.get("keepends")?).unwrap_or(false)))
        }),
        "isspace" => Ok(Value::from(!text.is_empty() && text.chars().all(is_space))),
        "removeprefix" => one(args).map(|p| text.strip_prefix(p).unwrap_or(text).into()),
        "removesuffix" => one(args).map(|s| text.strip_suffix(s).unwrap_or(text).into()),
        "index" => one(args).and_then(|s| match text.find(s) {
            Some(at) => Ok(Value::from(text[..at].chars().count())),
            None => Err(error("substring not found")),
        }),
        _ => return None,
    })
}

/// Calls a method that minijinja does not have.
pub fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(result) = string_method(text, method, args) {
            return result;
        }
    }
    if value.kind() == ValueKind::Seq && method == "index" {
        let (what,): (&Value,) = from_args(args)?;
        return match value.try_iter()?.position(|item| item == *what) {
            Some(at) => Ok(Value::from(at)),
            None => Err(error(format!("{what} is not in list"))),
        };
    }
    if value.kind() == ValueKind::Map && method == "copy" {
        return Ok(value.clone());
    }
    pycompat::unknown_method_callback(state, value, method, args)
}
