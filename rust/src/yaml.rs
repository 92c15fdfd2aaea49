//! Converts YAML to JSON text. The document is written as it is read, so that integers of any size
//! and the order of keys survive.

use std::fmt::Write;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Budget, Error};

use crate::budget::MAX_DEPTH;
use crate::{Result, UserError};

/// Writes one YAML node to the end of a JSON text.
struct Json<'o>(&'o mut String);

fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}

impl<'de> DeserializeSeed<'de> for Json<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> std::result::Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

macro_rules! print_as_it_is {
    ($($method:ident: $type:ty),*) => {
        $(fn $method<E>(self, value: $type) -> std::result::Result<(), E> {
            let _ = write!(self.0, "{value}");
            Ok(())
        })*
    };
}

impl<'de> Visitor<'de> for Json<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    print_as_it_is!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128);

    fn visit_f64<E>(self, value: f64) -> std::result::Result<(), E> {
        self.0.push_str(&serde_json::to_string(&value).expect("a finite number"));
        Ok(())
    }
    fn visit_str<E>(self, value: &str) -> std::result::Result<(), E> {
        self.0.push_str(&quote(value));
        Ok(())
    }
    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        self.0.push_str("null");
        Ok(())
    }
    fn visit_none<E>(self) -> std::result::Result<(), E> {
        self.0.push_str("null");
        Ok(())
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> std::result::Result<(), D::Error> {
        self.deserialize(d)
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(self, d: D) -> std::result::Result<(), D::Error> {
        self.deserialize(d)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        self.0.push('[');
        let begin = self.0.len();
        loop {
            let end = self.0.len();
            if end > begin {
                self.0.push(',');
            }
            if seq.next_element_seed(Json(self.0))?.is_none() {
                self.0.truncate(end);
                break;
            }
        }
        self.0.push(']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        self.0.push('{');
        let begin = self.0.len();
        // JSON's keys are strings: 1 and on become "1" and "on", as they are written.
        while let Some(key) = map.next_key::<String>()? {
            let comma = if self.0.len() > begin { "," } else { "" };
            let _ = write!(self.0, "{comma}{}:", quote(&key));
            map.next_value_seed(Json(self.0))?;
        }
        self.0.push('}');
        Ok(())
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
    let mut budget = Budget::default();
    budget.max_depth = MAX_DEPTH;
    // One more, so that our own limit is reported.
    budget.flow_nesting_limit = MAX_DEPTH + 1;
    let options = serde_saphyr::options! {
        budget: Some(budget),
        with_snippet: false,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::AsString,
    };
    let mut json = String::new();
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |d| {
        Json(&mut json).deserialize(d)
    });
    match read {
        Ok(()) => Ok(json),
        Err(e) => {
            let place = match e.location() {
                Some(at) if at.line() > 0 => {
                    format!(", line {}, column {}", at.line(), at.column().max(1))
                }
                _ => String::new(),
            };
            Err(UserError(format!("{file_name}{place}: {}", in_words(e.without_snippet()))))
        }
    }
}

fn too_deep() -> String {
    format!("nested deeper than {MAX_DEPTH} levels")
}

fn no_text_key() -> String {
    "a key is wanted that is plain text".into()
}

/// Describes an error to an author of YAML.
fn in_words(error: &Error) -> String {
    match error {
        Error::AliasError { error, .. } => in_words(error),
        Error::Budget { breach, .. } => match breach {
            BudgetBreach::Depth { .. } => too_deep(),
            BudgetBreach::Nodes { .. }
            | BudgetBreach::Events { .. }
            | BudgetBreach::ScalarBytes { .. }
            | BudgetBreach::InputBytes { .. } => {
                "the file is too large: 250,000 values and 64 MiB of text are the most, where its \
                 aliases (*name) unfold"
                    .into()
            }
            BudgetBreach::Documents { .. } => "too many documents (---); one is wanted".into(),
            _ => "its anchors (&name), aliases (*name) and merges (<<) unfold to too much; write \
                  the values out"
                .into(),
        },
        Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "its aliases (*name) unfold to too much; write the values out".into()
        }
        Error::UnknownAnchor { .. } => {
            "an alias (*name) stands for an anchor (&name) that is not above it".into()
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias (*name) stands inside the anchor (&name) that it names".into()
        }
        Error::MultipleDocuments { .. } => {
            "a second document begins (---); one is wanted".into()
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => {
            "a merge (<<) wants a mapping, or a list of mappings".into()
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate mapping key: {key}"),
        Error::DuplicateMappingKey { .. } => "duplicate mapping key".into(),
        // Only keys are required to be of one kind.
        Error::Unexpected { expected, .. } if expected.contains("string") => no_text_key(),
        Error::NullIntoString { .. }
        | Error::TaggedScalarCannotDeserializeIntoString { .. }
        | Error::UnexpectedContainerEndWhileReadingKeyNode { .. } => {
            no_text_key()
        }
        Error::BinaryNotUtf8 { .. }
        | Error::InvalidBinaryBase64 { .. }
        | Error::BytesNotSupportedMissingBinaryTag { .. } => {
            "!!binary is of no use here; write text".into()
        }
        Error::Eof { .. } => "the file ends in the middle of a value".into(),
        Error::ContainerEndMismatch { .. }
        | Error::UnexpectedSequenceEnd { .. }
        | Error::UnexpectedMappingEnd { .. } => "a bracket is closed that was never opened".into(),
        Error::UnsupportedTag { tag, .. } => format!("unknown tag {tag}; remove it"),
        other => match other.to_string() {
            // The scanner looks ahead, and may report it first.
            message if message.contains("ecursion limit") => too_deep(),
            message => without_advice(&message),
        },
    }
}

/// Our message has the place already. The library repeats it after its message, and may add advice
/// for programmers.
fn without_advice(message: &str) -> String {
    let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let ends = [" at line ", ", set ", "; use ", "; increase ", ". If you ", " (strict mode"];
    let end = ends.iter().filter_map(|tail| message.find(tail)).min();
    message[..end.unwrap_or(message.len())].to_string()
}
