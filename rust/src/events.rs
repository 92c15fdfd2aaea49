//! Event files of TensorBoard: records with a protobuf message each and masked CRC-32C.
//!
//! A record is: length (u64), CRC of the length, the message, CRC of the message; all little
//! endian. The messages are those of tensorboard/compat/proto/{event,summary}.proto, as far as
//! scalars need them.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use serde_json::{Map, Value as Json};

use crate::{files, Result, UserError};

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Tells readers to drop their data of this step and later ones, which follow again.
const SESSION_START: i32 = 1;
const PREFIX: &str = "events.out.tfevents.";

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn record(event: &Event) -> Vec<u8> {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    let mut bytes = length.to_vec();
    bytes.extend(masked_crc(&length).to_le_bytes());
    bytes.extend(&message);
    bytes.extend(masked_crc(&message).to_le_bytes());
    bytes
}

/// Returns the length and the message of the first record; None if it is incomplete or broken.
fn first_record(bytes: &[u8]) -> Option<(usize, Event)> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?) as usize;
    let message = bytes.get(12..)?.get(..length)?;
    let crc = bytes.get(12 + length..)?.get(..4)?;
    let right = crc == masked_crc(message).to_le_bytes();
    right.then(|| Event::decode(message).ok()).flatten().map(|event| (16 + length, event))
}

/// Returns the offset of the first record of a step after `last`, or of the first broken record.
fn end_of_step(bytes: &[u8], last: i64) -> usize {
    let mut end = 0;
    while let Some((length, event)) = first_record(&bytes[end..]) {
        if event.step > last {
            break;
        }
        end += length;
    }
    end
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn number(value: &Json) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

pub struct EventFile {
    path: PathBuf,
    file: File,
    written: u64,
    /// Data that the disk had no space for.
    pending: Vec<u8>,
}

fn failed(path: &Path, error: &std::io::Error) -> UserError {
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "Free some space, or give another logging_dir."
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "Give a logging_dir that you may write to."
        }
        ErrorKind::NotFound => "Create the folder again, or give another logging_dir.",
        _ => "Give another logging_dir.",
    };
    UserError(format!(
        "{}: TensorBoard's file cannot be written ({error}). {remedy}",
        path.display()
    ))
}

/// Returns the files with this suffix in the folder, which is created if missing.
fn earlier(folder: &Path, suffix: &str) -> std::io::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map_or("".into(), |name| name.to_string_lossy());
        if name.starts_with(PREFIX) && name.ends_with(&format!(".{suffix}")) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Removes a file's records of steps after `last`, or the whole file if it is negative.
fn cut(path: &Path, last: i64) -> std::io::Result<()> {
    if last < 0 {
        return files::remove(path);
    }
    let mut file = files::open_to_cut(path)?;
    let end = end_of_step(&files::rest_of(&mut file, files::ANY_SIZE)?, last);
    file.set_len(end as u64)
}

/// Creates a file named after the present second, or after the next one without a file, since
/// readers order files by name.
fn new_file(folder: &Path, suffix: &str) -> std::io::Result<(PathBuf, File)> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
    let mut second = now() as u64;
    loop {
        let process = std::process::id();
        let path = folder.join(format!("{PREFIX}{second:010}.{host}.{process}.{suffix}"));
        match files::create_new(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => second += 1,
            made => return made.map(|file| (path, file)),
        }
    }
}

impl EventFile {
    /// Creates a file in the folder. In files that end with `suffix`, removes records after
    /// `last_step`, or all of them if it is negative.
    pub fn new(folder: &str, suffix: &str, last_step: i64) -> Result<Self> {
        let folder = Path::new(folder);
        for path in earlier(folder, suffix).map_err(|error| failed(folder, &error))? {
            cut(&path, last_step).map_err(|error| failed(&path, &error))?;
        }
        Self::create(folder, suffix, last_step).map_err(|error| failed(folder, &error))?.flushed()
    }

    fn create(folder: &Path, suffix: &str, last_step: i64) -> std::io::Result<Self> {
        let (path, file) = new_file(folder, suffix)?;
        let version = Some("brain.Event:2".to_string());
        let head = Event { wall_time: now(), file_version: version, ..Default::default() };
        let mut pending = record(&head);
        if last_step >= 0 {
            let start = Some(SessionLog { status: SESSION_START });
            let step = last_step + 1;
            pending.extend(record(&Event {
                wall_time: now(),
                step,
                session_log: start,
                ..Default::default()
            }));
        }
        Ok(EventFile { path, file, written: 0, pending })
    }

    /// `scalars`: a JSON object of numbers, or of "nan" and the like, by tag. Data that cannot be
    /// written now are written with the next ones.
    pub fn add(&mut self, scalars: &str, step: i64) -> Result<()> {
        let scalars: Map<String, Json> =
            serde_json::from_str(scalars).expect("an object that this program wrote");
        let value = scalars
            .iter()
            .map(|(tag, value)| Scalar {
                tag: tag.clone(),
                simple_value: Some(number(value).expect("a number") as f32),
            })
            .collect();
        self.pending.extend(record(&Event {
            wall_time: now(),
            step,
            summary: Some(Summary { value }),
            ..Default::default()
        }));
        self.flush()
    }

    fn flushed(mut self) -> Result<Self> {
        self.flush()?;
        Ok(self)
    }

    /// Writes whole records or nothing, since readers stop at an incomplete record.
    pub fn flush(&mut self) -> Result<()> {
        if let Err(error) = self.file.write_all_at(&self.pending, self.written) {
            let _ = self.file.set_len(self.written);
            return Err(failed(&self.path, &error));
        }
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}
