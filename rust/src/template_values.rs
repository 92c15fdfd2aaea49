//! Values of a rendering: inputs, which know their own size and depth, and checks of values that
//! the template makes.

use std::collections::HashMap;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, Tuple, Value, ValueKind};
use minijinja::Error;
use serde_json::Value as Json;

use crate::budget::{self, spent, MAX_DEPTH};

/// Bytes that a value counts besides its text.
const VALUE: usize = 64;

#[derive(Clone, Copy, Default)]
struct Extent {
    /// Levels of lists and maps.
    depth: usize,
    bytes: usize,
}

#[derive(Debug)]
struct GivenList {
    items: Vec<Value>,
    depth: usize,
    bytes: usize,
}

impl Object for GivenList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

#[derive(Debug)]
struct GivenMap {
    items: Vec<(Value, Value)>,
    places: HashMap<Arc<str>, usize>,
    depth: usize,
    bytes: usize,
}

impl Object for GivenMap {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.places.get(key).map(|&place| self.items[place].1.clone())
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_key_value_enumerator(|this| Box::new(this.items.iter().cloned()))
    }
    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

fn given(json: &Json) -> (Value, Extent) {
    let scalar = |value| (value, Extent { depth: 0, bytes: VALUE });
    match json {
        Json::Null => scalar(Value::from(())),
        Json::Bool(b) => scalar(Value::from(*b)),
        Json::String(s) => (Value::from(s.as_str()), Extent { depth: 0, bytes: VALUE + s.len() }),
        Json::Number(n) => scalar(match (n.as_i64(), n.as_u64()) {
            (Some(int), _) => Value::from(int),
            (_, Some(int)) => Value::from(int),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        }),
        Json::Array(list) => {
            let (mut depth, mut bytes) = (0, VALUE);
            let items = list.iter().map(given).map(|(item, extent)| {
                depth = depth.max(extent.depth);
                bytes += extent.bytes;
                item
            });
            let items = items.collect();
            depth += 1;
            (Value::from_object(GivenList { items, depth, bytes }), Extent { depth, bytes })
        }
        Json::Object(map) => {
            let (mut depth, mut bytes) = (0, VALUE);
            let mut items = Vec::with_capacity(map.len());
            let mut places = HashMap::with_capacity(map.len());
            for (key, item) in map {
                let (item, extent) = given(item);
                depth = depth.max(extent.depth);
                bytes += extent.bytes + VALUE + key.len();
                places.insert(Arc::from(key.as_str()), items.len());
                items.push((Value::from(key.as_str()), item));
            }
            depth += 1;
            (Value::from_object(GivenMap { items, places, depth, bytes }), Extent { depth, bytes })
        }
    }
}

/// Converts a template's input to values.
pub fn from_json(json: &Json) -> Value {
    given(json).0
}

fn known(value: &Value) -> Option<Extent> {
    if let Some(map) = value.downcast_object_ref::<GivenMap>() {
        return Some(Extent { depth: map.depth, bytes: map.bytes });
    }
    let list = value.downcast_object_ref::<GivenList>()?;
    Some(Extent { depth: list.depth, bytes: list.bytes })
}

fn look_below(value: &Value, above: usize) -> Result<usize, Error> {
    let Some(object) = value.as_object() else {
        let bytes = VALUE + value.as_str().map_or(0, str::len);
        budget::work(bytes)?;
        return Ok(bytes);
    };
    let extent = known(value);
    let depth = above + extent.map_or(1, |extent| extent.depth);
    if depth > MAX_DEPTH {
        return Err(spent(format!("makes a value nested deeper than {MAX_DEPTH} levels")));
    }
    let mut bytes = extent.map_or(VALUE, |extent| extent.bytes);
    budget::work(bytes)?;
    if extent.is_some() {
        return Ok(bytes);
    }
    if let Some(list) = value.downcast_object_ref::<Vec<Value>>() {
        for item in list {
            bytes = bytes.saturating_add(look_below(item, above + 1)?);
        }
        return Ok(bytes);
    }
    match object.repr() {
        ObjectRepr::Map => {
            for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                bytes = bytes.saturating_add(look_below(&key, above + 1)?);
                bytes = bytes.saturating_add(look_below(&item, above + 1)?);
            }
        }
        ObjectRepr::Seq | ObjectRepr::Iterable => {
            for item in object.try_iter().into_iter().flatten() {
                bytes = bytes.saturating_add(look_below(&item, above + 1)?);
            }
        }
        _ => {}
    }
    Ok(bytes)
}

/// Returns the bytes of a value with all its contents, counting repetitions, and counts them as
/// work. A too deeply nested value is an error, since copies, comparisons and destructors recurse.
pub fn look(value: &Value) -> Result<usize, Error> {
    look_below(value, 0)
}

/// Returns a list in place of a lazy value, which would make its items again at each read.
pub fn listed(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        if items.len() == items.capacity() {
            budget::make(3 * items.len() * size_of::<Value>())?;
        }
        items.push(item);
    }
    Ok(Value::from(items))
}

/// Checks a value that gets a name, and may become part of later values.
pub fn kept(value: Value) -> Result<Value, Error> {
    if value.as_object().is_none() {
        return Ok(value);
    }
    let value = listed(value)?;
    look(&value)?;
    budget::room(0)?;
    Ok(value)
}

/// Returns the items of both lists, or of both tuples.
pub fn chained(a: &Value, b: &Value, times: usize) -> Result<Value, Error> {
    let (Some(first), Some(second)) = (a.len(), b.len()) else {
        return chained(&listed(a.clone())?, &listed(b.clone())?, times);
    };
    let length = first.saturating_add(second).saturating_mul(times);
    budget::make(length.saturating_mul(size_of::<Value>()))?;
    let mut items = Vec::with_capacity(length);
    for _ in 0..times {
        items.extend(a.try_iter()?);
        items.extend(b.try_iter()?);
    }
    Ok(if a.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}
