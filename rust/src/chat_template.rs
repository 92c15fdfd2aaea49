//! Chat templates as transformers renders them: its Jinja environment rebuilt on minijinja.

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error};
use serde_json::{Map, Value as Json};

use crate::generation_blocks::{rewrite, take_marks, Marks};
use crate::{python, python_methods, Result, UserError};

pub struct Rendered {
    pub text: String,
    pub generation: Vec<(usize, usize)>,
}

/// What raise_exception throws: the template's own words.
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

fn strftime_now(format: &str) -> std::result::Result<String, Error> {
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format))
        .map_err(|_| python::error(format!("strftime_now: no such format: {format}")))?;
    Ok(text)
}

/// Jinja: anything with a length and items, which includes strings and mappings.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::*;
    matches!(value.kind(), Seq | String | Map | Undefined)
}

/// Jinja: whatever iter() takes; None is not iterable, a string is.
fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

const BEGIN_MARK: &str = "__generation_begin";
const END_MARK: &str = "__generation_end";
const NAME: &str = "chat_template";

struct Compiled {
    source: String,
    environment: Environment<'static>,
    has_generation: bool,
}

fn compile(source: &str) -> std::result::Result<Compiled, Error> {
    let mut env = Environment::new();
    // As transformers: trim_blocks, lstrip_blocks; Jinja's default drops one last line end.
    env.set_syntax(
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().expect("valid"),
    );
    env.set_formatter(|out, state, value| match python::as_float(value) {
        Some(float) => out.write_str(&python::float_repr(float)).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    env.set_unknown_method_callback(python_methods::call);
    env.add_filter("tojson", python::tojson);
    env.add_filter("trim", python_methods::trim);
    env.add_filter("string", |value: &Value| python::to_str(value));
    let length = |value: &Value| match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None => Err(python::error(format!("object of type {} has no length", value.kind()))),
    };
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    let rewritten = rewrite(source, BEGIN_MARK, END_MARK);
    let has_generation = rewritten.is_some();
    env.add_template_owned(NAME, rewritten.unwrap_or_else(|| source.to_string()))?;
    Ok(Compiled { source: source.to_string(), environment: env, has_generation })
}

/// The template compiled; each thread keeps its last one.
fn compiled(source: &str) -> std::result::Result<Arc<Compiled>, Error> {
    thread_local!(static LAST: RefCell<Option<Arc<Compiled>>> = const { RefCell::new(None) });
    LAST.with_borrow_mut(|last| match last {
        Some(kept) if kept.source == source => Ok(kept.clone()),
        _ => {
            let fresh = Arc::new(compile(source)?);
            *last = Some(fresh.clone());
            Ok(fresh)
        }
    })
}

fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => items.iter().map(to_value).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), to_value(v)))),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(int), _) => Value::from(int),
            (_, Some(int)) => Value::from(int),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
    }
}

/// A message's reasoning comes under three names; templates read `reasoning_content` or `thinking`.
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
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return UserError(format!("The chat template refuses this chat: {raised}"));
        }
        source = inner.source();
    }
    let line = error.line().map_or(String::new(), |line| format!(", line {line}"));
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    UserError(format!("Chat template{line}: {what}"))
}

pub fn render(source: &str, variables_json: &str) -> Result<Rendered> {
    let mut variables: Map<String, Json> = serde_json::from_str(variables_json)
        .map_err(|e| UserError(format!("Chat template variables are no JSON object: {e}")))?;
    if let Some(Json::Array(messages)) = variables.get_mut("messages") {
        messages.iter_mut().for_each(alias_reasoning);
    }
    // transformers always passes these.
    for (name, value) in
        [("tools", Json::Null), ("documents", Json::Null), ("add_generation_prompt", false.into())]
    {
        variables.entry(name).or_insert(value);
    }
    let template = compiled(source).map_err(explain)?;
    let marks = if template.has_generation {
        let marks = Marks::absent_from(&[source, variables_json]);
        variables.insert(BEGIN_MARK.into(), marks.begin.clone().into());
        variables.insert(END_MARK.into(), marks.end.clone().into());
        Some(marks)
    } else {
        None
    };
    let text = template
        .environment
        .get_template(NAME)
        .and_then(|t| t.render(to_value(&Json::Object(variables))))
        .map_err(explain)?;
    Ok(match marks {
        Some(marks) => {
            let (text, generation) = take_marks(&text, &marks);
            Rendered { text, generation }
        }
        None => Rendered { text, generation: Vec::new() },
    })
}
