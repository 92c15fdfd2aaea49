//! Reads Arrow files (streams, and files of random access), a record batch at a time.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::{root_as_message, MessageHeader};
use arrow_schema::{ArrowError, SchemaRef};

use super::{broken, Part};
use crate::{Result, UserError};

/// Maximum numbers of bytes of a message of an Arrow file: its description, and its values.
const MAX_MESSAGE: usize = 16 << 20;
const MAX_BODY: u64 = 1 << 30;

/// A stream of messages. A file of Arrow's other kind is such a stream between two marks.
pub struct Stream {
    part: Part,
    at: u64,
    /// A file of random access, whose stream ends with a mark.
    has_end: bool,
    schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
}

struct Message {
    head: Vec<u8>,
    body: Buffer,
}

/// Bounds the values of a message by its bytes: 8 for each byte, of bits.
fn check_batch(batch: &arrow_ipc::RecordBatch, body: &Buffer) -> Result<()> {
    if batch.compression().is_some() {
        return Err(UserError(
            "the values are compressed (as Feather writes them); wanted are values without \
             compression, or a parquet file. Write it anew: python -c \"import pyarrow.feather as \
             f; f.write_feather(f.read_table('OLD'), 'NEW.arrow', compression='uncompressed')\""
                .into(),
        ));
    }
    let most = 65_536 + 8 * body.len() as i64;
    let nodes = batch.nodes();
    let lengths = nodes.iter().flatten().map(|node| node.length()).chain([batch.length()]);
    match lengths.max() {
        Some(longest) if longest > most => Err(broken("it has more values than bits")),
        _ => Ok(()),
    }
}

fn checked<T>(result: std::result::Result<T, ArrowError>) -> Result<T> {
    result.map_err(broken)
}

impl Stream {
    pub fn open(part: Part) -> Result<Self> {
        const MARK: &[u8] = b"ARROW1\0\0";
        let begin = part.bytes(0, part.size.min(8) as usize).map_err(broken)?;
        let at = if begin == MARK { 8 } else { 0 };
        let schema = Arc::new(arrow_schema::Schema::empty());
        let dictionaries = HashMap::new();
        let mut stream = Stream { part, at, has_end: at > 0, schema, dictionaries };
        let Some(message) = stream.message()? else { return Err(broken("it has no schema")) };
        let head = root_as_message(&message.head).map_err(broken)?;
        let Some(schema) = head.header_as_schema() else {
            return Err(broken("it does not begin with a schema"));
        };
        if schema.endianness() != arrow_ipc::Endianness::Little {
            return Err(broken("its numbers are big-endian; little-endian ones are read"));
        }
        stream.schema = Arc::new(checked(arrow_ipc::convert::try_fb_to_schema(schema))?);
        Ok(stream)
    }

    fn number(&mut self) -> Result<u32> {
        let bytes = self.part.bytes(self.at, 4).map_err(broken)?;
        self.at += 4;
        Ok(u32::from_le_bytes(bytes.try_into().unwrap()))
    }

    /// Returns the next message; None at the end.
    fn message(&mut self) -> Result<Option<Message>> {
        if self.at == self.part.size && !self.has_end {
            return Ok(None);
        }
        let mut size = self.number()?;
        if size == u32::MAX {
            size = self.number()?;
        }
        if size == 0 {
            return Ok(None);
        }
        if size as usize > MAX_MESSAGE {
            return Err(broken(format!("a message's description has {size} bytes")));
        }
        let head = self.part.bytes(self.at, size as usize).map_err(broken)?;
        self.at += u64::from(size);
        let body = root_as_message(&head).map_err(broken)?.bodyLength() as u64;
        if body > self.part.size - self.at {
            return Err(broken("the file ends early"));
        }
        if body > MAX_BODY {
            return Err(UserError(format!(
                "{body} bytes of records lie together (a record batch), and at most {MAX_BODY} \
                 are read. Write smaller batches, or a parquet file"
            )));
        }
        let bytes = self.part.bytes(self.at, body as usize).map_err(broken)?;
        self.at += body;
        Ok(Some(Message { head, body: Buffer::from(bytes) }))
    }

    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(Message { head, body }) = self.message()? {
            let head = root_as_message(&head).map_err(broken)?;
            let version = head.version();
            if let Some(values) = head.header_as_dictionary_batch() {
                if let Some(batch) = values.data() {
                    check_batch(&batch, &body)?;
                }
                checked(arrow_ipc::reader::read_dictionary(
                    &body,
                    values,
                    &self.schema,
                    &mut self.dictionaries,
                    &version,
                ))?;
            } else if let Some(batch) = head.header_as_record_batch() {
                check_batch(&batch, &body)?;
                let batch = arrow_ipc::reader::read_record_batch(
                    &body,
                    batch,
                    self.schema.clone(),
                    &self.dictionaries,
                    None,
                    &version,
                );
                return checked(batch).map(Some);
            } else if head.header_type() != MessageHeader::NONE {
                return Err(broken("it has a message of an unknown kind"));
            }
        }
        Ok(None)
    }
}
