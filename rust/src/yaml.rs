//! YAML to JSON text. The document is written out as it is read, so that integers of any size and
//! the order of keys survive.

use std::fmt::Write;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::{Result, UserError};

/// JSON text of one YAML node.
struct Json(String);

struct JsonVisitor;

fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        d.deserialize_any(JsonVisitor)
    }
}

macro_rules! print_as_it_is {
    ($($method:ident: $type:ty),*) => {
        $(fn $method<E>(self, value: $type) -> std::result::Result<Json, E> {
            Ok(Json(value.to_string()))
        })*
    };
}

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    print_as_it_is!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128);

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Json, E> {
        Ok(Json(serde_json::to_string(&value).expect("a finite number")))
    }
    fn visit_str<E>(self, value: &str) -> std::result::Result<Json, E> {
        Ok(Json(quote(value)))
    }
    fn visit_unit<E>(self) -> std::result::Result<Json, E> {
        Ok(Json("null".into()))
    }
    fn visit_none<E>(self) -> std::result::Result<Json, E> {
        Ok(Json("null".into()))
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> std::result::Result<Json, D::Error> {
        Json::deserialize(d)
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        d: D,
    ) -> std::result::Result<Json, D::Error> {
        Json::deserialize(d)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Json, A::Error> {
        let mut out = String::from("[");
        while let Some(Json(item)) = seq.next_element()? {
            let comma = if out.len() > 1 { "," } else { "" };
            let _ = write!(out, "{comma}{item}");
        }
        out.push(']');
        Ok(Json(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Json, A::Error> {
        let mut out = String::from("{");
        // JSON's keys are strings: 1 and on become "1" and "on", as they are written.
        while let Some((key, Json(value))) = map.next_entry::<String, Json>()? {
            let key = quote(&key);
            let comma = if out.len() > 1 { "," } else { "" };
            let _ = write!(out, "{comma}{key}:{value}");
        }
        out.push('}');
        Ok(Json(out))
    }
}

pub fn to_json(yaml: &[u8], file_name: &str) -> Result<String> {
    let text = std::str::from_utf8(yaml).map_err(|e| {
        let line = 1 + yaml[..e.valid_up_to()].iter().filter(|&&b| b == b'\n').count();
        UserError(format!("{file_name}, line {line}: not UTF-8 text. Save the file as UTF-8."))
    })?;
    if text.trim().is_empty() {
        return Ok("null".into());
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::AsString,
    };
    match serde_saphyr::from_str_with_options::<Json>(text, options) {
        Ok(Json(json)) => Ok(json),
        Err(e) => {
            let place = match e.location() {
                Some(at) if at.line() > 0 => {
                    format!(", line {}, column {}", at.line(), at.column().max(1))
                }
                _ => String::new(),
            };
            Err(UserError(format!("{file_name}{place}: {}", one_line(&e.to_string()))))
        }
    }
}

/// The place is said by us already; the library says it once more after the message.
fn one_line(message: &str) -> String {
    let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    // And it ends the one about duplicate keys with advice to programmers.
    let ends = [" at line ", ", set DuplicateKeyPolicy"];
    let end = ends.iter().filter_map(|tail| message.find(tail)).min();
    message[..end.unwrap_or(message.len())].to_string()
}
