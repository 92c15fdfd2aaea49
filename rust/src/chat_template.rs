//! Renders chat templates as transformers does: its Jinja environment rebuilt on minijinja.

use std::cell::RefCell;
use std::collections::BTreeMap;

use minijinja::machinery::{eval, make_string_output, Instructions};
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error};
use serde_json::{Map, Value as Json};

use crate::budget::{self, Bounds, Spent};
use crate::generation_blocks::{take_marks, Marks};
use crate::local_time::{strftime, LocalTime};
use crate::template_guards::{add_filter, emit, install, method};
use crate::{json, python, python_methods, template_code, template_scan, template_values};
use crate::{Result, UserError};

pub struct Rendered {
    pub text: String,
    pub generation: Vec<(usize, usize)>,
}

/// The message of raise_exception: the template's own words.
#[derive(Debug)]
struct Raised(String);
impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

fn raise_exception(message: String) -> std::result::Result<Value, Error> {
    Err(python::error(message.clone()).with_source(Raised(message)))
}

/// Jinja: true for everything with a length and items, including strings and mappings.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::*;
    matches!(value.kind(), Seq | String | Map | Undefined)
}

/// Jinja: true for everything that iter() accepts; not for None, but for strings.
fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

const BEGIN_MARK: &str = "__generation_begin";
const END_MARK: &str = "__generation_end";
const NAME: &str = "chat_template";

struct Compiled {
    source: String,
    environment: Environment<'static>,
    /// Borrows from `rewritten`, which is dropped after it and never changed.
    code: Instructions<'static>,
    has_generation: bool,
    _rewritten: String,
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_formatter(emit);
    env.set_unknown_method_callback(method);
    install(&mut env);
    add_filter(&mut env, "tojson", Value::from_function(python::tojson));
    add_filter(&mut env, "trim", Value::from_function(python_methods::trim));
    add_filter(
        &mut env,
        "string",
        Value::from_function(|value: &Value| match value.as_object() {
            Some(_) => budget::joined(&[value]),
            None => Ok(python::to_str(value)),
        }),
    );
    let length = |value: &Value| match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None => Err(python::error(format!("object of type {} has no length", value.kind()))),
    };
    add_filter(&mut env, "length", Value::from_function(length));
    add_filter(&mut env, "count", Value::from_function(length));
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_function("raise_exception", raise_exception);
    env
}

fn compile(source: &str) -> Result<Compiled> {
    let rewritten = template_scan::scan(source, BEGIN_MARK, END_MARK)?;
    let has_generation = rewritten.is_some();
    let rewritten = rewritten.unwrap_or_else(|| source.to_string());
    // SAFETY: the text's heap allocation outlives the code that borrows it, in the same struct.
    let text: &'static str = unsafe { &*(rewritten.as_str() as *const str) };
    let code = template_code::compile(NAME, text).map_err(explain)?;
    Ok(Compiled {
        source: source.to_string(),
        environment: environment(),
        code,
        has_generation,
        _rewritten: rewritten,
    })
}

thread_local!(static LAST: RefCell<Option<Compiled>> = const { RefCell::new(None) });

/// Returns the compiled template. Each thread keeps its last one, which is taken here and put back.
fn compiled(source: &str) -> Result<Compiled> {
    match LAST.take() {
        Some(kept) if kept.source == source => Ok(kept),
        _ => compile(source),
    }
}

/// A message's reasoning has three possible names; templates read `reasoning_content` or
/// `thinking`.
fn alias_reasoning(message: &mut Json) {
    let Json::Object(fields) = message else { return };
    let names = ["reasoning_content", "thinking", "reasoning"];
    let found = names.iter().find_map(|name| fields.get(*name).filter(|v| !v.is_null())).cloned();
    if let Some(reasoning) = found {
        let mut aliased = Map::new();
        aliased.insert("thinking".into(), reasoning.clone());
        aliased.extend(std::mem::take(fields));
        aliased.insert("reasoning_content".into(), reasoning);
        *fields = aliased;
    }
}

fn explain(error: Error) -> UserError {
    let line = error.line().map_or(String::new(), |line| format!(", line {line}"));
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return UserError(format!("The chat template refuses this chat: {raised}"));
        }
        if let Some(bound) = inner.downcast_ref::<Spent>() {
            return UserError(format!("Chat template{line}: it {bound}, which is its bound."));
        }
        source = inner.source();
    }
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    UserError(format!("Chat template{line}: {what}"))
}

/// The variable with the time for the function of this name.
const TIME_VARIABLE: &str = "strftime_now";

fn take_time(variables: &mut Map<String, Json>) -> Result<Option<LocalTime>> {
    let Some(given) = variables.remove(TIME_VARIABLE) else { return Ok(None) };
    let time = given.as_str().and_then(|text| text.parse::<LocalTime>().ok());
    time.map(Some).ok_or_else(|| UserError(format!("{given} is no date and time (ISO 8601)")))
}

pub fn render(source: &str, variables_json: &str) -> Result<Rendered> {
    let mut variables: Map<String, Json> = json::parse(variables_json)
        .map_err(|e| UserError(format!("Chat template variables are no JSON object: {}", e.what)))?;
    let time = take_time(&mut variables)?;
    if let Some(Json::Array(messages)) = variables.get_mut("messages") {
        messages.iter_mut().for_each(alias_reasoning);
    }
    // transformers always passes these.
    for (name, value) in
        [("tools", Json::Null), ("documents", Json::Null), ("add_generation_prompt", false.into())]
    {
        variables.entry(name).or_insert(value);
    }
    let mut template = compiled(source)?;
    template
        .environment
        .add_function(TIME_VARIABLE, move |format: &str| strftime(time.as_ref(), format));
    let marks = if template.has_generation {
        let marks = Marks::absent_from(&[source, variables_json]);
        variables.insert(BEGIN_MARK.into(), marks.begin.clone().into());
        variables.insert(END_MARK.into(), marks.end.clone().into());
        Some(marks)
    } else {
        None
    };
    let root = template_values::from_json(&Json::Object(variables));
    let mut text = String::new();
    budget::start(Bounds::of(variables_json.len() as u64));
    let result = run(&template, root, &mut text);
    LAST.set(Some(template));
    result.map_err(explain)?;
    Ok(match marks {
        Some(marks) => {
            let (text, generation) = take_marks(&text, &marks);
            Rendered { text, generation }
        }
        None => Rendered { text, generation: Vec::new() },
    })
}

fn run(
    template: &Compiled,
    root: Value,
    text: &mut String,
) -> std::result::Result<(), Error> {
    let mut out = make_string_output(text);
    let no_blocks = BTreeMap::new();
    let (env, code) = (&template.environment, &template.code);
    eval(env, code, root, &no_blocks, &mut out, AutoEscape::None).map(drop)
}
