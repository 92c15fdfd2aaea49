//! Reads parquet files, a few records at a time.

use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::{broken, Part};
use crate::{Result, UserError};

/// Maximum numbers of bytes and of values of a page of a parquet file.
const MAX_PAGE: i64 = 256 << 20;
const MAX_PAGE_VALUES: i64 = 1 << 24;
/// Records that are decoded together: at most so many, and about so many bytes.
const MAX_BATCH: i64 = 256;
const BATCH_BYTES: i64 = 8 << 20;
/// The pages of a file, each of which is checked.
#[derive(Clone)]
struct Pages(Part);

impl Length for Part {
    fn len(&self) -> u64 {
        self.size
    }
}

impl Length for Pages {
    fn len(&self) -> u64 {
        self.0.size
    }
}

/// For the description at the end of a file.
impl ChunkReader for Part {
    type T = Rest;

    fn get_read(&self, start: u64) -> std::result::Result<Self::T, ParquetError> {
        Ok(Rest { part: self.clone(), at: start })
    }

    fn get_bytes(&self, start: u64, size: usize) -> std::result::Result<Bytes, ParquetError> {
        Ok(self.bytes(start, size)?.into())
    }
}

/// Why a walk over a structure in Thrift's compact protocol ends early.
enum Halt {
    EndOfBytes,
    Broken,
}

/// Walks over a structure before the library reads it. Each element of a list takes a byte or more,
/// so the walk ends; the library reads 2^31 elements of a list of one-bit elements without a byte.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    fn skip(&mut self, count: u64) -> std::result::Result<(), Halt> {
        let left = self.bytes.len() - self.at;
        let count = usize::try_from(count).map_err(|_| Halt::Broken)?;
        if count > left {
            return Err(Halt::EndOfBytes);
        }
        self.at += count;
        Ok(())
    }

    fn byte(&mut self) -> std::result::Result<u8, Halt> {
        self.skip(1)?;
        Ok(self.bytes[self.at - 1])
    }

    fn number(&mut self) -> std::result::Result<u64, Halt> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Halt::Broken)
    }

    fn elements(&mut self, count: u64, kinds: &[u8], depth: u8) -> std::result::Result<(), Halt> {
        if count > 0 && kinds.iter().all(|kind| matches!(kind, 1 | 2)) {
            return Err(Halt::Broken);
        }
        for _ in 0..count {
            kinds.iter().try_for_each(|&kind| self.value(kind, depth))?;
        }
        Ok(())
    }

    fn value(&mut self, kind: u8, depth: u8) -> std::result::Result<(), Halt> {
        let depth = depth.checked_sub(1).ok_or(Halt::Broken)?;
        match kind {
            1 | 2 => Ok(()), // true, false
            3 => self.skip(1),
            4..=6 => self.number().map(|_| ()),
            7 => self.skip(8),
            8 => {
                let count = self.number()?;
                self.skip(count)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
                self.elements(count, &[head & 0xf], depth)
            }
            11 => match self.number()? {
                0 => Ok(()),
                count => {
                    let kinds = self.byte()?;
                    self.elements(count, &[kinds >> 4, kinds & 0xf], depth)
                }
            },
            12 => loop {
                let head = self.byte()?;
                if head & 0xf == 0 {
                    return Ok(());
                }
                if head >> 4 == 0 {
                    self.number()?; // the field's number
                }
                self.value(head & 0xf, depth)?;
            },
            13 => self.skip(16),
            _ => Err(Halt::Broken),
        }
    }
}

/// Walks over a structure at the begin of the bytes.
fn walk(bytes: &[u8]) -> std::result::Result<(), Halt> {
    const STRUCTURE: u8 = 12;
    Walk { bytes, at: 0 }.value(STRUCTURE, 32)
}

/// Checks the description at the end of a file. The library refuses a file without one.
fn check_footer(part: &Part) -> Result<()> {
    let Some(end) = part.size.checked_sub(8) else { return Ok(()) };
    let tail = part.bytes(end, 8).map_err(broken)?;
    let size = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if &tail[4..] != b"PAR1" || size > end {
        return Ok(());
    }
    let footer = part.bytes(end - size, size as usize).map_err(broken)?;
    walk(&footer).map_err(|_| broken("its description has fields that no writer writes"))
}

/// The begin of a page's header, in Thrift's compact protocol: type, size, compressed size,
/// checksum if there is one, and the number of values. Every writer writes them in this order.
fn check_page(header: &[u8]) -> std::result::Result<(), &'static str> {
    const NUMBER: u8 = 0x5;
    let (mut at, mut field) = (0, 0);
    let mut numbers = [0i64; 9];
    loop {
        let Some(&begin) = header.get(at) else { return Err("a page's header ends early") };
        at += 1;
        // The distance to the number of the last field, and the type.
        let (distance, kind) = (begin >> 4, begin & 0xf);
        if distance == 0 || field + distance > 8 {
            return Err("a page's header has an unknown field");
        }
        field += distance;
        let is_values = kind == 0xc && matches!(field, 5 | 7 | 8);
        if is_values && header.get(at) == Some(&(1 << 4 | NUMBER)) {
            at += 1;
        } else if kind != NUMBER || field > 4 {
            return Err("a page's header has fields in an unknown order");
        }
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let Some(&byte) = header.get(at) else { return Err("a page's header ends early") };
            at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
            if shift > 35 {
                return Err("a page's header has a number beyond 32 bits");
            }
        }
        numbers[field as usize] = (value >> 1) as i64 ^ -((value & 1) as i64);
        if is_values {
            break;
        }
    }
    let (size, values) = (numbers[2].max(numbers[3]), numbers[5].max(numbers[7]).max(numbers[8]));
    if size > MAX_PAGE || values > MAX_PAGE_VALUES {
        return Err("a page of a column has more than 256 MiB, or more than 16,777,216 values, \
                    the most that are read; write the file with smaller pages");
    }
    Ok(())
}

impl ChunkReader for Pages {
    type T = BufReader<Header>;

    /// Called for the headers of pages, and now and then without reading.
    fn get_read(&self, start: u64) -> std::result::Result<Self::T, ParquetError> {
        let header = Header { rest: self.0.get_read(start)?, is_checked: false };
        Ok(BufReader::with_capacity(256, header))
    }

    fn get_bytes(&self, start: u64, size: usize) -> std::result::Result<Bytes, ParquetError> {
        self.0.get_bytes(start, size)
    }
}

/// Reads a page's header, which the first read checks.
pub struct Header {
    rest: Rest,
    is_checked: bool,
}

impl Read for Header {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if !self.is_checked {
            let Rest { part, at } = &self.rest;
            let left = part.size.saturating_sub(*at);
            check_page(&part.bytes(*at, left.min(64) as usize)?).map_err(io::Error::other)?;
            // A header with statistics may be long.
            let is_whole = [64, 4096, 1 << 20].into_iter().any(|most| {
                part.bytes(*at, left.min(most) as usize).is_ok_and(|bytes| walk(&bytes).is_ok())
            });
            if !is_whole {
                return Err(io::Error::other("a page's header is broken, or longer than 1 MiB"));
            }
            self.is_checked = true;
        }
        self.rest.read(to)
    }
}

pub struct Rest {
    part: Part,
    at: u64,
}

impl Read for Rest {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.part.file.read_at(to, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

pub struct Parquet {
    part: Part,
    metadata: ArrowReaderMetadata,
    next_group: usize,
    reader: Option<ParquetRecordBatchReader>,
}

fn check_compression(group: &RowGroupMetaData) -> Result<()> {
    for column in group.columns() {
        let compression = column.compression();
        match compression {
            Compression::UNCOMPRESSED
            | Compression::SNAPPY
            | Compression::GZIP(_)
            | Compression::ZSTD(_) => {}
            other => {
                let other = other.to_string();
                let name = other.split('(').next().unwrap_or_default();
                return Err(UserError(format!(
                    "the file is compressed by {name}; snappy, gzip and zstd are read. Write it \
                     anew: python -c \"import pyarrow.parquet as p; \
                     p.write_table(p.read_table('OLD'), 'NEW', compression='zstd')\""
                )));
            }
        }
    }
    Ok(())
}

impl Parquet {
    pub fn open(part: Part) -> Result<Self> {
        // Types follow from the parquet types alone, and not from a copy of Arrow's schema.
        check_footer(&part)?;
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = ArrowReaderMetadata::load(&part, options).map_err(broken)?;
        metadata.metadata().row_groups().iter().try_for_each(check_compression)?;
        Ok(Parquet { part, metadata, next_group: 0, reader: None })
    }

    pub fn schema(&self) -> SchemaRef {
        self.metadata.schema().clone()
    }

    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.reader.as_mut().and_then(|reader| reader.next()) {
                return batch.map(Some).map_err(broken);
            }
            let Some(group) = self.metadata.metadata().row_groups().get(self.next_group) else {
                return Ok(None);
            };
            let mean = group.total_byte_size() / group.num_rows().max(1);
            let size = (BATCH_BYTES / mean.max(1)).clamp(1, MAX_BATCH) as usize;
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
                Pages(self.part.clone()),
                self.metadata.clone(),
            );
            let builder = builder.with_row_groups(vec![self.next_group]).with_batch_size(size);
            self.reader = Some(builder.build().map_err(broken)?);
            self.next_group += 1;
        }
    }
}

