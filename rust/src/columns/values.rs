//! Values of Arrow's columns as JSON text, as Hugging Face datasets gives them to Python.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::Write;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{downcast_dictionary_array, Array, RecordBatch};
use arrow_buffer::ArrowNativeType;
use arrow_schema::{DataType, Field, Fields};

use serde::de::IgnoredAny;

use crate::{Result, UserError};

const MAX_DEPTH: usize = 100;
/// Maximum number of fields of a file, nested ones included.
const MAX_FIELDS: usize = 1000;
/// Maximum number of bytes of a record as JSON.
const MAX_RECORD: usize = 1 << 30;

/// A field that is not read, because JSON has no such values.
#[derive(serde::Serialize)]
pub struct LeftOut {
    column: String,
    /// The column, or a field within it ("messages.time").
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// A field of a struct, or of a record, that is read.
struct Member {
    index: usize,
    /// `"name":`, with a comma before all but the first.
    prefix: Vec<u8>,
    plan: Plan,
}

/// The way in which a column's values are written.
enum Plan {
    Plain,
    /// Text that is JSON, which stands for the value.
    Json,
    List(Box<Plan>),
    Struct(Vec<Member>),
    Dictionary(Box<Plan>),
}

/// The reason why a field is not read.
enum Refused {
    /// JSON has no such values: of time, for example. Fields beside it are read.
    Field(String),
    /// The same, for the whole column: the bytes of a picture beside its name.
    Column(String),
    /// The file is not read at all.
    File(String),
}

type Planned<T> = std::result::Result<T, Refused>;

pub struct RecordWriter {
    members: Vec<Member>,
    pub left_out: Vec<LeftOut>,
    text: Vec<u8>,
    /// Numbers that are nan or infinite, which JSON does not have.
    pub num_unbounded: u64,
}

/// The type, by the names of pyarrow where these are simple.
fn name_of(kind: &DataType) -> String {
    let text = match kind {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "binary".into(),
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => "decimal".into(),
        other => other.to_string().to_lowercase(),
    };
    text.chars().take(100).collect()
}

#[derive(Default)]
struct Planner {
    num_fields: usize,
    column: String,
    left_out: Vec<LeftOut>,
}

impl Planner {
    fn field(&mut self, field: &Field, path: &str, depth: usize) -> Planned<Plan> {
        match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
                if field.extension_type_name() == Some("arrow.json") =>
            {
                Ok(Plan::Json)
            }
            kind => self.plan(kind, path, depth),
        }
    }

    fn plan(&mut self, kind: &DataType, path: &str, depth: usize) -> Planned<Plan> {
        use DataType::*;
        if depth > MAX_DEPTH {
            return Err(Refused::Column(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(match kind {
            Null | Boolean | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64
            | Float16 | Float32 | Float64 | Utf8 | LargeUtf8 | Utf8View => Plan::Plain,
            List(item) | LargeList(item) | FixedSizeList(item, _) | ListView(item)
            | LargeListView(item) => {
                Plan::List(Box::new(self.field(item, path, depth + 1)?))
            }
            Struct(fields) => Plan::Struct(self.members(fields, path, depth + 1)?),
            Dictionary(_, values) => Plan::Dictionary(Box::new(self.plan(values, path, depth + 1)?)),
            Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => {
                return Err(Refused::Column(name_of(kind)));
            }
            other => return Err(Refused::Field(name_of(other))),
        })
    }

    /// `depth` is 0 for the columns of the file.
    fn members(&mut self, fields: &Fields, path: &str, depth: usize) -> Planned<Vec<Member>> {
        let mut members = Vec::new();
        let mut names = HashSet::new();
        for (index, field) in fields.iter().enumerate() {
            let name = field.name();
            self.num_fields += 1;
            if self.num_fields > MAX_FIELDS {
                return Err(Refused::File(format!(
                    "the file has more than {MAX_FIELDS} columns, those within columns included; \
                     at most {MAX_FIELDS} are read"
                )));
            }
            if !names.insert(name) {
                let name: String = name.chars().take(60).collect();
                let what = format!("two columns are called {name}; give each a name of its own");
                return Err(Refused::File(what));
            }
            if depth == 0 {
                self.column = name.clone();
            }
            let path = if depth == 0 { name.clone() } else { format!("{path}.{name}") };
            let before = self.left_out.len();
            let kind = match self.field(field, &path, depth + 1) {
                Ok(plan) => {
                    let comma = if members.is_empty() { "" } else { "," };
                    let prefix = format!("{comma}{}:", serde_json::json!(name)).into_bytes();
                    members.push(Member { index, prefix, plan });
                    continue;
                }
                Err(Refused::Field(kind)) => kind,
                Err(Refused::Column(kind)) if depth == 0 => kind,
                Err(refused) => return Err(refused),
            };
            self.left_out.truncate(before);
            self.left_out.push(LeftOut { column: self.column.clone(), path, kind });
        }
        Ok(members)
    }
}

impl RecordWriter {
    pub fn new(fields: &Fields) -> Result<Self> {
        let mut planner = Planner::default();
        let members = planner.members(fields, "", 0).map_err(|refused| match refused {
            Refused::Field(what) | Refused::Column(what) | Refused::File(what) => UserError(what),
        })?;
        let left_out = planner.left_out;
        Ok(RecordWriter { members, left_out, text: Vec::new(), num_unbounded: 0 })
    }

    /// Returns a record as a JSON object, in memory that the next call overwrites.
    pub fn write(&mut self, batch: &RecordBatch, row: usize) -> Result<&[u8]> {
        self.text.clear();
        let mut out = Out { text: &mut self.text, num_unbounded: &mut self.num_unbounded };
        out.text.push(b'{');
        for Member { index, prefix, plan } in &self.members {
            out.text.extend_from_slice(prefix);
            out.value(batch.column(*index).as_ref(), row, plan)?;
        }
        out.text.push(b'}');
        Ok(&self.text)
    }
}

struct Out<'a> {
    text: &'a mut Vec<u8>,
    num_unbounded: &'a mut u64,
}

impl Out<'_> {
    fn plain(&mut self, value: impl Display) -> Result<()> {
        write!(self.text, "{value}").map_err(|e| UserError(e.to_string()))
    }

    fn real(&mut self, value: f64) -> Result<()> {
        if value.is_finite() {
            // With a point, so that it stays a float.
            return write!(self.text, "{value:?}").map_err(|e| UserError(e.to_string()));
        }
        *self.num_unbounded += 1;
        self.plain("null")
    }

    fn string(&mut self, value: &str, plan: &Plan) -> Result<()> {
        if matches!(plan, Plan::Json) {
            serde_json::from_str::<IgnoredAny>(value)
                .map_err(|e| UserError(format!("a value of the type JSON is broken: {e}")))?;
            self.text.extend_from_slice(value.as_bytes());
            return Ok(());
        }
        serde_json::to_writer(&mut *self.text, value).map_err(|e| UserError(e.to_string()))
    }

    fn list(&mut self, items: &dyn Array, plan: &Plan) -> Result<()> {
        self.text.push(b'[');
        for i in 0..items.len() {
            if i > 0 {
                self.text.push(b',');
            }
            self.value(items, i, plan)?;
        }
        self.text.push(b']');
        Ok(())
    }

    fn value(&mut self, array: &dyn Array, row: usize, plan: &Plan) -> Result<()> {
        use DataType::*;
        if self.text.len() > MAX_RECORD {
            return Err(UserError(format!("it has more than {} MiB as JSON", MAX_RECORD >> 20)));
        }
        if array.is_null(row) {
            return self.plain("null");
        }
        match (array.data_type(), plan) {
            (Null, _) => self.plain("null"),
            (Boolean, _) => self.plain(array.as_boolean().value(row)),
            (Int8, _) => self.plain(array.as_primitive::<Int8Type>().value(row)),
            (Int16, _) => self.plain(array.as_primitive::<Int16Type>().value(row)),
            (Int32, _) => self.plain(array.as_primitive::<Int32Type>().value(row)),
            (Int64, _) => self.plain(array.as_primitive::<Int64Type>().value(row)),
            (UInt8, _) => self.plain(array.as_primitive::<UInt8Type>().value(row)),
            (UInt16, _) => self.plain(array.as_primitive::<UInt16Type>().value(row)),
            (UInt32, _) => self.plain(array.as_primitive::<UInt32Type>().value(row)),
            (UInt64, _) => self.plain(array.as_primitive::<UInt64Type>().value(row)),
            (Float16, _) => self.real(array.as_primitive::<Float16Type>().value(row).into()),
            (Float32, _) => self.real(array.as_primitive::<Float32Type>().value(row).into()),
            (Float64, _) => self.real(array.as_primitive::<Float64Type>().value(row)),
            (Utf8, _) => self.string(array.as_string::<i32>().value(row), plan),
            (LargeUtf8, _) => self.string(array.as_string::<i64>().value(row), plan),
            (Utf8View, _) => self.string(array.as_string_view().value(row), plan),
            (List(_), Plan::List(item)) => self.list(&array.as_list::<i32>().value(row), item),
            (LargeList(_), Plan::List(item)) => self.list(&array.as_list::<i64>().value(row), item),
            (FixedSizeList(..), Plan::List(item)) => {
                self.list(&array.as_fixed_size_list().value(row), item)
            }
            (ListView(_), Plan::List(item)) => {
                self.list(&array.as_list_view::<i32>().value(row), item)
            }
            (LargeListView(_), Plan::List(item)) => {
                self.list(&array.as_list_view::<i64>().value(row), item)
            }
            (Struct(_), Plan::Struct(members)) => {
                let fields = array.as_struct();
                self.text.push(b'{');
                for Member { index, prefix, plan } in members {
                    self.text.extend_from_slice(prefix);
                    self.value(fields.column(*index).as_ref(), row, plan)?;
                }
                self.text.push(b'}');
                Ok(())
            }
            (Dictionary(..), Plan::Dictionary(values)) => downcast_dictionary_array!(
                array => {
                    let key = array.keys().value(row);
                    self.value(array.values().as_ref(), key.as_usize(), values)
                }
                _ => unreachable!()
            ),
            (other, _) => Err(UserError(format!("the type of a column became {other}"))),
        }
    }
}
