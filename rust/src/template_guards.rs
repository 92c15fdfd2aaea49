//! The operators, filters, tests and methods of chat templates with the limits of a rendering:
//! their inputs are counted before they run, and multiplied results are refused before they are
//! allocated.

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{filters, tests, AutoEscape, Environment, Error, Output, State};

use crate::budget::{self, joined, make, room, spent, work};
use crate::python::error;
use crate::template_code::{INDEXED, KEPT, LISTED, SLICED, STEPS};
use crate::template_values::{chained, kept, listed, look};

/// Maximum growth factor of text that changes its case or is quoted.
const LONGER: usize = 6;
/// Bytes of a value that holds a single character.
const APART: usize = 64;
/// Maximum width of padded text.
const MAX_WIDTH: usize = 1 << 20;

enum Number {
    Int(i128),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    if !matches!(value.kind(), ValueKind::Number | ValueKind::Bool) {
        return None;
    }
    match crate::python::as_float(value) {
        Some(float) => Some(Number::Float(float)),
        None => i128::try_from(value.clone()).ok().map(Number::Int),
    }
}

fn int_value(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

fn calculate(
    name: &str,
    a: &Value,
    b: &Value,
    ints: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    use Number::*;
    let (Some(x), Some(y)) = (number(a), number(b)) else {
        return Err(error(format!(
            "tried to use {name} operator on unsupported types {} and {}",
            a.kind(),
            b.kind()
        )));
    };
    Ok(match (x, y) {
        (Int(x), Int(y)) => int_value(
            ints(x, y).ok_or_else(|| error(format!("unable to calculate {x} {name} {y}")))?,
        ),
        (Int(x), Float(y)) => floats(x as f64, y).into(),
        (Float(x), Int(y)) => floats(x, y as f64).into(),
        (Float(x), Float(y)) => floats(x, y).into(),
    })
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        make(x.len() + y.len())?;
        return Ok(Value::from([x, y].concat()));
    }
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() {
        return chained(a, b, 1);
    }
    calculate("+", a, b, i128::checked_add, |x, y| x + y)
}

fn multiply(a: &Value, b: &Value) -> Result<Value, Error> {
    let (what, times) = if a.as_str().is_some() || is_list(a) { (a, b) } else { (b, a) };
    let times = || {
        let no_count = "strings and lists can only be multiplied with integers that are not negative";
        times.as_usize().ok_or_else(|| error(no_count))
    };
    if let Some(text) = what.as_str() {
        let times = times()?;
        make(text.len().saturating_mul(times))?;
        return Ok(Value::from(text.repeat(times)));
    }
    if is_list(what) {
        return chained(what, &Value::from(Vec::<Value>::new()), times()?);
    }
    calculate("*", a, b, i128::checked_mul, |x, y| x * y)
}

fn concatenate(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        make(x.len() + y.len())?;
        return Ok(Value::from([x, y].concat()));
    }
    look(a)?;
    look(b)?;
    joined(&[a, b]).map(Value::from)
}

/// Called before two values are compared.
fn look_at_both(a: &Value, b: &Value) -> Result<(), Error> {
    match (a.as_object(), b.as_object()) {
        (None, None) => work(a.as_str().map_or(0, str::len)),
        // Values of two kinds differ at once.
        (None, _) | (_, None) => Ok(()),
        _ => look(a).and(look(b)).map(drop),
    }
}

/// Called before `value` is searched in `container`.
fn look_for(value: &Value, container: &Value) -> Result<(), Error> {
    look(value)?;
    match container.kind() {
        ValueKind::Map => Ok(()),
        _ => look(container).map(drop),
    }
}

fn contains(state: &State, value: &Value, container: &Value) -> Result<bool, Error> {
    look_for(value, container)?;
    tests::is_in(state, value, container)
}

/// Returns the largest number written in `text`.
fn largest_number(text: &str) -> usize {
    text.split(|c: char| !c.is_ascii_digit())
        .map(|digits| match digits.trim_start_matches('0') {
            "" => 0,
            digits => digits.parse().unwrap_or(usize::MAX),
        })
        .max()
        .unwrap_or(0)
}

fn narrow(width: usize, what: &str) -> Result<(), Error> {
    if width > MAX_WIDTH {
        return Err(spent(format!("pads text by more than {MAX_WIDTH} characters ({what})")));
    }
    Ok(())
}

/// Checks the widths in a format string, and in its arguments.
fn narrow_format(format: &str, args: &[Value]) -> Result<(), Error> {
    narrow(largest_number(format), "format")?;
    let num_fields = format.matches(['%', '{']).count();
    let wide = args.iter().filter_map(Value::as_usize).filter(|&width| width <= MAX_WIDTH);
    // A width may come from the arguments.
    let from_args = format.contains('*') || format.split('{').any(|part| part.contains(':'));
    let widest = if from_args { wide.max().unwrap_or(0) } else { 0 };
    if from_args && format.contains('*') {
        narrow(args.iter().filter_map(Value::as_usize).max().unwrap_or(0), "format")?;
    }
    room(num_fields.saturating_mul(largest_number(format).max(widest).saturating_mul(4)))
}

fn replaced(text: &str, from: &str, to: &str) -> Result<(), Error> {
    let most = (text.len() / from.len().max(1) + 1).saturating_mul(to.len());
    if most <= MAX_WIDTH {
        return Ok(());
    }
    let count = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
    make(text.len().saturating_add(count.saturating_mul(to.len())))
}

/// Counts the memory that a call of this filter or method may need besides its arguments.
fn before(name: &str, args: &[Value]) -> Result<(), Error> {
    let mut bytes = 0usize;
    for value in args {
        // Lengths and items of maps are known without visiting their contents.
        let shallow = value.as_object().is_some()
            && match name {
                "length" | "count" => args.len() == 1,
                "default" | "d" | "get" | "keys" | "first" => true,
                _ => false,
            };
        bytes = bytes.saturating_add(if shallow { 64 } else { look(value)? });
    }
    let text = |at: usize| args.get(at).and_then(Value::as_str);
    let count = |at: usize| args.get(at).and_then(Value::as_usize);
    let keyword = |name: &str| {
        let kwargs = args.last().filter(|last| last.is_kwargs())?;
        kwargs.get_attr(name).ok().filter(|value| !value.is_undefined())
    };
    match name {
        "join" => {
            // text.join(list), or list|join(text)
            let (list, joiner) = match (text(0), args.get(1)) {
                (Some(joiner), Some(list)) if list.as_object().is_some() => (Some(list), joiner.len()),
                (_, joiner) => {
                    let joiner = joiner.filter(|value| !value.is_kwargs()).cloned();
                    let joiner = joiner.or_else(|| keyword("d"));
                    (args.first(), joiner.and_then(|j| j.as_str().map(str::len)).unwrap_or(0))
                }
            };
            let length = list.and_then(Value::len).unwrap_or(bytes / 64);
            bytes = bytes.saturating_add(length.saturating_mul(joiner));
        }
        "replace" => {
            if let (Some(text), Some(from), Some(to)) = (text(0), text(1), text(2)) {
                replaced(text, from, to)?;
            }
        }
        "indent" => {
            let width = keyword("width").and_then(|width| width.as_usize());
            let width = count(1).or(width).unwrap_or(4);
            narrow(width, "indent")?;
            let lines = text(0).map_or(1, |text| text.matches('\n').count() + 1);
            make(lines.saturating_mul(width))?;
        }
        "format" => narrow_format(text(0).unwrap_or_default(), &args[1..])?,
        "batch" | "slice" => {
            let parts = count(1).or_else(|| keyword("linecount")?.as_usize()).unwrap_or(1);
            make(parts.saturating_mul(APART))?;
        }
        "sort" | "dictsort" | "groupby" | "unique" | "min" | "max" => {
            work(bytes.saturating_mul(24))?;
        }
        "sum" => {
            // Each step makes a new sum.
            let of_numbers = args[0].try_iter().is_ok_and(|mut items| {
                items.next().is_none_or(|item| item.as_object().is_none() && item.as_str().is_none())
            });
            if !of_numbers {
                work(bytes.saturating_mul(args[0].len().unwrap_or(bytes)))?;
            }
        }
        _ => {}
    }
    let apart = matches!(
        name,
        "split" | "rsplit" | "splitlines" | "lines" | "partition" | "list" | "sort" | "unique" | "batch"
            | "slice" | "map" | "select" | "reject" | "groupby" | "reverse"
    );
    let times = if apart && text(0).is_some() { APART } else { LONGER };
    room(bytes.saturating_mul(times))
}

/// Calls a method of Python's text, lists and dicts within the limits.
pub fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let mut all = Vec::with_capacity(args.len() + 1);
    all.push(value.clone());
    all.extend_from_slice(args);
    before(name, &all)?;
    let made = crate::python_methods::call(state, value, name, args)?;
    room(0)?;
    Ok(made)
}

/// Adds a filter that keeps the limits.
pub fn add_filter(env: &mut Environment, name: &'static str, filter: Value) {
    env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        before(name, &args)?;
        let made = filter.call(state, &args)?;
        room(0)?;
        Ok::<Value, Error>(made)
    });
}

fn add_test(env: &mut Environment, names: &[&'static str], test: fn(&Value, &Value) -> bool) {
    for name in names {
        env.add_test(*name, move |a: &Value, b: &Value| {
            look_at_both(a, b)?;
            Ok::<bool, Error>(test(a, b))
        });
    }
}

macro_rules! guard_filters {
    ($env:expr, $($name:ident),*) => {
        $(add_filter($env, stringify!($name), Value::from_function(filters::$name));)*
    };
}

fn add_operators(env: &mut Environment) {
    env.add_filter("!+", add);
    env.add_filter("!*", multiply);
    env.add_filter("!~", concatenate);
    type Compare = fn(&Value, &Value) -> bool;
    let compares: [(&'static str, Compare); 6] = [
        ("!==", |a, b| a == b),
        ("!!=", |a, b| a != b),
        ("!>", |a, b| a > b),
        ("!>=", |a, b| a >= b),
        ("!<", |a, b| a < b),
        ("!<=", |a, b| a <= b),
    ];
    for (name, compare) in compares {
        env.add_filter(name, move |a: &Value, b: &Value| {
            look_at_both(a, b)?;
            Ok::<bool, Error>(compare(a, b))
        });
    }
    env.add_filter("!in", |state: &State, value: &Value, container: &Value| {
        match container.kind() {
            // The test of this name treats them as empty, unlike Jinja's operator.
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                Err(error("cannot perform a containment check on this value"))
            }
            _ => contains(state, value, container),
        }
    });
    env.add_filter("!both", |a: &Value, b: &Value| {
        look(a).and(look(b))?;
        Ok::<Value, Error>(Value::from(vec![b.clone(), a.clone()]))
    });
    env.add_filter(STEPS, |count: usize| budget::steps(count).map(|()| Value::from(())));
    env.add_filter(KEPT, kept);
    env.add_filter(LISTED, |value: Value| {
        budget::make(value.as_str().map_or(0, str::len))?;
        listed(value)
    });
    env.add_filter(INDEXED, |value: Value| {
        // Indexing a character counts characters; indexing a lazy value makes all items before it.
        work(value.as_str().map_or(0, str::len))?;
        listed(value)
    });
    env.add_filter(SLICED, |value: &Value, start: &Value, stop: &Value, step: &Value| {
        make(value.as_str().map_or(0, str::len))?;
        let args = [step, stop, start, value].map(Value::clone);
        Ok::<Value, Error>(Value::from(args.to_vec()))
    });
}

/// Replaces minijinja's filters, tests and operators by Jinja's with limits. Removes `chain` and
/// `debug`, which Jinja lacks.
pub fn install(env: &mut Environment) {
    env.remove_filter("chain");
    env.remove_global("debug");
    guard_filters!(
        env, safe, escape, upper, lower, title, capitalize, replace, dictsort, items, reverse, join,
        default, round, abs, int, float, attr, first, last, min, max, sort, list, batch, slice, sum,
        indent, select, reject, selectattr, rejectattr, map, groupby, unique, pprint, format,
        split, lines, bool, zip
    );
    add_filter(env, "e", Value::from_function(filters::escape));
    add_filter(env, "d", Value::from_function(filters::default));
    add_test(env, &["eq", "equalto", "=="], |a, b| a == b);
    add_test(env, &["ne", "!="], |a, b| a != b);
    add_test(env, &["lt", "lessthan", "<"], |a, b| a < b);
    add_test(env, &["le", "<="], |a, b| a <= b);
    add_test(env, &["gt", "greaterthan", ">"], |a, b| a > b);
    add_test(env, &["ge", ">="], |a, b| a >= b);
    env.add_test("in", contains);
    add_operators(env);
}

/// Prints a value.
pub fn emit(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let escapes = !value.is_safe() && !matches!(state.auto_escape(), AutoEscape::None);
    if let (Some(text), false) = (value.as_str(), escapes) {
        budget::text(text.len())?;
        return out.write_str(text).map_err(Error::from);
    }
    if let Some(float) = crate::python::as_float(value) {
        return out.write_str(&crate::python::float_repr(float)).map_err(Error::from);
    }
    let bytes = look(value)?;
    if escapes || value.as_object().is_none() {
        budget::text(if escapes { bytes.saturating_mul(LONGER) } else { bytes })?;
        return minijinja::escape_formatter(out, state, value);
    }
    let text = joined(&[value])?;
    budget::text(text.len())?;
    out.write_str(&text).map_err(Error::from)
}
