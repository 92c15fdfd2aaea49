//! Splits csv files into records, piece by piece, for the C interface. The caller passes handles
//! that lsr_csv_new made.

use csv_core::{ReadRecordResult, Reader};

use crate::{guard, Owned, View};

pub struct Csv {
    core: Reader,
    /// The text of all cells, one behind the other, and the end of each cell.
    cells: Vec<u8>,
    ends: Vec<usize>,
    num_bytes: usize,
    num_cells: usize,
    is_complete: bool,
}

/// A record, in memory of the reader.
#[repr(C)]
pub struct Record {
    cells: *const u8,
    ends: *const usize,
    num_cells: usize,
    is_utf8: bool,
}

impl Csv {
    fn new() -> Self {
        // Reader::default() has no tables.
        let core = Reader::new();
        let (cells, ends) = (Vec::new(), Vec::new());
        Csv { core, cells, ends, num_bytes: 0, num_cells: 0, is_complete: false }
    }

    /// Reads up to the end of a record. Returns the number of bytes that it has read.
    fn push(&mut self, bytes: &[u8]) -> usize {
        if self.is_complete {
            (self.num_bytes, self.num_cells, self.is_complete) = (0, 0, false);
        }
        let mut used = 0;
        // No bytes would mean the end of the file.
        while used < bytes.len() && !self.is_complete {
            let (result, num_read, num_written, num_ended) = self.core.read_record(
                &bytes[used..],
                &mut self.cells[self.num_bytes..],
                &mut self.ends[self.num_cells..],
            );
            used += num_read;
            self.num_bytes += num_written;
            self.num_cells += num_ended;
            match result {
                ReadRecordResult::InputEmpty | ReadRecordResult::End => {}
                ReadRecordResult::OutputFull => double(&mut self.cells),
                ReadRecordResult::OutputEndsFull => double(&mut self.ends),
                ReadRecordResult::Record => self.is_complete = true,
            }
        }
        used
    }

    /// Whether each cell is UTF-8 by itself.
    fn is_utf8(&self) -> bool {
        let mut begin = 0;
        self.ends[..self.num_cells].iter().all(|&end| {
            let cell = &self.cells[begin..end];
            begin = end;
            std::str::from_utf8(cell).is_ok()
        })
    }
}

fn double<T: Default + Clone>(buffer: &mut Vec<T>) {
    buffer.resize((2 * buffer.len()).max(64), T::default());
}

#[no_mangle]
pub extern "C" fn lsr_csv_new() -> *mut Csv {
    Box::into_raw(Box::new(Csv::new()))
}

#[no_mangle]
pub unsafe extern "C" fn lsr_csv_push(
    csv: *mut Csv,
    bytes: View,
    used: *mut usize,
    is_complete: *mut bool,
    record: *mut Record,
    error: *mut Owned<u8>,
) -> i32 {
    guard(error, || {
        let csv = &mut *csv;
        used.write(csv.push(bytes.bytes()));
        is_complete.write(csv.is_complete);
        if csv.is_complete {
            record.write(Record {
                cells: csv.cells.as_ptr(),
                ends: csv.ends.as_ptr(),
                num_cells: csv.num_cells,
                is_utf8: csv.is_utf8(),
            });
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lsr_csv_free(csv: *mut Csv) {
    drop(Box::from_raw(csv));
}
