//! Reads the records of parquet and Arrow files, for the C interface. The caller passes handles
//! that lsr_columns_open made.

mod arrow_file;
mod parquet_file;
mod values;

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::compressed::file_of;
use crate::{guard, of_a_stranger, owned, Owned, Result, UserError, View};
use arrow_file::Stream;
use parquet_file::Parquet;
use values::RecordWriter;

/// A part of a regular file, read at places of its own.
#[derive(Clone)]
struct Part {
    file: Arc<File>,
    size: u64,
}

impl Part {
    fn bytes(&self, begin: u64, size: usize) -> io::Result<Vec<u8>> {
        if begin.checked_add(size as u64).is_none_or(|end| end > self.size) {
            return Err(io::Error::other("the file ends early"));
        }
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, begin)?;
        Ok(bytes)
    }
}

fn broken(what: impl Display) -> UserError {
    let what: String = what.to_string().lines().next().unwrap_or_default().chars().take(300).collect();
    UserError(format!("the file is broken, or not of the kind that its ending says: {what}"))
}

enum Source {
    Parquet(Box<Parquet>),
    Stream(Stream),
}

impl Source {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        match self {
            Source::Parquet(parquet) => parquet.next(),
            Source::Stream(stream) => stream.next(),
        }
    }
}

pub struct Columns {
    source: Source,
    writer: RecordWriter,
    batch: Option<RecordBatch>,
    next_row: usize,
}

impl Columns {
    fn open(file: File, is_parquet: bool) -> Result<Self> {
        let size = file.metadata().map_err(broken)?.len();
        let part = Part { file: Arc::new(file), size };
        let (source, schema) = if is_parquet {
            let parquet = Parquet::open(part)?;
            let schema = parquet.schema();
            (Source::Parquet(Box::new(parquet)), schema)
        } else {
            let stream = Stream::open(part)?;
            let schema = stream.schema();
            (Source::Stream(stream), schema)
        };
        let writer = RecordWriter::new(schema.fields())?;
        Ok(Columns { source, writer, batch: None, next_row: 0 })
    }

    fn next(&mut self) -> Result<Option<&[u8]>> {
        loop {
            if let Some(batch) = self.batch.as_ref().filter(|b| self.next_row < b.num_rows()) {
                self.next_row += 1;
                return self.writer.write(batch, self.next_row - 1).map(Some);
            }
            self.batch = None; // before the next one is decoded
            self.next_row = 0;
            match self.source.next()? {
                Some(batch) => self.batch = Some(batch),
                None => return Ok(None),
            }
        }
    }
}

/// The descriptor must be of a regular file. `left_out` gets a JSON list of fields that are not
/// read: {column, path, type}.
#[no_mangle]
pub unsafe extern "C" fn lsr_columns_open(
    descriptor: i32,
    is_parquet: bool,
    handle: *mut *mut Columns,
    left_out: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let file = file_of(descriptor)?;
        let columns = of_a_stranger(&"the file", || Columns::open(file, is_parquet))?;
        left_out.write(owned(serde_json::to_string(&columns.writer.left_out).unwrap()));
        handle.write(Box::into_raw(Box::new(columns)));
        Ok(())
    })
}

/// `record` is the archive's, and valid until the next call; its data is null after the last one.
#[no_mangle]
pub unsafe extern "C" fn lsr_columns_next(
    handle: *mut Columns,
    record: *mut View,
    num_unbounded: *mut u64,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let columns = &mut *handle;
        let next = of_a_stranger(&"the file", || {
            let next = columns.next()?;
            Ok(next.map(|text| View { data: text.as_ptr(), size: text.len() }))
        })?;
        record.write(next.unwrap_or(View { data: std::ptr::null(), size: 0 }));
        num_unbounded.write(columns.writer.num_unbounded);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_columns_free(handle: *mut Columns) {
    drop(Box::from_raw(handle));
}
